use futures::StreamExt;
use futures::stream::FuturesUnordered;
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, Failure, raft as wire};
use rpc::Channel;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

/// The most heartbeats that wait for their batch: one for each group that two processes share, and some.
const WAITING_COUNT_MAX: usize = 4096;
/// The most heartbeats in one message: about 100 bytes each.
pub(crate) const BATCH_COUNT_MAX: usize = 1024;
/// The time for which heartbeats gather, for one message: those of groups that a host looked at together come
/// within it, and beside a lease it is nothing.
const GATHER: Duration = Duration::from_millis(1);
/// The most messages under way; while there are so many, heartbeats gather for longer. The limit is more than
/// one, so that a group whose answer is slow delays others little.
const UNDER_WAY_COUNT_MAX: usize = 4;
/// The time for which a message may be under way. Those who wait for its answers give up earlier.
const MESSAGE_MAX: Duration = Duration::from_secs(2);

/// Heartbeats of many groups to one process, sent together: many at a time cost one message.
pub(crate) struct Heartbeats {
    client: RaftTransportClient<Channel>,
    /// The sender, made by the first heartbeat: who only talks to a process by other ways needs no task for
    /// it.
    sender: OnceLock<Sender>,
}

struct Sender {
    queue: mpsc::Sender<Waiting>,
    /// The task that sends what is queued; it ends when this is dropped.
    task: JoinHandle<()>,
}

struct Waiting {
    heartbeat: wire::AppendRequest,
    answer: oneshot::Sender<Result<wire::AppendResponse, Status>>,
}

impl Heartbeats {
    pub(crate) fn new(client: RaftTransportClient<Channel>) -> Heartbeats {
        Heartbeats { client, sender: OnceLock::new() }
    }

    /// Sends a heartbeat with others and answers what the follower says. Cancellation safe in that the
    /// heartbeat may be sent nevertheless.
    pub(crate) async fn send(&self, heartbeat: wire::AppendRequest) -> Result<wire::AppendResponse, Status> {
        let sender = self.sender.get_or_init(|| Sender::start(self.client.clone()));
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { heartbeat, answer };
        sender.queue.try_send(waiting).map_err(|_| Status::resource_exhausted("too many heartbeats wait"))?;
        answered.await.unwrap_or_else(|_| Err(Status::unavailable("the answer to a heartbeat was lost")))
    }
}

impl Sender {
    fn start(client: RaftTransportClient<Channel>) -> Sender {
        let (queue, waiting) = mpsc::channel(WAITING_COUNT_MAX);
        Sender { queue, task: tokio::spawn(send_batches(client, waiting)) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send_batches(client: RaftTransportClient<Channel>, mut queue: mpsc::Receiver<Waiting>) {
    let mut under_way = FuturesUnordered::new();
    let mut batch = Vec::new();
    // The time at which the batch goes; before its first heartbeat it is any.
    let mut due = Instant::now();
    loop {
        let (more, has_room) = (BATCH_COUNT_MAX - batch.len(), under_way.len() < UNDER_WAY_COUNT_MAX);
        let was_empty = batch.is_empty();
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            () = sleep_until(due), if has_room && !was_empty => {
                under_way.push(send_batch(client.clone(), std::mem::take(&mut batch)));
            }
            count = queue.recv_many(&mut batch, more), if more > 0 => {
                if count == 0 {
                    return;
                }
                if was_empty {
                    due = Instant::now() + GATHER;
                }
            }
        }
    }
}

/// Sends a batch and gives everybody their answer. Who has stopped waiting needs none.
async fn send_batch(mut client: RaftTransportClient<Channel>, batch: Vec<Waiting>) {
    let (heartbeats, waiting): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|waiting| (waiting.heartbeat, waiting.answer)).unzip();
    let message = client.heartbeats(wire::HeartbeatsRequest { heartbeats });
    let answers = match tokio::time::timeout(MESSAGE_MAX, message).await {
        Ok(Ok(response)) => response.into_inner().answers,
        Ok(Err(status)) => {
            for waiting in waiting {
                let _ = waiting.send(Err(status.clone()));
            }
            return;
        }
        // Nobody waits any more.
        Err(_) => return,
    };
    // A peer that sends too few answers leaves the last ones without.
    for (waiting, answer) in waiting.into_iter().zip(answers) {
        let answer = match answer.answer {
            Some(answer) => Ok(answer),
            // With details, as of a process that is well: it knows what it refuses.
            None => {
                // A process of before codes were sent says none.
                let code = Code::try_from(answer.code).ok().filter(|code| *code as i32 != 0);
                Err(Failure::new(code.unwrap_or(Code::Unavailable), answer.refusal).into())
            }
        };
        let _ = waiting.send(answer);
    }
}
