//! The way of changes and lookups to OM: what waits while others are under way goes together, in one call. The more a
//! process has to ask, the less each costs.

use crate::om::OmWire;
use prost::Message;
use proto::om::om_client::OmClient;
use proto::om::{Change, ChangeRequest, Lookup, LookupKeysRequest, LookupReply, OmReply};
use proto::{Code, Failure};
use rpc::Channel;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Calls under way at a time to one group's leader: while it works on what one brought, the next one is made.
const UNDER_WAY_MAX: usize = 2;
/// The limit of a call; OM takes more. What is larger goes alone.
const CALL_BYTES_MAX: usize = 256 << 10;
/// Lanes that are kept though nobody uses them.
const LANES_MAX: usize = 1024;

/// Something to ask OM that shares a call with others of its kind.
pub(crate) trait SharesCall: Message + Sized + 'static {
    type Reply: Send + 'static;
    /// As many as OM takes.
    const TOGETHER_MAX: usize;

    /// The replies to all, in their order.
    fn call(
        wire: &OmWire,
        address: String,
        together: Vec<Self>,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, Failure>> + Send;
}

impl SharesCall for Change {
    type Reply = OmReply;
    const TOGETHER_MAX: usize = 256;

    async fn call(wire: &OmWire, address: String, changes: Vec<Change>) -> Result<Vec<OmReply>, Failure> {
        let change = |mut om: OmClient<Channel>, request| async move { om.change(request).await };
        Ok(wire.call(address, tonic::Request::new(ChangeRequest { changes }), change).await?.replies)
    }
}

impl SharesCall for Lookup {
    type Reply = LookupReply;
    const TOGETHER_MAX: usize = 64;

    async fn call(wire: &OmWire, address: String, lookups: Vec<Lookup>) -> Result<Vec<LookupReply>, Failure> {
        let look_up = |mut om: OmClient<Channel>, request| async move { om.lookup_keys(request).await };
        Ok(wire.call(address, tonic::Request::new(LookupKeysRequest { lookups }), look_up).await?.replies)
    }
}

/// A lane for each group and OM that were asked.
pub(crate) struct Lanes<Q: SharesCall> {
    wire: OmWire,
    lanes: Mutex<HashMap<(u64, String), Arc<Lane<Q>>>>,
}

struct Lane<Q: SharesCall>(Mutex<State<Q>>);

struct State<Q: SharesCall> {
    waiting: VecDeque<Waiting<Q>>,
    under_way: usize,
}

/// What waits for its call.
struct Waiting<Q: SharesCall> {
    asked: Q,
    bytes: usize,
    answer: oneshot::Sender<Result<Q::Reply, Failure>>,
}

impl<Q: SharesCall> Lanes<Q> {
    pub(crate) fn new(wire: OmWire) -> Lanes<Q> {
        Lanes { wire, lanes: Mutex::default() }
    }

    /// Asks the OM at `address`, as soon as a call there is free. Whoever stops waiting takes it back at most while it
    /// waits.
    pub(crate) async fn ask(&self, group: u64, address: String, asked: Q) -> Result<Q::Reply, Failure> {
        let lane = {
            let mut lanes = self.lanes.lock().expect("no holder panics");
            // OMs come and go; whoever uses a lane holds it.
            if lanes.len() >= LANES_MAX {
                lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            }
            lanes.entry((group, address.clone())).or_default().clone()
        };
        let (answer, answered) = oneshot::channel();
        let bytes = asked.encoded_len();
        if lane.push(Waiting { asked, bytes, answer }) {
            tokio::spawn(lane.run(self.wire.clone(), address));
        }
        let ended = |_| Err(Failure::new(Code::OutcomeUnknown, "the call to OM was broken off"));
        answered.await.unwrap_or_else(ended)
    }
}

impl<Q: SharesCall> Default for Lane<Q> {
    fn default() -> Lane<Q> {
        Lane(Mutex::new(State { waiting: VecDeque::new(), under_way: 0 }))
    }
}

impl<Q: SharesCall> Lane<Q> {
    /// Whether one more call is to be begun for what waits now.
    fn push(&self, waiting: Waiting<Q>) -> bool {
        let mut state = self.0.lock().expect("no holder panics");
        state.waiting.push_back(waiting);
        let is_free = state.under_way < UNDER_WAY_MAX;
        state.under_way += usize::from(is_free);
        is_free
    }

    /// What goes into the next call; or nothing waits, and a call less is under way.
    fn next(&self) -> Option<Vec<Waiting<Q>>> {
        let mut state = self.0.lock().expect("no holder panics");
        let (mut together, mut bytes) = (Vec::new(), 0);
        while together.len() < Q::TOGETHER_MAX
            && let Some(next) = state.waiting.pop_front()
        {
            if next.answer.is_closed() {
                continue;
            }
            if !together.is_empty() && bytes + next.bytes > CALL_BYTES_MAX {
                state.waiting.push_front(next);
                break;
            }
            bytes += next.bytes;
            together.push(next);
        }
        if together.is_empty() {
            state.under_way -= 1;
        }
        (!together.is_empty()).then_some(together)
    }

    /// Makes calls until nothing waits.
    async fn run(self: Arc<Lane<Q>>, wire: OmWire, address: String) {
        while let Some(together) = self.next() {
            let (asked, answers): (Vec<_>, Vec<_>) =
                together.into_iter().map(|waiting| (waiting.asked, waiting.answer)).unzip();
            let replies = Q::call(&wire, address.clone(), asked).await;
            match replies.and_then(|replies| of_each(replies, answers.len())) {
                Ok(replies) => {
                    for (answer, reply) in answers.into_iter().zip(replies) {
                        let _ = answer.send(Ok(reply));
                    }
                }
                Err(failure) => {
                    for answer in answers {
                        let _ = answer.send(Err(failure.clone()));
                    }
                }
            }
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

    const TOGETHER_MAX: usize = Change::TOGETHER_MAX;

    fn waiting(bytes: usize) -> (Waiting<Change>, oneshot::Receiver<Result<OmReply, Failure>>) {
        let (answer, answered) = oneshot::channel();
        (Waiting { asked: Change::default(), bytes, answer }, answered)
    }

    /// The bytes of what goes into the next call, one by one.
    fn next(lane: &Lane<Change>) -> Option<Vec<usize>> {
        Some(lane.next()?.iter().map(|waiting| waiting.bytes).collect())
    }

    #[test]
    fn what_waits_while_calls_are_under_way_goes_together_within_limits() {
        let lane = Lane::default();
        let large = CALL_BYTES_MAX / 2;
        let (begins, _kept): (Vec<_>, Vec<_>) = [1, 2, 3, large, large, CALL_BYTES_MAX * 9, 4]
            .map(|bytes| {
                let (waiting, answered) = waiting(bytes);
                (lane.push(waiting), answered)
            })
            .into_iter()
            .unzip();
        assert_eq!(begins, [true, true, false, false, false, false, false], "two calls at a time");
        assert_eq!(next(&lane), Some(vec![1, 2, 3, large]));
        assert_eq!(next(&lane), Some(vec![large]));
        assert_eq!(next(&lane), Some(vec![CALL_BYTES_MAX * 9]), "a larger one goes alone");
        assert_eq!(next(&lane), Some(vec![4]));
        assert_eq!((next(&lane), next(&lane)), (None, None));
        let (again, _kept) = waiting(5);
        assert!(lane.push(again), "both calls are over");
    }

    #[test]
    fn a_call_has_no_more_changes_than_om_takes_and_none_that_nobody_waits_for() {
        let lane = Lane::default();
        let mut kept = Vec::new();
        for number in 0..3 * TOGETHER_MAX {
            let (waiting, answered) = waiting(number % 2);
            lane.push(waiting);
            // Whoever has gone takes his change along.
            if number % 2 == 1 {
                kept.push(answered);
            }
        }
        assert_eq!(next(&lane).unwrap(), vec![1; TOGETHER_MAX]);
        assert_eq!(next(&lane).unwrap().len(), kept.len() - TOGETHER_MAX);
        assert_eq!(next(&lane), None);
    }

    #[test]
    fn a_call_that_is_not_answered_one_by_one_has_no_known_outcome() {
        assert_eq!(of_each(vec![(); 2], 2).unwrap().len(), 2);
        assert_eq!(of_each(vec![(); 2], 3).unwrap_err().code, Code::OutcomeUnknown);
    }
}
