//! Keys of the block index. See `docs/format/block-index.md`.
//!
//! | table | key after the table's byte | value |
//! |---|---|---|
//! | `01` | pipeline | what the disk knows of the pipeline (protobuf `PipelineSpec`) |
//! | `02` | pipeline | how far its state machine has come (owned by `statedb::Db`) |
//! | `03` | pipeline | its open container |
//! | `04` | container | state and counters |
//! | `05` | container, local | a block, its first chunk inlined |
//! | `06` | container, local, offset in the block | a further chunk |
//! | `07` | container, nonce | the block's local id |
//! | `08` | container | why this replica of it is unhealthy |
//! | `09` | | how far the disk's scrubber has come |
//! | `0a` | container | what reading a closed container found out: its end, size and hash |
//! | `0b` | container | its replica is being deleted: its files are to go |
//! | `0c` | pipeline | of one that ends by itself: what is known to be committed |
//! | `0d` | container | a copy of it is being published, and has no rows yet |
//!
//! Numbers in keys are big-endian, so that keys sort as numbers do; every key of a table has the same length.

use types::{BlockId, ContainerId, Nonce, PipelineId};

// Persisted: never renumber.
const PIPELINE_SPEC: u8 = 0x01;
const PIPELINE_APPLIED: u8 = 0x02;
const PIPELINE_OPEN_CONTAINER: u8 = 0x03;
const CONTAINER: u8 = 0x04;
const BLOCK: u8 = 0x05;
const CHUNK: u8 = 0x06;
const NONCE: u8 = 0x07;
const UNHEALTHY: u8 = 0x08;
const SCRUB: u8 = 0x09;
const MEASURE: u8 = 0x0a;
const DELETION: u8 = 0x0b;
const KNOWN_COMMITTED: u8 = 0x0c;
const IMPORT: u8 = 0x0d;

const ID_BYTES: usize = size_of::<u64>();
const TABLE_ID_BYTES: usize = 1 + ID_BYTES;
const BLOCK_BYTES: usize = TABLE_ID_BYTES + ID_BYTES;
const CHUNK_BYTES: usize = BLOCK_BYTES + ID_BYTES;
const NONCE_BYTES: usize = TABLE_ID_BYTES + size_of::<u128>();
const _: () = assert!(CHUNK_BYTES == 25 && NONCE_BYTES == 25);

/// The key of the scrubber's only row.
pub(crate) const SCRUB_POSITION: [u8; 1] = [SCRUB];

fn table_id(table: u8, id: u64) -> [u8; TABLE_ID_BYTES] {
    let mut key = [table; TABLE_ID_BYTES];
    key[1..].copy_from_slice(&id.to_be_bytes());
    key
}

pub(crate) fn pipeline_spec(pipeline: PipelineId) -> [u8; TABLE_ID_BYTES] {
    table_id(PIPELINE_SPEC, pipeline.0)
}

/// The range of keys that the table of pipelines has.
pub(crate) fn pipeline_specs() -> std::ops::Range<[u8; 1]> {
    [PIPELINE_SPEC]..[PIPELINE_SPEC + 1]
}

pub(crate) fn applied(pipeline: PipelineId) -> [u8; TABLE_ID_BYTES] {
    table_id(PIPELINE_APPLIED, pipeline.0)
}

pub(crate) fn open_container(pipeline: PipelineId) -> [u8; TABLE_ID_BYTES] {
    table_id(PIPELINE_OPEN_CONTAINER, pipeline.0)
}

pub(crate) fn container(container: ContainerId) -> [u8; TABLE_ID_BYTES] {
    table_id(CONTAINER, container.0)
}

/// The range of keys that the table of containers has.
pub(crate) fn containers() -> std::ops::Range<[u8; 1]> {
    [CONTAINER]..[CONTAINER + 1]
}

pub(crate) fn is_nonce(key: &[u8]) -> bool {
    key.first() == Some(&NONCE)
}

pub(crate) fn is_container(key: &[u8]) -> bool {
    key.first() == Some(&CONTAINER)
}

/// The id in a key that has nothing else.
pub(crate) fn parse_id(key: &[u8]) -> Option<u64> {
    let key: &[u8; TABLE_ID_BYTES] = key.try_into().ok()?;
    Some(u64::from_be_bytes(key[1..].try_into().expect("eight bytes are left")))
}

pub(crate) fn unhealthy(container: ContainerId) -> [u8; TABLE_ID_BYTES] {
    table_id(UNHEALTHY, container.0)
}

pub(crate) fn deletion(container: ContainerId) -> [u8; TABLE_ID_BYTES] {
    table_id(DELETION, container.0)
}

pub(crate) fn import(container: ContainerId) -> [u8; TABLE_ID_BYTES] {
    table_id(IMPORT, container.0)
}

pub(crate) fn known_committed(pipeline: PipelineId) -> [u8; TABLE_ID_BYTES] {
    table_id(KNOWN_COMMITTED, pipeline.0)
}

pub(crate) fn measure(container: ContainerId) -> [u8; TABLE_ID_BYTES] {
    table_id(MEASURE, container.0)
}

/// The range of all rows that follow from the logs alone: open containers, containers, blocks, chunks,
/// nonces.
pub(crate) fn derived() -> std::ops::Range<[u8; 1]> {
    [PIPELINE_OPEN_CONTAINER]..[NONCE + 1]
}

/// The range of all blocks of a container, half-open.
pub(crate) fn blocks(container: ContainerId) -> std::ops::Range<[u8; TABLE_ID_BYTES]> {
    table_id(BLOCK, container.0)..table_id(BLOCK, container.0.saturating_add(1))
}

/// The range of a block's chunks after its first, half-open.
pub(crate) fn chunks(of: BlockId) -> std::ops::Range<[u8; CHUNK_BYTES]> {
    chunk(of, 0)..chunk(BlockId { local: of.local.saturating_add(1), ..of }, 0)
}

/// The range of all chunks of a container's blocks but their first ones, half-open.
pub(crate) fn chunks_of_container(container: ContainerId) -> std::ops::Range<[u8; TABLE_ID_BYTES]> {
    table_id(CHUNK, container.0)..table_id(CHUNK, container.0.saturating_add(1))
}

pub(crate) fn parse_block(key: &[u8]) -> Option<BlockId> {
    let key: &[u8; BLOCK_BYTES] = key.try_into().ok()?;
    let number = |at: usize| {
        u64::from_be_bytes(key[at..at + ID_BYTES].try_into().expect("eight bytes of a longer key"))
    };
    (key[0] == BLOCK).then(|| BlockId { container: number(1).into(), local: number(TABLE_ID_BYTES) })
}

/// The container that a key of the derived tables is about, if it is about one.
pub(crate) fn container_of(key: &[u8]) -> Option<ContainerId> {
    let id = key.get(1..TABLE_ID_BYTES)?.try_into().expect("eight bytes");
    (CONTAINER..=NONCE).contains(key.first()?).then_some(ContainerId(u64::from_be_bytes(id)))
}

/// Puts a key in words.
pub(crate) fn describe(key: &[u8]) -> String {
    let id = || parse_id(key);
    match key.first() {
        Some(&PIPELINE_OPEN_CONTAINER) if id().is_some() => {
            format!("the open container of pipeline {}", id().unwrap_or_default())
        }
        Some(&CONTAINER) if id().is_some() => format!("container {}", id().unwrap_or_default()),
        Some(&NONCE) if key.len() == NONCE_BYTES => {
            let hex: String = key[TABLE_ID_BYTES..].iter().map(|byte| format!("{byte:02x}")).collect();
            format!("the nonce {hex} of container {}", container_of(key).unwrap_or(ContainerId(0)))
        }
        _ => match (parse_block(key), parse_chunk(key)) {
            (Some(block), _) => format!("block {block}"),
            (_, Some((block, offset))) => format!("the chunk at byte {offset} of block {block}"),
            _ => format!("a key of no table, {key:02x?}"),
        },
    }
}

pub(crate) fn block(block: BlockId) -> [u8; BLOCK_BYTES] {
    let mut key = [BLOCK; BLOCK_BYTES];
    key[1..TABLE_ID_BYTES].copy_from_slice(&block.container.0.to_be_bytes());
    key[TABLE_ID_BYTES..].copy_from_slice(&block.local.to_be_bytes());
    key
}

/// The key of the chunk that begins at `offset` of the block. Chunks are keyed by offset, not by number: a
/// read seeks to the chunk its range begins in.
pub(crate) fn chunk(block: BlockId, offset: u64) -> [u8; CHUNK_BYTES] {
    let mut key = [CHUNK; CHUNK_BYTES];
    key[1..TABLE_ID_BYTES].copy_from_slice(&block.container.0.to_be_bytes());
    key[TABLE_ID_BYTES..BLOCK_BYTES].copy_from_slice(&block.local.to_be_bytes());
    key[BLOCK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    key
}

/// The block and offset a chunk's key names; `None` for a key of another table.
pub(crate) fn parse_chunk(key: &[u8]) -> Option<(BlockId, u64)> {
    let key: &[u8; CHUNK_BYTES] = key.try_into().ok()?;
    let number = |at: usize| {
        u64::from_be_bytes(key[at..at + ID_BYTES].try_into().expect("eight bytes of a longer key"))
    };
    let block = BlockId { container: number(1).into(), local: number(TABLE_ID_BYTES) };
    (key[0] == CHUNK).then(|| (block, number(BLOCK_BYTES)))
}

pub(crate) fn nonce(container: ContainerId, nonce: Nonce) -> [u8; NONCE_BYTES] {
    let mut key = [NONCE; NONCE_BYTES];
    key[1..TABLE_ID_BYTES].copy_from_slice(&container.0.to_be_bytes());
    key[TABLE_ID_BYTES..].copy_from_slice(&nonce.0.to_be_bytes());
    key
}

/// The range of all nonces of blocks that began in the container, half-open.
pub(crate) fn nonces(container: ContainerId) -> std::ops::Range<[u8; TABLE_ID_BYTES]> {
    table_id(NONCE, container.0)..table_id(NONCE, container.0 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_keys_sort_by_block_then_offset_and_parse_back() {
        let block = |container, local| BlockId { container: ContainerId(container), local };
        let sorted = [
            (block(1, 2), 0),
            (block(1, 2), 255),
            (block(1, 2), 256),
            (block(1, 300), 0),
            (block(256, 0), 1),
        ];
        let keys: Vec<_> = sorted.iter().map(|&(block, offset)| chunk(block, offset)).collect();
        assert!(keys.is_sorted());
        for (key, expected) in keys.iter().zip(sorted) {
            assert_eq!(parse_chunk(key), Some(expected));
        }
        assert_eq!(parse_chunk(&nonce(ContainerId(1), Nonce(2))), None);
    }

    #[test]
    fn a_containers_nonces_are_one_range() {
        let range = nonces(ContainerId(7));
        let inside = |container, number| {
            let key = nonce(ContainerId(container), Nonce(number));
            key.as_slice() >= range.start.as_slice() && key.as_slice() < range.end.as_slice()
        };
        assert!(inside(7, 0) && inside(7, u128::MAX));
        assert!(!inside(6, u128::MAX) && !inside(8, 0));
    }
}
