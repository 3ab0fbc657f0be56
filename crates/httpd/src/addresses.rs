use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// How many connections there are, in all and of each address.
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

/// The whole network of an IPv6 address, 64 bits: a machine may take any address of it. IPv4 is IPv4, also on a socket for both.
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
        let count = open.of.get_mut(&self.address).expect("a place is counted");
        *count -= 1;
        if *count == 0 {
            open.of.remove(&self.address);
        }
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
}
