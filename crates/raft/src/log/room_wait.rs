use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a group waits for room on a full disk: while it runs. While it is being opened its opener is told
/// instead; and what waits is over before the group is closed, or it would write to a place that is somebody
/// else's by then.
#[derive(Clone, Default)]
pub(crate) struct RoomWait(Arc<AtomicBool>);

impl RoomWait {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub(crate) fn lasts(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
