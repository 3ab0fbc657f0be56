//! Deadlines in ticks, on a hierarchical timing wheel: six wheels of 64 buckets each, a bucket of one
//! spanning a whole turn of the wheel below. A deadline is in the wheel of the highest digit (base 64) in
//! which it differs from now, so inserting and removing touch one bucket, and each deadline moves down five
//! times at most until it expires.

use crate::slab::{Slab, SlotId};

const WHEELS: usize = 6;
const BUCKETS: usize = 64;
const BUCKET_BITS: u32 = 6;
/// The ticks that all wheels span: with ticks of a millisecond about two years. What is due later is put at
/// the end of them and looked at again there.
const SPAN: u64 = 1 << (BUCKET_BITS * WHEELS as u32);

/// The neighbours in a bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    before: Option<SlotId>,
    after: Option<SlotId>,
    wheel: u8,
    bucket: u8,
}

/// An entry of a wheel.
pub(crate) trait Timed {
    fn due(&self) -> u64;
    fn links(&mut self) -> &mut Links;
}

pub(crate) struct Wheels {
    now: u64,
    wheels: [Wheel; WHEELS],
}

#[derive(Clone, Copy)]
struct Wheel {
    /// Bit n: bucket n is not empty.
    occupied: u64,
    first: [Option<SlotId>; BUCKETS],
}

impl Default for Wheels {
    fn default() -> Self {
        Wheels { now: 0, wheels: [Wheel { occupied: 0, first: [None; BUCKETS] }; WHEELS] }
    }
}

impl Wheels {
    #[cfg(test)]
    fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn insert<T: Timed>(&mut self, slab: &mut Slab<T>, id: SlotId) {
        let timed = slab.get_mut(id).expect("it was just put there");
        // What is due already expires with the next tick.
        let due = timed.due().clamp(self.now + 1, self.now + SPAN - 1);
        let digit = (63 - (self.now ^ due).leading_zeros()) / BUCKET_BITS;
        // A deadline past the end of the last wheel's turn goes into that wheel's bucket of now, which comes
        // round last.
        let wheel = (digit as usize).min(WHEELS - 1);
        let bucket = bucket_of(due, wheel);
        let after = self.wheels[wheel].first[bucket];
        *timed.links() = Links { before: None, after, wheel: wheel as u8, bucket: bucket as u8 };
        if let Some(after) = after {
            slab.get_mut(after).expect("links name what is there").links().before = Some(id);
        }
        self.wheels[wheel].first[bucket] = Some(id);
        self.wheels[wheel].occupied |= 1 << bucket;
    }

    /// Takes out what [`Wheels::insert`] put in.
    pub(crate) fn remove<T: Timed>(&mut self, slab: &mut Slab<T>, id: SlotId) {
        let Links { before, after, wheel, bucket } = *slab.get_mut(id).expect("it is there").links();
        if let Some(after) = after {
            slab.get_mut(after).expect("links name what is there").links().before = before;
        }
        match before {
            Some(before) => slab.get_mut(before).expect("links name what is there").links().after = after,
            None => {
                let wheel = &mut self.wheels[wheel as usize];
                wheel.first[bucket as usize] = after;
                if after.is_none() {
                    wheel.occupied &= !(1 << bucket);
                }
            }
        }
    }

    /// The tick at which something has to be done next, if anything is there: a deadline is reached, or moves
    /// to a wheel below.
    pub(crate) fn next_stop(&self) -> Option<u64> {
        let stops = self.wheels.iter().enumerate().filter_map(|(number, wheel)| {
            let here = bucket_of(self.now, number);
            // Buckets after the current one come in this turn, the others in the next.
            let rotated = wheel.occupied.rotate_right(here as u32 + 1);
            let ahead = (rotated != 0).then(|| rotated.trailing_zeros() as u64 + 1)?;
            let span = 1u64 << (BUCKET_BITS * number as u32);
            Some((self.now / span + ahead) * span)
        });
        stops.min()
    }

    /// Goes on to `to` and hands out what is due by then, in the order of ticks.
    pub(crate) fn advance<T: Timed>(
        &mut self,
        slab: &mut Slab<T>,
        to: u64,
        mut expired: impl FnMut(&mut Slab<T>, SlotId),
    ) {
        while let Some(stop) = self.next_stop().filter(|stop| *stop <= to) {
            self.now = stop;
            // The wheels are emptied from the top, as what comes down may be due at once.
            for wheel in (0..WHEELS).rev() {
                if stop % (1 << (BUCKET_BITS * wheel as u32)) == 0 {
                    self.empty_bucket(slab, wheel, bucket_of(stop, wheel), &mut expired);
                }
            }
        }
        self.now = self.now.max(to);
    }

    fn empty_bucket<T: Timed>(
        &mut self,
        slab: &mut Slab<T>,
        wheel: usize,
        bucket: usize,
        expired: &mut impl FnMut(&mut Slab<T>, SlotId),
    ) {
        let mut next = self.wheels[wheel].first[bucket].take();
        self.wheels[wheel].occupied &= !(1 << bucket);
        while let Some(id) = next {
            let timed = slab.get_mut(id).expect("links name what is there");
            next = timed.links().after;
            if timed.due() <= self.now {
                expired(slab, id);
            } else {
                self.insert(slab, id);
            }
        }
    }
}

fn bucket_of(tick: u64, wheel: usize) -> usize {
    (tick >> (BUCKET_BITS * wheel as u32)) as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    struct Timer {
        number: usize,
        due: u64,
        links: Links,
    }

    impl Timed for Timer {
        fn due(&self) -> u64 {
            self.due
        }
        fn links(&mut self) -> &mut Links {
            &mut self.links
        }
    }

    fn ticks() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..10, 0u64..5000, 0u64..10_000_000, 0u64..1 << 37]
    }

    proptest! {
        #[test]
        fn wheels_are_a_sorted_set_of_deadlines(steps in prop::collection::vec((0u8..5, ticks(), 0usize..50), 0..200)) {
            let (mut slab, mut wheels) = (Slab::default(), Wheels::default());
            let mut model: BTreeSet<(u64, usize)> = BTreeSet::new();
            let mut ids = Vec::new();
            for (number, (choice, ticks, nth)) in steps.into_iter().enumerate() {
                match choice {
                    0..=2 => {
                        let due = wheels.now() + ticks;
                        let id = slab.insert(Timer { number, due, links: Links::default() });
                        wheels.insert(&mut slab, id);
                        model.insert((due.max(wheels.now() + 1), number));
                        ids.push((id, number, due.max(wheels.now() + 1)));
                    }
                    3 if !ids.is_empty() => {
                        let (id, number, due) = ids.swap_remove(nth % ids.len());
                        wheels.remove(&mut slab, id);
                        slab.remove(id);
                        model.remove(&(due, number));
                    }
                    _ => {
                        let to = wheels.now() + ticks;
                        let mut expired = BTreeSet::new();
                        wheels.advance(&mut slab, to, |slab, id| {
                            expired.insert(slab.remove(id).unwrap().number);
                        });
                        let later = model.split_off(&(to + 1, 0));
                        let due: BTreeSet<_> = std::mem::replace(&mut model, later).iter().map(|(_, number)| *number).collect();
                        prop_assert_eq!(&expired, &due);
                        ids.retain(|(_, number, _)| !due.contains(number));
                    }
                }
                let next = model.first().map(|(due, _)| *due);
                prop_assert_eq!(wheels.next_stop().is_some(), next.is_some());
                if let (Some(stop), Some(next)) = (wheels.next_stop(), next) {
                    prop_assert!(wheels.now() < stop && stop <= next, "stop {} before deadline {}", stop, next);
                }
            }
        }
    }
}
