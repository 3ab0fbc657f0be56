use crate::CallError;
use crate::client::Caller;
use crate::frame::{Request, put_value, take_value};
use bytes::{Bytes, BytesMut};
use kv::take_outcomes;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

const QUEUE_COUNT_MAX: usize = 65_536;
/// The most requests in one batch.
const BATCH_COUNT_MAX: usize = 4096;

/// One batch of writes and one of reads under way for each group; what is asked meanwhile makes the next.
pub(crate) struct Batchers {
    writes: Vec<mpsc::Sender<Asked>>,
    reads: Vec<mpsc::Sender<Asked>>,
    /// The tasks that make batches; they end with the client.
    _tasks: JoinSet<()>,
}

struct Asked {
    request: Bytes,
    /// The number of operations, or of keys.
    count: usize,
    to: oneshot::Sender<Result<Bytes, CallError>>,
}

impl Batchers {
    pub(crate) fn start(caller: &Arc<Caller>, groups: u32) -> Batchers {
        let mut tasks = JoinSet::new();
        let mut start = |group, request: fn(Bytes) -> Request, split: Split| {
            let (sender, asked) = mpsc::channel(QUEUE_COUNT_MAX);
            tasks.spawn(run(caller.clone(), group, asked, request, split));
            sender
        };
        let writes = (1..=groups).map(|group| start(group, Request::Ops, split_outcomes)).collect();
        let reads = (1..=groups).map(|group| start(group, Request::Read, split_values)).collect();
        Batchers { writes, reads, _tasks: tasks }
    }

    pub(crate) async fn apply(&self, group: u32, ops: Bytes, count: usize) -> Result<Bytes, CallError> {
        ask(self.writes.get((group as usize).wrapping_sub(1)), ops, count).await
    }

    pub(crate) async fn read(&self, group: u32, key: Bytes) -> Result<Bytes, CallError> {
        ask(self.reads.get((group as usize).wrapping_sub(1)), key, 1).await
    }
}

async fn ask(
    batcher: Option<&mpsc::Sender<Asked>>,
    request: Bytes,
    count: usize,
) -> Result<Bytes, CallError> {
    let batcher = batcher.ok_or_else(|| CallError::Invalid("there is no such group".to_owned()))?;
    let (to, answer) = oneshot::channel();
    let gone = || CallError::GaveUp { last: "the client is gone".to_owned() };
    batcher.send(Asked { request, count, to }).await.map_err(|_| gone())?;
    answer.await.map_err(|_| gone())?
}

type Split = fn(&mut Bytes, usize) -> Option<Bytes>;

async fn run(
    caller: Arc<Caller>,
    group: u32,
    mut queue: mpsc::Receiver<Asked>,
    request: fn(Bytes) -> Request,
    split: Split,
) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, BATCH_COUNT_MAX).await > 0 {
        let mut merged = BytesMut::with_capacity(batch.iter().map(|asked| asked.request.len()).sum());
        batch.iter().for_each(|asked| merged.extend_from_slice(&asked.request));
        let mut answer = caller.call(group, &request(merged.freeze())).await;
        for Asked { count, to, .. } in batch.drain(..) {
            let part = match &mut answer {
                Ok(answers) => split(answers, count).ok_or(CallError::OutcomeUnknown),
                Err(error) => Err(error.clone()),
            };
            // A caller that stopped waiting needs no answer.
            let _ = to.send(part);
        }
    }
}

fn split_outcomes(outcomes: &mut Bytes, count: usize) -> Option<Bytes> {
    take_outcomes(outcomes, count).ok()
}

fn split_values(values: &mut Bytes, count: usize) -> Option<Bytes> {
    let mut part = BytesMut::new();
    for _ in 0..count {
        put_value(&mut part, take_value(values).ok()?.as_deref());
    }
    Some(part.freeze())
}
