//! The way of changes to OM: what waits while others are under way goes together, in one call. The more clients a
//! process has, the less each change costs.

use crate::om::OmWire;
use prost::Message;
use proto::om::om_client::OmClient;
use proto::om::{Change, ChangeRequest, OmReplies, OmReply};
use proto::{Code, Failure};
use rpc::Channel;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Calls under way at a time to one group's leader: while it writes what one brought, the next one is made.
const UNDER_WAY_MAX: usize = 2;
/// The limits of a call: OM takes as many, and more bytes. A larger change goes alone.
const CALL_CHANGES_MAX: usize = 256;
const CALL_BYTES_MAX: usize = 256 << 10;

/// Lanes that are kept though nobody uses them.
const LANES_MAX: usize = 1024;

/// A lane for each group and OM that were asked.
pub(crate) struct Lanes {
    wire: OmWire,
    lanes: Mutex<HashMap<(u64, String), Arc<Lane>>>,
}

#[derive(Default)]
struct Lane(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    under_way: usize,
}

/// A change that waits for its call.
struct Waiting {
    change: Change,
    bytes: usize,
    answer: oneshot::Sender<Result<OmReply, Failure>>,
}

impl Lanes {
    pub(crate) fn new(wire: OmWire) -> Lanes {
        Lanes { wire, lanes: Mutex::default() }
    }

    /// Sends a change to the OM at `address`, as soon as a call there is free. Whoever stops waiting takes it back at
    /// most while it waits.
    pub(crate) async fn send(&self, group: u64, address: String, change: Change) -> Result<OmReply, Failure> {
        let lane = {
            let mut lanes = self.lanes.lock().expect("no holder panics");
            // OMs come and go; whoever uses a lane holds it.
            if lanes.len() >= LANES_MAX {
                lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            }
            lanes.entry((group, address.clone())).or_default().clone()
        };
        let (answer, answered) = oneshot::channel();
        let bytes = change.encoded_len();
        if lane.push(Waiting { change, bytes, answer }) {
            tokio::spawn(lane.run(self.wire.clone(), address));
        }
        let ended = |_| Err(Failure::new(Code::OutcomeUnknown, "the call to OM was broken off"));
        answered.await.unwrap_or_else(ended)
    }
}

impl Lane {
    /// Whether one more call is to be begun for what waits now.
    fn push(&self, waiting: Waiting) -> bool {
        let mut state = self.0.lock().expect("no holder panics");
        state.waiting.push_back(waiting);
        let is_free = state.under_way < UNDER_WAY_MAX;
        state.under_way += usize::from(is_free);
        is_free
    }

    /// What goes into the next call; nothing waits, and a call less is under way.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut state = self.0.lock().expect("no holder panics");
        let (mut together, mut bytes) = (Vec::new(), 0);
        while together.len() < CALL_CHANGES_MAX
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
    async fn run(self: Arc<Lane>, wire: OmWire, address: String) {
        let change = |mut om: OmClient<Channel>, request| async move { om.change(request).await };
        while let Some(together) = self.next() {
            let (changes, answers): (Vec<_>, Vec<_>) =
                together.into_iter().map(|waiting| (waiting.change, waiting.answer)).unzip();
            let request = tonic::Request::new(ChangeRequest { changes });
            let replied = wire.call(address.clone(), request, change).await;
            let replies = replied.and_then(|it| replies(it, answers.len()));
            match replies {
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

fn replies(replies: OmReplies, count: usize) -> Result<Vec<OmReply>, Failure> {
    let found = replies.replies.len();
    let wrong = || Failure::new(Code::OutcomeUnknown, format!("{found} answers to {count} changes"));
    (found == count).then_some(replies.replies).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(bytes: usize) -> (Waiting, oneshot::Receiver<Result<OmReply, Failure>>) {
        let (answer, answered) = oneshot::channel();
        (Waiting { change: Change { age_ms: bytes as u64, ..Change::default() }, bytes, answer }, answered)
    }

    /// The bytes of what goes into the next call, one by one.
    fn next(lane: &Lane) -> Option<Vec<usize>> {
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
        for number in 0..3 * CALL_CHANGES_MAX {
            let (waiting, answered) = waiting(number % 2);
            lane.push(waiting);
            // Whoever has gone takes his change along.
            if number % 2 == 1 {
                kept.push(answered);
            }
        }
        assert_eq!(next(&lane).unwrap(), vec![1; CALL_CHANGES_MAX]);
        assert_eq!(next(&lane).unwrap().len(), kept.len() - CALL_CHANGES_MAX);
        assert_eq!(next(&lane), None);
    }

    #[test]
    fn a_call_that_is_not_answered_change_by_change_has_no_known_outcome() {
        let two = OmReplies { replies: vec![OmReply::default(); 2] };
        assert_eq!(replies(two.clone(), 2).unwrap().len(), 2);
        assert_eq!(replies(two, 3).unwrap_err().code, Code::OutcomeUnknown);
    }
}
