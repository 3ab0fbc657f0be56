//! The commands that are applied together, on their way into one batch. The answers and the rows that are
//! written must not depend on where batches begin and end: replicas cut the same log into different ones.

use super::super::records::{
    BlockRecord, ChunkPlace, ChunkRecord, ContainerRecord, ReplicaState, encode_local,
};
use super::super::{Index, keys};
use super::BLOCK_BYTES_MAX;
use anyhow::{Context, bail, ensure};
use prost::Message;
use proto::datanode::{
    ChunkCommand, ForgetCommand, PipelineCommand, PipelineReply, RollCommand, pipeline_command,
};
use proto::{Code, Failure, Retry, bytes16};
use raft::Committed;
use rocksdb::WriteBatch;
use std::collections::BTreeMap;
use types::{BlockId, ContainerId, LogId, LogIndex, Nonce, OwnerId, PipelineId, Term};

/// The index with the effects of this batch's commands so far.
pub(super) struct ApplyBatch<'a> {
    index: &'a Index,
    pipeline: PipelineId,
    open: (ContainerId, ContainerRecord),
    committed_to: Option<LogIndex>,
    /// The end of what may be forgotten, as the last command that spoke of it said.
    pub(super) forget_to: Option<LogId>,
    write: WriteBatch,
    nonces: BTreeMap<Nonce, BlockId>,
    blocks: BTreeMap<BlockId, BlockRecord>,
    chunks: BTreeMap<(BlockId, u64), ChunkRecord>,
}

/// The reason why a command changes nothing, and the block it speaks of as far as there is one. Boxed: the
/// rare case.
struct Refusal {
    failure: Failure,
    block: Option<(BlockId, u64)>,
}

enum ChunkError {
    Refused(Box<Refusal>),
    /// The index cannot be read: the group must stop.
    Broken(anyhow::Error),
}

impl From<anyhow::Error> for ChunkError {
    fn from(error: anyhow::Error) -> Self {
        ChunkError::Broken(error)
    }
}

impl ChunkError {
    fn new(code: Code, retry: Retry, message: String, block: Option<(BlockId, u64)>) -> ChunkError {
        let failure = Failure { retry, ..Failure::new(code, message) };
        ChunkError::Refused(Box::new(Refusal { failure, block }))
    }
}

impl<'a> ApplyBatch<'a> {
    pub(super) fn new(
        index: &'a Index,
        pipeline: PipelineId,
        open: (ContainerId, ContainerRecord),
        committed_to: Option<LogIndex>,
    ) -> ApplyBatch<'a> {
        let write = WriteBatch::default();
        let (nonces, blocks, chunks) = Default::default();
        let forget_to = None;
        ApplyBatch { index, pipeline, open, committed_to, forget_to, write, nonces, blocks, chunks }
    }

    /// Carries out one command. An error means that this replica cannot go on: a command of a newer version,
    /// or a log whose records stand where they must not.
    pub(super) fn apply(&mut self, command: &Committed) -> anyhow::Result<PipelineReply> {
        let at = command.id.index;
        ensure!(
            command.place.owner == OwnerId::from(self.open.0),
            "entry {at} of pipeline {} stands in container {}, but {} is open",
            self.pipeline,
            command.place.owner,
            self.open.0
        );
        let decoded = PipelineCommand::decode(command.meta.clone());
        let decoded = decoded.with_context(|| format!("decode entry {at} of pipeline {}", self.pipeline))?;
        match decoded.command {
            Some(pipeline_command::Command::Chunk(chunk)) => self.apply_chunk(command, &chunk),
            Some(pipeline_command::Command::Roll(roll)) => self.apply_roll(command, &roll),
            Some(pipeline_command::Command::Forget(forget)) => {
                let ForgetCommand { last_term, last_index } = forget;
                self.forget_to = Some(LogId { term: Term(last_term), index: LogIndex(last_index) });
                Ok(PipelineReply::default())
            }
            None => bail!("entry {at} of pipeline {} is of a kind this version does not know", self.pipeline),
        }
    }

    /// The batch and the container that is open after it.
    pub(super) fn finish(mut self) -> (WriteBatch, (ContainerId, ContainerRecord)) {
        for (&block, record) in &self.blocks {
            self.write.put(keys::block(block), record.encode());
        }
        self.save_open();
        (self.write, self.open)
    }

    fn apply_chunk(&mut self, command: &Committed, chunk: &ChunkCommand) -> anyhow::Result<PipelineReply> {
        match self.apply_chunk_checked(command, chunk) {
            Ok((block, length)) => Ok(PipelineReply { error: None, block: Some(block.into()), length }),
            Err(ChunkError::Refused(refusal)) => {
                let Refusal { failure, block } = *refusal;
                let length = block.map_or(0, |(_, length)| length);
                let block = block.map(|(block, _)| block.into());
                Ok(PipelineReply { error: Some(failure.into()), block, length })
            }
            Err(ChunkError::Broken(error)) => Err(error),
        }
    }

    /// The answer to a chunk that was applied already, as it is now.
    pub(super) fn answer_again(&self, chunk: &ChunkCommand) -> anyhow::Result<Option<PipelineReply>> {
        let Ok(nonce) = bytes16(&chunk.nonce, "nonce") else { return Ok(None) };
        let Some((block, Some(record))) = self.find(Nonce(u128::from_be_bytes(nonce)))? else {
            return Ok(None);
        };
        if chunk.seq >= record.chunks {
            return Ok(None);
        }
        match self.recognize(block, record, chunk) {
            Ok((block, length)) => Ok(Some(PipelineReply { error: None, block: Some(block.into()), length })),
            // The state machine says why, to all alike.
            Err(ChunkError::Refused(_)) => Ok(None),
            Err(ChunkError::Broken(failure)) => Err(failure),
        }
    }

    /// Applies a chunk; returns its block, and the block's length up to the end of the chunk.
    fn apply_chunk_checked(
        &mut self,
        command: &Committed,
        chunk: &ChunkCommand,
    ) -> Result<(BlockId, u64), ChunkError> {
        let invalid = |message| ChunkError::new(Code::Invalid, Retry::No, message, None);
        let nonce = bytes16(&chunk.nonce, "nonce").map_err(|failure| invalid(failure.message))?;
        let nonce = Nonce(u128::from_be_bytes(nonce));
        let place = ChunkPlace::of(command.place);
        if u64::from(place.body_bytes) != chunk.length {
            let message =
                format!("the chunk says {} bytes, its record has {}", chunk.length, place.body_bytes);
            return Err(invalid(message));
        }
        if chunk.length == 0 && !chunk.seal {
            return Err(invalid(format!("chunk {} is empty and does not seal the block", chunk.seq)));
        }
        match self.find(nonce)? {
            None => self.begin_block(command, chunk, nonce, place),
            Some((block, None)) => Err(refuse_deleted(block)),
            Some((block, Some(record))) if chunk.seq < record.chunks => self.recognize(block, record, chunk),
            Some((block, Some(record))) => self.extend_block(block, record, chunk, place),
        }
    }

    /// A writer's first chunk begins a block; its id is the index of this entry.
    fn begin_block(
        &mut self,
        command: &Committed,
        chunk: &ChunkCommand,
        nonce: Nonce,
        place: ChunkPlace,
    ) -> Result<(BlockId, u64), ChunkError> {
        if self.open.1.state.is_over() {
            let message = format!("pipeline {} has ended", self.pipeline);
            return Err(ChunkError::new(Code::Closed, Retry::Elsewhere, message, None));
        }
        if chunk.seq != 0 {
            // Not `NotFound`: that says that a pipeline is not on this node yet, and is worth another try.
            let message = format!("chunk {} of a block that is not being written here", chunk.seq);
            return Err(ChunkError::new(Code::Closed, Retry::Elsewhere, message, None));
        }
        if chunk.offset != 0 {
            let message = format!("the first chunk of a block begins at byte 0, not {}", chunk.offset);
            return Err(ChunkError::new(Code::Invalid, Retry::No, message, None));
        }
        length_after(0, chunk, None)?;
        let block = BlockId { container: self.open.0, local: command.id.index.0 };
        let record = BlockRecord { sealed: chunk.seal, chunks: 1, length: chunk.length, first: place, nonce };
        self.write.put(keys::nonce(block.container, nonce), encode_local(block.local));
        self.nonces.insert(nonce, block);
        self.blocks.insert(block, record);
        self.open.1.blocks += 1;
        self.count(chunk);
        Ok((block, record.length))
    }

    /// Answers a chunk that was applied before as it was answered then. One that only looks like it is
    /// refused: another writer with the same nonce, or one that changed its mind.
    fn recognize(
        &self,
        block: BlockId,
        record: BlockRecord,
        chunk: &ChunkCommand,
    ) -> Result<(BlockId, u64), ChunkError> {
        let last = chunk.seq + 1 == record.chunks;
        let sealed_then = last && record.sealed;
        let place_then = match chunk.seq {
            0 => (chunk.offset == 0).then_some(record.first),
            seq => self.chunk(block, chunk.offset)?.filter(|then| then.seq == seq).map(|then| then.place),
        };
        let same = place_then.is_some_and(|then| u64::from(then.body_bytes) == chunk.length);
        if !same || sealed_then != chunk.seal {
            let message =
                format!("chunk {} of block {block} was written before, as a different one", chunk.seq);
            return Err(ChunkError::new(Code::Invalid, Retry::No, message, Some((block, record.length))));
        }
        Ok((block, chunk.offset + chunk.length))
    }

    fn extend_block(
        &mut self,
        block: BlockId,
        mut record: BlockRecord,
        chunk: &ChunkCommand,
        place: ChunkPlace,
    ) -> Result<(BlockId, u64), ChunkError> {
        let so_far = Some((block, record.length));
        let refuse = |code, retry, message| Err(ChunkError::new(code, retry, message, so_far));
        if block.container != self.open.0 {
            let message =
                format!("container {} is closed; block {block} ends at {}", block.container, record.length);
            return refuse(Code::Closed, Retry::Elsewhere, message);
        }
        if record.sealed {
            let message = format!("block {block} is sealed at {}", record.length);
            return refuse(Code::Invalid, Retry::No, message);
        }
        if chunk.seq != record.chunks {
            let message =
                format!("chunk {} of block {block} cannot follow chunk {}", chunk.seq, record.chunks - 1);
            return refuse(Code::Invalid, Retry::Elsewhere, message);
        }
        if chunk.offset != record.length {
            let message = format!(
                "block {block} ends at {}, its next chunk cannot begin at {}",
                record.length, chunk.offset
            );
            return refuse(Code::Invalid, Retry::No, message);
        }
        record.length = length_after(record.length, chunk, so_far)?;
        record.chunks += 1;
        record.sealed = chunk.seal;
        let row = ChunkRecord { seq: chunk.seq, place };
        self.write.put(keys::chunk(block, chunk.offset), row.encode());
        self.chunks.insert((block, chunk.offset), row);
        self.blocks.insert(block, record);
        self.count(chunk);
        Ok((block, record.length))
    }

    fn count(&mut self, chunk: &ChunkCommand) {
        self.open.1.payload_bytes += chunk.length;
        self.open.1.chunks += 1;
    }

    /// Closes the open container and opens the next, or ends the pipeline. Containers are numbered upwards,
    /// so a roll to the open one or to an earlier one is an old decision that was carried out already: it
    /// changes nothing.
    fn apply_roll(&mut self, command: &Committed, roll: &RollCommand) -> anyhow::Result<PipelineReply> {
        let next = ContainerId(roll.next_container);
        ensure!(
            command.roll_to == Some(OwnerId::from(next)),
            "entry {} of pipeline {} rolls the log to {:?}, its command names container {next}",
            command.id.index,
            self.pipeline,
            command.roll_to
        );
        let (open, record) = self.open;
        if next <= open {
            return Ok(PipelineReply::default());
        }
        ensure!(
            !record.state.is_over(),
            "entry {} of pipeline {} rolls to container {next}, but the pipeline ended with {open}",
            command.id.index,
            self.pipeline
        );
        self.open.1.state = match Some(command.id.index) <= self.committed_to {
            true => ReplicaState::Closed,
            false => ReplicaState::QuasiClosed,
        };
        self.open.1.last = Some(command.id);
        if self.open.1.state == ReplicaState::QuasiClosed {
            self.open.1.committed = self.committed_to.unwrap_or_default();
        }
        self.save_open();
        // Writers may still ask about blocks of the container that closes now, but no longer about those
        // before it.
        if record.previous != ContainerId(0) {
            let forgotten = keys::nonces(record.previous);
            self.write.delete_range(forgotten.start, forgotten.end);
        }
        let record = match roll.ends_pipeline {
            true => ContainerRecord::end(self.pipeline, open),
            false => ContainerRecord::opened(self.pipeline, open),
        };
        self.open = (next, record);
        self.write.put(keys::open_container(self.pipeline), encode_local(next.0));
        Ok(PipelineReply::default())
    }

    fn save_open(&mut self) {
        self.write.put(keys::container(self.open.0), self.open.1.encode());
    }

    /// The block a writer's nonce names, if it began in the open container or in the one before; without a
    /// record when it was deleted on this replica.
    fn find(&self, nonce: Nonce) -> anyhow::Result<Option<(BlockId, Option<BlockRecord>)>> {
        let (open, previous) = (self.open.0, self.open.1.previous);
        // A nonce that this batch saw counts only while the index would still have it, wherever batches begin
        // and end.
        let seen =
            self.nonces.get(&nonce).copied().filter(|block| [open, previous].contains(&block.container));
        let block = match seen {
            Some(block) => Some(block),
            None => match self.index.nonce(open, nonce)? {
                Some(block) => Some(block),
                None if previous == ContainerId(0) => None,
                None => self.index.nonce(previous, nonce)?,
            },
        };
        let Some(block) = block else { return Ok(None) };
        let record = match self.blocks.get(&block) {
            Some(record) => Some(*record),
            None => self.index.block_record(block)?,
        };
        ensure!(record.is_some() || block.container != open, "block {block} has a nonce but no record");
        Ok(Some((block, record)))
    }

    fn chunk(&self, block: BlockId, offset: u64) -> anyhow::Result<Option<ChunkRecord>> {
        match self.chunks.get(&(block, offset)) {
            Some(chunk) => Ok(Some(*chunk)),
            None => self.index.chunk(block, offset),
        }
    }
}

/// The refusal of a chunk whose block was deleted here. Blocks are deleted on each replica by itself, and
/// only in closed containers, where no chunk changes anything: whether this one has deleted its block makes a
/// difference to what the chunk is answered and to nothing else.
fn refuse_deleted(block: BlockId) -> ChunkError {
    let message = format!("container {} is closed, and block {block} was deleted", block.container);
    ChunkError::new(Code::Closed, Retry::Elsewhere, message, None)
}

fn length_after(
    length: u64,
    chunk: &ChunkCommand,
    so_far: Option<(BlockId, u64)>,
) -> Result<u64, ChunkError> {
    let after = length.checked_add(chunk.length).filter(|&after| after <= BLOCK_BYTES_MAX);
    after.ok_or_else(|| {
        let message =
            format!("a block holds at most {BLOCK_BYTES_MAX} bytes; {length} and {} are more", chunk.length);
        ChunkError::new(Code::TooLarge, Retry::Elsewhere, message, so_far)
    })
}
