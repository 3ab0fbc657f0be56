//! The part of its log that a replica which ends by itself knows to be committed. It is written down before
//! the rest of the log is applied: from there on the applied position, which any flush of this index keeps,
//! says nothing about what is committed.

use super::{Index, keys, records};
use rocksdb::WriteBatch;
use types::{ContainerId, LogIndex, PipelineId};

impl Index {
    /// Writes down what is known to be committed, unless that was done before, and answers what stands there.
    /// Durable on return.
    pub(crate) fn note_known_committed(
        &self,
        pipeline: PipelineId,
        known: Option<LogIndex>,
    ) -> anyhow::Result<LogIndex> {
        let noted = match self.known_committed(pipeline)? {
            Some(noted) => noted,
            None => {
                let known = known.unwrap_or_default();
                let mut batch = WriteBatch::default();
                batch.put(keys::known_committed(pipeline), records::encode_local(known.0));
                self.db.write(batch)?;
                known
            }
        };
        self.flush()?;
        Ok(noted)
    }

    /// The entry up to which a log is known to be committed, as it was written down; `None` as long as all
    /// that is applied is committed.
    pub(crate) fn known_committed(&self, pipeline: PipelineId) -> anyhow::Result<Option<LogIndex>> {
        Ok(self.get(&keys::known_committed(pipeline), records::decode_local)?.map(LogIndex))
    }

    /// The part of what is known committed in a pipeline's log that stands in the pipeline's last container:
    /// nothing, where all of it stands in the one before. SCM keeps what is known committed and nobody else
    /// has.
    pub(crate) fn committed_in(
        &self,
        container: ContainerId,
        committed: LogIndex,
    ) -> anyhow::Result<LogIndex> {
        Ok(if self.stands_in(container, committed)? { committed } else { LogIndex(0) })
    }

    /// Whether an entry of a pipeline's log stands in the pipeline's last container, and not before it.
    pub(crate) fn stands_in(&self, container: ContainerId, entry: LogIndex) -> anyhow::Result<bool> {
        let Some(record) = self.container(container)? else { return Ok(true) };
        let before = self.container(record.previous)?.filter(|before| before.pipeline == record.pipeline);
        Ok(before.and_then(|before| before.last).is_none_or(|last| entry > last.index))
    }
}
