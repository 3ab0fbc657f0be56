use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Places of which each address may have some.
pub(super) struct Shares {
    all_max: usize,
    each_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Addresses that have a place; no more than there are places.
    each: HashMap<IpAddr, usize>,
}

/// A place; given back when it is dropped.
pub(super) struct Place {
    shares: Arc<Shares>,
    address: Option<IpAddr>,
}

/// Whose share an address takes: one machine may come as IPv4 and as IPv4 within IPv6; of IPv6 proper it has a whole
/// network.
pub(super) fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & (!0 << 64)).into()),
        v4 => v4,
    }
}

impl Shares {
    pub(super) fn new(all_max: usize, each_max: usize) -> Shares {
        Shares { all_max, each_max, taken: Mutex::default() }
    }

    /// `None`: there is none left, for all or for this [`holder`]. Without one there is no share of it.
    pub(super) fn take(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Place> {
        let mut taken = self.taken.lock().expect("no holder panics");
        if taken.all >= self.all_max {
            return None;
        }
        if let Some(address) = address {
            let each = taken.each.entry(address).or_insert(0);
            if *each >= self.each_max {
                return None;
            }
            *each += 1;
        }
        taken.all += 1;
        Some(Place { shares: self.clone(), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock().expect("no holder panics");
        taken.all -= 1;
        let Some(address) = self.address else { return };
        if let Entry::Occupied(mut each) = taken.each.entry(address) {
            *each.get_mut() -= 1;
            if *each.get() == 0 {
                each.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_of_a_share_leaves_the_others_theirs() {
        let shares = Arc::new(Shares::new(5, 2));
        let of = |text: &str| shares.take(Some(holder(text.parse().expect("an address"))));
        let first: Vec<_> = (0..2).map(|_| of("10.0.0.1").expect("a place")).collect();
        assert!(of("10.0.0.1").is_none() && of("::ffff:10.0.0.1").is_none());
        let second: Vec<_> = (0..2).map(|_| of("2001:db8::1").expect("a place")).collect();
        assert!(of("2001:db8::2").is_none(), "of the same network");
        let third = of("10.0.0.2").expect("the last place");
        assert!(of("10.0.0.3").is_none() && shares.take(None).is_none());
        drop(first);
        assert!(of("10.0.0.1").is_some() && shares.take(None).is_some());
        drop((second, third));
        assert!(shares.taken.lock().unwrap().each.is_empty(), "addresses are forgotten");
    }
}
