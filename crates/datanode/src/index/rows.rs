//! Going through rows in order.

use super::records::{BlockRecord, ChunkRecord};
use super::{Index, keys};
use anyhow::Context;
use rocksdb::{DBIteratorWithThreadMode, Direction, IteratorMode, ReadOptions};
use std::ops::Range;
use types::{BlockId, ContainerId};

/// A row's key and value.
type Row = (Box<[u8]>, Box<[u8]>);

type Rows<'a> = DBIteratorWithThreadMode<'a, rocksdb::DB>;

impl Index {
    /// The chunks of a block after its first, each with its offset in the block.
    pub(crate) fn chunk_rows(
        &self,
        block: BlockId,
        record: &BlockRecord,
    ) -> impl Iterator<Item = anyhow::Result<(u64, ChunkRecord)>> + use<'_> {
        // An iterator costs more than all else that is done for a block of one chunk.
        let rows = (record.chunks > 1).then(|| self.rows(keys::chunks(block)));
        rows.into_iter().flatten().map(move |row| {
            let (key, value) = row.with_context(|| format!("read the chunks of block {block}"))?;
            let (_, offset) = keys::parse_chunk(&key).context("a key of no chunk among those of chunks")?;
            Ok((offset, ChunkRecord::decode(&value)?))
        })
    }

    /// The blocks of a container from a local id on, in order.
    pub(crate) fn block_rows(
        &self,
        container: ContainerId,
        from_local: u64,
    ) -> impl Iterator<Item = anyhow::Result<(BlockId, BlockRecord)>> + use<'_> {
        let Range { end, .. } = keys::blocks(container);
        let start = keys::block(BlockId { container, local: from_local });
        self.rows(start.as_slice()..end.as_slice()).map(move |row| {
            let (key, value) = row.with_context(|| format!("read the blocks of container {container}"))?;
            let block = keys::parse_block(&key).context("a key of no block among those of blocks")?;
            Ok((block, BlockRecord::decode(&value)?))
        })
    }

    /// All chunks of a container's blocks but their first ones, with their keys.
    pub(crate) fn container_chunk_rows(
        &self,
        container: ContainerId,
    ) -> impl Iterator<Item = anyhow::Result<(Box<[u8]>, ChunkRecord)>> + use<'_> {
        self.rows(keys::chunks_of_container(container)).map(move |row| {
            let (key, value) = row.with_context(|| format!("read the chunks of container {container}"))?;
            let record = ChunkRecord::decode(&value)?;
            Ok((key, record))
        })
    }

    /// All rows that follow from the logs alone.
    pub(crate) fn derived_rows(&self) -> impl Iterator<Item = anyhow::Result<Row>> + use<'_> {
        self.rows(keys::derived()).map(|row| row.context("read the block index"))
    }

    fn rows(&self, range: Range<impl AsRef<[u8]>>) -> Rows<'_> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(range.end.as_ref().to_vec());
        self.db.rocks().iterator_opt(IteratorMode::From(range.start.as_ref(), Direction::Forward), options)
    }
}
