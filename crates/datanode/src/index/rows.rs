//! Going through rows in order.

use super::records::{BlockRecord, ChunkRecord};
use super::{Index, keys};
use anyhow::Context;
use rocksdb::{DBIteratorWithThreadMode, DBRawIteratorWithThreadMode, Direction, IteratorMode, ReadOptions};
use std::ops::Range;
use types::{BlockId, ContainerId};

/// A row's key and value.
type Row = (Box<[u8]>, Box<[u8]>);

/// The rows that are passed over before the one that is wanted is looked for.
const STEPS_MAX: usize = 8;

type RawRows<'a> = DBRawIteratorWithThreadMode<'a, rocksdb::DB>;
type Rows<'a> = DBIteratorWithThreadMode<'a, rocksdb::DB>;

impl Index {
    /// The chunks of a block after its first, each with its offset in the block.
    pub(crate) fn chunk_rows(
        &self,
        block: BlockId,
    ) -> impl Iterator<Item = anyhow::Result<(u64, ChunkRecord)>> + use<'_> {
        self.rows(keys::chunks(block)).map(move |row| {
            let (key, value) = row.with_context(|| format!("read the chunks of block {block}"))?;
            let (_, offset) = keys::parse_chunk(&key).context("a key of no chunk among those of chunks")?;
            Ok((offset, ChunkRecord::decode(&value)?))
        })
    }

    /// The records of blocks by their numbers, which come in ascending order; `None` of one that is not here.
    /// What lies side by side is gone through, which is cheaper than to look it up one by one.
    pub(crate) fn block_records(
        &self,
        container: ContainerId,
        locals: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = anyhow::Result<(u64, Option<BlockRecord>)>> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(keys::blocks(container).end.to_vec());
        let mut rows = self.db.rocks().raw_iterator_opt(options);
        let mut has_begun = false;
        locals.map(move |local| {
            let wanted = keys::block(BlockId { container, local });
            let is_before = |rows: &RawRows<'_>| rows.key().is_some_and(|key| key < wanted.as_slice());
            for _ in 0..STEPS_MAX {
                if !is_before(&rows) {
                    break;
                }
                rows.next();
            }
            if !has_begun || is_before(&rows) {
                rows.seek(wanted);
                has_begun = true;
            }
            rows.status().with_context(|| format!("read the blocks of container {container}"))?;
            let found = rows.item().filter(|(key, _)| *key == wanted.as_slice());
            let record = found.map(|(_, value)| BlockRecord::decode(value)).transpose()?;
            Ok((local, record))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::records::ChunkPlace;
    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use rocksdb::WriteBatch;
    use statedb::{Db, DbOptions};
    use std::sync::Arc;
    use types::Nonce;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Beside other containers, over gaps of any length, past the end, and asked for twice.
        #[test]
        fn records_that_are_gone_through_are_those_that_are_looked_up(
            here in btree_set(0u64..60, 0..40),
            mut wanted in proptest::collection::vec(0u64..64, 0..40),
            stride in 1u64..4,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let index = Index::new(Arc::new(Db::open(dir.path(), &DbOptions::default()).unwrap()));
            let record = |local: u64| {
                let first = ChunkPlace { segment: 0, offset: local * 64, body_bytes: 1 };
                BlockRecord { sealed: true, chunks: 1, length: 1, first, nonce: Nonce(local.into()) }
            };
            let mut batch = WriteBatch::default();
            for (container, local) in here.iter().flat_map(|local| [1, 2, 3].map(|number| (number, local * stride))) {
                let block = BlockId { container: ContainerId(container), local };
                batch.put(keys::block(block), record(local).encode());
            }
            index.db.write(batch).unwrap();
            wanted.sort_unstable();
            let found = index.block_records(ContainerId(2), wanted.iter().copied());
            let found: Vec<_> = found.collect::<anyhow::Result<_>>().unwrap();
            let is_here = |local: &u64| local.is_multiple_of(stride) && here.contains(&(local / stride));
            let expect: Vec<_> = wanted.iter().map(|local| (*local, is_here(local).then(|| record(*local)))).collect();
            prop_assert_eq!(found, expect);
        }
    }
}
