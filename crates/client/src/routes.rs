use proto::om::BucketPlace;
use std::collections::HashMap;
use std::sync::Mutex;

/// The most buckets whose places are kept, some hundred bytes each.
const ROUTES_MAX: usize = 10_000;

/// The places of buckets, as the root of the names said. A stale one heals by itself: the group that it names
/// refuses, whatever has become of the bucket.
#[derive(Default)]
pub(crate) struct Routes {
    known: Mutex<HashMap<BucketName, BucketPlace>>,
}

/// A bucket's name in its volume.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BucketName {
    pub(crate) volume: String,
    pub(crate) bucket: String,
}

impl Routes {
    pub(crate) fn of(&self, name: &BucketName) -> Option<BucketPlace> {
        self.known.lock().expect("no holder panics").get(name).copied()
    }

    /// Keeps what is newer than what is known: answers may come out of order.
    pub(crate) fn keep(&self, name: &BucketName, place: BucketPlace) {
        let mut known = self.known.lock().expect("no holder panics");
        let age = |place: &BucketPlace| (place.number, place.epoch);
        if known.get(name).is_some_and(|known| age(known) > age(&place)) {
            return;
        }
        if known.len() >= ROUTES_MAX && !known.contains_key(name) {
            // This is rare, and the places are cheap to learn again; an order of use would cost every call.
            known.clear();
        }
        known.insert(name.clone(), place);
    }

    /// Forgets a place that was found wrong, unless another one is known by now.
    pub(crate) fn forget(&self, name: &BucketName, wrong: BucketPlace) {
        let mut known = self.known.lock().expect("no holder panics");
        if known.get(name) == Some(&wrong) {
            known.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bucket: usize) -> BucketName {
        BucketName { volume: "s3v".to_owned(), bucket: bucket.to_string() }
    }

    #[test]
    fn places_are_kept_within_a_limit_and_only_a_wrong_one_is_forgotten() {
        let routes = Routes::default();
        let place = |number| BucketPlace { group: 1, number, epoch: 0 };
        for bucket in 0..=ROUTES_MAX {
            routes.keep(&name(bucket), place(bucket as u64));
            assert_eq!(routes.of(&name(bucket)), Some(place(bucket as u64)));
        }
        assert!(routes.known.lock().unwrap().len() <= ROUTES_MAX);
        let last = name(ROUTES_MAX);
        let newer = ROUTES_MAX as u64 + 8;
        routes.keep(&last, place(newer));
        routes.keep(&last, place(7));
        routes.forget(&last, place(7));
        assert_eq!(routes.of(&last), Some(place(newer)));
        routes.forget(&last, place(newer));
        assert_eq!(routes.of(&last), None);
        routes.keep(&last, place(7));
        assert_eq!(routes.of(&last), Some(place(7)), "what somebody restored may have smaller numbers");
    }
}
