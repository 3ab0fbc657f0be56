use crate::HostOptions;
use parking::Throttle;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Bytes of snapshots that are removed in a second where nobody waits for it. A disk that is told which
/// blocks are free again may do nothing else meanwhile: freeing 64 MiB took a virtual one 50 ms.
const REMOVED_BYTES_PER_SECOND: u64 = 128 << 20;

/// Limits that the snapshots of all groups of a host share.
pub(crate) struct Limits {
    pub(crate) sending: Throttle,
    pub(crate) receiving: Throttle,
    pub(crate) removing: Throttle,
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
            removing: Throttle::new(REMOVED_BYTES_PER_SECOND),
            writers: Arc::new(Semaphore::new(snapshot_writers_max)),
            receptions: Arc::new(Semaphore::new(snapshot_receptions_max)),
        }
    }
}
