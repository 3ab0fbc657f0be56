//! Counts that a group and its host keep while they work. Relaxed additions where the work is done, and
//! nothing else: no lock, no allocation, no second clock reading for what somebody else measures already.

pub(crate) mod host_metrics;
pub(crate) mod prometheus;
pub(crate) mod tally;

use metrics::{Counter, Distribution, Histogram, Unit};
use proto::{Code, Failure};
use raftlog::HardState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use tally::Tally;
use tokio::sync::OwnedSemaphorePermit;
use types::ReplicaId;

pub(crate) struct Counts {
    replica: ReplicaId,
    pub(crate) tally: Tally<Counter>,
    /// Proposals whose [`Share`] was given back.
    proposals_over: Counter,
    /// The time from openraft's call to durable, the wait for room in the disk's queue included.
    pub(crate) append: Histogram,
    pub(crate) appends: Counter,
    /// The time of each write of the state machine; `apply_entries`: how many entries it applied.
    pub(crate) apply: Histogram,
    pub(crate) apply_entries: Histogram,
    /// Times the group's doze ended.
    pub(crate) woken: Counter,
}

impl Counts {
    pub(crate) fn new(replica: ReplicaId) -> Counts {
        Counts {
            replica,
            tally: Tally::default(),
            proposals_over: Counter::default(),
            append: Histogram::new(Unit::Nanoseconds),
            appends: Counter::default(),
            apply: Histogram::new(Unit::Nanoseconds),
            apply_entries: Histogram::new(Unit::Count),
            woken: Counter::default(),
        }
    }

    /// Counts elections and leaders by the votes that are saved: openraft saves its own, uncommitted, when it
    /// stands, and the leader's, committed, when it learns of one.
    pub(crate) fn vote_saved(&self, before: Option<HardState>, vote: HardState) {
        if before == Some(vote) {
            return;
        }
        let is_own = vote.vote_replica == self.replica.0;
        match vote.vote_committed {
            false if is_own => self.tally.elections_started.count(),
            false => {}
            true => {
                self.tally.leader_changes.count();
                if is_own {
                    self.tally.elections_won.count();
                }
            }
        }
    }

    /// The proposals that were taken and are not yet over. The two counts are of nearly one moment, so the
    /// answer is never less than none.
    pub(crate) fn proposals_in_flight(&self) -> u64 {
        let over = self.proposals_over.get();
        self.tally.proposals.get().saturating_sub(over)
    }

    pub(crate) fn appends_queued(&self) -> u64 {
        let durable = self.append.take().count();
        self.appends.get().saturating_sub(durable)
    }
}

/// A proposal's part of its group's limit, until the command is applied or dropped.
pub(crate) struct Share {
    _permit: OwnedSemaphorePermit,
    counts: Arc<Counts>,
}

impl Share {
    pub(crate) fn new(permit: OwnedSemaphorePermit, counts: Arc<Counts>) -> Share {
        counts.tally.proposals.count();
        Share { _permit: permit, counts }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.counts.proposals_over.count();
    }
}

/// The counts of a host beside its groups.
#[derive(Default)]
pub(crate) struct HostCounts {
    refused: Mutex<BTreeMap<i32, u64>>,
    ledger: Mutex<Ledger>,
}

/// The counts of all groups that are or were on a host: each group is in one of the two at any moment, so
/// that totals never fall.
#[derive(Default)]
struct Ledger {
    open: Vec<Arc<Counts>>,
    closed: Totals,
}

/// The totals of several groups together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) append: Distribution,
    pub(crate) apply: Distribution,
    pub(crate) apply_entries: Distribution,
    pub(crate) woken: u64,
}

impl Default for Totals {
    fn default() -> Self {
        Totals {
            append: Distribution::new(Unit::Nanoseconds),
            apply: Distribution::new(Unit::Nanoseconds),
            apply_entries: Distribution::new(Unit::Count),
            woken: 0,
        }
    }
}

impl Totals {
    pub(crate) fn add(&mut self, counts: &Counts) {
        self.append.merge(&counts.append.take());
        self.apply.merge(&counts.apply.take());
        self.apply_entries.merge(&counts.apply_entries.take());
        self.woken += counts.woken.get();
    }
}

impl HostCounts {
    /// Counts a message that was refused and changed nothing. The lock is no hot path: a refusal ends the
    /// sender's stream, or is its answer.
    pub(crate) fn refused(&self, failure: &Failure) {
        *self.refused.lock().expect("no holder panics").entry(failure.code as i32).or_default() += 1;
    }

    pub(crate) fn refusals(&self) -> Vec<(Code, u64)> {
        let refused = self.refused.lock().expect("no holder panics");
        let known = |(code, count): (&i32, &u64)| Some((Code::try_from(*code).ok()?, *count));
        refused.iter().filter_map(known).collect()
    }

    pub(crate) fn group_opened(&self, counts: Arc<Counts>) {
        self.ledger.lock().expect("no holder panics").open.push(counts);
    }

    /// Keeps what a group did in the host's totals.
    pub(crate) fn group_closed(&self, counts: &Arc<Counts>) {
        let mut ledger = self.ledger.lock().expect("no holder panics");
        ledger.open.retain(|open| !Arc::ptr_eq(open, counts));
        ledger.closed.add(counts);
    }

    /// The totals of the groups that are here and of those that were. They only grow.
    pub(crate) fn totals(&self) -> Totals {
        let ledger = self.ledger.lock().expect("no holder panics");
        let mut totals = ledger.closed.clone();
        ledger.open.iter().for_each(|counts| totals.add(counts));
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(vote_term: u64, vote_replica: u64, vote_committed: bool) -> HardState {
        HardState { vote_term, vote_replica, vote_committed }
    }

    #[test]
    fn votes_tell_of_elections() {
        let counts = Counts::new(ReplicaId(1));
        let mut before = None;
        let mut check = |saved, expect: (u64, u64, u64)| {
            counts.vote_saved(before, saved);
            before = Some(saved);
            let Tally { elections_started, elections_won, leader_changes, .. } = counts.tally.read();
            assert_eq!((elections_started, elections_won, leader_changes), expect, "after {saved:?}");
        };
        check(vote(1, 1, false), (1, 0, 0));
        check(vote(1, 1, true), (1, 1, 1));
        check(vote(1, 1, true), (1, 1, 1));
        check(vote(2, 2, false), (1, 1, 1));
        check(vote(3, 3, true), (1, 1, 2));
        check(vote(4, 1, false), (2, 1, 2));
    }
}
