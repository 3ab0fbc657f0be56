//! Rows that go because their blocks are deleted.

use super::records::ContainerRecord;
use super::{Index, keys};
use anyhow::Context;
use rocksdb::WriteBatch;
use types::{BlockId, ContainerId};

impl Index {
    /// The places of all chunks of a block, each with the chunk's number; empty when it is not here.
    pub(crate) fn places(&self, block: BlockId) -> anyhow::Result<Vec<raftlog::Place>> {
        let Some(record) = self.block_record(block)? else { return Ok(Vec::new()) };
        let mut places = vec![record.first.in_container(block.container)];
        for row in self.chunk_rows(block) {
            places.push(row?.1.place.in_container(block.container));
        }
        Ok(places)
    }

    /// Drops the rows of blocks of a closed container and takes them out of its counters, in one batch that is **not
    /// durable** on return. What is not here is skipped; answers how many were. Nonces stay: with them gone, a chunk
    /// that is repeated late would begin a block on this replica alone.
    pub(crate) fn forget_blocks(
        &self,
        container: ContainerId,
        locals: impl IntoIterator<Item = u64>,
    ) -> anyhow::Result<u64> {
        let Some(mut record) = self.container(container)? else { return Ok(0) };
        let (mut batch, mut forgotten) = (WriteBatch::default(), 0);
        let mut locals: Vec<u64> = locals.into_iter().collect();
        locals.sort_unstable();
        locals.dedup();
        for local in locals {
            forgotten +=
                u64::from(self.forget_block(&mut batch, &mut record, BlockId { container, local })?);
        }
        if forgotten > 0 {
            batch.put(keys::container(container), record.encode());
            // It takes less from now on, and its hash is of what is left.
            batch.delete(keys::measure(container));
            self.db.write(batch)?;
        }
        Ok(forgotten)
    }

    fn forget_block(
        &self,
        batch: &mut WriteBatch,
        container: &mut ContainerRecord,
        block: BlockId,
    ) -> anyhow::Result<bool> {
        let Some(record) = self.block_record(block)? else { return Ok(false) };
        for row in self.chunk_rows(block) {
            batch.delete(keys::chunk(block, row?.0));
        }
        batch.delete(keys::block(block));
        let fewer = |count: u64, by: u64| {
            count
                .checked_sub(by)
                .with_context(|| format!("the counters of container {} are too low", block.container))
        };
        container.payload_bytes = fewer(container.payload_bytes, record.length)?;
        container.blocks = fewer(container.blocks, 1)?;
        container.chunks = fewer(container.chunks, record.chunks.into())?;
        Ok(true)
    }

    /// Makes everything in the index durable.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        self.db.flush()
    }
}
