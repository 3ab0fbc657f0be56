use crate::channels::Channels;
use crate::session::Session;
use crate::source::Chunk;
use crate::view::View;
use proto::datanode::{Ack, WriteChunk};
use proto::{Code, Failure};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tracing::debug;
use types::{Backoff, BlockId, Nonce, PipelineId};

/// The stream that all writers of this process share for one pipeline: a window of bytes, and a task that
/// owns the write stream to the pipeline's leader. The task ends when the last handle is gone.
pub(crate) struct PipelineStream {
    pub(crate) id: PipelineId,
    orders: mpsc::Sender<Outgoing>,
    window: Arc<Semaphore>,
    window_bytes: usize,
    health: Arc<Health>,
}

/// Whether new blocks should go elsewhere for now.
pub(crate) struct Health {
    avoid_until: Mutex<Option<Instant>>,
    last_ack: Mutex<Instant>,
}

/// A chunk, on its way until acknowledged. Holds its share of the window as long as it exists.
pub(crate) struct Outgoing {
    pub(crate) nonce: Nonce,
    pub(crate) seq: u32,
    pub(crate) offset: u64,
    pub(crate) chunk: Chunk,
    pub(crate) seal: bool,
    pub(crate) ack_all_within: Option<Duration>,
    /// Whether the chunk was on a connection that broke before it was answered.
    pub(crate) again: bool,
    /// The way to the chunk's writer; one that went on elsewhere has dropped the other end.
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) _share: OwnedSemaphorePermit,
}

/// An event that a block's writer hears of.
#[derive(Debug)]
pub(crate) enum Event {
    Acked {
        seq: u32,
        block: BlockId,
        length: u64,
        commit_index: u64,
        on_all: bool,
    },
    /// The block takes no more chunks; those not acknowledged are the writer's again.
    Failed(Failure),
}

/// Room for one chunk of a known size.
pub(crate) struct Room {
    slot: mpsc::OwnedPermit<Outgoing>,
    pub(crate) share: OwnedSemaphorePermit,
}

impl Room {
    pub(crate) fn send(self, outgoing: impl FnOnce(OwnedSemaphorePermit) -> Outgoing) {
        self.slot.send(outgoing(self.share));
    }
}

/// The most chunks that wait for the owner task, besides those on the wire. Their bytes are bounded by the
/// window.
const ORDERS_MAX: usize = 256;
/// The least that a chunk takes of the window, so that the number of tiny ones is bounded too: 16 MiB hold
/// 4096.
const SHARE_BYTES_MIN: usize = 4096;

impl PipelineStream {
    /// Starts the owner task.
    pub(crate) fn start(
        id: PipelineId,
        window_bytes: usize,
        stall: Duration,
        channels: Channels,
        view: watch::Receiver<Arc<View>>,
    ) -> PipelineStream {
        let (orders, incoming) = mpsc::channel(ORDERS_MAX);
        let health = Arc::new(Health::new());
        let session = Session::new(id, incoming, health.clone(), stall, channels);
        tokio::spawn(own(session, view));
        PipelineStream { id, orders, window: Arc::new(Semaphore::new(window_bytes)), window_bytes, health }
    }

    /// Waits until a chunk of `bytes` may be sent. Cancellation safe: giving up gives the room back.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Room, Failure> {
        let share =
            u32::try_from(bytes.clamp(SHARE_BYTES_MIN, self.window_bytes)).expect("a window below 4 GiB");
        let stopped =
            || Failure::new(Code::Unavailable, format!("the stream of pipeline {} stopped", self.id));
        let share = self.window.clone().acquire_many_owned(share).await.map_err(|_| stopped())?;
        let slot = self.orders.clone().reserve_owned().await.map_err(|_| stopped())?;
        Ok(Room { slot, share })
    }

    /// Bytes sent and not yet acknowledged.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.window_bytes - self.window.available_permits()
    }

    pub(crate) fn avoid(&self, how_long: Duration) {
        self.health.avoid(how_long);
    }

    pub(crate) fn is_avoided(&self) -> bool {
        self.health.is_avoided()
    }

    /// The time at which anything was acknowledged here last, for any writer.
    pub(crate) fn last_ack(&self) -> Instant {
        *self.health.last_ack.lock().expect("no holder panics")
    }
}

impl Health {
    fn new() -> Health {
        Health { avoid_until: Mutex::new(None), last_ack: Mutex::new(Instant::now()) }
    }

    pub(crate) fn avoid(&self, how_long: Duration) {
        *self.avoid_until.lock().expect("no holder panics") = Some(Instant::now() + how_long);
    }

    pub(crate) fn is_avoided(&self) -> bool {
        self.avoid_until.lock().expect("no holder panics").is_some_and(|until| Instant::now() < until)
    }

    pub(crate) fn good(&self) {
        *self.avoid_until.lock().expect("no holder panics") = None;
        *self.last_ack.lock().expect("no holder panics") = Instant::now();
    }
}

impl Outgoing {
    pub(crate) fn message(&self, pipeline: PipelineId) -> WriteChunk {
        WriteChunk {
            pipeline: pipeline.0,
            nonce: proto::uuid_bytes(self.nonce.0),
            seq: self.seq,
            offset: self.offset,
            data: self.chunk.payload.bytes().clone(),
            data_crcs: self.chunk.payload.crcs().to_vec(),
            seal: self.seal,
            ack: if self.ack_all_within.is_some() { Ack::All } else { Ack::Majority }.into(),
            ack_all_within_ms: self.ack_all_within.map_or(0, ack_all_within_ms),
            again: self.again,
        }
    }
}

/// The time for all replicas to have a chunk, in milliseconds, as the chunk's message has it.
fn ack_all_within_ms(within: Duration) -> u32 {
    let within = within.min(proto::ACK_ALL_WITHIN_MAX);
    u32::try_from(within.as_millis()).expect("the limit is below 49 days")
}

/// Keeps a session with the pipeline's leader while there is something to write: finds the leader, and after
/// each break sends everything again that was not acknowledged. The pipeline recognizes what it has.
async fn own(mut session: Session, view: watch::Receiver<Arc<View>>) {
    /// The hints at a leader that are followed in a row without waiting; more of them mean that nobody knows.
    const HINTS_MAX: u32 = 3;
    let mut retry = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
    let mut hint: Option<String> = None;
    let mut hints = 0;
    let mut member = 0;
    while session.wait_for_work().await {
        let pipeline = view.borrow().pipeline(session.pipeline()).cloned();
        let known = pipeline.as_ref().map(|pipeline| pipeline.addresses()).unwrap_or_default();
        let address = match hint.take() {
            Some(hint) => hint,
            None if known.is_empty() => {
                tokio::time::sleep(retry.pause()).await;
                continue;
            }
            None => known[member % known.len()].to_owned(),
        };
        let cluster = view.borrow().cluster.clone();
        let end = session.run(&cluster, &address).await;
        if session.was_acknowledged() {
            retry.reset();
            (hints, member) = (0, 0);
        }
        debug!(pipeline = %session.pipeline(), address, %end, "write stream ended");
        if let Some(leader) = end.leader()
            && hints < HINTS_MAX
        {
            hints += 1;
            hint = Some(leader);
            continue;
        }
        hints = 0;
        if !end.is_idle() {
            member += 1;
            tokio::time::sleep(retry.pause()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_all_replicas_is_cut_at_the_limit_and_does_not_wrap() {
        let longest = proto::ACK_ALL_WITHIN_MAX.as_millis() as u32;
        // 2^32 ms are 0 in 32 bits.
        for long in [Duration::MAX, Duration::from_millis(1 << 32), proto::ACK_ALL_WITHIN_MAX] {
            assert_eq!(ack_all_within_ms(long), longest, "{long:?}");
        }
        assert_eq!(ack_all_within_ms(Duration::from_millis(300)), 300);
    }
}
