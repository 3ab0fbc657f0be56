use crate::slab::{Slab, SlotId};
use crate::wheel::{Links, Timed, Wheels};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// Operations that wait until what a key stands for has reached a value, or until a deadline in ticks. Time
/// comes in through [`Lot::expire`] alone.
pub struct Lot<K, W> {
    operations: Slab<Operation<K, W>>,
    deadlines: Wheels,
    /// The operations of each key that has some: by the value they wait for, lowest first.
    by_key: FxHashMap<K, Waiting>,
    parked: u64,
}

/// Operations by the value they wait for, lowest first.
enum Waiting {
    /// One operation, as there mostly is.
    One(u64, SlotId),
    Many(VecDeque<(u64, SlotId)>),
}

struct Operation<K, W> {
    number: u64,
    key: K,
    value: u64,
    due: u64,
    links: Links,
    waiter: W,
}

impl<K, W> Timed for Operation<K, W> {
    fn due(&self) -> u64 {
        self.due
    }

    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// A parked operation; it means nothing any more once that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: SlotId,
    number: u64,
}

impl<K: Hash + Eq + Clone, W> Default for Lot<K, W> {
    fn default() -> Self {
        Lot {
            operations: Slab::default(),
            deadlines: Wheels::default(),
            by_key: FxHashMap::default(),
            parked: 0,
        }
    }
}

impl<K: Hash + Eq + Clone, W> Lot<K, W> {
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parks `waiter` until `key` reaches `value`, or until tick `due`.
    pub fn park(&mut self, key: K, value: u64, due: u64, waiter: W) -> Ticket {
        self.parked += 1;
        let number = self.parked;
        let links = Links::default();
        let slot = self.operations.insert(Operation { number, key: key.clone(), value, due, links, waiter });
        self.deadlines.insert(&mut self.operations, slot);
        match self.by_key.entry(key) {
            Entry::Vacant(place) => drop(place.insert(Waiting::One(value, slot))),
            Entry::Occupied(mut waiting) => waiting.get_mut().insert(value, slot),
        }
        Ticket { slot, number }
    }

    /// Notes that `key` has reached `value`: hands out who waited for that or less, lowest first.
    pub fn reach(&mut self, key: &K, value: u64, mut completed: impl FnMut(W)) {
        let Some(waiting) = self.by_key.get_mut(key) else { return };
        while let Some(slot) = waiting.pop_up_to(value) {
            self.deadlines.remove(&mut self.operations, slot);
            let operation = self.operations.remove(slot).expect("a waiting operation is there");
            completed(operation.waiter);
        }
        if waiting.is_empty() {
            self.by_key.remove(key);
        }
        self.shrink();
    }

    /// Takes an operation out, if it is still there.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<W> {
        self.operations.get(ticket.slot).filter(|operation| operation.number == ticket.number)?;
        self.deadlines.remove(&mut self.operations, ticket.slot);
        let operation = self.operations.remove(ticket.slot).expect("just seen");
        self.forget(&operation.key, operation.value, ticket.slot);
        self.shrink();
        Some(operation.waiter)
    }

    /// Notes that the time is `now`: hands out who is due.
    pub fn expire(&mut self, now: u64, mut expired: impl FnMut(W)) {
        let by_key = &mut self.by_key;
        self.deadlines.advance(&mut self.operations, now, |operations, slot| {
            let operation = operations.remove(slot).expect("a due operation is there");
            forget(by_key, &operation.key, operation.value, slot);
            expired(operation.waiter);
        });
        self.shrink();
    }

    /// The tick at which [`Lot::expire`] should be called again, if anything waits.
    pub fn next_stop(&self) -> Option<u64> {
        self.deadlines.next_stop()
    }

    fn forget(&mut self, key: &K, value: u64, slot: SlotId) {
        forget(&mut self.by_key, key, value, slot);
    }

    fn shrink(&mut self) {
        if self.by_key.capacity() > 4 * self.by_key.len().max(1024) {
            self.by_key.shrink_to(2 * self.by_key.len());
        }
    }
}

fn forget<K: Hash + Eq>(by_key: &mut FxHashMap<K, Waiting>, key: &K, value: u64, slot: SlotId) {
    let waiting = by_key.get_mut(key).expect("an operation is with its key");
    waiting.remove(value, slot);
    if waiting.is_empty() {
        by_key.remove(key);
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        matches!(self, Waiting::Many(many) if many.is_empty())
    }

    fn insert(&mut self, value: u64, slot: SlotId) {
        match self {
            Waiting::One(other, other_slot) => {
                let mut both = [(*other, *other_slot), (value, slot)];
                both.sort_by_key(|(value, _)| *value);
                *self = Waiting::Many(both.into());
            }
            Waiting::Many(many) => {
                // Values mostly come in ascending order: then this is at the end.
                let at = match many.back() {
                    Some((last, _)) if *last > value => many.partition_point(|(other, _)| *other <= value),
                    _ => many.len(),
                };
                many.insert(at, (value, slot));
            }
        }
    }

    /// Takes out the first operation, if it waits for `value` or less.
    fn pop_up_to(&mut self, value: u64) -> Option<SlotId> {
        match self {
            Waiting::One(awaited, slot) => {
                let slot = (*awaited <= value).then_some(*slot)?;
                *self = Waiting::Many(VecDeque::new());
                Some(slot)
            }
            Waiting::Many(many) => {
                let (_, slot) = many.pop_front_if(|(awaited, _)| *awaited <= value)?;
                shrink_queue(many);
                Some(slot)
            }
        }
    }

    fn remove(&mut self, value: u64, slot: SlotId) {
        match self {
            Waiting::One(..) => *self = Waiting::Many(VecDeque::new()),
            Waiting::Many(many) => {
                let first = many.partition_point(|(other, _)| *other < value);
                let nth = many.range(first..).position(|(_, other)| *other == slot);
                many.remove(first + nth.expect("an operation is with its key"));
                shrink_queue(many);
            }
        }
    }
}

fn shrink_queue(many: &mut VecDeque<(u64, SlotId)>) {
    if many.capacity() > 4 * many.len().max(16) {
        many.shrink_to(2 * many.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_waits_for_less_comes_first_and_nobody_twice() {
        let mut lot = Lot::default();
        for (waiter, value) in [("c", 30), ("a", 10), ("b", 20), ("b2", 20), ("d", 40)] {
            lot.park(7, value, 100, waiter);
        }
        let mut completed = Vec::new();
        lot.reach(&7, 30, |waiter| completed.push(waiter));
        assert_eq!(completed, ["a", "b", "b2", "c"]);
        lot.reach(&7, 30, |waiter| completed.push(waiter));
        lot.reach(&8, 1000, |waiter| completed.push(waiter));
        assert_eq!(completed.len(), 4);
        lot.expire(99, |waiter| completed.push(waiter));
        assert_eq!(completed.len(), 4);
        lot.expire(100, |waiter| completed.push(waiter));
        assert_eq!(completed[4..], ["d"]);
        assert!(lot.is_empty() && lot.by_key.is_empty() && lot.next_stop().is_none());
    }

    #[test]
    fn a_ticket_of_one_that_left_cancels_nobody_else() {
        let mut lot = Lot::default();
        let gone = lot.park(1, 1, 10, "gone");
        assert_eq!(lot.cancel(gone), Some("gone"));
        let ticket = lot.park(1, 1, 10, "in the same slot");
        assert_eq!((ticket.slot, lot.cancel(gone)), (gone.slot, None));
        assert_eq!(lot.cancel(ticket), Some("in the same slot"));
        assert!(lot.by_key.is_empty());
    }

    /// Key, value, deadline, number and ticket.
    type Parked = (u64, u64, u64, usize, Ticket);

    proptest! {
        #[test]
        fn a_lot_is_a_list_of_operations(steps in prop::collection::vec((0u8..6, 0u64..4, 0u64..20, 0u64..300), 0..300)) {
            let mut lot = Lot::default();
            let mut model: Vec<Parked> = Vec::new();
            let mut now = 0;
            for (number, (choice, key, value, ticks)) in steps.into_iter().enumerate() {
                let mut left = Vec::new();
                let mut stays: Box<dyn Fn(&Parked) -> bool> = Box::new(|_| true);
                match choice {
                    0..=2 => {
                        let ticket = lot.park(key, value, now + ticks, number);
                        model.push((key, value, (now + ticks).max(now + 1), number, ticket));
                    }
                    3 => {
                        lot.reach(&key, value, |waiter| left.push(waiter));
                        stays = Box::new(move |(other, awaited, ..)| *other != key || *awaited > value);
                    }
                    4 => {
                        now += ticks;
                        lot.expire(now, |waiter| left.push(waiter));
                        stays = Box::new(move |(_, _, due, ..)| *due > now);
                    }
                    _ if !model.is_empty() => {
                        let (.., number, ticket) = model[ticks as usize % model.len()];
                        left.extend(lot.cancel(ticket));
                        stays = Box::new(move |(.., other, _)| *other != number);
                    }
                    _ => {}
                }
                let (rest, gone): (Vec<_>, Vec<_>) = model.into_iter().partition(|operation| stays(operation));
                model = rest;
                left.sort_unstable();
                prop_assert_eq!(left, gone.iter().map(|(.., number, _)| *number).collect::<Vec<_>>());
                prop_assert_eq!(lot.len(), model.len());
            }
        }
    }
}
