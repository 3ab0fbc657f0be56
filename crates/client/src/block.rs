use crate::ClientError;
use crate::counted::Counted;
use crate::source::{Chunk, Source};
use crate::stream::{Event, Outgoing, PipelineStream};
use bytes::Bytes;
use futures::Stream;
use proto::om::BlockPiece;
use proto::{Code, Failure};
use rand::RngExt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use types::random::random;
use types::{BlockId, BlockName, Nonce, RunningCrc};

/// One block being written to one pipeline.
pub(crate) struct BlockWriter {
    pipeline: Arc<PipelineStream>,
    nonce: Nonce,
    limits: BlockLimits,
    to_us: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    seq_next: u32,
    sent_bytes: u64,
    /// The chunks that were sent and are not acknowledged, in their order.
    unacked: VecDeque<Sent>,
    acked: Acked,
    sealed: bool,
    on_all: bool,
    /// The time since which somebody has been waiting for this pipeline.
    waiting_since: Instant,
    counted: Arc<Counted>,
}

#[derive(Clone, Copy)]
pub(crate) struct BlockLimits {
    pub(crate) chunk_bytes: usize,
    pub(crate) block_bytes_max: u64,
    pub(crate) stall: Duration,
    pub(crate) ack_all_within: Option<Duration>,
}

struct Sent {
    seq: u32,
    /// The block's length with this chunk.
    length: u64,
    chunk: Chunk,
    since: Instant,
}

#[derive(Clone, Copy, Default)]
struct Acked {
    block: Option<BlockId>,
    length: u64,
    commit_index: u64,
    crc: RunningCrc,
}

/// The end of a block.
pub(crate) struct BlockEnd {
    /// The bytes that the block holds for sure; `None` when it holds none.
    pub(crate) piece: Option<BlockPiece>,
    /// Whether something of the body is left for another block.
    pub(crate) more: bool,
    /// The reason why the block ended early.
    pub(crate) failure: Option<Failure>,
    /// Whether all replicas had each acknowledged chunk.
    pub(crate) on_all: bool,
}

/// The most chunks of one block that are under way at a time; with 1 MiB chunks the pipeline's window is the
/// tighter limit.
const UNACKED_MAX: usize = 64;

impl BlockWriter {
    pub(crate) fn new(
        pipeline: Arc<PipelineStream>,
        limits: BlockLimits,
        counted: Arc<Counted>,
    ) -> BlockWriter {
        // A place for each acknowledgement, and one for the failure.
        let (to_us, events) = mpsc::channel(UNACKED_MAX + 1);
        BlockWriter {
            pipeline,
            nonce: Nonce(random().random()),
            limits,
            to_us,
            events,
            seq_next: 0,
            sent_bytes: 0,
            unacked: VecDeque::new(),
            acked: Acked::default(),
            sealed: false,
            on_all: true,
            waiting_since: Instant::now(),
            counted,
        }
    }

    /// Writes `first` and what follows it, until the body ends, the block is full or the pipeline fails. What
    /// the pipeline did not acknowledge goes back to `source`.
    pub(crate) async fn write<S, E>(
        mut self,
        first: Chunk,
        source: &mut Source<S>,
    ) -> Result<BlockEnd, ClientError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut next = Some(first);
        let mut more = true;
        let failure = loop {
            if self.sealed && self.unacked.is_empty() {
                break None;
            }
            let room_bytes = next.as_ref().map_or(0, |chunk| chunk.payload.len());
            let stalled_at = self.stalled_at();
            let may_send = next.is_some() && self.unacked.len() < UNACKED_MAX;
            tokio::select! {
                biased;
                event = self.events.recv() => match event.expect("this writer holds a sender") {
                    Event::Acked { seq, block, length, commit_index, on_all } => {
                        self.on_all &= on_all;
                        if let Err(failure) = self.acknowledge(seq, block, length, commit_index) {
                            break Some(failure);
                        }
                    }
                    Event::Failed(failure) => break Some(failure),
                },
                room = self.pipeline.room(room_bytes), if may_send => match room {
                    Ok(room) => {
                        let chunk = next.take().expect("may_send says there is one");
                        more = !chunk.last;
                        self.send(room, chunk);
                    }
                    Err(failure) => break Some(failure),
                },
                chunk = source.next(), if next.is_none() && !self.sealed => {
                    next = chunk?;
                    if self.unacked.is_empty() {
                        self.waiting_since = Instant::now();
                    }
                }
                () = tokio::time::sleep_until(stalled_at), if next.is_some() || !self.unacked.is_empty() => {
                    if Instant::now() < self.stalled_at() {
                        continue; // it acknowledges other writers' chunks: it is only busy
                    }
                    self.pipeline.avoid(self.limits.stall * 2);
                    break Some(Failure::new(Code::Unavailable, format!(
                        "pipeline {} acknowledged nothing for {:?}", self.pipeline.id, self.limits.stall)));
                }
            }
        };
        if failure.is_some() {
            let unsent = next.into_iter();
            more |= !self.unacked.is_empty() || unsent.len() > 0;
            let unacked = std::mem::take(&mut self.unacked);
            let lost: Vec<Chunk> = unacked.into_iter().map(|sent| sent.chunk).chain(unsent).collect();
            source.give_back(lost.into_iter());
        }
        Ok(BlockEnd { piece: self.piece(), more, failure, on_all: self.on_all })
    }

    fn send(&mut self, room: crate::stream::Room, chunk: Chunk) {
        if self.unacked.is_empty() {
            self.waiting_since = Instant::now();
        }
        let (nonce, seq, offset) = (self.nonce, self.seq_next, self.sent_bytes);
        self.seq_next += 1;
        self.sent_bytes += chunk.payload.len() as u64;
        // A further chunk might not fit: the block ends here and the next one begins.
        let full = self.sent_bytes + self.limits.chunk_bytes as u64 > self.limits.block_bytes_max;
        self.sealed = chunk.last || full;
        let since = Instant::now();
        self.unacked.push_back(Sent { seq, length: self.sent_bytes, chunk: chunk.clone(), since });
        let (seal, events) = (self.sealed, self.to_us.clone());
        let ack_all_within = self.limits.ack_all_within;
        room.send(|share| Outgoing {
            nonce,
            seq,
            offset,
            chunk,
            seal,
            ack_all_within,
            again: false,
            events,
            _share: share,
        });
    }

    /// Acknowledgements of a block come in the order of its chunks.
    fn acknowledge(
        &mut self,
        seq: u32,
        block: BlockId,
        length: u64,
        commit_index: u64,
    ) -> Result<(), Failure> {
        let Some(sent) = self.unacked.front().filter(|sent| sent.seq == seq) else {
            return Err(Failure::internal(format!("chunk {seq} was acknowledged out of turn")));
        };
        if self.acked.block.is_some_and(|known| known != block) {
            return Err(Failure::internal(format!(
                "chunk {seq} went into block {block}, the ones before did not"
            )));
        }
        if length < sent.length {
            return Err(Failure::internal(format!(
                "block {block} should have {} bytes with chunk {seq}, the pipeline says {length}",
                sent.length
            )));
        }
        self.counted.chunk_acknowledged(sent.since.elapsed());
        let mut crc = self.acked.crc;
        crc.push_payload(&sent.chunk.payload);
        self.acked = Acked { block: Some(block), length: sent.length, commit_index, crc };
        self.unacked.pop_front();
        self.waiting_since = Instant::now();
        Ok(())
    }

    /// The time at which to give the pipeline up: after a while without any acknowledgement to anybody, or a
    /// long while without one for this block.
    fn stalled_at(&self) -> Instant {
        let silent_since = self.waiting_since.max(self.pipeline.last_ack());
        (silent_since + self.limits.stall).min(self.waiting_since + self.limits.stall * 10)
    }

    fn piece(&self) -> Option<BlockPiece> {
        let Acked { block, length, commit_index, crc } = self.acked;
        let block = Some(BlockName::new(block?, self.nonce).into());
        Some(BlockPiece { block, offset: 0, length, commit_index, crc: crc.value() })
    }
}
