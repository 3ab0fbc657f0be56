//! The progress of the sweep, and what it has found, for operators and Prometheus.

use crate::tables::{Read, fenced_key, fences};
use metrics::{Counter, Exposition, Metric};
use proto::om::{GetSweepResponse, LostKey, SweptContainer};
use statedb::Db;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

const SWEPT: Metric = Metric {
    name: "flotilla_om_swept_containers_total",
    help: "Containers that were compared with what all groups of names know of them.",
};
const ORPHANS: Metric = Metric {
    name: "flotilla_om_orphan_blocks_total",
    help: "Blocks that no group of names had ever heard of, and that are to go since.",
};
const ORPHAN_BYTES: Metric =
    Metric { name: "flotilla_om_orphan_bytes_total", help: "Bytes of such blocks, of one replica." };
const FAILED: Metric = Metric {
    name: "flotilla_om_sweep_failed_total",
    help: "Times that the sweep could not go on: SCM, a datanode or a group did not answer, or a bucket moved.",
};
const LOST: Metric = Metric {
    name: "flotilla_om_lost_names",
    help: "Keys and parts that name a block which no replica has, as the root's leader has found; of the root.",
};
const STOPPED: Metric = Metric {
    name: "flotilla_om_sweep_stopped",
    help: "Whether nothing is swept before an operator says so, as names may be missing for a while; of the root.",
};
const WAITING: Metric = Metric {
    name: "flotilla_om_sweep_waiting_containers",
    help: "Containers that are fenced and wait to be swept; of the root.",
};
/// The most lost names that are told of, one by one.
const LOST_TOLD: usize = 1000;
/// The most characters of a failure that are kept: enough for people.
const WHY_CHARS_MAX: usize = 300;
/// The most containers that operators may ask for at a time.
const REQUESTED_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct SweepCounts {
    pub(super) swept: Counter,
    pub(super) orphans: Counter,
    pub(super) orphan_bytes: Counter,
    failed: Counter,
    state: Mutex<State>,
    pub(super) wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the root is led from here.
    is_leader: bool,
    paused: String,
    is_stopped: bool,
    look: Look,
    waiting: u64,
    under_way: u64,
    last_failure: String,
    last_failure_ms: u64,
    /// The lost names, by container: how many, and some of them.
    lost: BTreeMap<u64, (u64, Vec<LostKey>)>,
    requested: Requested,
}

impl State {
    /// The state without what a leader knew: like the counters, the last failure belongs to the process.
    fn forgotten(&mut self) -> State {
        let last_failure = std::mem::take(&mut self.last_failure);
        State { last_failure, last_failure_ms: self.last_failure_ms, ..State::default() }
    }
}

/// The result of the last look at all containers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) closed: u64,
    pub(super) unswept: u64,
    pub(super) swept: u64,
    pub(super) oldest_swept_ms: u64,
    pub(super) looked_ms: u64,
}

/// The containers that operators want to be swept now.
#[derive(Debug, Default)]
pub(super) struct Requested {
    pub(super) all: bool,
    pub(super) some: BTreeSet<u64>,
}

impl Requested {
    pub(super) fn has(&self, container: u64) -> bool {
        self.all || self.some.contains(&container)
    }

    pub(super) fn is_any(&self) -> bool {
        self.all || !self.some.is_empty()
    }
}

/// The time in which the root is led from here.
pub(super) struct Leading(Arc<SweepCounts>);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.change(|state| *state = state.forgotten());
    }
}

/// Requests that somebody takes on: dropped before that is [`Taken::done`], they are requested as before.
pub(super) struct Taken<'a> {
    counts: &'a SweepCounts,
    pub(super) requested: Requested,
}

impl Taken<'_> {
    pub(super) fn done(mut self) {
        self.requested = Requested::default();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Requested { all, some } = std::mem::take(&mut self.requested);
        self.counts.change(|state| {
            state.requested.all |= all;
            state.requested.some.extend(some);
        });
    }
}

impl SweepCounts {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().expect("no holder panics"))
    }

    /// Begins to lead, until what this returns is dropped: what was known of an earlier time as leader is of
    /// no use.
    pub(super) fn begin(self: Arc<SweepCounts>) -> Leading {
        self.change(|state| {
            let requested = std::mem::take(&mut state.requested);
            *state = State { is_leader: true, requested, ..state.forgotten() };
        });
        Leading(self)
    }

    pub(super) fn pause(&self, why: &str) {
        self.change(|state| state.paused = why.to_owned());
    }

    pub(super) fn note_stopped(&self, is_stopped: bool) {
        self.change(|state| state.is_stopped = is_stopped);
    }

    pub(super) fn note_look(&self, look: Look) {
        self.change(|state| state.look = look);
    }

    /// Notes that one of the containers that the look saw was swept for the first time.
    pub(super) fn note_first(&self) {
        self.change(|state| {
            state.look.unswept = state.look.unswept.saturating_sub(1);
            state.look.swept += 1;
        });
    }

    pub(super) fn note_queue(&self, waiting: u64, under_way: u64) {
        self.change(|state| (state.waiting, state.under_way) = (waiting, under_way));
    }

    pub(super) fn note_failure(&self, why: String, now_ms: u64) {
        self.failed.count();
        let why = why.chars().take(WHY_CHARS_MAX).collect();
        self.change(|state| (state.last_failure, state.last_failure_ms) = (why, now_ms));
    }

    /// Notes what is lost in a container, in place of what was known of it.
    pub(super) fn note_lost(&self, container: u64, count: u64, some: Vec<LostKey>) {
        self.change(|state| {
            state.lost.remove(&container);
            let told: usize = state.lost.values().map(|(_, some)| some.len()).sum();
            let some: Vec<_> = some.into_iter().take(LOST_TOLD.saturating_sub(told)).collect();
            if count > 0 {
                state.lost.insert(container, (count, some));
            }
        });
    }

    /// Containers of which something is lost, as far as this leader knows.
    pub(super) fn lost_containers(&self) -> Vec<u64> {
        self.change(|state| state.lost.keys().copied().collect())
    }

    /// Notes that an operator wants a container, or 0: all, to be swept now.
    pub(crate) fn request(&self, container: u64) {
        self.change(|state| match container {
            0 => state.requested.all = true,
            _ if state.requested.some.len() < REQUESTED_MAX => {
                state.requested.some.insert(container);
            }
            _ => {}
        });
        self.wanted.notify_one();
    }

    /// The requests that are there now, to be taken on.
    pub(super) fn take_requested(&self) -> Taken<'_> {
        Taken { counts: self, requested: self.change(|state| std::mem::take(&mut state.requested)) }
    }

    pub(super) fn is_requested(&self) -> bool {
        self.change(|state| state.requested.is_any())
    }

    /// The answer to an operator who asks how far the sweep is. `tables` are the root's.
    pub(crate) fn told(&self, tables: &Db, container: u64) -> anyhow::Result<GetSweepResponse> {
        let row = if container == 0 { None } else { Read::get(tables, &fenced_key(container))? };
        let swept: Option<SweptContainer> =
            row.as_ref().map(|row| crate::tables::decode(b"m", row)).transpose()?;
        let stop = fences(tables)?.stop;
        Ok(self.change(|state| GetSweepResponse {
            paused: state.paused.clone(),
            closed: state.look.closed,
            waiting: state.waiting,
            unswept: state.look.unswept,
            swept: state.look.swept,
            oldest_swept_ms: state.look.oldest_swept_ms,
            looked_ms: state.look.looked_ms,
            under_way: state.under_way,
            swept_since: self.swept.get(),
            orphans: self.orphans.get(),
            orphan_bytes: self.orphan_bytes.get(),
            failed: self.failed.get(),
            last_failure: state.last_failure.clone(),
            last_failure_ms: state.last_failure_ms,
            lost: state.lost.values().flat_map(|(_, some)| some.iter().cloned()).collect(),
            lost_total: state.lost.values().map(|(count, _)| count).sum(),
            is_fenced: row.is_some(),
            container: swept.filter(|swept| swept.swept_ms != 0),
            stop,
        }))
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition) {
        exposition.counter(SWEPT, &[], self.swept.get());
        exposition.counter(ORPHANS, &[], self.orphans.get());
        exposition.counter(ORPHAN_BYTES, &[], self.orphan_bytes.get());
        exposition.counter(FAILED, &[], self.failed.get());
        let led = self.change(|state| {
            let lost = state.lost.values().map(|(count, _)| count).sum::<u64>();
            state.is_leader.then_some((lost, state.waiting, state.is_stopped))
        });
        if let Some((lost, waiting, is_stopped)) = led {
            exposition.gauge(LOST, &[], lost);
            exposition.gauge(WAITING, &[], waiting);
            exposition.gauge(STOPPED, &[], u64::from(is_stopped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_of_as_it_was_found_last_and_within_bounds() {
        let counts = Arc::<SweepCounts>::default();
        let leading = counts.clone().begin();
        let some = |count| vec![LostKey::default(); count];
        counts.note_lost(1, 5000, some(900));
        counts.note_lost(2, 300, some(300));
        let told = |counts: &SweepCounts| {
            counts.change(|state| {
                let told: usize = state.lost.values().map(|(_, some)| some.len()).sum();
                (told, state.lost.values().map(|(count, _)| count).sum::<u64>())
            })
        };
        assert_eq!((told(&counts), counts.lost_containers()), ((1000, 5300), vec![1, 2]));
        counts.note_lost(1, 0, vec![]);
        assert_eq!(told(&counts), (100, 300));
        drop(leading);
        assert_eq!(told(&counts), (0, 0), "another leader looks for itself");
    }

    #[test]
    fn a_failure_that_is_counted_is_told_of_after_its_leader_too() {
        let counts = Arc::<SweepCounts>::default();
        let leading = counts.clone().begin();
        counts.note_failure("no disk".to_owned(), 7);
        drop(leading);
        let _leading = counts.clone().begin();
        let last = counts.change(|state| (state.last_failure.clone(), state.last_failure_ms));
        assert_eq!((counts.failed.get(), last), (1, ("no disk".to_owned(), 7)));
    }
}
