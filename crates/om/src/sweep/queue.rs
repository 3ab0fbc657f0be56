//! The queue of containers: which are swept, and when. Clocks and pauses decide when to begin, and nothing
//! else.

use super::Times;
use super::counts::Requested;
use proto::om::SweptContainer;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// The most containers that are known not to be swept yet, and the most that wait behind their fence, some
/// thirty bytes each; others have their turn at a later look.
const REMEMBERED_MAX: usize = 1_000_000;

/// This leader's knowledge of containers that are closed.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// The containers that were never swept, and since when this leader has seen them closed.
    young: BTreeMap<u64, Instant>,
    /// The containers that all groups have fenced, and since when.
    fenced: BTreeMap<u64, Instant>,
    /// The containers of which something was lost when they were swept last, and that this leader has had
    /// swept again.
    looked_again: BTreeSet<u64>,
    /// The containers that are swept at their first turn: an operator asks for them, or they could not be
    /// swept.
    wanted: BTreeSet<u64>,
}

impl Queue {
    /// Whether a container that is closed is to be swept now: if so, it is to be fenced.
    pub(super) fn is_due(
        &mut self,
        container: u64,
        swept: Option<&SweptContainer>,
        times: &Times,
        now: (Instant, u64),
    ) -> bool {
        let (now, now_ms) = now;
        if self.fenced.contains_key(&container) {
            return false;
        }
        let swept = swept.filter(|swept| swept.swept_ms != 0);
        // To ask for a container does not make it older: uploads under way may be in it.
        if swept.is_none() && !self.is_old(container, times, now) {
            return false;
        }
        if self.wanted.remove(&container) {
            return true;
        }
        match (times.every, swept) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(every), Some(swept)) => {
                let age = Duration::from_millis(now_ms.saturating_sub(swept.swept_ms));
                // What is lost only the leader that has found it can tell, and it may be written again, or
                // come back.
                let is_lost = swept.lost > 0;
                age >= every || is_lost && (self.looked_again.insert(container) || age >= times.after)
            }
        }
    }

    /// Whether a container that was never swept has been closed for long enough.
    fn is_old(&mut self, container: u64, times: &Times, now: Instant) -> bool {
        if !self.young.contains_key(&container) && self.young.len() >= REMEMBERED_MAX {
            return false;
        }
        *self.young.entry(container).or_insert(now) + times.after <= now
    }

    /// Notes the containers that an operator asks for, which wait for no other turn than their first.
    pub(super) fn want(&mut self, requested: &Requested, closed: &BTreeSet<u64>) {
        let wanted = closed.iter().filter(|container| requested.has(**container));
        self.wanted.extend(wanted.filter(|container| !self.fenced.contains_key(container)));
    }

    pub(super) fn has_room(&self) -> bool {
        self.fenced.len() < REMEMBERED_MAX
    }

    /// Notes that all groups have fenced a container.
    pub(super) fn fence(&mut self, container: u64, now: Instant) {
        self.fenced.insert(container, now);
    }

    /// A container whose fence is old enough.
    pub(super) fn next(&self, times: &Times, now: Instant) -> Option<u64> {
        let is_old = |(_, since): &(&u64, &Instant)| **since + times.behind_fence <= now;
        self.fenced.iter().find(is_old).map(|(container, _)| *container)
    }

    /// The moment when the next container's fence is old enough.
    pub(super) fn next_at(&self, times: &Times) -> Option<Instant> {
        self.fenced.values().min().map(|since| *since + times.behind_fence)
    }

    /// Notes that a container is swept, and answers whether for the first time.
    pub(super) fn remove(&mut self, container: u64) -> bool {
        self.fenced.remove(&container);
        self.young.remove(&container).is_some()
    }

    /// Notes that a container could not be swept: it is fenced anew at the next look, and waits again.
    pub(super) fn again(&mut self, container: u64) {
        self.fenced.remove(&container);
        self.wanted.insert(container);
    }

    /// Has all fences wait anew: some group may have them only since now.
    pub(super) fn wait_again(&mut self, now: Instant) {
        self.fenced.values_mut().for_each(|since| *since = now);
    }

    /// Forgets containers that are not closed any more.
    pub(super) fn retain(&mut self, closed: &BTreeSet<u64>) {
        self.young.retain(|container, _| closed.contains(container));
        self.fenced.retain(|container, _| closed.contains(container));
        self.looked_again.retain(|container| closed.contains(container));
        self.wanted.retain(|container| closed.contains(container));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.fenced.is_empty() && self.wanted.is_empty()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.fenced.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        after: Duration::from_secs(3600),
        every: Some(Duration::from_secs(7 * 24 * 3600)),
        behind_fence: Duration::from_secs(600),
    };

    #[tokio::test]
    async fn a_container_is_swept_some_time_after_it_was_closed_and_now_and_then() {
        let (mut queue, begun) = (Queue::default(), Instant::now());
        let second = Duration::from_secs(1);
        let at = |seconds: u32| begun + seconds * second;
        let is_due = |queue: &mut Queue, at: Instant| queue.is_due(7, None, &TIMES, (at, 0));
        assert!(!is_due(&mut queue, at(0)) && !is_due(&mut queue, at(3599)) && is_due(&mut queue, at(3600)));
        queue.fence(7, at(3600));
        assert!(!is_due(&mut queue, at(9999)), "it waits already");
        assert_eq!((queue.next(&TIMES, at(4199)), queue.next(&TIMES, at(4200))), (None, Some(7)));
        assert_eq!((queue.next_at(&TIMES), queue.waiting()), (Some(at(4200)), 1));
        queue.again(7);
        assert!(is_due(&mut queue, at(4200)), "it is fenced anew, and waits from there");
        queue.fence(7, at(4200));
        queue.wait_again(at(4700));
        assert_eq!((queue.next(&TIMES, at(5299)), queue.next(&TIMES, at(5300))), (None, Some(7)));
        assert!(queue.remove(7) && !queue.remove(7), "it was swept for the first time");
        assert_eq!(queue.next_at(&TIMES), None);

        let swept = |swept_ms, lost| SweptContainer { swept_ms, lost, ..SweptContainer::default() };
        let week = TIMES.every.unwrap().as_millis() as u64;
        let mut is_due =
            |swept: &SweptContainer, now_ms| queue.is_due(7, Some(swept), &TIMES, (begun, now_ms));
        assert!(!is_due(&swept(5, 0), week) && is_due(&swept(5, 0), week + 5));
        assert!(is_due(&swept(5, 1), 6), "a new leader looks for itself");
        assert!(!is_due(&swept(5, 1), 7), "not at once");
        let soon = TIMES.after.as_millis() as u64 + 5;
        assert!(!is_due(&swept(5, 0), soon) && is_due(&swept(5, 1), soon), "it may have come back");
        assert!(!is_due(&swept(0, 0), week), "it was fenced, and never swept");
        queue.fence(8, begun);
        queue.retain(&BTreeSet::from([9]));
        assert_eq!(queue.waiting(), 0);
    }

    #[tokio::test]
    async fn nothing_is_swept_by_itself_unless_somebody_has_said_so_and_no_request_makes_a_container_older() {
        let times = Times { every: None, ..TIMES };
        let (mut queue, begun) = (Queue::default(), Instant::now());
        let month = 30 * 24 * Duration::from_secs(3600);
        let is_due = |queue: &mut Queue, container, swept: Option<&SweptContainer>, after: Duration| {
            queue.is_due(container, swept, &times, (begun + after, after.as_millis() as u64))
        };
        let swept = SweptContainer { swept_ms: 5, lost: 1, ..SweptContainer::default() };
        let closed = BTreeSet::from([7, 8]);
        for after in [Duration::ZERO, times.after, month] {
            assert!(!is_due(&mut queue, 7, None, after) && !is_due(&mut queue, 8, Some(&swept), after));
        }
        queue.want(&Requested { all: true, ..Requested::default() }, &closed);
        assert!(is_due(&mut queue, 8, Some(&swept), times.after) && is_due(&mut queue, 7, None, times.after));
        assert!(!is_due(&mut queue, 8, Some(&swept), month), "once");

        let mut queue = Queue::default();
        assert!(!is_due(&mut queue, 7, None, Duration::ZERO));
        queue.want(&Requested { some: BTreeSet::from([7, 99]), ..Requested::default() }, &closed);
        assert!(
            !is_due(&mut queue, 7, None, times.after / 2) && !queue.is_idle(),
            "it was closed a moment ago"
        );
        assert!(is_due(&mut queue, 7, None, times.after), "its request is remembered");
        assert!(queue.is_idle());
    }
}
