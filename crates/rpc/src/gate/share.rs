use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Places, each of a connection, a call or a byte, of which an address may have some.
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

/// Places that are taken; given back when this is dropped.
pub(crate) struct Places {
    shares: Arc<Shares>,
    address: Option<IpAddr>,
    count: usize,
}

/// The address whose share another one takes: one machine may come as IPv4 and as IPv4 within IPv6; of IPv6
/// proper it has a whole network.
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

    /// Takes one place. `None`: there is none left, in all or for this [`holder`]. Without an address only
    /// those in all are counted.
    pub(super) fn take(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Places> {
        let mut places = self.none(address);
        places.hold(1).then_some(places)
    }

    /// No places yet, to [`Places::hold`] some later.
    pub(super) fn none(self: &Arc<Self>, address: Option<IpAddr>) -> Places {
        Places { shares: self.clone(), address, count: 0 }
    }
}

impl Places {
    /// Takes places, or gives some back, until there are `count`. False: so many more are not left, and none
    /// was taken.
    pub(crate) fn hold(&mut self, count: usize) -> bool {
        if count == self.count {
            return true;
        }
        let mut taken = self.shares.taken.lock().expect("no holder panics");
        let all = taken.all - self.count + count;
        let each = self.address.map(|address| {
            let each = taken.each.get(&address).map_or(0, |each| *each);
            (address, each - self.count + count)
        });
        let is_room = all <= self.shares.all_max && each.is_none_or(|(_, each)| each <= self.shares.each_max);
        if count > self.count && !is_room {
            return false;
        }
        taken.all = all;
        match each {
            Some((address, 0)) => drop(taken.each.remove(&address)),
            Some((address, each)) => drop(taken.each.insert(address, each)),
            None => {}
        }
        self.count = count;
        true
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.hold(0);
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
    #[test]
    fn places_that_are_not_left_are_not_taken_in_part() {
        let shares = Arc::new(Shares::new(100, 60));
        let of = |text: &str| shares.none(Some(text.parse().expect("an address")));
        let (mut first, mut beside, mut other) = (of("10.0.0.1"), of("10.0.0.1"), of("10.0.0.2"));
        assert!(first.hold(50) && beside.hold(10) && !beside.hold(11) && !first.hold(51));
        assert!(other.hold(40) && !other.hold(41), "of all");
        assert!(first.hold(20) && other.hold(60) && !other.hold(61), "of its own");
        assert!(shares.none(None).hold(10));
        assert!(!shares.none(None).hold(11));
        drop((first, beside));
        assert!(!of("10.0.0.3").hold(61));
        assert_eq!(shares.taken.lock().unwrap().each.len(), 1, "who has none is forgotten");
        assert!(other.hold(0) && shares.taken.lock().unwrap().each.is_empty());
        assert_eq!(shares.taken.lock().unwrap().all, 0);
    }
}
