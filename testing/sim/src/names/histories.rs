//! The calls of clients about buckets, and their answers, bucket by bucket.

use disk::sim::Random;
use history::{Bucket, BucketAnswer, BucketOp, Call, is_linearizable};
use std::sync::{Arc, Mutex, MutexGuard};

/// Buckets at a time: few, so that clients meet.
const ACTIVE: usize = 3;
/// The most calls about one bucket: a history is searched, and each call whose outcome is unknown doubles the
/// search.
const CALLS_MAX: usize = 90;
const UNKNOWN_MAX: usize = 6;

type BucketCall = Call<BucketOp, BucketAnswer>;

/// All histories of a run. A cheap handle.
#[derive(Clone)]
pub(super) struct Histories {
    state: Arc<Mutex<State>>,
}

struct State {
    ticks: u64,
    histories: Vec<History>,
    /// The places in `histories` of those that are added to.
    active: [usize; ACTIVE],
}

/// The calls about the buckets of one name, one after the other.
#[derive(Default)]
struct History {
    calls: Vec<BucketCall>,
    /// Calls that have not come to an end.
    under_way: usize,
    is_checked: bool,
}

/// A call that was begun.
pub(super) struct Begun {
    history: usize,
    pub(super) bucket: String,
    op: BucketOp,
    asked_at: u64,
}

impl Histories {
    pub(super) fn new() -> Histories {
        let histories = (0..ACTIVE).map(|_| History::default()).collect();
        let state = State { ticks: 0, histories, active: std::array::from_fn(|at| at) };
        Histories { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the histories panics")
    }

    /// A history that is not full; a new one takes the place of one that is.
    pub(super) fn pick(&self, random: &mut Random) -> usize {
        let state = &mut *self.lock();
        let at = random.below(ACTIVE as u64) as usize;
        if state.histories[state.active[at]].is_full() {
            state.active[at] = state.histories.len();
            state.histories.push(History::default());
        }
        state.active[at]
    }

    /// The write of a key that was acknowledged last.
    pub(super) fn recent(&self, history: usize, wanted: u8) -> Option<u64> {
        let put = |call: &BucketCall| match (&call.op, &call.answered) {
            (BucketOp::Put { key, write, .. }, Some((_, BucketAnswer::Done))) if *key == wanted => {
                Some(*write)
            }
            _ => None,
        };
        self.lock().histories[history].calls.iter().rev().find_map(put)
    }

    pub(super) fn begin(&self, history: usize, op: BucketOp) -> Begun {
        let state = &mut *self.lock();
        state.ticks += 1;
        state.histories[history].under_way += 1;
        Begun { history, bucket: name(history), op, asked_at: state.ticks }
    }

    /// Notes that a call was answered, or that nobody knows what became of it.
    pub(super) fn note(&self, begun: Begun, answer: Option<BucketAnswer>) {
        let state = &mut *self.lock();
        state.ticks += 1;
        let answered = answer.map(|answer| (state.ticks, answer));
        let history = &mut state.histories[begun.history];
        history.under_way -= 1;
        history.is_checked = false;
        history.calls.push(Call { op: begun.op, asked_at: begun.asked_at, answered });
    }

    /// Forgets a call that did nothing: the history must make sense without it.
    pub(super) fn forget(&self, begun: Begun) {
        self.lock().histories[begun.history].under_way -= 1;
    }

    pub(super) fn count(&self) -> usize {
        self.lock().histories.len()
    }

    /// Checks the histories that nobody adds to any more. An error has the whole history.
    pub(super) fn check_full(&self) -> Result<(), String> {
        self.check(History::is_full)
    }

    pub(super) fn check_all(&self) -> Result<(), String> {
        self.check(|_| true)
    }

    fn check(&self, is_wanted: impl Fn(&History) -> bool) -> Result<(), String> {
        let state = &mut *self.lock();
        for (number, history) in state.histories.iter_mut().enumerate() {
            if history.is_checked || history.under_way > 0 || !is_wanted(history) {
                continue;
            }
            history.is_checked = true;
            if !is_linearizable(Bucket::default(), &history.calls) {
                let calls: Vec<String> = history.calls.iter().map(|call| format!("  {call:?}")).collect();
                let name = name(number);
                return Err(format!("bucket {name} has a history that cannot be:\n{}", calls.join("\n")));
            }
        }
        Ok(())
    }
}

/// The name of a history's bucket.
pub(super) fn name(history: usize) -> String {
    format!("h{history:06}")
}

impl History {
    fn is_full(&self) -> bool {
        let unknown = self.calls.iter().filter(|call| call.answered.is_none()).count();
        self.calls.len() + self.under_way >= CALLS_MAX || unknown >= UNKNOWN_MAX
    }
}
