//! A pipeline's state machine: chunks and rolls become index entries, on every replica the same.

mod apply_batch;
mod container;

use super::{Index, keys, records::ContainerRecord};
use anyhow::Context;
use apply_batch::ApplyBatch;
pub(crate) use container::ContainerMachine;
use prost::Message;
use proto::datanode::ChunkCommand;
use proto::scm::LogEnd;
use raft::{Applied, Committed, Done, StateMachine};
use rocksdb::WriteBatch;
use statedb::Db;
use tokio::sync::watch;
use types::{ContainerId, LogId, LogIndex, PipelineId};

/// The most bytes of a block. The limit is a part of what applying means: changing it changes what replicas
/// answer.
pub(crate) const BLOCK_BYTES_MAX: u64 = 256 << 20;

/// The open container as others on this node see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenContainer {
    pub container: ContainerId,
    /// About the bytes that the container takes on disk.
    pub used_bytes: u64,
    /// The pipeline's last roll, once it is applied: then nothing is written any more, and this container
    /// never held anything.
    pub ended: Option<LogEnd>,
}

impl OpenContainer {
    fn of(index: &Index, container: ContainerId, record: &ContainerRecord) -> anyhow::Result<OpenContainer> {
        let ended = record.state.is_over().then(|| index.last_roll(record)).transpose()?;
        Ok(OpenContainer { container, used_bytes: record.used_bytes(), ended })
    }
}

/// Applies a pipeline's log to the index of its disk: one atomic batch for the commands that are applied
/// together.
pub(crate) struct PipelineMachine {
    index: Index,
    pipeline: PipelineId,
    open: (ContainerId, ContainerRecord),
    published: watch::Sender<OpenContainer>,
    /// The entry up to which the log may be forgotten.
    forget_to: watch::Sender<Option<LogId>>,
    /// The size at which watchers of the open container are woken, as they are when it changes: not at each
    /// command.
    wake_bytes: u64,
    /// The entry up to which the log is known to be committed. Rolls past it may never have been committed:
    /// what they end is quasi-closed.
    committed_to: Option<LogIndex>,
}

impl PipelineMachine {
    pub(crate) fn new(
        index: Index,
        pipeline: PipelineId,
        first_container: ContainerId,
        wake_bytes: u64,
    ) -> anyhow::Result<(PipelineMachine, watch::Receiver<OpenContainer>)> {
        let container = index.open_container(pipeline)?.unwrap_or(first_container);
        let record = match index.container(container)? {
            Some(record) => record,
            // The first batch would write the same: with it readers know from the start that the container is
            // here.
            None => {
                let record = ContainerRecord::opened(pipeline, ContainerId(0));
                let mut write = WriteBatch::default();
                write.put(keys::container(container), record.encode());
                index.db.write(write)?;
                record
            }
        };
        let (published, watch) = watch::channel(OpenContainer::of(&index, container, &record)?);
        let open = (container, record);
        // Whatever a group applies is committed.
        let committed_to = Some(LogIndex(u64::MAX));
        let forget_to = watch::Sender::default();
        let machine =
            PipelineMachine { index, pipeline, open, published, forget_to, wake_bytes, committed_to };
        Ok((machine, watch))
    }

    /// The end of the part of the log that all members have, as the leader says in the log.
    pub(crate) fn forgettable(&self) -> watch::Receiver<Option<LogId>> {
        self.forget_to.subscribe()
    }

    /// The machine of a log that ended without its group: the log is known to be committed up to `to`, and no
    /// further.
    pub(crate) fn knowing_committed(self, to: Option<LogIndex>) -> PipelineMachine {
        PipelineMachine { committed_to: to, ..self }
    }

    /// The container that more could be written to.
    pub(crate) fn still_open(&self) -> Option<ContainerId> {
        let (container, record) = &self.open;
        (!record.state.is_over()).then_some(*container)
    }

    fn publish(&self) -> anyhow::Result<()> {
        let (container, record) = &self.open;
        let now = OpenContainer::of(&self.index, *container, record)?;
        self.published.send_if_modified(|before| {
            let fills = before.used_bytes < self.wake_bytes && now.used_bytes >= self.wake_bytes;
            let wake = before.container != now.container || fills;
            *before = now;
            wake
        });
        Ok(())
    }
}

/// The answer to a chunk that was applied here before, as of what is applied now; `None` where it has to be
/// proposed. Blocks.
pub(crate) fn answer_again(
    index: &Index,
    pipeline: PipelineId,
    first_container: ContainerId,
    chunk: &ChunkCommand,
) -> anyhow::Result<Option<Done>> {
    let open = index.open_container(pipeline)?.unwrap_or(first_container);
    let Some(record) = index.container(open)? else { return Ok(None) };
    let Some(answer) = ApplyBatch::new(index, pipeline, (open, record), None).answer_again(chunk)? else {
        return Ok(None);
    };
    let applied = index.applied(pipeline)?.context("a block was applied, and no position")?;
    Ok(Some(Done { id: applied.id, reply: answer.encode_to_vec().into() }))
}

impl StateMachine for PipelineMachine {
    fn lacks_room(&self, failed: &anyhow::Error) -> bool {
        Db::is_no_room(failed)
    }

    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.index.applied(self.pipeline)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<bytes::Bytes>> {
        let mut effects = ApplyBatch::new(&self.index, self.pipeline, self.open, self.committed_to);
        let mut replies = Vec::with_capacity(batch.len());
        for command in &batch {
            replies.push(effects.apply(command)?.encode_to_vec().into());
        }
        let forget_to = effects.forget_to;
        let (mut write, open) = effects.finish();
        Db::put_applied(&mut write, &keys::applied(self.pipeline), &applied);
        self.index.db.write(write)?;
        self.open = open;
        self.publish()?;
        if let Some(to) = forget_to {
            self.forget_to.send_replace(Some(to));
        }
        Ok(replies)
    }
}

#[cfg(test)]
mod tests;
