//! Memory for what is read and not sent yet, of all readers of a node together.
//!
//! A message has its room before it is read, and keeps it until its last byte is written to the reader's
//! connection, or given up; within this process, until its reader has it, who has counted it by then in
//! memory of his own. As long as more than half is free messages are large, and the next one is read while
//! one is on its way; after that they are as small as checksums allow and each is read when it is asked for,
//! so that readers who take nothing, of whom there may be a thousand, leave room to those who do. And no
//! address has more than half, nor has this process: whoever takes nothing at all stops none but the readers
//! of his own machine.

use bytes::Bytes;
use metrics::Counter;
use proto::{Code, Failure, Retry};
use raftlog::{Held, SharedMemory};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::CRC_CHUNK_BYTES;

/// The data of one message while there is plenty of room; [`SMALL_BYTES`] after that.
const LARGE_BYTES: u32 = 1 << 20;
const SMALL_BYTES: u32 = CRC_CHUNK_BYTES as u32;
const _: () = assert!(LARGE_BYTES.is_multiple_of(SMALL_BYTES));
/// The number of shares from which on those of addresses that read nothing are dropped.
const IDLE_SHARES_MAX: usize = 64;

/// A node's memory for what is read. Room is counted in small messages.
#[derive(Clone)]
pub(crate) struct ReadMemory {
    free: Part,
    /// The share of each address, and that of this process, whose readers have no address.
    shares: Arc<Mutex<HashMap<Option<IpAddr>, Part>>>,
    wait: Duration,
    refused: Arc<Counter>,
    shared: SharedMemory,
}

/// The memory as one reader has it.
#[derive(Clone)]
pub(super) struct ReaderMemory {
    memory: ReadMemory,
    /// The share of the reader's address.
    share: Part,
    is_here: bool,
}

/// The memory that one message takes, until it is dropped.
pub(super) struct Room {
    _of_reads: OwnedSemaphorePermit,
    _of_share: OwnedSemaphorePermit,
    _of_all: Held,
    /// Whether the reader is in this process.
    is_here: bool,
}

#[derive(Clone)]
struct Part {
    free: Arc<Semaphore>,
    all: usize,
}

impl Part {
    fn of(all: usize) -> Part {
        Part { free: Arc::new(Semaphore::new(all)), all }
    }

    /// Whether more than half of the part is free, and enough for a large message.
    fn has_plenty(&self) -> bool {
        self.free.available_permits() > (self.all / 2).max((LARGE_BYTES / SMALL_BYTES) as usize)
    }

    fn is_used(&self) -> bool {
        Arc::strong_count(&self.free) > 1
    }

    async fn take(&self, units: u32) -> OwnedSemaphorePermit {
        self.free.clone().acquire_many_owned(units).await.expect("it is never closed")
    }
}

impl ReadMemory {
    /// A limit of `bytes`, which is a part of `shared`; who finds no room for `wait` is sent elsewhere.
    pub(crate) fn new(bytes: usize, shared: SharedMemory, wait: Duration) -> ReadMemory {
        let free = Part::of((bytes / CRC_CHUNK_BYTES).clamp(1, Semaphore::MAX_PERMITS));
        ReadMemory { free, shares: Arc::default(), wait, refused: Arc::default(), shared }
    }

    /// The memory of whoever reads from an address; `None` is a reader in this process.
    pub(super) fn of(&self, address: Option<IpAddr>) -> ReaderMemory {
        ReaderMemory { memory: self.clone(), share: self.share(address), is_here: address.is_none() }
    }

    fn share(&self, address: Option<IpAddr>) -> Part {
        let mut shares = self.shares.lock().expect("no holder panics");
        if shares.len() >= IDLE_SHARES_MAX && !shares.contains_key(&address) {
            shares.retain(|_, share| share.is_used());
        }
        shares.entry(address).or_insert_with(|| Part::of(self.free.all.div_ceil(2))).clone()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    pub(crate) fn bytes_in_use(&self) -> usize {
        (self.free.all - self.free.free.available_permits()) * CRC_CHUNK_BYTES
    }
}

impl ReaderMemory {
    pub(super) fn has_plenty(&self) -> bool {
        self.memory.free.has_plenty() && self.share.has_plenty()
    }

    /// The size of the next message of this reader, who wants at most so much at once.
    pub(super) fn message_bytes(&self, wanted_max: u32) -> u32 {
        if self.has_plenty() && wanted_max >= LARGE_BYTES { LARGE_BYTES } else { SMALL_BYTES }
    }

    /// Takes room for a message of at most [`ReaderMemory::message_bytes`].
    pub(super) async fn room(&self, bytes: u32) -> Result<Room, Failure> {
        let units = bytes.div_ceil(SMALL_BYTES);
        let room = async {
            let of_share = self.share.take(units).await;
            let of_reads = self.memory.free.take(units).await;
            let of_all = self.memory.shared.hold(units as usize * CRC_CHUNK_BYTES);
            Room { _of_reads: of_reads, _of_share: of_share, _of_all: of_all, is_here: self.is_here }
        };
        tokio::time::timeout(self.memory.wait, room).await.map_err(|_| self.refuse())
    }

    fn refuse(&self) -> Failure {
        self.memory.refused.count();
        let has_its_half = self.share.free.available_permits() < self.memory.free.free.available_permits();
        let whose = if has_its_half { "the half of it that one address may have" } else { "all of it" };
        let why = format!(
            "readers who take nothing have taken this node's memory for reading, {whose}: try another"
        );
        Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Busy, why) }
    }
}

impl Room {
    /// A message's bytes as its reader gets them: on their way to another process they have their room until
    /// the last slice of them is dropped.
    pub(super) fn handed_over(self, bytes: Bytes) -> Bytes {
        match self.is_here {
            true => bytes,
            false => Bytes::from_owner(Roomy { bytes, _room: self }),
        }
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
    use futures::FutureExt;

    const MIB: usize = 1 << 20;

    fn memory(bytes: usize) -> ReadMemory {
        ReadMemory::new(bytes, SharedMemory::new(0), Duration::from_secs(1))
    }

    #[tokio::test]
    async fn messages_are_small_once_half_of_the_memory_is_taken() {
        let memory = memory(8 * MIB);
        let readers = [None, Some(IpAddr::from([10, 0, 0, 1]))].map(|from| memory.of(from));
        let mut taken = Vec::new();
        for reader in &readers {
            assert_eq!(reader.message_bytes(LARGE_BYTES - 1), SMALL_BYTES, "as its reader wants");
            while reader.message_bytes(u32::MAX) == LARGE_BYTES {
                taken.push(reader.room(LARGE_BYTES).await.unwrap());
            }
        }
        assert_eq!((taken.len(), memory.bytes_in_use()), (4, 4 * MIB));
        for reader in &readers {
            for _ in 0..2 * MIB / CRC_CHUNK_BYTES {
                let bytes = reader.message_bytes(u32::MAX);
                taken.push(reader.room(bytes).await.expect("there is room"));
            }
        }
        assert_eq!(memory.bytes_in_use(), 8 * MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_is_sent_elsewhere_or_waits_for_it() {
        let memory = memory(CRC_CHUNK_BYTES).of(None);
        let room = memory.room(1).await.unwrap();
        let refused = memory.room(1).await.err().expect("there is no room");
        assert_eq!((refused.code, refused.retry), (Code::Busy, Retry::Elsewhere));
        let waits = memory.room(1);
        drop(room);
        waits.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_half_of_it_in_large_messages_first_and_in_small_ones_then() {
        let memory = memory(8 * MIB);
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let (first, second) = (memory.of(address(1)), memory.of(address(2)));
        let mut taken = Vec::new();
        while let Ok(room) = first.room(first.message_bytes(u32::MAX)).await {
            taken.push(room);
        }
        assert_eq!((taken.len(), memory.bytes_in_use()), (2 + 2 * MIB / CRC_CHUNK_BYTES, 4 * MIB));
        assert!(memory.of(address(1)).room(1).await.is_err(), "whichever of his calls");
        assert!(second.room(second.message_bytes(u32::MAX)).now_or_never().expect("there is room").is_ok());
        assert_eq!(memory.refused(), 2);
        drop(taken);
        assert_eq!(memory.bytes_in_use(), 0);
        assert!(first.room(LARGE_BYTES).now_or_never().is_some());
    }

    #[tokio::test]
    async fn shares_of_those_who_read_nothing_are_forgotten() {
        let memory = memory(8 * MIB);
        let reads = memory.of(Some(IpAddr::from([9, 9, 9, 9]))).room(1).await.unwrap();
        for n in 0..1000_u32 {
            memory.of(Some(IpAddr::from(n.to_be_bytes())));
        }
        let count = memory.shares.lock().unwrap().len();
        assert!(count <= IDLE_SHARES_MAX + 1, "{count} are left");
        drop(reads);
    }

    /// Three hundred who took nothing of a gateway in the process of its datanode had all of the node's
    /// memory, and little of the gateway's own.
    #[tokio::test]
    async fn what_a_reader_of_this_process_has_is_counted_by_him() {
        let memory = memory(MIB);
        let room = memory.of(None).room(1).await.unwrap();
        assert_eq!(memory.bytes_in_use(), CRC_CHUNK_BYTES, "while it is read, and until it is taken");
        let _taken = room.handed_over(Bytes::from_static(b"abcdef"));
        assert_eq!(memory.bytes_in_use(), 0);
    }

    #[tokio::test]
    async fn bytes_have_their_room_until_the_last_slice_of_them_is_dropped() {
        let memory = memory(MIB);
        let room = memory.of(Some(IpAddr::from([10, 0, 0, 1]))).room(1).await.unwrap();
        let mut rest = room.handed_over(Bytes::from_static(b"abcdef"));
        let first = rest.split_to(4);
        assert_eq!((&first[..], &rest[..]), (&b"abcd"[..], &b"ef"[..]));
        drop(rest);
        assert_eq!(memory.bytes_in_use(), CRC_CHUNK_BYTES);
        drop(first);
        assert_eq!(memory.bytes_in_use(), 0);
    }
}
