/// The policy of a group whose state can be copied: when it writes a snapshot, and what of its log stays
/// behind that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Bytes of log since the last snapshot at which the next one is written.
    pub log_bytes_max: u64,
    /// Bytes of log that stay when it is purged, so that a member that was away for a short time needs no
    /// snapshot.
    pub tail_bytes: u64,
}

impl SnapshotPolicy {
    /// The policy of metadata groups. A restart applies at most this much again, some seconds of work; the
    /// log has one segment (128 MiB) more than the sum of both on the disk.
    pub const METADATA: SnapshotPolicy = SnapshotPolicy::every(256 << 20);

    /// A policy with a quarter of the log as its tail.
    pub const fn every(log_bytes_max: u64) -> SnapshotPolicy {
        SnapshotPolicy { log_bytes_max, tail_bytes: log_bytes_max / 4 }
    }
}
