//! Records, segments, logs: the log engine, which is also the container store.
//!
//! Knows nothing of Raft's rules, gRPC or RocksDB. A [`LogSpace`] is one disk with its writer; it holds many
//! [`Log`]s. A log is a chain of segments; each segment belongs to an owner (a container, or a metadata group), and
//! its records stay readable by place after the log has forgotten their index.

use bytes::Bytes;
use disk::Disk;
use std::ops::Range;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Payload};

/// Limits of a [`LogSpace`].
#[derive(Clone, Debug)]
pub struct LogSpaceOptions {
    /// A segment is closed when the next record would pass this size.
    pub segment_bytes_max: u64,
    /// Recent entries kept in memory for replication and apply: per log, and all logs of the disk together.
    pub cache_bytes_per_log_max: usize,
    pub cache_bytes_max: usize,
    /// Appends queued for the disk and not yet durable; more are refused with [`AppendError::Busy`].
    pub unflushed_bytes_max: usize,
    /// Kept free for metadata: appends that would go below get [`AppendError::DiskFull`].
    pub reserve_bytes: u64,
}

impl Default for LogSpaceOptions {
    fn default() -> Self {
        Self {
            segment_bytes_max: 128 << 20,
            cache_bytes_per_log_max: 32 << 20,
            cache_bytes_max: 256 << 20,
            unflushed_bytes_max: 256 << 20,
            reserve_bytes: 1 << 30,
        }
    }
}

/// Where a log lives on its disk.
#[derive(Clone, Debug)]
pub struct LogSpec {
    /// Stands in every record, so that a record of another log cannot pass for one of this.
    pub log: u64,
    /// Directory of the log's own small files (hard state).
    pub dir: String,
    /// Segments of owner `o` are files in `{owners_dir}/{o as 16 hex digits}/`.
    pub owners_dir: String,
    /// Owner of the first record of a new log.
    pub first_owner: OwnerId,
}

/// One record: `meta` is small and always read; `body` is bulk data that apply never needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: LogId,
    /// The caller's own meaning; stored, not interpreted.
    pub kind: u8,
    pub meta: Bytes,
    pub body: Payload,
    /// Records after this one belong to this owner, in a directory of its own.
    pub roll_to: Option<OwnerId>,
}

/// Where a record stands: good for as long as its owner exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub owner: OwnerId,
    pub segment: u32,
    /// Of the record's first byte in the segment.
    pub offset: u64,
    pub body_bytes: u32,
}

/// An entry without its body: what apply sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    pub id: LogId,
    pub kind: u8,
    pub meta: Bytes,
    pub roll_to: Option<OwnerId>,
    pub place: Place,
}

/// Raft's promise to itself. The meaning of the numbers is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HardState {
    pub vote_term: u64,
    pub vote_replica: u64,
    pub vote_committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    pub hard_state: Option<HardState>,
    /// The last entry the log has forgotten.
    pub purged: Option<LogId>,
    pub last: Option<LogId>,
    /// A hint, not synced: committed at least up to here when the process stopped.
    pub committed: Option<LogId>,
    /// Owner of the next record.
    pub owner: OwnerId,
    /// Bytes of records written for that owner so far.
    pub owner_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("log {log}: damaged record in {file} at byte {offset}: {why}")]
    Damaged { log: u64, file: String, offset: u64, why: String },
    #[error("log {log}: {why}")]
    Inconsistent { log: u64, why: String },
    #[error("log {log}: {source}")]
    Io { log: u64, source: std::io::Error },
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    #[error("{queued} bytes wait for the disk already, the limit is {limit}")]
    Busy { queued: usize, limit: usize },
    #[error("disk full: {free_bytes} bytes free, {reserve_bytes} are kept in reserve")]
    DiskFull { free_bytes: u64, reserve_bytes: u64 },
    #[error("the log stopped after an I/O error: {why}")]
    Poisoned { why: String },
    #[error("entry {got:?} does not follow {last:?}")]
    Gap { last: Option<LogId>, got: LogId },
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    #[error("entry {index} is not in the log (it has {first}..{end})")]
    OutOfRange { index: LogIndex, first: LogIndex, end: LogIndex },
    #[error("no such owner or segment: {file}")]
    NotFound { file: String },
    #[error("{file} at byte {offset}: {why}")]
    Damaged { file: String, offset: u64, why: String },
    #[error("{file}: {why}")]
    Io { file: String, why: String },
}

/// Written but not yet durable: resolves after the sync that covers the append, in append order.
#[must_use = "an append is durable only when its token has resolved"]
pub struct FlushToken {}

impl FlushToken {
    pub async fn durable(self) -> Result<(), AppendError> {
        todo!()
    }

    /// Runs `then` when the append is durable or has failed; calls of one log come in append order.
    pub fn on_durable(self, _then: impl FnOnce(Result<(), AppendError>) + Send + 'static) {
        todo!()
    }
}

/// One disk's logs and their writer.
pub struct LogSpace {}

impl LogSpace {
    pub fn new(_disk: Arc<dyn Disk>, _options: LogSpaceOptions) -> Arc<LogSpace> {
        todo!()
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        todo!()
    }

    /// Opens a log, or creates it when its directory does not exist. A torn tail is cut (and logged); damage before
    /// the tail is an error and changes nothing.
    pub async fn open(self: &Arc<Self>, _spec: LogSpec) -> Result<Log, OpenError> {
        todo!()
    }

    /// Forgets a log (its `dir`); its owners' segments stay.
    pub async fn remove(&self, _spec: &LogSpec) -> std::io::Result<()> {
        todo!()
    }

    /// Reads `range` of a record's body, verified; reads and checks only the 64 KiB pieces it touches.
    pub async fn read_body(
        &self,
        _owners_dir: &str,
        _place: Place,
        _range: Range<u32>,
    ) -> Result<BodyPieces, ReadError> {
        todo!()
    }

    /// Deletes an owner's segments, durably.
    pub async fn delete_owner(&self, _owners_dir: &str, _owner: OwnerId) -> std::io::Result<()> {
        todo!()
    }
}

/// A verified range of a body with checksums a next hop can check: pieces end at multiples of 64 KiB of the body;
/// sums of pieces the range cuts are computed anew after the whole piece was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPieces {
    pub bytes: Bytes,
    pub crcs: Vec<u32>,
    pub first_piece_bytes: u32,
}

/// One Raft group's log; a cheap handle. Calls that change it come from one task at a time.
#[derive(Clone)]
pub struct Log {}

impl Log {
    pub fn state(&self) -> LogState {
        todo!()
    }

    /// Appends entries that follow each other and the log's last one. On return they are readable, but **not
    /// durable**: see [`FlushToken`]. After an I/O error the log is poisoned and every later call says so.
    pub fn append(&self, _entries: Vec<Entry>) -> Result<FlushToken, AppendError> {
        todo!()
    }

    /// Entries of `range`, from its start, at least one, until `bytes_max` is passed.
    pub async fn read(&self, _range: Range<LogIndex>, _bytes_max: usize) -> Result<Vec<Entry>, ReadError> {
        todo!()
    }

    /// Like [`Log::read`] without bodies: memory only for recent entries, headers from disk for older ones.
    pub async fn read_meta(&self, _range: Range<LogIndex>, _count_max: usize) -> Result<Vec<EntryMeta>, ReadError> {
        todo!()
    }

    /// The id of one entry; also of the last purged one.
    pub async fn id_at(&self, _index: LogIndex) -> Result<LogId, ReadError> {
        todo!()
    }

    /// Removes all entries after `last` (all, when `None`), durably: they never come back. Undoes rolls.
    pub async fn truncate_after(&self, _last: Option<LogIndex>) -> Result<(), AppendError> {
        todo!()
    }

    /// Forgets entries up to `to`, durably. Owners' segments stay.
    pub async fn purge(&self, _to: LogId) -> Result<(), AppendError> {
        todo!()
    }

    /// Durable on return.
    pub async fn save_hard_state(&self, _state: HardState) -> Result<(), AppendError> {
        todo!()
    }

    /// Remembers how far the log is committed; written with the next sync, not synced for itself.
    pub fn save_committed(&self, _committed: Option<LogId>) {
        todo!()
    }
}
