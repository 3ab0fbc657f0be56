use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// The number of connections, and of those that are slow, in all and of each address.
#[derive(Debug)]
pub(crate) struct Addresses {
    all_max: usize,
    each_max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    /// Only of addresses that have any.
    of: HashMap<IpAddr, usize>,
    slow: usize,
    /// Only of addresses that have any.
    slow_of: HashMap<IpAddr, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    All,
    OfAddress,
}

/// One connection's place; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

/// Whether one connection counts as slow; no more when dropped.
#[derive(Debug)]
pub(crate) struct Slowness {
    addresses: Arc<Addresses>,
    address: IpAddr,
    slow: bool,
}

impl Addresses {
    pub(crate) fn new(all_max: usize, each_max: usize) -> Arc<Addresses> {
        Arc::new(Addresses { all_max, each_max, open: Mutex::default() })
    }

    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Result<Place, Full> {
        let address = counted_as(address);
        let mut open = self.open.lock().expect("no holder panics");
        if open.all >= self.all_max {
            return Err(Full::All);
        }
        if open.of.get(&address).copied().unwrap_or(0) >= self.each_max {
            return Err(Full::OfAddress);
        }
        open.all += 1;
        *open.of.entry(address).or_default() += 1;
        Ok(Place { addresses: self.clone(), address })
    }
}

impl Place {
    pub(crate) fn slowness(&self) -> Slowness {
        Slowness { addresses: self.addresses.clone(), address: self.address, slow: false }
    }
}

impl Slowness {
    pub(crate) fn is_slow(&self) -> bool {
        self.slow
    }

    pub(crate) fn set(&mut self, slow: bool) {
        if self.slow == slow {
            return;
        }
        self.slow = slow;
        let mut open = self.addresses.open.lock().expect("no holder panics");
        match slow {
            true => {
                open.slow += 1;
                *open.slow_of.entry(self.address).or_default() += 1;
            }
            false => {
                open.slow -= 1;
                take_one(&mut open.slow_of, self.address);
            }
        }
    }

    /// Whether there are more slow ones than `max`, and its address has its share of them or more: where one
    /// has them all, the others' stay.
    pub(crate) fn crowds(&self, max: usize) -> bool {
        let open = self.addresses.open.lock().expect("no holder panics");
        let of_address = open.slow_of.get(&self.address).copied().unwrap_or(0);
        self.slow && open.slow > max && of_address * open.slow_of.len() >= open.slow
    }
}

impl Drop for Slowness {
    fn drop(&mut self) {
        self.set(false);
    }
}

fn take_one(counts: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    let count = counts.get_mut(&address).expect("what is taken was counted");
    *count -= 1;
    if *count == 0 {
        counts.remove(&address);
    }
}

/// The whole network of an IPv6 address, 64 bits: a machine may take any address of it. IPv4 is IPv4, also on
/// a socket for both.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock().expect("no holder panics");
        open.all -= 1;
        take_one(&mut open.of, self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one() {
        let addresses = Addresses::new(9, 1);
        let of = |text: &str| addresses.take(text.parse().unwrap());
        let _first = of("2001:db8::1").unwrap();
        assert_eq!(of("2001:db8::ffff:0:0:2").unwrap_err(), Full::OfAddress);
        let _other = of("2001:db8:0:1::1").unwrap();
    }

    #[test]
    fn places_are_counted_for_each_address_and_come_back() {
        let addresses = Addresses::new(3, 2);
        let of = |text: &str| addresses.take(text.parse().unwrap());
        let first = of("10.0.0.1").unwrap();
        let _second = of("::ffff:10.0.0.1").unwrap();
        assert_eq!(of("10.0.0.1").unwrap_err(), Full::OfAddress);
        let _other = of("10.0.0.2").unwrap();
        assert_eq!(of("10.0.0.3").unwrap_err(), Full::All);
        drop(first);
        drop(of("10.0.0.1").unwrap());
        drop(of("10.0.0.3").unwrap());
        assert_eq!(addresses.open.lock().unwrap().of.len(), 2);
    }

    #[test]
    fn who_has_most_of_the_slow_ones_makes_room_for_the_others() {
        let addresses = Addresses::new(9, 9);
        let slow = |text: &str| {
            let mut slowness = addresses.take(text.parse().unwrap()).unwrap().slowness();
            slowness.set(true);
            slowness
        };
        let other = slow("10.0.0.2");
        let mut crowd: Vec<_> = (0..3).map(|_| slow("10.0.0.1")).collect();
        assert!(!crowd[0].crowds(4), "there is room for four");
        assert!(crowd.iter().all(|slow| slow.crowds(3)) && !other.crowds(3));
        crowd.pop();
        assert!(!crowd[0].crowds(3));
        crowd.clear();
        drop(other);
        let open = addresses.open.lock().unwrap();
        assert_eq!((open.slow, open.slow_of.len()), (0, 0));
    }
}
