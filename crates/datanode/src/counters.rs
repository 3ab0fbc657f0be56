//! Counts of what happened to the containers of a disk since the process started: plain numbers, for reports
//! and metrics.

use metrics::{Exposition, Metric};
use parking::Rate;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use types::{ContainerId, DiskId, LogId, PipelineId};

#[derive(Debug, Default)]
pub(crate) struct DiskCounters {
    pub scrubbed_bytes: AtomicU64,
    pub scrub_findings: AtomicU64,
    pub scrub_unread: AtomicU64,
    pub scrub_passes: AtomicU64,
    pub scrub_last_pass_ms: AtomicU64,
    pub marked_unhealthy: AtomicU64,
    pub deleted_blocks: AtomicU64,
    pub repeated_chunks: AtomicU64,
    pub busy_chunks: AtomicU64,
    pub hole_bytes: AtomicU64,
    pub other_blocks: AtomicU64,
    pub compacted: AtomicU64,
    pub compactions_failed: AtomicU64,
    pub compaction_written_bytes: AtomicU64,
    pub compaction_removed_bytes: AtomicU64,
    pub compaction_given_back_bytes: AtomicU64,
    /// The container that is written anew; 0: none.
    pub compacting: AtomicU64,
    /// The growth of [`DiskCounters::given_back_bytes`].
    pub given_back: Mutex<Rate>,
}

/// [`DiskCounters`] at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStats {
    pub disk: DiskId,
    /// Bytes read by the scrubber.
    pub scrubbed_bytes: u64,
    /// Containers the scrubber found to be bad.
    pub scrub_findings: u64,
    /// Looks at a container that ended without a verdict: it could not be read, and that says nothing of its
    /// bytes.
    pub scrub_unread: u64,
    /// Times the scrubber came to the end of all closed containers.
    pub scrub_passes: u64,
    /// The time at which the last such pass ended, in milliseconds since the Unix epoch, also before this
    /// process; 0 for never.
    pub scrub_last_pass_ms: u64,
    /// Replicas marked unhealthy, by readers and by the scrubber.
    pub marked_unhealthy: u64,
    pub deleted_blocks: u64,
    /// Chunks that were sent again and answered without being proposed again.
    pub repeated_chunks: u64,
    /// Chunks that were refused because too much was under way.
    pub busy_chunks: u64,
    /// Bytes given back to the file system by deletions.
    pub hole_bytes: u64,
    /// Blocks that were to be deleted, and that are others here: they stayed.
    pub other_blocks: u64,
    /// Containers written anew without what was discarded in them, and attempts that failed.
    pub compacted: u64,
    pub compactions_failed: u64,
    /// The bytes that were written for that, and those of the segments that went.
    pub compaction_written_bytes: u64,
    pub compaction_removed_bytes: u64,
    /// The bytes that were dead in the containers that were written anew.
    pub compaction_given_back_bytes: u64,
}

impl DiskCounters {
    /// Bytes of what was discarded that the file system has again.
    fn given_back_bytes(&self) -> u64 {
        let by_compactions = self.compaction_given_back_bytes.load(Ordering::Relaxed);
        self.hole_bytes.load(Ordering::Relaxed).saturating_add(by_compactions)
    }

    /// The bytes that were given back each second, lately.
    pub(crate) fn given_back_per_second(&self, now: Instant) -> u64 {
        let mut rate = self.given_back.lock().expect("no holder panics");
        rate.note(now, self.given_back_bytes());
        rate.per_second()
    }

    pub(crate) fn stats(&self, disk: DiskId) -> DiskStats {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskStats {
            disk,
            scrubbed_bytes: number(&self.scrubbed_bytes),
            scrub_findings: number(&self.scrub_findings),
            scrub_unread: number(&self.scrub_unread),
            scrub_passes: number(&self.scrub_passes),
            scrub_last_pass_ms: number(&self.scrub_last_pass_ms),
            marked_unhealthy: number(&self.marked_unhealthy),
            deleted_blocks: number(&self.deleted_blocks),
            repeated_chunks: number(&self.repeated_chunks),
            busy_chunks: number(&self.busy_chunks),
            hole_bytes: number(&self.hole_bytes),
            other_blocks: number(&self.other_blocks),
            compacted: number(&self.compacted),
            compactions_failed: number(&self.compactions_failed),
            compaction_written_bytes: number(&self.compaction_written_bytes),
            compaction_removed_bytes: number(&self.compaction_removed_bytes),
            compaction_given_back_bytes: number(&self.compaction_given_back_bytes),
        }
    }
}

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

const SCRUBBED: Metric = metric("flotilla_disk_scrubbed_bytes_total", "Read by the scrubber of the disk.");
const FINDINGS: Metric =
    metric("flotilla_disk_scrub_findings_total", "Containers that the scrubber found to be bad.");
const UNREAD: Metric = metric(
    "flotilla_disk_scrub_unread_total",
    "Looks of the scrubber at a container that came to no end, and are repeated.",
);
const PASSES: Metric = metric(
    "flotilla_disk_scrub_passes_total",
    "Times the scrubber came to the end of all closed containers.",
);
const LAST_PASS: Metric = metric(
    "flotilla_disk_scrub_last_pass_timestamp_seconds",
    "When the scrubber last came to the end, also before this process; 0 for never.",
);
const UNHEALTHY: Metric =
    metric("flotilla_disk_marked_unhealthy_total", "Replicas marked unhealthy, by readers and the scrubber.");
const DELETED: Metric =
    metric("flotilla_disk_deleted_blocks_total", "Blocks deleted from closed containers.");
const HOLES: Metric =
    metric("flotilla_disk_hole_bytes_total", "Given back to the file system by deletions of blocks.");
const OTHERS: Metric = metric(
    "flotilla_disk_other_blocks_total",
    "Blocks that were to be deleted, and that are others here, by their nonces: they stayed.",
);

const COMPACTED: Metric = metric(
    "flotilla_disk_compacted_containers_total",
    "Containers written anew without what was discarded in them.",
);
const NOT_COMPACTED: Metric = metric(
    "flotilla_disk_compactions_failed_total",
    "Compactions that came to no end; the log says why, and they are tried again.",
);
const COMPACTION_WRITTEN: Metric =
    metric("flotilla_disk_compaction_written_bytes_total", "Written into new segments by compactions.");
const COMPACTION_REMOVED: Metric = metric(
    "flotilla_disk_compaction_removed_bytes_total",
    "The bytes of the segments that compactions have removed.",
);
const COMPACTION_GIVEN_BACK: Metric = metric(
    "flotilla_disk_compaction_given_back_bytes_total",
    "The bytes that were dead in the containers that were written anew.",
);

const REPEATED: Metric = metric(
    "flotilla_disk_repeated_chunks_total",
    "Chunks that were sent again, and answered without being appended again.",
);
const BUSY: Metric = metric(
    "flotilla_disk_busy_chunks_total",
    "Chunks refused because too much was under way; they are sent again.",
);

impl DiskStats {
    /// Writes the counts as metrics of the disk of that name.
    pub(crate) fn expose(&self, disk: &str, exposition: &mut Exposition) {
        let labels = [("disk", disk)];
        let counters = [
            (SCRUBBED, self.scrubbed_bytes),
            (FINDINGS, self.scrub_findings),
            (UNREAD, self.scrub_unread),
            (PASSES, self.scrub_passes),
            (UNHEALTHY, self.marked_unhealthy),
            (DELETED, self.deleted_blocks),
            (HOLES, self.hole_bytes),
            (OTHERS, self.other_blocks),
            (COMPACTED, self.compacted),
            (NOT_COMPACTED, self.compactions_failed),
            (COMPACTION_WRITTEN, self.compaction_written_bytes),
            (COMPACTION_REMOVED, self.compaction_removed_bytes),
            (COMPACTION_GIVEN_BACK, self.compaction_given_back_bytes),
            (REPEATED, self.repeated_chunks),
            (BUSY, self.busy_chunks),
        ];
        for (metric, value) in counters {
            exposition.counter(metric, &labels, value);
        }
        exposition.gauge(LAST_PASS, &labels, self.scrub_last_pass_ms / 1000);
    }
}

/// A container as this node holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerReport {
    pub container: ContainerId,
    pub pipeline: PipelineId,
    pub disk: DiskId,
    pub is_closed: bool,
    /// The last entry of the container, once no more can come.
    pub last: Option<LogId>,
    pub blocks: u64,
    pub payload_bytes: u64,
    /// The reason why this replica is to be replaced, if it is.
    pub unhealthy: Option<String>,
}
