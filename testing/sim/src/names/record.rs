use super::counts::Counts;
use crate::world::Trace;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// A record of what happened in a run, and what went wrong. A cheap handle.
#[derive(Clone)]
pub(super) struct Record {
    state: Arc<Mutex<State>>,
    trace: Trace,
}

#[derive(Default)]
struct State {
    counts: Counts,
    violation: Option<String>,
    is_quiet: bool,
    is_over: bool,
    /// The OMs whose disks have been full.
    full: BTreeSet<usize>,
}

impl Record {
    pub(super) fn new(trace: Trace) -> Record {
        Record { state: Arc::default(), trace }
    }

    pub(super) fn event(&self, what: fmt::Arguments<'_>) {
        self.trace.event(what);
    }

    pub(super) fn disk_is_full(&self, om: usize) {
        self.lock().full.insert(om);
    }

    /// The number of OMs whose disks have been full by now.
    pub(super) fn full_disks(&self) -> usize {
        self.lock().full.len()
    }

    /// Notes a violation; only the first counts.
    pub(super) fn fail(&self, what: String) {
        self.trace.event(format_args!("violation: {what}"));
        self.lock().violation.get_or_insert(what);
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Notes that there are no faults from here on.
    pub(super) fn quiet(&self) {
        self.lock().is_quiet = true;
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.lock().is_quiet
    }

    /// Has clients begin nothing more.
    pub(super) fn end(&self) {
        self.lock().is_over = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the record panics")
    }
}
