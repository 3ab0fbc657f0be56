use crate::{Act, HookedDisk};
use disk::Disk;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count of how often something is made durable, for measurements.
#[derive(Clone, Default)]
pub struct Syncs(Arc<AtomicU64>);

impl Syncs {
    /// A disk whose syncs are counted here.
    pub fn of(&self, disk: Arc<dyn Disk>) -> HookedDisk {
        let count = self.0.clone();
        HookedDisk::new(disk, move |call| {
            if call.operation.is_sync() {
                count.fetch_add(1, Ordering::Relaxed);
            }
            Act::Pass
        })
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
