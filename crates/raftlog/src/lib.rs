//! Records, segments, logs: the log engine, which is also the container store.
//!
//! The crate knows nothing of Raft's rules, gRPC or RocksDB. A [`LogSpace`] is one disk with its writers; it
//! holds many [`Log`]s. A log is a chain of segments; each segment belongs to an owner (a container, or a
//! metadata group), and its records stay readable by place after the log has forgotten their index.
//!
//! The way of an append: [`Log::append`] gives the entries their places ([`index`]), keeps them in memory
//! ([`cache`]) and queues their bytes ([`core`]); the log's writer task ([`writer`]) takes everything queued,
//! writes and syncs it as one operation of the disk, and resolves the tokens ([`flush`]). What a restart
//! makes of the files is [`recovery`]; their bytes are in [`record`] and [`hard_state`], specified in
//! docs/format.

mod body;
mod cache;
mod compacted;
mod core;
mod discards;
mod entry;
mod error;
mod files;
mod flush;
mod hard_state;
mod index;
pub mod inspect;
mod log;
mod options;
mod owner_files;
mod read;
mod record;
mod recovery;
mod rewrite;
mod scan;
mod segment;
mod segment_index;
mod shared_memory;
mod space;
mod space_metrics;
mod spares;
mod state;
mod torn;
mod walk;
mod writer;

pub use compacted::Compacted;
pub use discards::{Discard, Discarded, Discards, DiscardsSum, HOLE_BLOCK_BYTES};
pub use entry::{BodyPieces, Entry, EntryMeta, Place};
pub use error::{AppendError, OpenError, ReadError};
pub use flush::FlushToken;
pub use hard_state::FILE_NAME as HARD_STATE;
pub use log::Log;
pub use options::{LogSpaceOptions, LogSpec};
pub use owner_files::{OwnerFile, owner_files};
pub use rewrite::{Rewrite, stray_segments, stray_segments_of};
pub use shared_memory::{Held, SharedMemory};
pub use space::LogSpace;
pub use space_metrics::SpaceMetrics;
pub use state::{HardState, LogState};
pub use torn::cut_torn_tail;
pub use walk::{OwnerWalk, Step, WalkEnd, WalkedRecord, owners};
