//! The part of its log that a replica which ends by itself knows to be committed. It is written down before
//! the rest of the log is applied: from there on the applied position, which any flush of this index keeps,
//! says nothing about what is committed.

use super::{Index, keys, records};
use rocksdb::WriteBatch;
use types::{LogIndex, PipelineId};

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

    /// `None` as long as all that is applied is committed.
    pub(crate) fn known_committed(&self, pipeline: PipelineId) -> anyhow::Result<Option<LogIndex>> {
        Ok(self.get(&keys::known_committed(pipeline), records::decode_local)?.map(LogIndex))
    }
}
