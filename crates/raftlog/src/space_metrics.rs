use crate::LogSpace;
use metrics::{Distribution, Exposition, Histogram, Metric};
use std::sync::atomic::Ordering;

/// Measurements of a disk's writers.
#[derive(Debug, Default)]
pub(crate) struct SpaceCounts {
    /// The time of each write and sync of what had queued up in a log.
    pub(crate) write_and_sync: Histogram,
    /// The time of each durable change of a log's hard state: votes, mostly.
    pub(crate) hard_state: Histogram,
}

/// A disk's logs at some moment, as plain values.
#[derive(Clone, Debug, PartialEq)]
pub struct SpaceMetrics {
    pub logs: usize,
    pub write_and_sync_nanos: Distribution,
    pub hard_state_nanos: Distribution,
    /// The bytes appended and not yet durable, and their limit.
    pub unflushed_bytes: usize,
    pub unflushed_bytes_max: usize,
    /// The bytes of recent entries kept in memory, and their limit, which others may share.
    pub cached_bytes: usize,
    pub cached_bytes_max: usize,
    /// The space that the disk had free when it was last asked, and what is kept of it for what cannot be
    /// refused. `None` before a log is opened.
    pub free_bytes: Option<u64>,
    pub reserve_bytes: u64,
    /// Whether the disk takes no new data for lack of space.
    pub is_full: bool,
    /// The reason why the disk takes nothing until the next start.
    pub failure: Option<String>,
}

impl LogSpace {
    /// The measurements of this moment; the disk is asked nothing.
    pub fn metrics(&self) -> SpaceMetrics {
        let options = self.options();
        let free_bytes = Some(self.free_bytes()).filter(|&bytes| bytes != u64::MAX);
        SpaceMetrics {
            logs: self.cores().len(),
            write_and_sync_nanos: self.counts.write_and_sync.take(),
            hard_state_nanos: self.counts.hard_state.take(),
            unflushed_bytes: self.unflushed_bytes.load(Ordering::Relaxed),
            unflushed_bytes_max: options.unflushed_bytes_max,
            cached_bytes: self.cached_bytes.load(Ordering::Relaxed).max(0) as usize,
            cached_bytes_max: self.memory.bytes_max(),
            free_bytes,
            reserve_bytes: options.reserve_bytes,
            is_full: free_bytes.is_some_and(|bytes| bytes < options.reserve_bytes),
            failure: self.disk().failure(),
        }
    }
}

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

const LOGS: Metric = metric("flotilla_disk_logs", "Raft logs open on the disk.");
const WRITE: Metric =
    metric("flotilla_disk_log_write_seconds", "One write and fdatasync of what queued up in a log.");
const HARD_STATE: Metric = metric(
    "flotilla_disk_hard_state_write_seconds",
    "One durable write of a log's hard state, as of a vote.",
);
const UNFLUSHED: Metric =
    metric("flotilla_disk_unflushed_bytes", "Appended to logs of the disk and not yet durable.");
const UNFLUSHED_MAX: Metric =
    metric("flotilla_disk_unflushed_bytes_max", "Unflushed bytes at which appends wait.");
const CACHED: Metric = metric("flotilla_disk_cache_bytes", "Recent log entries in memory.");
const CACHED_MAX: Metric = metric("flotilla_disk_cache_bytes_max", "Limit of the log entries in memory.");
const FREE: Metric =
    metric("flotilla_disk_free_bytes", "Free space, as last asked; log files kept for reuse count.");
const RESERVE: Metric =
    metric("flotilla_disk_reserve_bytes", "Free space below which the disk takes no new data.");
const FULL: Metric = metric("flotilla_disk_full", "1 when the disk takes no new data for lack of space.");
const FAILED: Metric = metric(
    "flotilla_disk_failed",
    "1 for a disk that could not be opened, failed a write or sync, or whose index takes no more writes; until restart.",
);

impl SpaceMetrics {
    /// Writes the metrics for the disk of that name.
    pub fn expose(&self, disk: &str, exposition: &mut Exposition) {
        let labels = [("disk", disk)];
        exposition.gauge(LOGS, &labels, self.logs as u64);
        exposition.histogram(WRITE, &labels, &self.write_and_sync_nanos);
        exposition.histogram(HARD_STATE, &labels, &self.hard_state_nanos);
        exposition.gauge(UNFLUSHED, &labels, self.unflushed_bytes as u64);
        exposition.gauge(UNFLUSHED_MAX, &labels, self.unflushed_bytes_max as u64);
        exposition.gauge(CACHED, &labels, self.cached_bytes as u64);
        exposition.gauge(CACHED_MAX, &labels, self.cached_bytes_max as u64);
        if let Some(free_bytes) = self.free_bytes {
            exposition.gauge(FREE, &labels, free_bytes);
        }
        exposition.gauge(FULL, &labels, u64::from(self.is_full));
        exposition.gauge(RESERVE, &labels, self.reserve_bytes);
        exposition.gauge(FAILED, &labels, u64::from(self.failure.is_some()));
    }

    /// Writes that a disk could not be opened.
    pub fn expose_unusable(disk: &str, exposition: &mut Exposition) {
        exposition.gauge(FAILED, &[("disk", disk)], 1);
    }
}
