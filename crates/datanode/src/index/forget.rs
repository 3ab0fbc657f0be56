//! Rows that go: their blocks are deleted, or their pipeline is over; and containers that end without a roll.

use super::records::{self, BlockRecord, ChunkRecord, ContainerRecord, ReplicaState};
use super::unhealthy::put_unhealthy;
use super::{Index, keys, measure};
use crate::container_end::ContainerEnd;
use anyhow::Context;
use planted::Bug;
use rocksdb::WriteBatch;
use types::{BlockId, ContainerId, PipelineId};

impl Index {
    /// The places of all chunks of a block, in their order; empty when the block is not here.
    pub(crate) fn places(&self, block: BlockId) -> anyhow::Result<Vec<raftlog::Place>> {
        let Some(record) = self.block_record(block)? else { return Ok(Vec::new()) };
        let mut places = vec![record.first.in_container(block.container)];
        for row in self.chunk_rows(block) {
            places.push(row?.1.place.in_container(block.container));
        }
        Ok(places)
    }

    /// The places of a block's chunks, as its record tells how many there are.
    pub(crate) fn places_of(
        &self,
        block: BlockId,
        record: &BlockRecord,
    ) -> anyhow::Result<Vec<raftlog::Place>> {
        let mut places = vec![record.first.in_container(block.container)];
        for row in self.later_chunks(block, record) {
            places.push(row?.1.place.in_container(block.container));
        }
        Ok(places)
    }

    /// The rows of a block's chunks after its first. Where its record says that there are none, nobody looks:
    /// most blocks have one chunk, and to look costs as much as their own rows do.
    fn later_chunks(
        &self,
        block: BlockId,
        record: &BlockRecord,
    ) -> impl Iterator<Item = anyhow::Result<(u64, ChunkRecord)>> + use<'_> {
        (record.chunks > 1).then(|| self.chunk_rows(block)).into_iter().flatten()
    }

    /// Drops the rows of blocks of a closed container and takes them out of its counters, in one batch that
    /// is **not durable** on return. What is not here is skipped; answers how many were. Nonces stay: with
    /// them gone, a chunk that is repeated late would begin a block on this replica alone. `list_bytes`: the
    /// length of the list that says that they go.
    pub(crate) fn forget_blocks(
        &self,
        container: ContainerId,
        locals: impl IntoIterator<Item = u64>,
        list_bytes: u64,
    ) -> anyhow::Result<u64> {
        let Some(mut record) = self.container(container)? else { return Ok(0) };
        let (mut batch, mut forgotten) = (WriteBatch::default(), 0);
        let mut locals: Vec<u64> = locals.into_iter().collect();
        locals.sort_unstable();
        locals.dedup();
        for row in self.block_records(container, locals.into_iter()) {
            if let (local, Some(block)) = row? {
                self.forget_block(&mut batch, &mut record, BlockId { container, local }, &block)?;
                forgotten += 1;
            }
        }
        if forgotten > 0 {
            batch.put(keys::container(container), record.encode());
            // The container takes less from now on, and its hash is of what is left.
            batch.put(keys::measure(container), measure::unmeasured(list_bytes));
            self.db.write(batch)?;
        } else if self.list_bytes(container)? < list_bytes {
            // The rows went with a list that has become longer since, and what was measured then is not told.
            self.db.rocks().put(keys::measure(container), measure::unmeasured(list_bytes))?;
        }
        Ok(forgotten)
    }

    pub(super) fn forget_block(
        &self,
        batch: &mut WriteBatch,
        container: &mut ContainerRecord,
        block: BlockId,
        record: &BlockRecord,
    ) -> anyhow::Result<()> {
        for row in self.later_chunks(block, record) {
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
        Ok(())
    }

    /// Forgets a pipeline that is over, and the container it ended with; not durable on return. The other
    /// containers stay: late writers, who would need their nonces, are told that the pipeline is not here.
    pub(crate) fn forget_pipeline(
        &self,
        pipeline: PipelineId,
        end: Option<ContainerId>,
    ) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        for (container, record) in self.containers()? {
            if record.pipeline == pipeline {
                let nonces = keys::nonces(container);
                batch.delete_range(nonces.start, nonces.end);
            }
        }
        batch.delete(keys::pipeline_spec(pipeline));
        batch.delete(keys::applied(pipeline));
        batch.delete(keys::open_container(pipeline));
        batch.delete(keys::known_committed(pipeline));
        if let Some(end) = end {
            batch.delete(keys::container(end));
            batch.delete(keys::unhealthy(end));
        }
        self.db.write(batch)
    }

    /// Says how a container ended that no roll ended; not durable on return. One that is not here stays so.
    pub(crate) fn set_end(&self, container: ContainerId, end: ContainerEnd) -> anyhow::Result<()> {
        let Some(record) = self.container(container)? else { return Ok(()) };
        let ContainerEnd { state, last, committed } = end;
        let state = match planted::has(Bug::QuasiClosedIsClosed) {
            true => ReplicaState::Closed,
            false => state,
        };
        let record = ContainerRecord { state, last, committed, ..record };
        let mut batch = WriteBatch::default();
        batch.put(keys::container(container), record.encode());
        self.db.write(batch)
    }

    /// Notes a container of which nothing is here but how it ended; not durable on return.
    pub(crate) fn add_lost(
        &self,
        pipeline: PipelineId,
        container: ContainerId,
        end: ContainerEnd,
    ) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        let record = ContainerRecord::opened(pipeline, ContainerId(0));
        batch.put(keys::container(container), record.encode());
        self.db.write(batch)?;
        self.set_end(container, end)
    }

    /// Says how a container ended of whose records the index does not know all, or none, and that it is bad,
    /// in one step.
    pub(crate) fn end_unhealthy(
        &self,
        pipeline: PipelineId,
        container: ContainerId,
        end: ContainerEnd,
        why: &str,
    ) -> anyhow::Result<()> {
        let opened = || ContainerRecord::opened(pipeline, ContainerId(0));
        let record = self.container(container)?.unwrap_or_else(opened);
        let ContainerEnd { state, last, committed } = end;
        let record = ContainerRecord { state, last, committed, ..record };
        let mut batch = WriteBatch::default();
        batch.put(keys::container(container), record.encode());
        put_unhealthy(&mut batch, container, why);
        self.db.write(batch)
    }

    /// Takes a container for the one that a pipeline writes to; not durable on return.
    pub(crate) fn set_open(&self, pipeline: PipelineId, container: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::open_container(pipeline), records::encode_local(container.0));
        self.db.write(batch)
    }

    /// Takes a pipeline's first container for the one that it ended with, and nothing was written before; not
    /// durable on return.
    pub(crate) fn end_unused(&self, pipeline: PipelineId, first: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::open_container(pipeline), records::encode_local(first.0));
        batch.put(keys::container(first), ContainerRecord::end(pipeline, ContainerId(0)).encode());
        self.db.write(batch)
    }

    /// Makes everything in the index durable.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        self.db.flush()
    }
}
