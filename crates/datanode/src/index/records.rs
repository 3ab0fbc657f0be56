//! Values of the block index. See `docs/format/block-index.md`; numbers are little-endian, the first byte is the
//! version.
//!
//! | block | bytes | | chunk | bytes | | container | bytes |
//! |---|---|---|---|---|---|---|---|
//! | version = 1 | 1 | | version = 1 | 1 | | version = 1 | 1 |
//! | flags: 1 = sealed | 1 | | seq | 4 | | state | 1 |
//! | chunks | 4 | | segment | 4 | | pipeline | 8 |
//! | length | 8 | | record's offset | 8 | | previous container | 8 |
//! | first: segment | 4 | | body bytes | 4 | | payload bytes | 8 |
//! | first: record's offset | 8 | | | | | blocks | 8 |
//! | first: body bytes | 4 | | | | | chunks | 8 |

use anyhow::{Context, bail, ensure};
use bytes::{Buf, BufMut};
use raftlog::Place;
use types::{ContainerId, OwnerId, PipelineId};

const VERSION: u8 = 1;
const SEALED: u8 = 1;

/// Where a chunk's bytes are: a [`Place`] without the owner, which is the block's container.
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
}

impl BlockRecord {
    pub(crate) const BYTES: usize = 1 + 1 + 4 + 8 + PLACE_BYTES;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        let mut at = &mut value[..];
        at.put_u8(VERSION);
        at.put_u8(if self.sealed { SEALED } else { 0 });
        at.put_u32_le(self.chunks);
        at.put_u64_le(self.length);
        self.first.put(&mut at);
        value
    }

    pub(crate) fn decode(value: &[u8]) -> anyhow::Result<BlockRecord> {
        let mut value = versioned(value, Self::BYTES).context("decode block record")?;
        let flags = value.get_u8();
        ensure!(flags & !SEALED == 0, "unknown flags {flags:#04x} in a block record");
        let (chunks, length) = (value.get_u32_le(), value.get_u64_le());
        Ok(BlockRecord { sealed: flags & SEALED != 0, chunks, length, first: ChunkPlace::get(&mut value) })
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

/// Persisted: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ContainerState {
    Open = 1,
    Closed = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerRecord {
    pub state: ContainerState,
    pub pipeline: PipelineId,
    /// The container this one followed in its pipeline; 0 for the first.
    pub previous: ContainerId,
    pub payload_bytes: u64,
    pub blocks: u64,
    pub chunks: u64,
}

/// What a record costs beside its payload, about: header, command and padding. Only used to decide when a container
/// is full, so that one of many tiny or empty blocks fills up too.
const RECORD_OVERHEAD_BYTES: u64 = 128;

impl ContainerRecord {
    pub(crate) const BYTES: usize = 1 + 1 + 8 + 8 + 8 + 8 + 8;

    pub(crate) fn opened(pipeline: PipelineId, previous: ContainerId) -> ContainerRecord {
        ContainerRecord {
            state: ContainerState::Open,
            pipeline,
            previous,
            payload_bytes: 0,
            blocks: 0,
            chunks: 0,
        }
    }

    /// About what the container takes on disk.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.payload_bytes + self.chunks * RECORD_OVERHEAD_BYTES
    }

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        let mut at = &mut value[..];
        at.put_u8(VERSION);
        at.put_u8(self.state as u8);
        at.put_u64_le(self.pipeline.0);
        at.put_u64_le(self.previous.0);
        at.put_u64_le(self.payload_bytes);
        at.put_u64_le(self.blocks);
        at.put_u64_le(self.chunks);
        value
    }

    pub(crate) fn decode(value: &[u8]) -> anyhow::Result<ContainerRecord> {
        let mut value = versioned(value, Self::BYTES).context("decode container record")?;
        let state = match value.get_u8() {
            1 => ContainerState::Open,
            2 => ContainerState::Closed,
            unknown => bail!("unknown container state {unknown}"),
        };
        Ok(ContainerRecord {
            state,
            pipeline: PipelineId(value.get_u64_le()),
            previous: ContainerId(value.get_u64_le()),
            payload_bytes: value.get_u64_le(),
            blocks: value.get_u64_le(),
            chunks: value.get_u64_le(),
        })
    }
}

const LOCAL_BYTES: usize = 1 + 8;

/// A nonce's value: the local id of the block that bears it.
pub(crate) fn encode_local(local: u64) -> [u8; LOCAL_BYTES] {
    let mut value = [VERSION; LOCAL_BYTES];
    value[1..].copy_from_slice(&local.to_le_bytes());
    value
}

pub(crate) fn decode_local(value: &[u8]) -> anyhow::Result<u64> {
    Ok(versioned(value, LOCAL_BYTES).context("decode nonce record")?.get_u64_le())
}

/// Checks version and length; what follows the version is returned.
fn versioned(value: &[u8], bytes: usize) -> anyhow::Result<&[u8]> {
    ensure!(value.first() == Some(&VERSION), "version {:?}, this code reads {VERSION}", value.first());
    ensure!(value.len() == bytes, "{} bytes, expected {bytes}", value.len());
    Ok(&value[1..])
}

/// A row's value in words.
pub(crate) fn describe(key: &[u8], value: &[u8]) -> String {
    let place = |place: ChunkPlace| {
        let ChunkPlace { segment, offset, body_bytes } = place;
        format!("{body_bytes} bytes in segment {segment:08x} at byte {offset}")
    };
    let text = if super::keys::parse_block(key).is_some() {
        BlockRecord::decode(value).map(|record| {
            let BlockRecord { sealed, chunks, length, first } = record;
            format!("length {length}, {chunks} chunks, sealed {sealed}, the first {}", place(first))
        })
    } else if super::keys::parse_chunk(key).is_some() {
        ChunkRecord::decode(value).map(|record| format!("chunk {}, {}", record.seq, place(record.place)))
    } else if value.len() == ContainerRecord::BYTES {
        ContainerRecord::decode(value).map(|record| {
            let ContainerRecord { state, pipeline, previous, payload_bytes, blocks, chunks } = record;
            format!(
                "{state:?} of pipeline {pipeline} after container {previous}, {payload_bytes} bytes in {blocks} blocks \
                 and {chunks} chunks"
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

    /// The bytes of version 1: they stay readable for good.
    #[test]
    fn version_1_is_what_it_was() {
        let block = BlockRecord { sealed: true, chunks: 2, length: 0x1_0000, first: FIRST };
        let block_bytes =
            [1, 1, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0xb0, 0xa0, 0, 0];
        assert_eq!(block.encode(), block_bytes);
        assert_eq!(BlockRecord::decode(&block_bytes).unwrap(), block);

        let chunk = ChunkRecord { seq: 9, place: FIRST };
        let chunk_bytes = [1, 9, 0, 0, 0, 3, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0xb0, 0xa0, 0, 0];
        assert_eq!(chunk.encode(), chunk_bytes);
        assert_eq!(ChunkRecord::decode(&chunk_bytes).unwrap(), chunk);

        let container = ContainerRecord {
            state: ContainerState::Closed,
            payload_bytes: 5,
            blocks: 6,
            chunks: 7,
            ..ContainerRecord::opened(PipelineId(8), ContainerId(4))
        };
        let container_bytes = [
            1, 2, 8, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0,
            0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(container.encode(), container_bytes);
        assert_eq!(ContainerRecord::decode(&container_bytes).unwrap(), container);

        assert_eq!(encode_local(5), [1, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_local(&encode_local(u64::MAX)).unwrap(), u64::MAX);
    }

    #[test]
    fn unknown_versions_states_and_lengths_are_errors() {
        let mut block = BlockRecord { sealed: false, chunks: 1, length: 1, first: FIRST }.encode();
        assert!(BlockRecord::decode(&block[1..]).is_err());
        assert!(BlockRecord::decode(&[]).is_err());
        block[1] = 0x80;
        assert!(BlockRecord::decode(&block).is_err());
        block[0] = 2;
        assert!(BlockRecord::decode(&block).is_err());
        let mut container = ContainerRecord::opened(PipelineId(1), ContainerId(0)).encode();
        container[1] = 3;
        assert!(ContainerRecord::decode(&container).is_err());
    }
}
