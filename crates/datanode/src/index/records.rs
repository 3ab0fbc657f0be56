//! Values of the block index. See `docs/format/block-index.md`; numbers are little-endian, the first byte is
//! the version.
//!
//! | block | bytes | | chunk | bytes | | container | bytes |
//! |---|---|---|---|---|---|---|---|
//! | version = 2 | 1 | | version = 1 | 1 | | version = 3 | 1 |
//! | flags: 1 = sealed | 1 | | seq | 4 | | state | 1 |
//! | chunks | 4 | | segment | 4 | | pipeline | 8 |
//! | length | 8 | | record's offset | 8 | | previous container | 8 |
//! | first: segment | 4 | | body bytes | 4 | | payload bytes | 8 |
//! | first: record's offset | 8 | | | | | blocks | 8 |
//! | first: body bytes | 4 | | | | | chunks | 8 |
//! | nonce | 16 | | | | | last record: term, index | 16 |
//! | | | | | | | known to be committed | 8 |

use anyhow::{Context, bail, ensure};
use bytes::{Buf, BufMut};
use proto::scm::LogEnd;
use raftlog::Place;
use types::{ContainerId, LogId, LogIndex, Nonce, OwnerId, PipelineId, Term};

const VERSION: u8 = 1;
/// The version of block records; version 1, which was in no release, had no nonce.
const BLOCK_VERSION: u8 = 2;
/// The version of container records; those before, which were in no release, ended earlier.
const CONTAINER_VERSION: u8 = 3;
const SEALED: u8 = 1;

/// The place of a chunk's bytes: a [`Place`] without the owner, which is the block's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    pub segment: u32,
    pub offset: u64,
    pub body_bytes: u32,
}

impl ChunkPlace {
    pub(crate) fn of(place: Place) -> ChunkPlace {
        ChunkPlace { segment: place.segment, offset: place.offset, body_bytes: place.body_bytes }
    }

    pub(crate) fn in_container(self, container: ContainerId) -> Place {
        let ChunkPlace { segment, offset, body_bytes } = self;
        Place { owner: OwnerId::from(container), segment, offset, body_bytes }
    }

    fn put(self, value: &mut impl BufMut) {
        value.put_u32_le(self.segment);
        value.put_u64_le(self.offset);
        value.put_u32_le(self.body_bytes);
    }

    fn get(value: &mut impl Buf) -> ChunkPlace {
        ChunkPlace { segment: value.get_u32_le(), offset: value.get_u64_le(), body_bytes: value.get_u32_le() }
    }
}

const PLACE_BYTES: usize = 4 + 8 + 4;

/// A block. Its first chunk, the only one of most blocks, is inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRecord {
    pub sealed: bool,
    pub chunks: u32,
    pub length: u64,
    pub first: ChunkPlace,
    /// The nonce, which tells the block from every other one, whatever id that has.
    pub nonce: Nonce,
}

impl BlockRecord {
    pub(crate) const BYTES: usize = 1 + 1 + 4 + 8 + PLACE_BYTES + 16;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        let mut at = &mut value[..];
        at.put_u8(BLOCK_VERSION);
        at.put_u8(if self.sealed { SEALED } else { 0 });
        at.put_u32_le(self.chunks);
        at.put_u64_le(self.length);
        self.first.put(&mut at);
        at.put_u128_le(self.nonce.0);
        value
    }

    pub(crate) fn decode(value: &[u8]) -> anyhow::Result<BlockRecord> {
        let mut value = versioned_as(BLOCK_VERSION, value, Self::BYTES).context("decode block record")?;
        let flags = value.get_u8();
        ensure!(flags & !SEALED == 0, "unknown flags {flags:#04x} in a block record");
        let (chunks, length) = (value.get_u32_le(), value.get_u64_le());
        let (first, nonce) = (ChunkPlace::get(&mut value), Nonce(value.get_u128_le()));
        Ok(BlockRecord { sealed: flags & SEALED != 0, chunks, length, first, nonce })
    }
}

/// A block's second or later chunk; an empty one that only sealed the block stands at the block's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRecord {
    pub seq: u32,
    pub place: ChunkPlace,
}

impl ChunkRecord {
    pub(crate) const BYTES: usize = 1 + 4 + PLACE_BYTES;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        let mut at = &mut value[..];
        at.put_u8(VERSION);
        at.put_u32_le(self.seq);
        self.place.put(&mut at);
        value
    }

    pub(crate) fn decode(value: &[u8]) -> anyhow::Result<ChunkRecord> {
        let mut value = versioned(value, Self::BYTES).context("decode chunk record")?;
        Ok(ChunkRecord { seq: value.get_u32_le(), place: ChunkPlace::get(&mut value) })
    }
}

/// The state of a replica of a container. Persisted: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ReplicaState {
    Open = 1,
    /// Ends in a roll that was committed: complete, and equal to all other closed replicas. Or SCM said that
    /// it is.
    Closed = 2,
    /// Ends where this replica's log ended: perhaps incomplete, perhaps with more than was ever committed.
    QuasiClosed = 3,
    /// Ends with what stands on the disk of a log that is lost or damaged: it may lack what this very replica
    /// acknowledged, or have more.
    WithoutLog = 4,
}

impl ReplicaState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ReplicaState::Open => "OPEN",
            ReplicaState::Closed => "CLOSED",
            ReplicaState::QuasiClosed => "QUASI_CLOSED",
            ReplicaState::WithoutLog => "WITHOUT_LOG",
        }
    }

    /// Whether no log writes to the container any more.
    pub(crate) fn is_over(self) -> bool {
        match self {
            ReplicaState::Open => false,
            ReplicaState::Closed | ReplicaState::QuasiClosed | ReplicaState::WithoutLog => true,
        }
    }

    pub(crate) fn decode(state: u8) -> anyhow::Result<ReplicaState> {
        Ok(match state {
            1 => ReplicaState::Open,
            2 => ReplicaState::Closed,
            3 => ReplicaState::QuasiClosed,
            4 => ReplicaState::WithoutLog,
            unknown => bail!("unknown container state {unknown}"),
        })
    }
}

/// The same end of a log that has more records, of which SCM is not told.
pub(crate) fn ends_with(end: LogEnd, last: LogId) -> LogEnd {
    LogEnd { log_term: last.term.0, log_index: last.index.0, ..end }
}

/// The end of a log: its last record of which SCM is told, in a container, and its last record of all.
pub(crate) fn log_end(container: ContainerId, told: LogId, last: LogId) -> LogEnd {
    LogEnd {
        container: container.0,
        term: told.term.0,
        index: told.index.0,
        log_term: last.term.0,
        log_index: last.index.0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRecord {
    pub state: ReplicaState,
    pub pipeline: PipelineId,
    /// The container this one followed in its pipeline; 0 for the first.
    pub previous: ContainerId,
    pub payload_bytes: u64,
    pub blocks: u64,
    pub chunks: u64,
    /// The last record of the log that stands in the container, once no more can come; also `None` if there
    /// is none.
    pub last: Option<LogId>,
    /// The entry up to which this replica knew its log to be committed when that ended; of a container that
    /// is over and not closed.
    pub committed: LogIndex,
}

/// The cost of a record beside its payload, about: header, command and padding. Only used to decide when a
/// container is full, so that one of many tiny or empty blocks fills up too.
const RECORD_OVERHEAD_BYTES: u64 = 128;

impl ContainerRecord {
    pub(crate) const BYTES: usize = 1 + 1 + 8 + 8 + 8 + 8 + 8 + 8 + 8 + 8;

    pub(crate) fn opened(pipeline: PipelineId, previous: ContainerId) -> ContainerRecord {
        ContainerRecord {
            state: ReplicaState::Open,
            pipeline,
            previous,
            payload_bytes: 0,
            blocks: 0,
            chunks: 0,
            last: None,
            committed: LogIndex(0),
        }
    }

    /// The container that a pipeline's last roll names: nothing is ever in it.
    pub(crate) fn end(pipeline: PipelineId, previous: ContainerId) -> ContainerRecord {
        ContainerRecord { state: ReplicaState::Closed, ..ContainerRecord::opened(pipeline, previous) }
    }

    /// About the bytes that the container takes on disk.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.payload_bytes + self.chunks * RECORD_OVERHEAD_BYTES
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        let mut at = &mut value[..];
        at.put_u8(CONTAINER_VERSION);
        at.put_u8(self.state as u8);
        at.put_u64_le(self.pipeline.0);
        at.put_u64_le(self.previous.0);
        at.put_u64_le(self.payload_bytes);
        at.put_u64_le(self.blocks);
        at.put_u64_le(self.chunks);
        // No roll, and no end of a log that voted, is at term 0 and index 0: there the group's first members
        // stand.
        let last = self.last.unwrap_or_default();
        at.put_u64_le(last.term.0);
        at.put_u64_le(last.index.0);
        at.put_u64_le(self.committed.0);
        value
    }

    pub(crate) fn decode(value: &[u8]) -> anyhow::Result<ContainerRecord> {
        let versioned = versioned_as(CONTAINER_VERSION, value, Self::BYTES);
        let mut value = versioned.context("decode container record")?;
        let (state, pipeline, previous) = (value.get_u8(), value.get_u64_le(), value.get_u64_le());
        let (payload_bytes, blocks, chunks) = (value.get_u64_le(), value.get_u64_le(), value.get_u64_le());
        let last = LogId { term: Term(value.get_u64_le()), index: LogIndex(value.get_u64_le()) };
        Ok(ContainerRecord {
            state: ReplicaState::decode(state)?,
            pipeline: PipelineId(pipeline),
            previous: ContainerId(previous),
            payload_bytes,
            blocks,
            chunks,
            last: Some(last).filter(|last| *last != LogId::default()),
            committed: LogIndex(value.get_u64_le()),
        })
    }
}

const LOCAL_BYTES: usize = 1 + 8;

/// Encodes a value that is one number, as a nonce's is: the local id of the block that bears it.
pub(crate) fn encode_local(local: u64) -> [u8; LOCAL_BYTES] {
    let mut value = [VERSION; LOCAL_BYTES];
    value[1..].copy_from_slice(&local.to_le_bytes());
    value
}

pub(crate) fn decode_local(value: &[u8]) -> anyhow::Result<u64> {
    Ok(versioned(value, LOCAL_BYTES).context("decode nonce record")?.get_u64_le())
}

/// Checks version and length of a value; returns what follows the version.
fn versioned(value: &[u8], bytes: usize) -> anyhow::Result<&[u8]> {
    versioned_as(VERSION, value, bytes)
}

fn versioned_as(version: u8, value: &[u8], bytes: usize) -> anyhow::Result<&[u8]> {
    ensure!(value.first() == Some(&version), "version {:?}, this code reads {version}", value.first());
    ensure!(value.len() == bytes, "{} bytes, expected {bytes}", value.len());
    Ok(&value[1..])
}

/// Puts a row's value in words.
pub(crate) fn describe(key: &[u8], value: &[u8]) -> String {
    let place = |place: ChunkPlace| {
        let ChunkPlace { segment, offset, body_bytes } = place;
        format!("{body_bytes} bytes in segment {segment:08x} at byte {offset}")
    };
    let text = if super::keys::parse_block(key).is_some() {
        BlockRecord::decode(value).map(|record| {
            let BlockRecord { sealed, chunks, length, first, nonce } = record;
            let first = place(first);
            format!("length {length}, {chunks} chunks, sealed {sealed}, the first {first}, {nonce:?}")
        })
    } else if super::keys::parse_chunk(key).is_some() {
        ChunkRecord::decode(value).map(|record| format!("chunk {}, {}", record.seq, place(record.place)))
    } else if value.len() == ContainerRecord::BYTES {
        ContainerRecord::decode(value).map(|record| {
            let ContainerRecord { state, pipeline, previous, payload_bytes, blocks, chunks, last, committed } = record;
            let last = last.map_or(String::new(), |last| {
                let known = match state {
                    ReplicaState::QuasiClosed | ReplicaState::WithoutLog => format!(", {committed} known to be committed"),
                    ReplicaState::Open | ReplicaState::Closed => String::new(),
                };
                format!(", to entry {} of term {}{known}", last.index, last.term)
            });
            format!(
                "{state:?} of pipeline {pipeline} after container {previous}, {payload_bytes} bytes in {blocks} blocks \
                 and {chunks} chunks{last}"
            )
        })
    } else {
        decode_local(value).map(|local| local.to_string())
    };
    text.unwrap_or_else(|failure| format!("{value:02x?} ({failure:#})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ChunkPlace = ChunkPlace { segment: 3, offset: 0x0102_0304_0506, body_bytes: 0xa0b0 };

    /// The bytes are those of docs/format/block-index.md.
    #[test]
    fn records_are_laid_out_as_documented() {
        let nonce = Nonce(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        let block = BlockRecord { sealed: true, chunks: 2, length: 0x1_0000, first: FIRST, nonce };
        let block_bytes = [
            2, 1, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0xb0, 0xa0, 0, 0,
            16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1,
        ];
        assert_eq!(block.encode(), block_bytes);
        assert_eq!(BlockRecord::decode(&block_bytes).unwrap(), block);

        let chunk = ChunkRecord { seq: 9, place: FIRST };
        let chunk_bytes = [1, 9, 0, 0, 0, 3, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0xb0, 0xa0, 0, 0];
        assert_eq!(chunk.encode(), chunk_bytes);
        assert_eq!(ChunkRecord::decode(&chunk_bytes).unwrap(), chunk);

        assert_eq!(encode_local(5), [1, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_local(&encode_local(u64::MAX)).unwrap(), u64::MAX);
    }

    #[test]
    fn a_container_says_where_it_ends_and_what_of_it_is_committed() {
        let container = ContainerRecord {
            state: ReplicaState::QuasiClosed,
            payload_bytes: 5,
            blocks: 6,
            chunks: 7,
            last: Some(LogId { term: Term(9), index: LogIndex(0x0a0b) }),
            committed: LogIndex(0x0a01),
            ..ContainerRecord::opened(PipelineId(8), ContainerId(4))
        };
        let bytes = [
            3, 3, 8, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0,
            0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 0x01, 0x0a,
            0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(container.encode(), bytes);
        assert_eq!(ContainerRecord::decode(&bytes).unwrap(), container);
        let open = ContainerRecord::opened(PipelineId(8), ContainerId(4));
        assert_eq!(ContainerRecord::decode(&open.encode()).unwrap(), open);
    }

    #[test]
    fn unknown_versions_states_and_lengths_are_errors() {
        let nonce = Nonce(1);
        let mut block = BlockRecord { sealed: false, chunks: 1, length: 1, first: FIRST, nonce }.encode();
        assert!(BlockRecord::decode(&block[1..]).is_err());
        assert!(BlockRecord::decode(&[]).is_err());
        block[1] = 0x80;
        assert!(BlockRecord::decode(&block).is_err());
        block[0] = 1;
        assert!(BlockRecord::decode(&block).is_err());
        let mut container = ContainerRecord::opened(PipelineId(1), ContainerId(0)).encode();
        container[1] = 5;
        assert!(ContainerRecord::decode(&container).is_err());
    }
}
