//! The index of a disk's blocks: where each piece of each block stands in the log. A cache of the log, never
//! the truth itself. The rows of blocks come from applying a log ([`machine`]); deletions drop them,
//! compactions move them; everybody reads them.

mod deletion;
mod forget;
pub(crate) mod keys;
mod known_committed;
pub(crate) mod machine;
mod measure;
mod moves;
pub(crate) mod records;
mod rows;
mod scrub_position;
mod unhealthy;

use crate::blocking::blocking;
use anyhow::{Context, bail, ensure};
pub(crate) use measure::{Committed, DiskUse, Facts, Mark, Measure, TermEnd, Terms};
pub(crate) use moves::Moves;
use planted::Bug;
use prost::Message;
use proto::datanode::PipelineSpec;
use proto::scm::LogEnd;
use raft::Applied;
use raftlog::Place;
use records::{BlockRecord, ChunkRecord, ContainerRecord, ReplicaState, log_end};
use rocksdb::{Direction, IteratorMode, ReadOptions, ReadTier, WriteBatch};
pub(crate) use scrub_position::ScrubPosition;
use statedb::Db;
use std::ops::Range;
use std::sync::Arc;
use types::{BlockId, ContainerId, LogIndex, Nonce, PipelineId};

/// The index of one disk. A cheap handle; its calls block on RocksDB.
#[derive(Clone)]
pub(crate) struct Index {
    db: Arc<Db>,
    /// Whether lookups never block, and fail where the disk would have to be asked.
    in_memory: bool,
}

/// A chunk of a block: `offset..offset + place.body_bytes` of the block is the body of the record at `place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub offset: u64,
    pub place: Place,
}

impl Piece {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.place.body_bytes)
    }
}

impl Index {
    pub(crate) fn new(db: Arc<Db>) -> Index {
        Index { db, in_memory: false }
    }

    /// The index for lookups in place, which find only what RocksDB has in memory: what is new, and what was
    /// read lately.
    pub(crate) fn in_memory(&self) -> Index {
        Index { in_memory: true, ..self.clone() }
    }

    /// Reads or writes the index beside the task that awaits that.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Index) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let index = self.clone();
        blocking(move || work(&index)).await
    }

    #[cfg(test)]
    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// The pipelines this disk carries.
    pub(crate) fn pipeline_specs(&self) -> anyhow::Result<Vec<PipelineSpec>> {
        let Range { start, end } = keys::pipeline_specs();
        let mut specs = Vec::new();
        for item in self.db.rocks().iterator(IteratorMode::From(&start, Direction::Forward)) {
            let (key, value) = item.context("list pipelines of the disk")?;
            if key.as_ref() >= end.as_slice() {
                break;
            }
            specs.push(PipelineSpec::decode(value.as_ref()).context("decode a pipeline's spec")?);
        }
        Ok(specs)
    }

    pub(crate) fn knows_pipeline(&self, pipeline: PipelineId) -> anyhow::Result<bool> {
        let row = self.db.rocks().get_pinned(keys::pipeline_spec(pipeline));
        Ok(row.context("look for a pipeline's spec")?.is_some())
    }

    /// Remembers a pipeline, durably.
    pub(crate) fn save_pipeline_spec(&self, spec: &PipelineSpec) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::pipeline_spec(spec.pipeline.into()), spec.encode_to_vec());
        self.db.write(batch)?;
        self.db.flush()
    }

    /// The position up to which a pipeline is applied in this index.
    pub(crate) fn applied(&self, pipeline: PipelineId) -> anyhow::Result<Option<Applied>> {
        self.db.applied(&keys::applied(pipeline))
    }

    /// Whether all there is of a container up to an entry of its pipeline is in this index, and known to be
    /// committed. The record is the container's.
    pub(crate) fn has_applied(&self, record: &ContainerRecord, index: LogIndex) -> anyhow::Result<bool> {
        Ok(match record.state {
            ReplicaState::Closed => true,
            // Entries that a replica has beyond that may never have been committed: others may have
            // acknowledged something else in their place.
            ReplicaState::QuasiClosed | ReplicaState::WithoutLog if planted::has(Bug::TailsAreRead) => {
                record.last.is_some_and(|last| last.index >= index)
            }
            ReplicaState::QuasiClosed | ReplicaState::WithoutLog => record.committed >= index,
            // While a replica ends by itself, its open container has more than that too.
            ReplicaState::Open => {
                ensure!(!self.in_memory, "how far a pipeline is applied is not looked up in memory");
                let known = self.known_committed(record.pipeline)?;
                let applied = self.applied(record.pipeline)?.map(|applied| applied.id.index);
                applied.is_some_and(|applied| known.unwrap_or(applied).min(applied) >= index)
            }
        })
    }

    /// Whether a pipeline writes to a container that takes nothing any more: the one that it ended with, or
    /// ended in by itself.
    pub(crate) fn is_written(
        &self,
        container: ContainerId,
        record: &ContainerRecord,
    ) -> anyhow::Result<bool> {
        Ok(self.open_container(record.pipeline)? == Some(container))
    }

    /// The pipeline a container belongs or belonged to, if it is on this disk.
    pub(crate) fn pipeline_of(&self, container: ContainerId) -> anyhow::Result<Option<PipelineId>> {
        Ok(self.container(container)?.map(|record| record.pipeline))
    }

    /// A block, and the chunks that hold the beginning of `range`, at most `count_max`; none if it does not
    /// have that range. For most blocks that reads one row.
    pub(crate) fn find(
        &self,
        block: BlockId,
        range: Range<u64>,
        count_max: usize,
    ) -> anyhow::Result<Option<(BlockRecord, Vec<Piece>)>> {
        let Some(record) = self.block_record(block)? else { return Ok(None) };
        let has_range = !range.is_empty() && range.end <= record.length;
        let pieces = if has_range { self.pieces_of(block, &record, range, count_max)? } else { Vec::new() };
        Ok(Some((record, pieces)))
    }

    /// The chunks that hold `range` of a block, in order, from the one its start lies in; at most
    /// `count_max`. An error when the index does not cover the range, which its caller has checked against
    /// the block's length.
    pub(crate) fn pieces(
        &self,
        block: BlockId,
        range: Range<u64>,
        count_max: usize,
    ) -> anyhow::Result<Vec<Piece>> {
        let record =
            self.block_record(block)?.with_context(|| format!("block {block} is not in the index"))?;
        self.pieces_of(block, &record, range, count_max)
    }

    fn pieces_of(
        &self,
        block: BlockId,
        record: &BlockRecord,
        range: Range<u64>,
        count_max: usize,
    ) -> anyhow::Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = range.start;
        let first = Piece { offset: 0, place: record.first.in_container(block.container) };
        if at < first.end() {
            pieces.push(first);
            at = first.end();
        }
        if at >= range.end {
            return Ok(pieces);
        }
        let mut rows = self.db.rocks().raw_iterator_opt(self.read_options());
        rows.seek_for_prev(keys::chunk(block, at));
        while at < range.end && pieces.len() < count_max {
            rows.status().context("read the chunks of a block")?;
            let Some((key, value)) = rows.item() else { break };
            let Some((of, offset)) = keys::parse_chunk(key).filter(|&(of, _)| of == block) else { break };
            let piece = Piece { offset, place: ChunkRecord::decode(value)?.place.in_container(of.container) };
            ensure!(
                (offset..piece.end()).contains(&at),
                "the index of block {block} has {offset}..{} where byte {at} should be",
                piece.end()
            );
            at = piece.end();
            pieces.push(piece);
            rows.next();
        }
        if at < range.end && pieces.len() < count_max {
            bail!("the index of block {block} ends at {at}, before the end of {range:?}");
        }
        Ok(pieces)
    }

    /// All containers of this disk, in order.
    pub(crate) fn containers(&self) -> anyhow::Result<Vec<(ContainerId, ContainerRecord)>> {
        let Range { start, end } = keys::containers();
        let mut containers = Vec::new();
        for item in self.db.rocks().iterator(IteratorMode::From(&start, Direction::Forward)) {
            let (key, value) = item.context("list containers of the disk")?;
            if key.as_ref() >= end.as_slice() {
                break;
            }
            let id = keys::parse_id(&key).context("a key of no container among those of containers")?;
            containers.push((ContainerId(id), ContainerRecord::decode(&value)?));
        }
        Ok(containers)
    }

    /// A pipeline's containers that are open; while it runs that is one.
    pub(crate) fn left_open(&self, pipeline: PipelineId) -> anyhow::Result<Vec<ContainerId>> {
        let is_open =
            |record: &ContainerRecord| record.pipeline == pipeline && record.state == ReplicaState::Open;
        let open = self.containers()?.into_iter().filter(|(_, record)| is_open(record));
        Ok(open.map(|(container, _)| container).collect())
    }

    pub(crate) fn container(&self, container: ContainerId) -> anyhow::Result<Option<ContainerRecord>> {
        self.get(&keys::container(container), ContainerRecord::decode)
    }

    /// The roll to the container that a pipeline ended with, as an end of the log that it is the last record
    /// of; nothing is known of it where the replica before that is gone.
    pub(crate) fn last_roll(&self, end: &ContainerRecord) -> anyhow::Result<LogEnd> {
        let rolled = self.container(end.previous)?.and_then(|before| before.last);
        Ok(rolled.map_or_else(LogEnd::default, |id| log_end(end.previous, id, id)))
    }

    pub(crate) fn block_record(&self, block: BlockId) -> anyhow::Result<Option<BlockRecord>> {
        self.get(&keys::block(block), BlockRecord::decode)
    }

    fn chunk(&self, block: BlockId, offset: u64) -> anyhow::Result<Option<ChunkRecord>> {
        self.get(&keys::chunk(block, offset), ChunkRecord::decode)
    }

    fn nonce(&self, container: ContainerId, nonce: Nonce) -> anyhow::Result<Option<BlockId>> {
        let local = self.get(&keys::nonce(container, nonce), records::decode_local)?;
        Ok(local.map(|local| BlockId { container, local }))
    }

    /// The container that a pipeline writes to, or ended with; `None` while that is its first.
    pub(crate) fn open_container(&self, pipeline: PipelineId) -> anyhow::Result<Option<ContainerId>> {
        Ok(self.get(&keys::open_container(pipeline), records::decode_local)?.map(ContainerId))
    }

    fn get<T>(&self, key: &[u8], decode: impl Fn(&[u8]) -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        let options = self.read_options();
        let value = self.db.rocks().get_pinned_opt(key, &options).context("read the block index")?;
        value.map(|value| decode(&value)).transpose()
    }

    fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if self.in_memory {
            options.set_read_tier(ReadTier::BlockCache);
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::ChunkPlace;
    use statedb::DbOptions;

    /// A lookup in place must not wait for a disk, and must not take what it cannot see for what is not
    /// there.
    #[test]
    fn in_memory_is_found_what_was_read_or_is_new_and_nothing_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Index::new(Arc::new(Db::open(dir.path(), &DbOptions::default()).unwrap()));
        let (old, new, none) = (ContainerId(1), ContainerId(2), ContainerId(3));
        let record = ContainerRecord::opened(PipelineId(7), ContainerId(0));
        let put = |index: &Index, container| {
            let mut batch = WriteBatch::default();
            batch.put(keys::container(container), record.encode());
            index.db.write(batch).unwrap();
        };
        put(&open(), old);
        let index = open();
        put(&index, new);
        let in_memory = index.in_memory();
        assert!(in_memory.container(new).unwrap().is_some());
        in_memory.container(old).map(drop).expect_err("its block was not read yet");
        assert!(index.container(old).unwrap().is_some());
        assert!(in_memory.container(old).unwrap().is_some(), "it is in the cache");
        assert!(in_memory.container(none).unwrap().is_none());
    }

    /// Rows that are gone through must not end where the cache does: a block would have fewer chunks.
    #[test]
    fn chunks_are_found_in_memory_or_the_disk_has_to_be_asked() {
        const CHUNKS: u64 = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let open = || Index::new(Arc::new(Db::open(dir.path(), &DbOptions::default()).unwrap()));
        let block = BlockId { container: ContainerId(1), local: 9 };
        let place = |nth: u64| ChunkPlace { segment: 0, offset: nth * 64, body_bytes: 10 };
        let mut batch = WriteBatch::default();
        let (length, chunks, nonce) = (CHUNKS * 10, CHUNKS as u32, Nonce(1));
        let record = BlockRecord { sealed: true, chunks, length, first: place(0), nonce };
        batch.put(keys::block(block), record.encode());
        for nth in 1..CHUNKS {
            let row = ChunkRecord { seq: nth as u32, place: place(nth) };
            batch.put(keys::chunk(block, nth * 10), row.encode());
        }
        open().db.write(batch).unwrap();
        let index = open();
        let find = |index: &Index, range: Range<u64>| index.find(block, range, usize::MAX);
        let counted =
            |found: anyhow::Result<Option<(BlockRecord, Vec<Piece>)>>| found.unwrap().unwrap().1.len();
        find(&index.in_memory(), 0..5).map(drop).expect_err("nothing was read yet");
        assert_eq!(counted(find(&index, 0..5)), 1);
        assert_eq!(counted(find(&index.in_memory(), 0..5)), 1);
        find(&index.in_memory(), 0..length).map(drop).expect_err("only the first of its chunks was read");
        assert_eq!(counted(find(&index, 0..length / 2)), CHUNKS as usize / 2);
        find(&index.in_memory(), 0..length).map(drop).expect_err("half of its chunks were read");
        assert_eq!(counted(find(&index, 0..length)), CHUNKS as usize);
        assert_eq!(counted(find(&index.in_memory(), 0..length)), CHUNKS as usize);
        assert_eq!(counted(find(&index.in_memory(), 0..length + 1)), 0, "it does not have that range");
    }
}
