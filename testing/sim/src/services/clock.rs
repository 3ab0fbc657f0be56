use crate::world::{Context, Trace};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use types::Clock;

/// How far the clock on a machine's wall is ahead of the world's time. A cheap handle: it may jump.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead(Arc<AtomicU64>);

/// The clock on a machine's wall: the world's time, from some day on, and some are ahead of it.
struct WorldClock {
    trace: Trace,
    ahead: Ahead,
}

impl Ahead {
    pub(crate) fn by(ahead: Duration) -> Ahead {
        let clock = Ahead::default();
        clock.set(ahead);
        clock
    }

    pub(crate) fn set(&self, ahead: Duration) {
        self.0.store(ahead.as_millis() as u64, Ordering::Relaxed);
    }

    /// The clock of a process on the machine.
    pub(crate) fn clock(&self, context: &Context) -> Arc<dyn Clock> {
        Arc::new(WorldClock { trace: context.trace.clone(), ahead: self.clone() })
    }
}

impl Clock for WorldClock {
    fn now_ms(&self) -> u64 {
        const SOME_DAY_MS: u64 = 1_700_000_000_000;
        SOME_DAY_MS + self.trace.now().as_millis() as u64 + self.ahead.0.load(Ordering::Relaxed)
    }
}
