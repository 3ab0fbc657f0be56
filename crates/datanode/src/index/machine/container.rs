//! Applying one closed container by itself, as its pipeline did, to the index of a disk that may never have
//! carried the pipeline.
//!
//! Blocks never span containers, so a container has all that its rows say, but for one thing: whether a first
//! chunk was a repetition of one in the container before. Whoever knows ([`crate::index::Facts::repeats`])
//! leaves those out.

use super::apply_batch::ApplyBatch;
use crate::index::records::{ContainerRecord, ReplicaState};
use crate::index::{Index, Measure, keys};
use raft::Committed;
use rocksdb::WriteBatch;
use types::{BlockId, ContainerId, LogId, OwnerId, PipelineId};

/// Applies the records of one closed container. What the index knows of the pipeline itself is left alone:
/// the pipeline may run on this disk.
pub(crate) struct ContainerMachine {
    index: Index,
    pipeline: PipelineId,
    container: ContainerId,
    record: ContainerRecord,
}

impl ContainerMachine {
    /// Begins with a container, whose rows of an earlier attempt are dropped.
    pub(crate) fn new(
        index: Index,
        pipeline: PipelineId,
        container: ContainerId,
    ) -> anyhow::Result<ContainerMachine> {
        let mut batch = WriteBatch::default();
        index.forget_container(&mut batch, container);
        index.db.write(batch)?;
        let record = ContainerRecord::opened(pipeline, ContainerId(0));
        Ok(ContainerMachine { index, pipeline, container, record })
    }

    pub(crate) fn applied(mut self, batch: Vec<Committed>) -> anyhow::Result<ContainerMachine> {
        let mut effects = ApplyBatch::new(&self.index, self.pipeline, (self.container, self.record), None);
        let ends = |command: &Committed| command.roll_to.is_some_and(|to| to > OwnerId::from(self.container));
        for command in batch.iter().filter(|command| !ends(command)) {
            effects.apply(command)?;
        }
        let (mut write, (_, record)) = effects.finish();
        // Readers find a container by this row, and the container is not whole yet.
        write.delete(keys::container(self.container));
        self.index.db.write(write)?;
        self.record = record;
        Ok(self)
    }

    /// Makes the container whole and closed, without the blocks that were deleted. Not durable on return.
    pub(crate) fn finish(
        self,
        last: LogId,
        deleted: &[u64],
        measure: Option<&Measure>,
    ) -> anyhow::Result<()> {
        let ContainerMachine { index, container, mut record, .. } = self;
        let mut batch = WriteBatch::default();
        let mut deleted = deleted.to_vec();
        deleted.sort_unstable();
        deleted.dedup();
        for row in index.block_records(container, deleted.into_iter()) {
            if let (local, Some(block)) = row? {
                index.forget_block(&mut batch, &mut record, BlockId { container, local }, &block)?;
            }
        }
        record.state = ReplicaState::Closed;
        record.last = Some(last);
        batch.put(keys::container(container), record.encode());
        batch.delete(keys::import(container));
        if let Some(measure) = measure {
            batch.put(keys::measure(container), measure.encode());
        }
        // No writer asks here about the blocks of a container that was applied by itself.
        let nonces = keys::nonces(container);
        batch.delete_range(nonces.start, nonces.end);
        index.db.write(batch)
    }
}
