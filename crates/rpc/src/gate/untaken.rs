use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The time within which a piece of an answer is taken, as long as a message may take to come whole.
const TAKING_MAX: Duration = Duration::from_secs(60);

/// The pieces of answers that a connection of HTTP/2 has for its peer, by when they were made. Nothing below
/// us ends a call whose peer takes nothing of its answer.
#[derive(Debug, Default)]
pub(super) struct Untaken {
    pieces: Mutex<BTreeSet<(Instant, u64)>>,
    made: AtomicU64,
}

/// A piece that waits until this is dropped.
pub(super) struct Waiting {
    untaken: Arc<Untaken>,
    key: (Instant, u64),
}

impl Untaken {
    pub(super) fn begin(self: &Arc<Self>) -> Waiting {
        let key = (Instant::now(), self.made.fetch_add(1, Ordering::Relaxed));
        self.pieces().insert(key);
        Waiting { untaken: self.clone(), key }
    }

    /// Whether a piece waits for longer than it may.
    pub(super) fn is_late(&self) -> bool {
        self.pieces().first().is_some_and(|(made, _)| made.elapsed() >= TAKING_MAX)
    }

    fn pieces(&self) -> MutexGuard<'_, BTreeSet<(Instant, u64)>> {
        self.pieces.lock().expect("no holder panics")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.untaken.pieces().remove(&self.key);
    }
}
