use crate::HostOptions;
use parking::Throttle;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Limits that the snapshots of all groups of a host share.
pub(crate) struct Limits {
    pub(crate) sending: Throttle,
    pub(crate) receiving: Throttle,
    /// Snapshots being written.
    pub(crate) writers: Arc<Semaphore>,
    /// Snapshots being received.
    pub(crate) receptions: Arc<Semaphore>,
}

impl Limits {
    pub(crate) fn new(options: &HostOptions) -> Limits {
        let HostOptions { snapshot_bytes_per_second, snapshot_writers_max, snapshot_receptions_max, .. } =
            *options;
        Limits {
            sending: Throttle::new(snapshot_bytes_per_second),
            receiving: Throttle::new(snapshot_bytes_per_second),
            writers: Arc::new(Semaphore::new(snapshot_writers_max)),
            receptions: Arc::new(Semaphore::new(snapshot_receptions_max)),
        }
    }
}
