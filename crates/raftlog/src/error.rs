use disk::ReadFault;
use types::{LogId, LogIndex, OwnerId};

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("log {log}: damaged record in {file} at byte {offset}: {why}")]
    Damaged { log: u64, file: String, offset: u64, why: String },
    #[error("log {log}: {why}")]
    Inconsistent { log: u64, why: String },
    #[error("log {log}: {source}")]
    Io { log: u64, source: std::io::Error },
    /// The disk does not give back what the log's files have.
    #[error("log {log}: it cannot be read: {source}")]
    Unreadable { log: u64, source: std::io::Error },
}

/// The reasons why an append, or another change, was refused or lost. After [`AppendError::Poisoned`] the log
/// takes no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("{queued} bytes wait for the disk already, the limit is {limit}")]
    Busy { queued: usize, limit: usize },
    #[error("disk full: {free_bytes} bytes free, {reserve_bytes} are kept in reserve")]
    DiskFull { free_bytes: u64, reserve_bytes: u64 },
    #[error("the log stopped after an I/O error: {why}")]
    Poisoned { why: String },
    #[error("entry {got:?} does not follow {last:?}")]
    Gap { last: Option<LogId>, got: LogId },
    #[error("entry {index} has {bytes} bytes, a record holds {limit}")]
    TooLarge { index: LogIndex, bytes: usize, limit: usize },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("entry {index} is not in the log (it has {first}..{end})")]
    OutOfRange { index: LogIndex, first: LogIndex, end: LogIndex },
    #[error("no such owner or segment: {file}")]
    NotFound { file: String },
    #[error("{file} at byte {offset}: {why}")]
    Damaged { file: String, offset: u64, why: String },
    #[error("{file}: {why}")]
    Io { file: String, fault: ReadFault, why: String },
    /// The owner's records stand in other segments by now: whoever reads all of them begins again.
    #[error("owner {0} was compacted while it was read")]
    Compacted(OwnerId),
}

impl OpenError {
    /// Whether the log's bytes are wrong, or not to be had from the medium. Any other opening may succeed
    /// when it is tried again.
    pub fn condemns(&self) -> bool {
        match self {
            OpenError::Damaged { .. } | OpenError::Inconsistent { .. } => true,
            OpenError::Unreadable { source, .. } => ReadFault::of(source) == ReadFault::Medium,
            OpenError::Io { .. } => false,
        }
    }
}

impl ReadError {
    /// Whether the error says that the bytes are wrong, gone, or not to be had from the medium. Any other
    /// read may succeed when it is tried again.
    pub fn condemns(&self) -> bool {
        match self {
            ReadError::Damaged { .. } | ReadError::NotFound { .. } => true,
            ReadError::Io { fault, .. } => *fault == ReadFault::Medium,
            ReadError::OutOfRange { .. } | ReadError::Compacted(_) => false,
        }
    }
}
