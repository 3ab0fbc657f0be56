use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The places for connections, in all and of each address, and which of them are taken by idle ones: one of
/// those makes room where there is none.
#[derive(Debug)]
pub(crate) struct Addresses {
    all_max: usize,
    each_max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// Places that were ever taken.
    taken: u64,
    /// The connections of each address that has any.
    of: HashMap<IpAddr, OfAddress>,
    /// The addresses with idle connections; the last one makes room. So nothing is searched for one: a
    /// newcomer costs a few steps down these trees, of which none has more entries than there are
    /// connections.
    with_idle: BTreeMap<Rank, IpAddr>,
    slow: usize,
    /// The number of slow transfers of each address that has any.
    slow_of: HashMap<IpAddr, usize>,
}

#[derive(Debug, Default)]
struct OfAddress {
    open: usize,
    /// The idle connections; the first one makes room.
    idle: BTreeMap<IdleSince, CancellationToken>,
}

/// The moment since which a connection is idle, and its number, which tells it from others of that moment.
type IdleSince = (Instant, u64);

/// The order in which addresses make room: by their connections, then by how long one of them is idle.
type Rank = (usize, Reverse<IdleSince>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    All,
    OfAddress,
}

/// One connection's place, and what the others need to know of it; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    addresses: Arc<Addresses>,
    address: IpAddr,
    number: u64,
    /// The number of the connection's transfers for which its client is waited for too long.
    slow: usize,
    idle_since: Option<Instant>,
    displaced: CancellationToken,
}

impl Addresses {
    pub(crate) fn new(all_max: usize, each_max: usize) -> Arc<Addresses> {
        Arc::new(Addresses { all_max, each_max, open: Mutex::default() })
    }

    /// Takes a place for a newcomer, who is idle until it says something. Where there is none, that of an
    /// idle connection becomes one: of the newcomer's address if it has as many as it may have, else of the
    /// one that has most.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr, now: Instant) -> Result<Place, Full> {
        let address = counted_as(address);
        let mut open = self.open.lock().expect("no holder panics");
        if open.of.get(&address).map_or(0, |of| of.open) >= self.each_max {
            open.displace(address).ok_or(Full::OfAddress)?;
        } else if open.all >= self.all_max {
            let most = open.with_idle.last_key_value().map(|(_, address)| *address);
            most.and_then(|address| open.displace(address)).ok_or(Full::All)?;
        }
        open.all += 1;
        open.taken += 1;
        let (number, displaced) = (open.taken, CancellationToken::new());
        open.change(address, |of| {
            of.open += 1;
            of.idle.insert((now, number), displaced.clone());
        });
        let addresses = self.clone();
        Ok(Place { addresses, address, number, slow: 0, idle_since: Some(now), displaced })
    }
}

impl Open {
    /// Frees the place of the address's connection that is idle longest, and tells it; `None`: none is idle.
    fn displace(&mut self, address: IpAddr) -> Option<()> {
        let displaced = self.change(address, |of| {
            let (_, displaced) = of.idle.pop_first()?;
            of.open -= 1;
            Some(displaced)
        })?;
        self.all -= 1;
        displaced.cancel();
        Some(())
    }

    /// Changes what there is of an address, and its rank with it.
    fn change<T>(&mut self, address: IpAddr, change: impl FnOnce(&mut OfAddress) -> T) -> T {
        let of = self.of.entry(address).or_default();
        if let Some(rank) = of.rank() {
            self.with_idle.remove(&rank);
        }
        let changed = change(of);
        if let Some(rank) = of.rank() {
            self.with_idle.insert(rank, address);
        }
        if of.open == 0 {
            self.of.remove(&address);
        }
        changed
    }
}

impl OfAddress {
    /// The place of the address in the order of making room; `None` without idle connections.
    fn rank(&self) -> Option<Rank> {
        let (since, _) = self.idle.first_key_value()?;
        Some((self.open, Reverse(*since)))
    }
}

impl Place {
    /// The token that is cancelled when the place becomes a newcomer's.
    pub(crate) fn displaced(&self) -> &CancellationToken {
        &self.displaced
    }

    /// Says since when the connection is idle; `None`: it is not, and keeps its place unless it has lost it.
    pub(crate) fn set_idle(&mut self, since: Option<Instant>) {
        if self.idle_since == since {
            return;
        }
        let mut open = self.addresses.open.lock().expect("no holder panics");
        if self.displaced.is_cancelled() {
            return;
        }
        open.change(self.address, |of| {
            if let Some(since) = self.idle_since {
                of.idle.remove(&(since, self.number));
            }
            if let Some(since) = since {
                of.idle.insert((since, self.number), self.displaced.clone());
            }
        });
        self.idle_since = since;
    }

    pub(crate) fn slow(&self) -> usize {
        self.slow
    }

    pub(crate) fn set_slow(&mut self, slow: usize) {
        if self.slow == slow {
            return;
        }
        let mut open = self.addresses.open.lock().expect("no holder panics");
        open.slow = open.slow + slow - self.slow;
        let of_address = open.slow_of.entry(self.address).or_default();
        *of_address = *of_address + slow - self.slow;
        if *of_address == 0 {
            open.slow_of.remove(&self.address);
        }
        self.slow = slow;
    }

    /// Whether there are more slow transfers than `max`, some of them its own, and its address has its share
    /// of them or more: where one has them all, the others' stay.
    pub(crate) fn crowds(&self, max: usize) -> bool {
        let open = self.addresses.open.lock().expect("no holder panics");
        let of_address = open.slow_of.get(&self.address).copied().unwrap_or(0);
        self.slow > 0 && open.slow > max && of_address * open.slow_of.len() >= open.slow
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.set_slow(0);
        self.set_idle(None);
        let mut open = self.addresses.open.lock().expect("no holder panics");
        if !self.displaced.is_cancelled() {
            open.all -= 1;
            open.change(self.address, |of| of.open -= 1);
        }
    }
}

/// The address under which a connection from another one is counted. Of an IPv6 address this is the whole
/// network, 64 bits: a machine may take any address of it. IPv4 is IPv4, also on a socket for both.
pub fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Takes places at one moment.
    fn taker(addresses: &Arc<Addresses>) -> impl Fn(&str) -> Result<Place, Full> {
        let now = Instant::now();
        move |text| addresses.take(text.parse().unwrap(), now)
    }

    /// A place whose connection has a request under way.
    fn busy(place: Result<Place, Full>) -> Place {
        let mut place = place.unwrap();
        place.set_idle(None);
        place
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one() {
        let addresses = Addresses::new(9, 1);
        let of = taker(&addresses);
        let _first = busy(of("2001:db8::1"));
        assert_eq!(of("2001:db8::ffff:0:0:2").unwrap_err(), Full::OfAddress);
        let _other = of("2001:db8:0:1::1").unwrap();
    }

    #[test]
    fn places_are_counted_for_each_address_and_come_back() {
        let addresses = Addresses::new(3, 2);
        let of = taker(&addresses);
        let first = busy(of("10.0.0.1"));
        let _second = busy(of("::ffff:10.0.0.1"));
        assert_eq!(of("10.0.0.1").unwrap_err(), Full::OfAddress);
        let _other = busy(of("10.0.0.2"));
        assert_eq!(of("10.0.0.3").unwrap_err(), Full::All);
        drop(first);
        drop(of("10.0.0.1").unwrap());
        drop(of("10.0.0.3").unwrap());
        let open = addresses.open.lock().unwrap();
        assert_eq!((open.all, open.of.len(), open.with_idle.len()), (2, 2, 0));
    }

    #[test]
    fn room_is_made_by_who_is_idle_longest_of_the_address_that_has_most() {
        let addresses = Addresses::new(6, 4);
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let at = |seconds: u32, text: &str| addresses.take(text.parse().unwrap(), begin + seconds * second);
        let lost = |place: &Place| place.displaced().is_cancelled();
        let one = [0, 1, 2].map(|seconds| at(seconds, "10.0.0.2").unwrap());
        let mut many = [3, 4, 5].map(|seconds| at(seconds, "10.0.0.1").unwrap());
        many[0].set_idle(Some(begin + 9 * second));

        let first = busy(at(6, "10.0.0.3"));
        assert!(lost(&one[0]), "both have three, and it is idle longest");
        let second = busy(at(6, "10.0.0.3"));
        assert!(lost(&many[1]) && !lost(&many[0]), "it has had a request since");
        many[0].set_idle(None);
        let third = busy(at(6, "10.0.0.3"));
        assert!(lost(&one[1]), "both have two again");
        let fourth = busy(at(6, "10.0.0.3"));
        assert!(lost(&many[2]) && !lost(&many[0]), "it is not idle, and the other one is");
        assert_eq!(at(6, "10.0.0.3").unwrap_err(), Full::OfAddress, "the others' stay");
        let _last = busy(at(6, "10.0.0.4"));
        assert!(lost(&one[2]));
        assert_eq!(at(6, "10.0.0.5").unwrap_err(), Full::All);

        drop((one, many, first, second, third, fourth));
        let open = addresses.open.lock().unwrap();
        assert_eq!((open.all, open.of.len(), open.with_idle.len()), (1, 1, 0));
    }

    #[test]
    fn an_address_at_its_limit_makes_room_for_itself() {
        let addresses = Addresses::new(9, 2);
        let of = taker(&addresses);
        let others = [(); 2].map(|()| of("10.0.0.2").unwrap());
        let own = [(); 2].map(|()| of("10.0.0.1").unwrap());
        let mut newcomer = of("10.0.0.1").unwrap();
        assert_eq!(own.each_ref().map(|place| place.displaced().is_cancelled()), [true, false]);
        assert!(others.iter().all(|place| !place.displaced().is_cancelled()));
        // Whoever has lost its place does not come by one again.
        let [mut first, _second] = own;
        first.set_idle(None);
        first.set_idle(Some(Instant::now()));
        drop(first);
        newcomer.set_idle(None);
        assert_eq!(addresses.open.lock().unwrap().of[&newcomer.address].open, 2);
    }

    #[test]
    fn who_has_most_of_the_slow_ones_makes_room_for_the_others() {
        let addresses = Addresses::new(9, 9);
        let of = taker(&addresses);
        let slow = |text: &str| {
            let mut place = of(text).unwrap();
            place.set_slow(1);
            place
        };
        let other = slow("10.0.0.2");
        let mut crowd: Vec<_> = (0..3).map(|_| slow("10.0.0.1")).collect();
        assert!(!crowd[0].crowds(4), "there is room for four");
        assert!(crowd.iter().all(|slow| slow.crowds(3)) && !other.crowds(3));
        crowd.pop();
        assert!(!crowd[0].crowds(3));
        crowd[0].set_slow(2);
        assert!(crowd[0].crowds(3), "a connection may have several");
        crowd.clear();
        drop(other);
        let open = addresses.open.lock().unwrap();
        assert_eq!((open.slow, open.slow_of.len()), (0, 0));
    }
}
