//! The way of changes and lookups to OM: what waits while others are under way goes together, in one call.
//! The more a process has to ask, the less each costs.

use crate::om::OmWire;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use prost::Message;
use proto::om::om_client::OmClient;
use proto::om::{Change, ChangeRequest, Lookup, LookupKeysRequest, LookupReply, OmReply};
use proto::{Code, Failure, Retry};
use rpc::Channel;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The most calls under way at a time to one group's leader: while it works on what one brought, the next one
/// is made.
const UNDER_WAY_MAX: usize = 2;
/// The most bytes of all questions that wait or are under way in the lanes of one kind; whoever brings more
/// is told to come again.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// The number of lanes from which on those that nobody uses are dropped.
const LANES_MAX: usize = 1024;

/// A question to OM that shares a call with others of its kind.
pub(crate) trait SharesCall: Message + Sized + 'static {
    type Reply: Send + 'static;
    /// The limits of a call, below OM's own (`proto/limits.rs`). What is larger goes alone.
    const TOGETHER_MAX: usize;
    const BYTES_MAX: usize;

    /// Notes how long the question has waited before it is sent.
    fn has_waited(&mut self, _: Duration) {}

    /// Asks the OM at `address` all these questions in one call.
    fn call(
        wire: &OmWire,
        address: String,
        together: Vec<Self>,
    ) -> impl Future<Output = Replies<Self>> + Send;
}

/// The replies that a call brings: one to each question, in their order.
type Replies<Q> = Result<Vec<<Q as SharesCall>::Reply>, Failure>;

impl SharesCall for Change {
    type Reply = OmReply;
    const TOGETHER_MAX: usize = 256;
    const BYTES_MAX: usize = 256 << 10;

    fn has_waited(&mut self, waited: Duration) {
        self.age_ms = self.age_ms.saturating_add(waited.as_millis() as u64);
    }

    async fn call(wire: &OmWire, address: String, changes: Vec<Change>) -> Result<Vec<OmReply>, Failure> {
        let change = |mut om: OmClient<Channel>, request| async move { om.change(request).await };
        Ok(wire.call(address, tonic::Request::new(ChangeRequest { changes }), change).await?.replies)
    }
}

impl SharesCall for Lookup {
    type Reply = LookupReply;
    const TOGETHER_MAX: usize = 64;
    const BYTES_MAX: usize = 64 << 10;

    async fn call(wire: &OmWire, address: String, lookups: Vec<Lookup>) -> Result<Vec<LookupReply>, Failure> {
        let look_up = |mut om: OmClient<Channel>, request| async move { om.lookup_keys(request).await };
        let request = LookupKeysRequest { lookups, any_member: wire.any_member };
        Ok(wire.call(address, tonic::Request::new(request), look_up).await?.replies)
    }
}

/// A lane for each group and OM that were asked.
pub(crate) struct Lanes<Q: SharesCall> {
    wire: OmWire,
    room: Arc<Semaphore>,
    lanes: Mutex<ByLeader<Q>>,
}

/// Lanes by group and address.
type ByLeader<Q> = HashMap<(u64, String), Arc<Lane<Q>>>;

struct Lane<Q: SharesCall> {
    queue: mpsc::UnboundedSender<Waiting<Q>>,
    task: JoinHandle<()>,
}

impl<Q: SharesCall> Drop for Lane<Q> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A question that waits for its call.
struct Waiting<Q: SharesCall> {
    asked: Q,
    since: Instant,
    bytes: usize,
    answer: oneshot::Sender<Result<Q::Reply, Failure>>,
    _room: OwnedSemaphorePermit,
}

impl<Q: SharesCall> Lanes<Q> {
    pub(crate) fn new(wire: OmWire) -> Lanes<Q> {
        Lanes { wire, room: Arc::new(Semaphore::new(WAITING_BYTES_MAX)), lanes: Mutex::default() }
    }

    /// Asks the OM at `address`, as soon as a call there is free. A caller that stops waiting takes its
    /// question back, unless that was sent already.
    pub(crate) async fn ask(&self, group: u64, address: String, asked: Q) -> Result<Q::Reply, Failure> {
        let bytes = asked.encoded_len();
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(permits);
        let room = room.map_err(|_| Failure::new(Code::Busy, "too many questions to OM wait here"))?;
        let (answer, answered) = oneshot::channel();
        let lane = self.lane(group, address);
        let waiting = Waiting { asked, since: Instant::now(), bytes, answer, _room: room };
        lane.queue.send(waiting).map_err(|_| unsent("its lane has ended"))?;
        let broken_off = || Failure::new(Code::OutcomeUnknown, "the call to OM was broken off");
        answered.await.unwrap_or_else(|_| Err(broken_off()))
    }

    /// The lane to an OM, which is there while somebody holds it, and longer.
    fn lane(&self, group: u64, address: String) -> Arc<Lane<Q>> {
        let mut lanes = self.lanes.lock().expect("no holder panics");
        if lanes.len() >= LANES_MAX {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        let begin = || {
            let (queue, waiting) = mpsc::unbounded_channel();
            let (wire, address) = (self.wire.clone(), address.clone());
            let call = move |together| {
                let (wire, address) = (wire.clone(), address.clone());
                async move { Q::call(&wire, address, together).await }
            };
            Arc::new(Lane { queue, task: tokio::spawn(run(waiting, call)) })
        };
        let lane = lanes.entry((group, address.clone())).or_insert_with(begin);
        if lane.task.is_finished() {
            *lane = begin();
        }
        lane.clone()
    }
}

/// The failure of a question that was not sent: its caller may ask again at once, and elsewhere.
fn unsent(why: &str) -> Failure {
    Failure { retry: Retry::Here, ..Failure::new(Code::Unavailable, format!("not sent: {why}")) }
}

/// Makes calls of what waits, until the lane is dropped. A call that failed as a whole says that this OM is
/// gone, or does not lead any more: nothing of what waits is sent there, and its callers look elsewhere.
async fn run<Q: SharesCall, F: Future<Output = Replies<Q>>>(
    mut waiting: mpsc::UnboundedReceiver<Waiting<Q>>,
    call: impl Fn(Vec<Q>) -> F,
) {
    let mut under_way = FuturesUnordered::new();
    let mut gathered = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(done) = under_way.next() => {
                if let Err(failure) = done {
                    while let Ok(waiting) = waiting.try_recv() {
                        let _ = waiting.answer.send(Err(unsent(&format!("{failure}"))));
                    }
                }
            }
            count = waiting.recv_many(&mut gathered, Q::TOGETHER_MAX), if under_way.len() < UNDER_WAY_MAX => {
                if count == 0 {
                    break;
                }
                under_way.push(ask_all(&call, std::mem::take(&mut gathered)));
            }
        }
    }
    while under_way.next().await.is_some() {}
}

/// Asks what has gathered, in one call, or one after the other where it is large.
async fn ask_all<Q: SharesCall, F: Future<Output = Replies<Q>>>(
    call: &impl Fn(Vec<Q>) -> F,
    gathered: Vec<Waiting<Q>>,
) -> Result<(), Failure> {
    // Callers that have gone ask again under the same id, or never.
    let mut rest = gathered.into_iter().filter(|waiting| !waiting.answer.is_closed()).peekable();
    let mut failed = None;
    while let Some(first) = rest.next() {
        if let Some(failure) = &failed {
            let _ = first.answer.send(Err(unsent(&format!("{failure}"))));
            continue;
        }
        let mut bytes = first.bytes;
        let mut together = vec![first];
        while let Some(next) = rest.next_if(|next| bytes + next.bytes <= Q::BYTES_MAX) {
            bytes += next.bytes;
            together.push(next);
        }
        failed = ask_together(call, together).await.err();
    }
    failed.map_or(Ok(()), Err)
}

async fn ask_together<Q: SharesCall, F: Future<Output = Replies<Q>>>(
    call: &impl Fn(Vec<Q>) -> F,
    together: Vec<Waiting<Q>>,
) -> Result<(), Failure> {
    let (asked, answers): (Vec<Q>, Vec<_>) = together
        .into_iter()
        .map(|Waiting { mut asked, since, answer, _room, .. }| {
            asked.has_waited(since.elapsed());
            (asked, (answer, _room))
        })
        .unzip();
    let replies = call(asked).await.and_then(|replies| of_each(replies, answers.len()));
    match replies {
        Ok(replies) => {
            for ((answer, _), reply) in answers.into_iter().zip(replies) {
                let _ = answer.send(Ok(reply));
            }
            Ok(())
        }
        Err(failure) => {
            for (answer, _) in answers {
                let _ = answer.send(Err(failure.clone()));
            }
            Err(failure)
        }
    }
}

fn of_each<R>(replies: Vec<R>, count: usize) -> Result<Vec<R>, Failure> {
    let wrong = format!("{} answers to {count} questions", replies.len());
    (replies.len() == count).then_some(replies).ok_or_else(|| Failure::new(Code::OutcomeUnknown, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::MessageLimit;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::task::LocalSet;
    use tokio::time::sleep;

    type Answered = oneshot::Receiver<Result<OmReply, Failure>>;

    fn waiting(bytes: usize) -> (Waiting<Change>, Answered) {
        let (answer, answered) = oneshot::channel();
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let asked = Change { age_ms: 5, ..Change::default() };
        (Waiting { asked, since: Instant::now(), bytes, answer, _room: room }, answered)
    }

    /// A lane to an OM that does with each call what `call` does.
    fn lane<F: Future<Output = Replies<Change>> + 'static>(
        call: impl Fn(Vec<Change>) -> F + 'static,
    ) -> (mpsc::UnboundedSender<Waiting<Change>>, LocalSet) {
        let (queue, queued) = mpsc::unbounded_channel();
        let local = LocalSet::new();
        local.spawn_local(run(queued, call));
        (queue, local)
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_while_calls_are_under_way_goes_together_within_limits() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = sizes.clone();
        let (queue, local) = lane(move |changes: Vec<Change>| {
            seen.lock().unwrap().push((changes.len(), changes[0].age_ms));
            async move {
                sleep(Duration::from_millis(10)).await;
                Ok(vec![OmReply::default(); changes.len()])
            }
        });
        let send = |bytes| {
            let (waiting, answered) = waiting(bytes);
            queue.send(waiting).map_err(drop).unwrap();
            answered
        };
        local
            .run_until(async {
                let mut answers = Vec::new();
                for _ in 0..2 {
                    answers.push(send(1));
                    sleep(Duration::from_millis(1)).await;
                }
                answers.extend((0..Change::TOGETHER_MAX + 3).map(|_| send(1)));
                let large = Change::BYTES_MAX / 2;
                answers.extend([large, large, Change::BYTES_MAX * 9, 4].map(send));
                for answered in answers {
                    assert_eq!(answered.await.unwrap(), Ok(OmReply::default()));
                }
            })
            .await;
        // Changes that waited are older by the time for which they did.
        let expected = [(1, 5), (1, 5), (Change::TOGETHER_MAX, 13), (4, 14), (1, 24), (1, 34), (1, 44)];
        assert_eq!(*sizes.lock().unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_more_is_sent_to_an_om_that_does_not_answer_and_nothing_that_nobody_waits_for() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let (queue, local) = lane(move |changes: Vec<Change>| {
            count.fetch_add(changes.len(), Relaxed);
            async {
                sleep(Duration::from_secs(5)).await;
                Err(Failure::unanswered("om1:1"))
            }
        });
        let send = |count: usize| -> Vec<Answered> {
            (0..count)
                .map(|_| {
                    let (waiting, answered) = waiting(1);
                    queue.send(waiting).map_err(drop).unwrap();
                    answered
                })
                .collect()
        };
        local
            .run_until(async {
                let begun = Instant::now();
                let first = send(3);
                sleep(Duration::from_millis(1)).await;
                let second = send(2);
                drop(send(1));
                sleep(Duration::from_millis(1)).await;
                let third = send(1000);
                for answered in first.into_iter().chain(second) {
                    assert_eq!(answered.await.unwrap().unwrap_err().retry, Retry::Unknown);
                }
                for answered in third {
                    let failure = answered.await.unwrap().unwrap_err();
                    assert_eq!((failure.code, failure.retry), (Code::Unavailable, Retry::Here));
                }
                assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
            })
            .await;
        assert_eq!(asked.load(Relaxed), 5);
    }

    #[test]
    fn a_call_that_is_not_answered_one_by_one_has_no_known_outcome() {
        assert_eq!(of_each(vec![(); 2], 2).unwrap().len(), 2);
        assert_eq!(of_each(vec![(); 2], 3).unwrap_err().code, Code::OutcomeUnknown);
    }

    /// A part takes two bytes at least.
    #[test]
    fn what_goes_together_is_within_the_limits_of_om() {
        let fits = |method: &str, bytes: usize| {
            let limit = MessageLimit::of_method(&format!("/flotilla.om.v1.Om/{method}")).unwrap();
            bytes < limit.bytes_max && bytes / 2 < limit.parts_max as usize
        };
        assert!(fits("Change", Change::BYTES_MAX));
        // Lookups have no parts within.
        assert!(fits("LookupKeys", Lookup::TOGETHER_MAX * 2) && fits("LookupKeys", Lookup::BYTES_MAX / 200));
    }
}
