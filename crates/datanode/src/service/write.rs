//! One write stream: chunks of many blocks, possibly of several pipelines, in; acks out, in order for each
//! block.
//!
//! The stream's task takes chunks in and proposes them in order. Their outcomes are awaited by one lane per
//! pipeline, so that a pipeline that stalls holds up neither the others nor the reading of the stream.

use super::Served;
use super::body_memory::{BodiesOfOne, BodyRoom};
use crate::index::machine::answer_again;
use crate::options::CHUNK_BYTES_MAX;
use crate::pipeline::Pipeline;
use crate::under_way::{self, ChunkName};
use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{Stream, StreamExt, TryStreamExt};
use prost::Message;
use proto::datanode::{
    Ack, ChunkCommand, PipelineCommand, PipelineReply, WriteAck, WriteChunk, pipeline_command,
};
use proto::{ACK_ALL_WITHIN_MAX, Code, Failure, Retry};
use raft::{AddressBook, Command, Done, Group, ProposeError, Role, WaitAllError};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, error};
use types::{ContainerId, LogIndex, Nonce, Payload, PipelineId, Term};

use crate::index::machine::BLOCK_BYTES_MAX;

/// The bytes that a chunk counts for beside its data.
const CHUNK_OVERHEAD_BYTES: usize = 1024;

/// The most blocks whose later chunks a stream may refuse, because one before them was refused or for the
/// container they are in: as many as a gateway works for at once, in some 100 KiB. Past it all are forgotten:
/// their chunks are proposed, and refused by the state machine, once they are on three disks.
const BLOCKS_MAX: usize = 1024;

/// The time that a stopping node waits for what is under way to be answered.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Acks waiting for a slow receiver, each a few dozen bytes; past it the stream's chunks wait.
pub(super) const ACKS_MAX: usize = 1024;

type Acks = Sender<Result<WriteAck, Status>>;

pub(super) struct WriteStream {
    served: Served,
    stream_bytes: Arc<Semaphore>,
    stream_bytes_max: usize,
    acks: Acks,
    lanes: HashMap<PipelineId, Sender<Pending>>,
    lane_tasks: JoinSet<()>,
    /// The first refused chunk of each block that has one, with what its writer may do about it.
    failed: HashMap<Nonce, (u32, Code, Retry)>,
    /// The container that was the newest when each block began that may go on.
    begun: HashMap<Nonce, ContainerId>,
    /// The term in which each pipeline's leader was waited for, when the first chunk came again over this
    /// stream: a new leader may have applied less than its log has.
    waited_for: HashMap<PipelineId, Term>,
}

/// A chunk that waits for its ack.
struct Pending {
    nonce: Bytes,
    seq: u32,
    outcome: Outcome,
    /// The time until when to wait for all replicas, where they shall all have the chunk before it is
    /// acknowledged.
    all_by: Option<Instant>,
    group: Option<Group>,
    /// Room in the stream and in the node.
    bytes: Option<(OwnedSemaphorePermit, BodyRoom)>,
}

enum Outcome {
    Refused(Failure),
    Proposed(under_way::Outcome),
    /// A chunk that was applied before.
    Written(Done),
}

impl WriteStream {
    pub(super) fn new(served: Served, acks: Acks) -> WriteStream {
        let stream_bytes_max = served.options.stream_bytes_max();
        let stream_bytes = Arc::new(Semaphore::new(stream_bytes_max));
        let (lanes, lane_tasks) = Default::default();
        let (failed, begun, waited_for) = Default::default();
        WriteStream {
            served,
            stream_bytes,
            stream_bytes_max,
            acks,
            lanes,
            lane_tasks,
            failed,
            begun,
            waited_for,
        }
    }

    pub(super) async fn run(mut self, chunks: impl Stream<Item = Result<WriteChunk, Status>>) {
        let mut chunks = pin!(chunks);
        let stop = self.served.workers.stop().clone();
        let acks = self.acks.clone();
        loop {
            // All three are safe to drop: the stream ends with either of the other two.
            let message = tokio::select! {
                () = stop.cancelled() => break,
                () = acks.closed() => return,
                message = chunks.try_next() => message,
            };
            match message {
                Ok(Some(chunk)) => {
                    // Dropping a chunk half taken in is what a broken connection does too.
                    let taken = stop.run_until_cancelled(self.take(chunk)).await;
                    if taken != Some(Ok(())) {
                        break;
                    }
                }
                Ok(None) => break,
                Err(status) => {
                    debug!(%status, "write stream broke");
                    break;
                }
            }
        }
        self.drain().await;
    }

    /// Lets what was proposed be answered; the host, which resolves proposals, may be stopping too.
    async fn drain(mut self) {
        self.lanes.clear();
        let stop = self.served.workers.stop().clone();
        let mut lane_tasks = std::mem::take(&mut self.lane_tasks);
        let drained = async { while lane_tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = drained => {}
            () = async { stop.cancelled().await; tokio::time::sleep(DRAIN_MAX).await } => {}
        }
    }

    /// Proposes a chunk, or refuses it. An error: nobody listens any more.
    async fn take(&mut self, chunk: WriteChunk) -> Result<(), Gone> {
        let (id, seq) = (PipelineId(chunk.pipeline), chunk.seq);
        // Whoever waits for an answer to be taken holds no chunk: its bytes would count nowhere.
        let nonce = match chunk.nonce_parsed() {
            Ok(nonce) => nonce,
            Err(failure) => {
                drop(chunk);
                // What is no nonce may be megabytes.
                return self.answer(refused(Bytes::new(), seq, failure)).await;
            }
        };
        // A copy: the nonce may be a slice of the chunk's memory.
        let nonce_bytes = Bytes::copy_from_slice(&chunk.nonce);
        let Some(pipeline) = self.served.pipelines.open(id) else {
            let failure = match self.served.pipelines.stopped_report(id) {
                Some(_) => {
                    Failure::new(Code::Closed, format!("pipeline {id} takes nothing on this node any more"))
                }
                None => Failure::new(Code::NotFound, format!("pipeline {id} is not on this node")),
            };
            let failure = Failure { retry: Retry::Elsewhere, ..failure };
            drop(chunk);
            return self.answer(refused(nonce_bytes, seq, failure)).await;
        };

        let mut pending = Pending {
            nonce: nonce_bytes,
            seq,
            outcome: Outcome::Refused(Failure::internal("")),
            all_by: all_by(&chunk),
            group: None,
            bytes: None,
        };
        pending.outcome = match self.propose(&pipeline, nonce, chunk, &mut pending.bytes).await {
            Ok(outcome) => outcome,
            Err(failure) => Outcome::Refused(failure),
        };
        if let Outcome::Refused(Failure { code: Code::Busy, .. }) = pending.outcome {
            pipeline.disk.counters.busy_chunks.fetch_add(1, Ordering::Relaxed);
        }
        pending.group = pending.all_by.map(|_| pipeline.group.clone());
        self.remember_failure(nonce, &pending);
        let lane = self.lane(id);
        lane.send(pending).await.map_err(|_| Gone)
    }

    async fn propose(
        &mut self,
        pipeline: &Pipeline,
        nonce: Nonce,
        chunk: WriteChunk,
        bytes: &mut Option<(OwnedSemaphorePermit, BodyRoom)>,
    ) -> Result<Outcome, Failure> {
        if let Some((refused, code, retry)) = self.failed.get(&nonce).copied()
            && chunk.seq > refused
        {
            let failure = Failure::new(code, format!("chunk {refused} of the block was refused"));
            return Err(Failure { retry, ..failure });
        }
        let (seq, offset, seal) = (chunk.seq, chunk.offset, chunk.seal);
        let name = ChunkName { nonce, seq, offset, length: chunk.data.len() as u64, seal };
        let mut outcome = pipeline.under_way.get(&name).map(Outcome::Proposed);
        if outcome.is_none() && chunk.again {
            outcome = self.find_applied(pipeline, name).await;
        }
        if let Some(outcome) = outcome {
            pipeline.disk.counters.repeated_chunks.fetch_add(1, Ordering::Relaxed);
            return Ok(outcome);
        }
        self.check_goes_on(pipeline, &name)?;
        let command = check(chunk)?;
        *bytes = Some(self.reserve(command.body.len(), &pipeline.bodies).await?);
        match pipeline.takes_chunks(self.served.options.container_refuse_bytes()) {
            // The leader's disk is what counts: the group says who leads.
            Err(Failure { code: Code::DiskFull | Code::DiskFailed, .. }) if !pipeline.is_leader() => {}
            taken => taken?,
        }
        let proposed = pipeline.group.propose(command).await;
        let proposed = proposed.map_err(|failure| propose_failure(failure, &self.served.addresses))?;
        Ok(Outcome::Proposed(pipeline.under_way.add(name, proposed)))
    }

    /// Refuses a chunk of a block whose container is closed by a roll that is applied or on its way. Its
    /// record would stand in the next container, where the state machine refuses it and nobody takes it out
    /// again.
    fn check_goes_on(&mut self, pipeline: &Pipeline, chunk: &ChunkName) -> Result<(), Failure> {
        let newest = pipeline.newest_container();
        if chunk.seq == 0 && !chunk.seal {
            if self.begun.len() >= BLOCKS_MAX && !self.begun.contains_key(&chunk.nonce) {
                self.begun.clear();
            }
            self.begun.insert(chunk.nonce, newest);
        }
        match self.begun.get(&chunk.nonce).copied() {
            Some(container) if container < newest => {
                self.begun.remove(&chunk.nonce);
                let message = format!("the block began before container {newest}: it ends there");
                Err(Failure::new(Code::Closed, message))
            }
            Some(_) if chunk.seal => {
                self.begun.remove(&chunk.nonce);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The answer to a chunk that was sent before and is applied. Whatever is missed here, the state machine
    /// recognizes, after it was appended on all members.
    async fn find_applied(&mut self, pipeline: &Pipeline, name: ChunkName) -> Option<Outcome> {
        self.catch_up(pipeline).await;
        let (id, first) = (pipeline.id, pipeline.order.first_container);
        let ChunkName { nonce, seq, offset, length, seal } = name;
        let chunk = ChunkCommand { nonce: proto::uuid_bytes(nonce.0), seq, offset, length, seal };
        match pipeline.disk.index.with(move |index| answer_again(index, id, first, &chunk)).await {
            Ok(done) => done.map(Outcome::Written),
            Err(failure) => {
                error!(pipeline = %id, error = format!("{failure:#}"), "cannot look for a chunk that came again");
                None
            }
        }
    }

    /// Waits for a leader that was elected a moment ago: what the one before it had taken is in its log, and
    /// not yet in its index. A leader is waited for once: one that cannot apply holds up no more than one
    /// chunk of a stream.
    async fn catch_up(&mut self, pipeline: &Pipeline) {
        let status = pipeline.group.status();
        let leads_anew = status.role == Role::Leader
            && self.waited_for.insert(pipeline.id, status.term) != Some(status.term);
        if leads_anew && let Some(last) = pipeline.group.log().state().last {
            // A chunk that is not applied by then is recognized by the state machine.
            let _ = pipeline.group.wait_applied(last.index, self.served.options.read_wait).await;
        }
    }

    /// Asks for room in the node, which must not make anybody wait; then waits for room in the stream, which
    /// makes its sender wait, with a chunk that counts.
    async fn reserve(
        &self,
        data_bytes: usize,
        of_one: &BodiesOfOne,
    ) -> Result<(OwnedSemaphorePermit, BodyRoom), Failure> {
        let bytes = (data_bytes + CHUNK_OVERHEAD_BYTES).min(self.stream_bytes_max);
        let bytes = u32::try_from(bytes).expect("a chunk has some MiB at most");
        let node = self.served.body_memory.room(bytes, of_one);
        let node = node.map_err(|why| Failure::new(Code::Busy, why.to_string()))?;
        let stream = self.stream_bytes.clone().acquire_many_owned(bytes).await;
        Ok((stream.map_err(|_| Failure::internal("the stream's budget is closed"))?, node))
    }

    /// Notes a chunk that is refused: later chunks of its block must not be proposed past it, until it comes
    /// again.
    fn remember_failure(&mut self, nonce: Nonce, pending: &Pending) {
        match &pending.outcome {
            Outcome::Refused(failure) => {
                if self.failed.len() >= BLOCKS_MAX && !self.failed.contains_key(&nonce) {
                    self.failed.clear();
                }
                let first = (pending.seq, failure.code, failure.retry);
                let failed = self.failed.entry(nonce).or_insert(first);
                if pending.seq <= failed.0 {
                    *failed = first;
                }
            }
            Outcome::Proposed(_) | Outcome::Written(_) => {
                self.failed.remove(&nonce);
            }
        }
    }

    fn lane(&mut self, pipeline: PipelineId) -> &Sender<Pending> {
        self.lanes.entry(pipeline).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(ACKS_MAX);
            self.lane_tasks.spawn(run_lane(receiver, self.acks.clone(), self.served.addresses.clone()));
            sender
        })
    }

    async fn answer(&self, ack: WriteAck) -> Result<(), Gone> {
        self.acks.send(Ok(ack)).await.map_err(|_| Gone)
    }
}

/// Nobody takes the acks any more.
#[derive(Debug, PartialEq, Eq)]
struct Gone;

/// Answers the chunks of one pipeline in the order they were taken in. They are waited for together, so that
/// one that waits for all replicas does not keep those behind it from giving back their bytes when they are
/// committed.
async fn run_lane(mut chunks: Receiver<Pending>, acks: Acks, addresses: AddressBook) {
    let mut answers = FuturesOrdered::new();
    loop {
        // Both are safe to drop. Without answers to wait for, there is room for a chunk.
        tokio::select! {
            biased;
            Some(ack) = answers.next() => {
                if acks.send(Ok(ack)).await.is_err() {
                    return;
                }
            }
            pending = chunks.recv(), if answers.len() < ACKS_MAX => match pending {
                Some(pending) => answers.push_back(pending.ack(&addresses)),
                None => break,
            },
        }
    }
    while let Some(ack) = answers.next().await {
        if acks.send(Ok(ack)).await.is_err() {
            return;
        }
    }
}

impl Pending {
    async fn ack(self, addresses: &AddressBook) -> WriteAck {
        let Pending { nonce, seq, outcome, all_by, group, bytes } = self;
        let done = match outcome {
            Outcome::Refused(failure) => return refused(nonce, seq, failure),
            Outcome::Proposed(outcome) => outcome.await,
            Outcome::Written(done) => Ok(done),
        };
        // The log has them: waiting for all replicas holds no room that others could use.
        drop(bytes);
        match done {
            Ok(done) => {
                let index = done.id.index;
                let ack = answered(nonce, seq, done);
                match group.zip(all_by) {
                    Some((group, all_by)) if ack.error.is_none() => on_all(ack, &group, index, all_by).await,
                    _ => ack,
                }
            }
            Err(failure) => refused(nonce, seq, propose_failure(failure, addresses)),
        }
    }
}

fn all_by(chunk: &WriteChunk) -> Option<Instant> {
    let within = Duration::from_millis(chunk.ack_all_within_ms.into()).min(ACK_ALL_WITHIN_MAX);
    (chunk.ack() == Ack::All).then(|| Instant::now() + within)
}

/// Waits for the other replicas, as long as the writer said, and says how far it came. Acknowledgements
/// behind this one wait too, but all from when their chunks were taken in: a replica that is gone costs each
/// of them that time once.
async fn on_all(mut ack: WriteAck, group: &Group, index: LogIndex, all_by: Instant) -> WriteAck {
    match group.wait_all(index, all_by).await {
        Ok(()) => ack.set_reached(Ack::All),
        Err(WaitAllError::Missing { missing }) => {
            ack.without = missing.iter().map(|lag| lag.replica.0).collect();
        }
        // Nobody knows who has it; a majority has.
        Err(WaitAllError::NotLeader | WaitAllError::Busy { .. } | WaitAllError::Stopped) => {}
    }
    ack
}

/// The command of a chunk whose bytes are the ones its writer sent.
fn check(chunk: WriteChunk) -> Result<Command, Failure> {
    let WriteChunk { nonce, seq, offset, data, data_crcs, seal, .. } = chunk;
    if data.len() > CHUNK_BYTES_MAX {
        let message = format!("a chunk holds at most {CHUNK_BYTES_MAX} bytes, this one has {}", data.len());
        return Err(Failure::new(Code::TooLarge, message));
    }
    if data.is_empty() && !seal {
        return Err(Failure::invalid(format!("chunk {seq} is empty and does not seal the block")));
    }
    let length = data.len() as u64;
    if offset.checked_add(length).is_none_or(|end| end > BLOCK_BYTES_MAX) {
        let message =
            format!("a block holds at most {BLOCK_BYTES_MAX} bytes; {offset} and {length} are more");
        return Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::TooLarge, message) });
    }
    let body = Payload::verified(data, data_crcs);
    let body = body.map_err(|failure| {
        // The writer still has the bytes: what was damaged is this copy of them.
        Failure {
            retry: Retry::Here,
            ..Failure::new(Code::Corrupt, format!("chunk {seq} arrived damaged: {failure}"))
        }
    })?;
    let chunk = ChunkCommand { nonce, seq, offset, length, seal };
    let command = PipelineCommand { command: Some(pipeline_command::Command::Chunk(chunk)) };
    Ok(Command { meta: command.encode_to_vec().into(), body, roll_to: None })
}

fn propose_failure(failure: ProposeError, addresses: &AddressBook) -> Failure {
    let failure = failure.into_failure(addresses);
    match failure.code {
        // A group that stopped here does not come back by waiting.
        Code::Unavailable => Failure { retry: Retry::Elsewhere, ..failure },
        _ => failure,
    }
}

fn refused(nonce: Bytes, seq: u32, failure: Failure) -> WriteAck {
    WriteAck { nonce, seq, error: Some(failure.into()), ..WriteAck::default() }
}

fn answered(nonce: Bytes, seq: u32, done: Done) -> WriteAck {
    let commit_index = done.id.index.0;
    match PipelineReply::decode(done.reply) {
        Ok(PipelineReply { error, block, length }) => {
            WriteAck { nonce, seq, error, block, length, commit_index, ..WriteAck::default() }
        }
        Err(failure) => {
            error!(commit_index, %failure, "a state machine's answer cannot be read");
            refused(nonce, seq, Failure::internal("the chunk was applied, its answer cannot be read"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_all_replicas_longer_than_the_limit() {
        let chunk =
            |ack: Ack, ms| WriteChunk { ack: ack.into(), ack_all_within_ms: ms, ..WriteChunk::default() };
        let now = Instant::now();
        assert_eq!(all_by(&chunk(Ack::All, u32::MAX)), Some(now + ACK_ALL_WITHIN_MAX));
        assert_eq!(all_by(&chunk(Ack::All, 300)), Some(now + Duration::from_millis(300)));
        assert_eq!(all_by(&chunk(Ack::Majority, 300)), None);
    }
}
