//! Which test runs when: the longest first, as many as there are slots; and what computes beside what waits.

use crate::artifacts::Test;
use crate::needs::{Need, need};
use crate::process::{self, Ended, Verdict};
use crate::times::Times;
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) test: Test,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    /// The processor time of the test and of all that it started.
    pub(crate) computed: Duration,
    /// The output of a failed test.
    pub(crate) printed: String,
    /// Whether the test passed alone, after it had failed beside others.
    pub(crate) passed_alone: bool,
}

impl Outcome {
    pub(crate) fn has_failed(&self) -> bool {
        self.verdict != Verdict::Passed
    }
}

/// A test with what it needs.
pub(crate) struct Queued {
    test: Test,
    need: Need,
}

/// How many tests run side by side, and on how many cores.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) slots: usize,
    pub(crate) cores: usize,
}

/// Puts the longest tests first: what begins last should not be what takes longest.
pub(crate) fn in_order(tests: Vec<Test>, times: &Times) -> Vec<Queued> {
    let mut tests: Vec<(u64, Test)> =
        tests.into_iter().map(|test| (times.expected_ms(&test.to_string()), test)).collect();
    tests.sort_by_key(|(expected_ms, _)| std::cmp::Reverse(*expected_ms));
    tests.into_iter().map(|(_, test)| Queued { need: need(&test), test }).collect()
}

/// Runs all of `queue`. `report` is called as each ends.
pub(crate) fn run(
    queue: Vec<Queued>,
    limits: Limits,
    each_within: Duration,
    report: fn(&Outcome),
) -> Vec<Outcome> {
    let room =
        Room { limits, state: Mutex::new(State { waiting: queue, computing: 0 }), changed: Condvar::new() };
    let run_some = |worker: usize| {
        let ports = ports_of(worker, limits.slots);
        let mut outcomes = Vec::new();
        while let Some(Queued { test, need }) = room.take() {
            let started = Instant::now();
            let Ended { verdict, printed, computed } = process::run(&test, &ports, each_within);
            room.leave(need);
            let took = started.elapsed();
            outcomes.push(Outcome { test, verdict, took, computed, printed, passed_alone: false });
            report(outcomes.last().expect("it was pushed"));
        }
        outcomes
    };
    let run_some = &run_some;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..limits.slots).map(|worker| scope.spawn(move || run_some(worker))).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker does not panic")).collect()
    })
}

/// The most failed tests that are tried alone: where more fail it is not the machine.
const ALONE_MAX: usize = 3;

/// Runs the tests that failed once more, one after the other and beside nothing: a machine that stands still
/// for seconds fails tests that wait for nothing longer. What fails by itself fails again.
pub(crate) fn run_failed_alone(outcomes: &mut [Outcome], each_within: Duration) {
    let failed: Vec<&mut Outcome> = outcomes.iter_mut().filter(|outcome| outcome.has_failed()).collect();
    if failed.len() > ALONE_MAX {
        return;
    }
    for outcome in failed {
        let ended = process::run(&outcome.test, &PORTS, each_within);
        outcome.passed_alone = ended.verdict == Verdict::Passed;
    }
}

/// The ports that `testkit` may give away, parted among the workers.
const PORTS: Range<usize> = 20_000..32_000;

fn ports_of(worker: usize, workers: usize) -> Range<usize> {
    let each = PORTS.len() / workers;
    PORTS.start + worker * each..PORTS.start + (worker + 1) * each
}

/// The tests that wait. Each worker is a slot.
struct Room {
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: Vec<Queued>,
    /// The number of tests under way that need a core.
    computing: usize,
}

impl Room {
    /// The next test; waits while none may begin. None when no test is left.
    fn take(&self) -> Option<Queued> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.waiting.is_empty() {
                return None;
            }
            if let Some(at) = self.next(&state) {
                let queued = state.waiting.remove(at);
                state.computing += usize::from(queued.need == Need::Core);
                return Some(queued);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Picks the next test: those that compute are kept going beside those that wait, on half of the cores,
    /// and on all when nothing else is left.
    fn next(&self, state: &State) -> Option<usize> {
        let first = |need: Need| state.waiting.iter().position(|queued| queued.need == need);
        let other = state.waiting.iter().position(|queued| queued.need != Need::Core);
        let cores = match other {
            Some(_) => self.limits.cores.div_ceil(2),
            None => self.limits.cores,
        };
        let computing = if state.computing < cores { first(Need::Core) } else { None };
        computing.or(other)
    }

    fn leave(&self, need: Need) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.computing -= usize::from(need == Need::Core);
        self.changed.notify_all();
    }
}
