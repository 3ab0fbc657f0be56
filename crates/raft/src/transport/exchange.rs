use crate::adapter::encoding::{answered_vote, entry_to_wire, log_id_checked, log_id_to_wire, vote_to_wire};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{RaftLogId, RaftVote, TypeConfig};
use crate::transport::processes::Process;
use crate::transport::refusal::{failed, malformed};
use futures::{Stream, StreamExt, stream};
use openraft::errors::{NetworkError, RPCError, Unreachable};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use proto::raft as wire;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use types::Clock;
use wire::append_response::Result as Answer;

/// The most messages that are handed to gRPC and not yet taken by it; each is also counted by the byte
/// window.
const OUTGOING_COUNT_MAX: usize = 4;
/// The time after which a follower that leaves a message unanswered is cut off: its disk or its process
/// hangs. Longer than any disk in order needs for an fsync under load.
const ANSWER_MAX: Duration = Duration::from_secs(10);

type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Append messages going to one follower and their answers coming back, in the same order. At most a window
/// of bytes is under way; nothing more is read from the log meanwhile.
///
/// openraft takes an answer for all requests up to the position in it, and credits the follower with having
/// heard the leader when the newest of them was sent. A request without entries, sent when something was
/// committed, has the same position as the one before it, which the follower may have answered long before:
/// an answer is therefore kept back while the next request is answered by the same position. That one's own
/// answer says the same.
///
/// The exchange owns both directions, so that dropping it drops openraft's input at once, whatever the
/// connection does.
pub(crate) struct Exchange<S, A> {
    input: S,
    /// The way of requests to the follower; `None` once the input has ended.
    requests: Option<mpsc::Sender<wire::AppendRequest>>,
    answers: A,
    process: Arc<Process>,
    address: wire::Address,
    window_bytes: usize,
    clock: Arc<dyn Clock>,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
}

struct InFlight {
    /// The vote of the leader whose request it is.
    vote: RaftVote,
    /// The last entry that a follower has when it has taken the request.
    last: Option<RaftLogId>,
    bytes: usize,
    since: Instant,
}

enum Event {
    Answer(Option<Result<wire::AppendResponse, Status>>),
    Request(Option<AppendEntriesRequest<TypeConfig>>),
    Silence,
}

pub(crate) fn channel() -> (mpsc::Sender<wire::AppendRequest>, ReceiverStream<wire::AppendRequest>) {
    let (requests, outgoing) = mpsc::channel(OUTGOING_COUNT_MAX);
    (requests, ReceiverStream::new(outgoing))
}

impl<S, A> Exchange<S, A>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
    A: Stream<Item = Result<wire::AppendResponse, Status>> + Send + Unpin + 'static,
{
    pub(crate) fn new(
        input: S,
        requests: mpsc::Sender<wire::AppendRequest>,
        answers: A,
        process: Arc<Process>,
        address: wire::Address,
        window_bytes: usize,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (in_flight, in_flight_bytes) = (VecDeque::new(), 0);
        Exchange {
            input,
            requests: Some(requests),
            answers,
            process,
            address,
            window_bytes,
            clock,
            in_flight,
            in_flight_bytes,
        }
    }

    /// The answers; polling it moves both directions. It ends after the answer to the last request, or after
    /// an error.
    pub(crate) fn into_stream(self) -> impl Stream<Item = AppendResult> + Send + 'static {
        stream::unfold(Some(self), |state| async move {
            let mut exchange = state?;
            let result = exchange.next_answer().await?;
            let is_last = !matches!(result, Ok(Ok(_)));
            Some((result, (!is_last).then_some(exchange)))
        })
    }

    async fn next_answer(&mut self) -> Option<AppendResult> {
        loop {
            match self.next_event().await {
                Event::Request(None) => self.requests = None,
                Event::Request(Some(request)) => {
                    if let Err(error) = self.send(request).await {
                        return Some(Err(error));
                    }
                }
                Event::Answer(Some(Ok(answer))) => {
                    if let Some(result) = self.received(answer) {
                        return Some(result);
                    }
                }
                Event::Answer(None) if self.in_flight.is_empty() && self.requests.is_none() => {
                    return None;
                }
                Event::Answer(None) => {
                    return Some(Err(Unreachable::from_string("the follower ended the stream").into()));
                }
                Event::Answer(Some(Err(status))) => return Some(Err(failed(&self.process, &status))),
                Event::Silence => {
                    self.process.failed("append unanswered for too long");
                    let why = format!("no answer to an append within {ANSWER_MAX:?}");
                    return Some(Err(Unreachable::from_string(why).into()));
                }
            }
        }
    }

    /// Waits for what happens next. Every branch may be dropped half-way without losing anything: a permit is
    /// given back, streams keep their state.
    async fn next_event(&mut self) -> Event {
        let has_room = self.in_flight_bytes < self.window_bytes;
        let silence_at = self.in_flight.front().map(|oldest| oldest.since + ANSWER_MAX);
        let (input, requests) = (&mut self.input, self.requests.as_ref());
        let next_request = async move {
            match requests {
                // gRPC no longer takes messages: the answers will say why.
                Some(requests) if requests.reserve().await.is_ok() => input.next().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = self.answers.next() => Event::Answer(answer),
            request = next_request, if has_room => Event::Request(request),
            () = tokio::time::sleep_until(silence_at.unwrap_or_else(Instant::now)), if silence_at.is_some() => Event::Silence,
        }
    }

    async fn send(&mut self, request: AppendEntriesRequest<TypeConfig>) -> Result<(), RPCError<TypeConfig>> {
        let vote = request.vote;
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        let message = append_to_wire(self.address.clone(), request)?;
        let bytes = message.entries.iter().map(|entry| entry.meta.len() + entry.body.len()).sum();
        self.in_flight.push_back(InFlight { vote, last, bytes, since: Instant::now() });
        self.in_flight_bytes += bytes;
        if let Some(requests) = &self.requests {
            // There is room: next_event waited for it, and nobody else sends. When gRPC gave up, the answers
            // say so.
            let _ = requests.send(message).await;
        }
        Ok(())
    }

    /// The result that openraft is told, if any.
    fn received(&mut self, answer: wire::AppendResponse) -> Option<AppendResult> {
        self.process.answered();
        let Some(request) = self.in_flight.pop_front() else {
            return Some(Err(NetworkError::from_string("the follower answered what nobody asked").into()));
        };
        self.in_flight_bytes -= request.bytes;
        let result = append_answer(&request.vote, answer, TermLimit::now(&*self.clock));
        if let Ok(Err(StreamAppendError::Conflict(at))) = &result
            && Some(*at) > request.last
        {
            let why = "the follower misses an entry that it was not asked about";
            return Some(Err(NetworkError::from_string(why).into()));
        }
        let Ok(Ok(matched)) = &result else { return Some(result) };
        if *matched > request.last {
            let why = "the follower says that it has more than it was sent";
            return Some(Err(NetworkError::from_string(why).into()));
        }
        let speaks_of_next = self.in_flight.front().is_some_and(|next| next.last <= *matched);
        (!speaks_of_next).then_some(result)
    }
}

pub(crate) fn append_to_wire(
    to: wire::Address,
    request: AppendEntriesRequest<TypeConfig>,
) -> Result<wire::AppendRequest, RPCError<TypeConfig>> {
    let entries = request.entries.into_iter().map(entry_to_wire).collect::<Result<Vec<_>, _>>();
    Ok(wire::AppendRequest {
        to: Some(to),
        vote: Some(vote_to_wire(&request.vote)),
        prev: request.prev_log_id.as_ref().map(log_id_to_wire),
        committed: request.leader_commit.as_ref().map(log_id_to_wire),
        entries: entries.map_err(malformed)?,
    })
}

pub(crate) fn append_answer(sent: &RaftVote, answer: wire::AppendResponse, terms: TermLimit) -> AppendResult {
    let id_of = |id| log_id_checked(id, terms).map_err(malformed);
    match answer.result {
        Some(Answer::Matched(id)) => Ok(Ok(Some(id_of(id)?))),
        Some(Answer::MatchedNone(_)) => Ok(Ok(None)),
        Some(Answer::ConflictAt(id)) => Ok(Err(StreamAppendError::Conflict(id_of(id)?))),
        Some(Answer::HigherVote(vote)) => {
            Ok(Err(StreamAppendError::HigherVote(answered_vote(sent, Some(vote), terms).map_err(malformed)?)))
        }
        None => Err(malformed("an append answer of an unknown kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::type_config::RaftEntry;
    use futures::FutureExt;
    use futures::stream::BoxStream;
    use openraft::EntryPayload;
    use rpc::{Connector, TcpConnector};

    fn id(index: u64) -> RaftLogId {
        RaftLogId::new(1.into(), index)
    }

    /// Entries after `prev` up to `last`.
    fn request(prev: u64, last: u64) -> AppendEntriesRequest<TypeConfig> {
        let entry = |index| RaftEntry { log_id: id(index), payload: EntryPayload::Blank };
        AppendEntriesRequest {
            vote: RaftVote::new_committed(1, 1),
            prev_log_id: Some(id(prev)),
            leader_commit: None,
            entries: (prev + 1..=last).map(entry).collect(),
        }
    }

    fn matched(index: u64) -> Answer {
        Answer::Matched(log_id_to_wire(&id(index)))
    }

    struct Ends {
        requests: mpsc::Sender<AppendEntriesRequest<TypeConfig>>,
        /// The requests that the follower gets.
        sent: ReceiverStream<wire::AppendRequest>,
        answers: mpsc::Sender<Result<wire::AppendResponse, Status>>,
        results: BoxStream<'static, AppendResult>,
    }

    impl Ends {
        fn new() -> Ends {
            let (requests, input) = mpsc::channel(8);
            let (answers, answers_rx) = mpsc::channel(8);
            let (outgoing, sent) = channel();
            let connect =
                || TcpConnector::default().connect("127.0.0.1:1").expect("nothing is connected yet");
            let process = Arc::new(Process::new("nobody".to_owned(), connect(), connect()));
            let address = wire::Address::default();
            let (input, answers_rx) = (ReceiverStream::new(input), ReceiverStream::new(answers_rx));
            let clock = Arc::new(types::SystemClock);
            let exchange = Exchange::new(input, outgoing, answers_rx, process, address, 1 << 20, clock);
            Ends { requests, sent, answers, results: exchange.into_stream().boxed() }
        }

        async fn send(&mut self, request: AppendEntriesRequest<TypeConfig>) {
            self.requests.send(request).await.unwrap();
            assert!(self.results.next().now_or_never().is_none(), "nothing is answered");
            assert!(self.sent.next().now_or_never().is_some(), "it is sent");
        }

        /// The result of which openraft hears at once.
        async fn answer(&mut self, result: Answer) -> Option<AppendResult> {
            self.answers.send(Ok(wire::AppendResponse { result: Some(result) })).await.unwrap();
            self.results.next().now_or_never().map(|result| result.expect("it has not ended"))
        }
    }

    fn assert_matched(result: Option<AppendResult>, index: u64) {
        assert!(matches!(&result, Some(Ok(Ok(Some(at)))) if *at == id(index)), "{result:?}");
    }

    /// openraft would take the first answer for one to the second request, sent later, as well: a promise
    /// that nobody gave.
    #[tokio::test]
    async fn an_answer_that_would_pass_for_one_to_a_later_request_is_kept_back() {
        let mut ends = Ends::new();
        ends.send(request(5, 10)).await;
        ends.send(request(10, 10)).await;
        ends.send(request(10, 10)).await;
        ends.send(request(10, 12)).await;
        assert!(ends.answer(matched(10)).await.is_none(), "the second request is not answered");
        assert!(ends.answer(matched(10)).await.is_none(), "the third request is not answered");
        assert_matched(ends.answer(matched(10)).await, 10);
        assert_matched(ends.answer(matched(12)).await, 12);
    }

    #[tokio::test]
    async fn refusals_are_passed_on_at_once() {
        for refusal in [
            Answer::ConflictAt(log_id_to_wire(&id(10))),
            Answer::HigherVote(wire::Vote { term: 2, replica: 2, committed: false }),
        ] {
            let mut ends = Ends::new();
            ends.send(request(10, 10)).await;
            ends.send(request(10, 10)).await;
            let result = ends.answer(refusal).await;
            assert!(matches!(result, Some(Ok(Err(_)))), "{result:?}");
        }
    }

    /// openraft would take a vote in its own name for its own, and lead in a term behind its vote.
    #[tokio::test]
    async fn nobody_stands_in_the_name_of_who_asks() {
        for (vote, passes) in [((2, 2), true), ((2, 1), false), ((1, 1), true)] {
            let mut ends = Ends::new();
            ends.send(request(5, 10)).await;
            let (term, replica) = vote;
            let higher = Answer::HigherVote(wire::Vote { term, replica, committed: false });
            let result = ends.answer(higher).await;
            assert_eq!(matches!(result, Some(Ok(Err(_)))), passes, "{result:?}");
            assert_eq!(matches!(result, Some(Err(_))), !passes, "{result:?}");
        }
    }

    /// An answer that no member can give: a term that no election led to, and entries past those it was asked
    /// about.
    #[tokio::test]
    async fn an_answer_with_numbers_that_cannot_have_come_about_is_none() {
        for term in [1 << 62, u64::MAX] {
            let at = wire::LogId { term, index: 3 };
            let vote = wire::Vote { term, replica: 2, committed: false };
            for answer in [Answer::HigherVote(vote), Answer::ConflictAt(at), Answer::Matched(at)] {
                let mut ends = Ends::new();
                ends.send(request(5, 10)).await;
                let result = ends.answer(answer).await;
                assert!(matches!(result, Some(Err(_))), "{result:?}");
            }
        }
        let mut ends = Ends::new();
        ends.send(request(5, 10)).await;
        let result = ends.answer(Answer::ConflictAt(wire::LogId { term: 1, index: 11 })).await;
        assert!(matches!(result, Some(Err(_))), "{result:?}");
    }

    #[tokio::test]
    async fn a_follower_cannot_have_more_than_it_was_sent() {
        let mut ends = Ends::new();
        ends.send(request(5, 10)).await;
        ends.send(request(10, 20)).await;
        let result = ends.answer(matched(15)).await;
        assert!(matches!(result, Some(Err(_))), "{result:?}");
    }
}
