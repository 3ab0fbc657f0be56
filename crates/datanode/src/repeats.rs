//! Entries that look like the first chunk of a block and began none: their block is another, as a writer sent
//! its chunk again, or they were refused. A container does not tell those from beginnings by itself when
//! their block began in the container before, or its own first chunk was left out by a compaction.

use crate::import::manifest::REPEATS_MAX;
use crate::index::Index;
use anyhow::ensure;
use bytes::Bytes;
use prost::Message;
use proto::datanode::{ChunkCommand, PipelineCommand, pipeline_command};
use raftlog::WalkedRecord;
use types::{BlockId, ContainerId, LogIndex, Nonce};

/// The most entries that are looked up with one visit to RocksDB.
const LOOKUPS_MAX: usize = 1024;

/// The search for the repeats of a container, by an index that has all of its blocks that are left.
pub(crate) struct Repeats {
    index: Index,
    container: ContainerId,
    /// Entries that are not looked up yet.
    unseen: Vec<u64>,
    found: Vec<LogIndex>,
}

impl Repeats {
    pub(crate) fn of(index: &Index, container: ContainerId) -> Repeats {
        Repeats { index: index.clone(), container, unseen: Vec::new(), found: Vec::new() }
    }

    /// Takes the next record that is not discarded.
    pub(crate) async fn see(&mut self, record: &WalkedRecord) -> anyhow::Result<()> {
        if chunk_of(record).is_some_and(|chunk| chunk.seq == 0) {
            self.unseen.push(record.meta.id.index.0);
        }
        if self.unseen.len() >= LOOKUPS_MAX { self.look_up().await } else { Ok(()) }
    }

    /// Ends the search, once all records were seen: the repeats. What was discarded meanwhile is among them:
    /// a list that is read later has it.
    pub(crate) async fn found(mut self) -> anyhow::Result<Vec<LogIndex>> {
        self.look_up().await?;
        Ok(self.found)
    }

    async fn look_up(&mut self) -> anyhow::Result<()> {
        let (container, unseen) = (self.container, std::mem::take(&mut self.unseen));
        let repeats = self.index.with(move |index| {
            let mut repeats = Vec::new();
            for local in unseen {
                if index.block_record(BlockId { container, local })?.is_none() {
                    repeats.push(LogIndex(local));
                }
            }
            Ok(repeats)
        });
        self.found.extend(repeats.await?);
        Ok(())
    }
}

/// Refuses more repeats than any source may send: such a container cannot be copied until that limit is
/// higher.
pub(crate) fn check_count(repeats: &[LogIndex]) -> anyhow::Result<()> {
    ensure!(repeats.len() <= REPEATS_MAX, "{} first chunks began no block", repeats.len());
    Ok(())
}

/// The nonce of the block that a record is of.
pub(crate) fn nonce_of(record: &WalkedRecord) -> Option<Nonce> {
    let nonce = proto::bytes16(&chunk_of(record)?.nonce, "nonce").ok()?;
    Some(Nonce(u128::from_be_bytes(nonce)))
}

fn chunk_of(record: &WalkedRecord) -> Option<ChunkCommand> {
    chunk_in(record.meta.meta.clone())
}

/// The chunk that a record is, by its meta.
pub(crate) fn chunk_in(meta: Bytes) -> Option<ChunkCommand> {
    match PipelineCommand::decode(meta).ok()?.command? {
        pipeline_command::Command::Chunk(chunk) => Some(chunk),
        _ => None,
    }
}
