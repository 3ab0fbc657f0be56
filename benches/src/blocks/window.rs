use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// The times for which load runs before it counts, and while it does.
#[derive(Clone, Copy)]
pub struct Windows {
    pub warm_up: Duration,
    pub measured: Duration,
}

const WARM_UP: u8 = 0;
const COUNTS: u8 = 1;
const OVER: u8 = 2;

/// The window that all who make load look at: whether it counts, and when to stop.
pub struct Window {
    phase: AtomicU8,
}

impl Window {
    pub(crate) fn new() -> Window {
        Window { phase: AtomicU8::new(WARM_UP) }
    }

    pub(crate) fn count(&self) {
        self.phase.store(COUNTS, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.phase.store(OVER, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == OVER
    }

    /// Notes the microseconds of an operation that ends at this moment, if it counts.
    pub(crate) fn note(&self, begun: Instant, latencies: &mut Vec<u32>) {
        if self.phase.load(Ordering::Relaxed) == COUNTS {
            latencies.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
    }
}
