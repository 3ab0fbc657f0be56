use std::time::Duration;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const REPLICAS: u64 = 3;
pub(super) const CONTAINER_BYTES_MAX: u64 = 64 * MIB;

pub struct Plan {
    /// The numbers of objects of 4 KiB, and of 64 KiB.
    pub small: u64,
    pub large: u64,
    pub reclaim_after: Duration,
}

/// The words for objects of one size, with names of their own.
pub(super) fn objects(count: u64, bytes: u64) -> String {
    format!("--count {count} --object-bytes {bytes} --seed {bytes}")
}
