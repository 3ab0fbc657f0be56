use crate::shared_memory::SharedMemory;
use types::OwnerId;

/// Limits of a [`crate::LogSpace`].
#[derive(Clone, Debug)]
pub struct LogSpaceOptions {
    /// The size at which a segment is closed: the next record would pass it. Must be the same on all replicas
    /// of a group: it decides where records stand.
    pub segment_bytes_max: u64,
    /// The bytes of recent entries kept in memory for replication and apply: of one log, and of all logs of
    /// the disk together. Entries that are not yet durable are kept whatever the limits.
    pub cache_bytes_per_log_max: usize,
    pub cache_bytes_max: usize,
    /// Where several disks share their memory, the limit of all of them, in place of `cache_bytes_max`.
    pub shared: Option<SharedMemory>,
    /// The bytes of appends queued for the disk and not yet durable; more are refused with
    /// [`crate::AppendError::Busy`].
    pub unflushed_bytes_max: usize,
    /// The bytes kept free for what cannot be refused (votes, elections, what is under way):
    /// [`crate::LogSpace::check_space`] answers [`crate::AppendError::DiskFull`] below it.
    pub reserve_bytes: u64,
    /// The bytes of deleted segments' files kept for the next segments, of all logs of the disk together; 0
    /// keeps none. They count as free space, and are given back when there is less than this above the
    /// reserve.
    pub spare_bytes_max: u64,
}

impl Default for LogSpaceOptions {
    fn default() -> Self {
        Self {
            segment_bytes_max: 128 << 20,
            cache_bytes_per_log_max: 32 << 20,
            cache_bytes_max: 256 << 20,
            shared: None,
            unflushed_bytes_max: 256 << 20,
            reserve_bytes: 1 << 30,
            // Four segments: a disk that writes 200 MB/s takes one in 0.6 s, and old ones are deleted many at
            // a time.
            spare_bytes_max: 4 * (128 << 20),
        }
    }
}

impl LogSpaceOptions {
    /// The defaults, for a disk whose logs have so much memory. Queue and cache both get all of it: what is
    /// not durable is among what is cached, and the cache lets go of everything else before it holds more.
    pub fn within(memory_bytes: usize) -> LogSpaceOptions {
        let defaults = LogSpaceOptions::default();
        LogSpaceOptions {
            cache_bytes_per_log_max: defaults.cache_bytes_per_log_max.min(memory_bytes),
            cache_bytes_max: memory_bytes,
            unflushed_bytes_max: memory_bytes,
            ..defaults
        }
    }
}

/// The place of a log on its disk.
#[derive(Clone, Debug)]
pub struct LogSpec {
    /// The log's number, which stands in every record, so that a record of another log cannot pass for one of
    /// this. It is the same on all replicas of a group, or their segments would differ.
    pub log: u64,
    /// Directory of the log's own small files (hard state).
    pub dir: String,
    /// Segments of owner `o` are files in `{owners_dir}/{o as 16 hex digits}/`.
    pub owners_dir: String,
    /// Owner of the first record of a new log.
    pub first_owner: OwnerId,
}
