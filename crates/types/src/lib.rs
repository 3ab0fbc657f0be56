//! Ids, checksummed payloads, clocks, pauses and randomness: the words every other crate speaks in.
//!
//! The crate knows no I/O, no protobuf and no Raft.

mod backoff;
mod checksum;
mod clock;
mod ids;
pub mod random;

pub use backoff::Backoff;
pub use checksum::{CRC_CHUNK_BYTES, ChecksumMismatch, Payload, PayloadError, RunningCrc, crc_chunks};
pub use clock::{Clock, ManualClock, SystemClock};
pub use ids::{
    BlockId, BlockName, ContainerId, DiskId, GroupId, GroupKind, LogId, LogIndex, NodeId, Nonce, OwnerId,
    ParseIdError, PipelineId, ReplicaId, Term,
};
