//! Rows of a container as a whole: they go when its replica is deleted, or before it is imported.

use super::{Index, keys, records};
use anyhow::Context;
use rocksdb::{Direction, IteratorMode, WriteBatch};
use types::{ContainerId, Nonce, PipelineId};

const VERSION: u8 = 1;

impl Index {
    /// Drops a container's rows, and remembers that its files are to follow; durable on return. Nobody finds
    /// it from here on.
    pub(crate) fn begin_deletion(&self, container: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        let pipeline = self.pipeline_of(container)?;
        self.forget_container(&mut batch, container);
        // Nonces that the pipeline still looks up stay: without them a chunk that is repeated late would
        // begin a block on this replica alone.
        if pipeline.is_none_or(|pipeline| !self.remembers_writers(pipeline, container).unwrap_or(true)) {
            let nonces = keys::nonces(container);
            batch.delete_range(nonces.start, nonces.end);
        }
        batch.put(keys::deletion(container), [VERSION]);
        self.db.write(batch)?;
        self.flush()
    }

    /// Removes the mark of a deletion, once the files are gone. Durable on return: a mark that came back
    /// would delete a replica that is copied here later.
    pub(crate) fn finish_deletion(&self, container: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete(keys::deletion(container));
        self.db.write(batch)?;
        self.flush()
    }

    /// Whether a container's deletion was begun and not finished.
    pub(crate) fn is_being_deleted(&self, container: ContainerId) -> anyhow::Result<bool> {
        Ok(self.db.rocks().get(keys::deletion(container)).context("look for a deletion")?.is_some())
    }

    /// Lists the containers whose deletion was begun and not finished.
    pub(crate) fn deletions(&self) -> anyhow::Result<Vec<ContainerId>> {
        self.marked(keys::deletion(ContainerId(0)))
    }

    /// Marks a container of which a copy is to be published: until its rows come, its files are no sign that
    /// the index is older than the disk. Durable on return. The rows take the place of the mark.
    pub(crate) fn begin_import(&self, container: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::import(container), [VERSION]);
        self.db.write(batch)?;
        self.flush()
    }

    /// Removes the mark of a copy that is given up; not durable on return.
    pub(crate) fn end_import(&self, container: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.delete(keys::import(container));
        self.db.write(batch)
    }

    /// Lists the containers of which a copy was to be published, and has no rows yet.
    pub(crate) fn imports(&self) -> anyhow::Result<Vec<ContainerId>> {
        self.marked(keys::import(ContainerId(0)))
    }

    /// The containers with a row in a table of marks, whose first key this is.
    fn marked(&self, first: impl AsRef<[u8]>) -> anyhow::Result<Vec<ContainerId>> {
        let first = first.as_ref();
        let mut marked = Vec::new();
        for item in self.db.rocks().iterator(IteratorMode::From(first, Direction::Forward)) {
            let (key, _) = item.context("list containers that are marked")?;
            if key.first() != first.first() {
                break;
            }
            let id = keys::parse_id(&key).context("a key of no container among those that are marked")?;
            marked.push(ContainerId(id));
        }
        Ok(marked)
    }

    /// Whether a pipeline of this disk still looks up, in an earlier container, chunks that are sent again.
    pub(crate) fn remembers_writers(
        &self,
        pipeline: PipelineId,
        container: ContainerId,
    ) -> anyhow::Result<bool> {
        let Some(open) = self.open_container(pipeline)? else { return Ok(false) };
        Ok(open == container || self.container(open)?.is_some_and(|open| open.previous == container))
    }

    /// Puts nonces of a container's blocks whose records are gone; not durable on return.
    pub(crate) fn remember_writers(
        &self,
        container: ContainerId,
        writers: impl Iterator<Item = (Nonce, u64)>,
    ) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        for (nonce, local) in writers {
            batch.put(keys::nonce(container, nonce), records::encode_local(local));
        }
        self.db.write(batch)
    }

    /// Leaves a pipeline without an open container: this one, which it rolled to, is no longer here, and
    /// writers of the one before are forgotten with it. Not durable on return.
    pub(crate) fn forget_open(&self, pipeline: PipelineId, container: ContainerId) -> anyhow::Result<()> {
        self.leave_open(pipeline, container)?;
        let mut batch = WriteBatch::default();
        batch.delete(keys::container(container));
        self.db.write(batch)
    }

    /// Leaves a pipeline without an open container: what comes behind this one is not known, and writers of
    /// the one before are forgotten. Not durable on return.
    pub(crate) fn leave_open(&self, pipeline: PipelineId, container: ContainerId) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        if let Some(record) = self.container(container)? {
            let nonces = keys::nonces(record.previous);
            batch.delete_range(nonces.start, nonces.end);
        }
        batch.delete(keys::open_container(pipeline));
        self.db.write(batch)
    }

    /// Drops all rows of a container but for its nonces.
    pub(super) fn forget_container(&self, batch: &mut WriteBatch, container: ContainerId) {
        let (blocks, chunks) = (keys::blocks(container), keys::chunks_of_container(container));
        batch.delete_range(blocks.start, blocks.end);
        batch.delete_range(chunks.start, chunks.end);
        batch.delete(keys::container(container));
        batch.delete(keys::measure(container));
        batch.delete(keys::unhealthy(container));
    }
}
