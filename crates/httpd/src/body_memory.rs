use crate::addresses::counted_as;
use crate::counters::Counters;
use axum::body::Bytes;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

/// The memory for bodies that are held as a whole: those of requests as they come, and answers until their
/// clients have taken them. No address has more than half of it, so that who sends or takes slowly keeps out
/// nobody but himself. Who finds no room is refused at once: who waited would hold something else meanwhile.
#[derive(Clone)]
pub struct BodyMemory(Arc<Memory>);

struct Memory {
    bytes_max: usize,
    taken: Mutex<Taken>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Taken {
    all_bytes: usize,
    /// The bytes of each address that has any.
    bytes_of: HashMap<IpAddr, usize>,
}

/// The memory that one body has, until this is dropped.
pub struct Room {
    memory: BodyMemory,
    /// The address whose half counts; `None`: a request that came from none.
    address: Option<IpAddr>,
    bytes: usize,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "bodies on their way have all the memory that there is for them, or those of one address their half of it"
)]
pub struct NoRoom;

impl BodyMemory {
    /// A part of the memory of the port with these counters.
    pub fn new(bytes_max: usize, counters: Arc<Counters>) -> BodyMemory {
        counters.bodies_bytes_max.change(0, bytes_max);
        BodyMemory(Arc::new(Memory { bytes_max, taken: Mutex::default(), counters }))
    }

    /// No room yet for a body of this peer, as it stands in the extensions of its request.
    pub fn room(&self, peer: Option<&SocketAddr>) -> Room {
        Room { memory: self.clone(), address: peer.map(|peer| counted_as(peer.ip())), bytes: 0 }
    }

    pub fn bytes_in_use(&self) -> usize {
        self.0.taken.lock().expect("no holder panics").all_bytes
    }
}

impl Room {
    /// Takes room, or gives some back, until there are so many bytes of it. After an error it has what it
    /// had.
    pub fn hold(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let memory = &self.memory.0;
        let mut taken = memory.taken.lock().expect("no holder panics");
        let all_bytes = taken.all_bytes - self.bytes + bytes;
        let of_address = self.address.map(|address| {
            let had = taken.bytes_of.get(&address).copied().unwrap_or(0);
            (address, had - self.bytes + bytes)
        });
        let fits = all_bytes <= memory.bytes_max
            && of_address.is_none_or(|(_, of_address)| of_address <= memory.bytes_max / 2);
        if bytes > self.bytes && !fits {
            memory.counters.bodies_refused.count();
            return Err(NoRoom);
        }
        taken.all_bytes = all_bytes;
        match of_address {
            Some((address, 0)) => drop(taken.bytes_of.remove(&address)),
            Some((address, of_address)) => drop(taken.bytes_of.insert(address, of_address)),
            None => {}
        }
        memory.counters.bodies_bytes.change(self.bytes, bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Bytes that have this room until the last slice of them is dropped.
    pub fn of(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Roomy { bytes, _room: self })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.hold(0).expect("less always fits");
    }
}

struct Roomy {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Roomy {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(memory: &BodyMemory, peer: &str) -> Room {
        memory.room(Some(&peer.parse().unwrap()))
    }

    #[test]
    fn an_address_has_half_of_it_and_the_others_what_is_left() {
        let memory = BodyMemory::new(100, Arc::default());
        let [mut first, mut beside] = ["10.0.0.1:1", "[::ffff:10.0.0.1]:2"].map(|peer| room(&memory, peer));
        first.hold(40).unwrap();
        beside.hold(10).unwrap();
        beside.hold(11).unwrap_err();
        let [mut network, mut same] = ["[2001:db8::1]:1", "[2001:db8::2]:1"].map(|peer| room(&memory, peer));
        network.hold(30).unwrap();
        same.hold(21).unwrap_err();
        let mut other = room(&memory, "10.0.0.2:1");
        other.hold(20).unwrap();
        other.hold(21).unwrap_err();
        memory.room(None).hold(1).unwrap_err();
        first.hold(5).unwrap();
        memory.room(None).hold(35).unwrap();
        assert_eq!((memory.bytes_in_use(), memory.0.counters.bodies_bytes.get()), (65, 65));
        assert_eq!(memory.0.counters.bodies_refused.get(), 4);
        drop((first, beside, network, same, other));
        assert_eq!((memory.bytes_in_use(), memory.0.counters.bodies_bytes.get()), (0, 0));
        assert!(memory.0.taken.lock().unwrap().bytes_of.is_empty(), "who has none is forgotten");
    }

    #[test]
    fn bytes_have_their_room_until_the_last_slice_of_them_is_dropped() {
        let memory = BodyMemory::new(100, Arc::default());
        let mut held = room(&memory, "10.0.0.1:1");
        held.hold(6).unwrap();
        let mut rest = held.of(Bytes::from_static(b"abcdef"));
        let first = rest.split_to(4);
        assert_eq!((&first[..], &rest[..]), (&b"abcd"[..], &b"ef"[..]));
        drop(first);
        assert_eq!(memory.bytes_in_use(), 6);
        drop(rest);
        assert_eq!(memory.bytes_in_use(), 0);
    }
}
