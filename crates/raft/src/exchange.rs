use crate::encoding::{entry_to_wire, log_id_from_wire, log_id_to_wire, vote_from_wire, vote_to_wire};
use crate::network::{failed, malformed};
use crate::peers::Peer;
use crate::type_config::TypeConfig;
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
use tonic::Streaming;
use wire::append_response::Result as Answer;

/// Messages handed to gRPC and not yet taken by it; each is also counted by the byte window.
const OUTGOING_COUNT_MAX: usize = 4;
/// A follower that leaves a message unanswered for this long is cut off: its disk or its process hangs. Longer than
/// any disk in order needs for an fsync under load.
const ANSWER_MAX: Duration = Duration::from_secs(10);

type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Append messages going to one follower and their answers coming back, in the same order. At most a window of bytes
/// is under way; nothing more is read from the log meanwhile.
///
/// It owns both directions, so that dropping it drops openraft's input at once, whatever the connection does.
pub(crate) struct Exchange<S> {
    input: S,
    /// `None` once the input has ended.
    requests: Option<mpsc::Sender<wire::AppendRequest>>,
    answers: Streaming<wire::AppendResponse>,
    process: Arc<Peer>,
    address: wire::Address,
    window_bytes: usize,
    in_flight: VecDeque<InFlight>,
    in_flight_bytes: usize,
}

struct InFlight {
    bytes: usize,
    since: Instant,
}

enum Event {
    Answer(Result<Option<wire::AppendResponse>, tonic::Status>),
    Request(Option<AppendEntriesRequest<TypeConfig>>),
    Silence,
}

pub(crate) fn channel() -> (mpsc::Sender<wire::AppendRequest>, ReceiverStream<wire::AppendRequest>) {
    let (requests, outgoing) = mpsc::channel(OUTGOING_COUNT_MAX);
    (requests, ReceiverStream::new(outgoing))
}

impl<S> Exchange<S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Send + Unpin + 'static,
{
    pub(crate) fn new(
        input: S,
        requests: mpsc::Sender<wire::AppendRequest>,
        answers: Streaming<wire::AppendResponse>,
        process: Arc<Peer>,
        address: wire::Address,
        window_bytes: usize,
    ) -> Self {
        let (in_flight, in_flight_bytes) = (VecDeque::new(), 0);
        Exchange {
            input,
            requests: Some(requests),
            answers,
            process,
            address,
            window_bytes,
            in_flight,
            in_flight_bytes,
        }
    }

    /// The answers; polling it moves both directions. It ends after the answer to the last request, or after an error.
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
                Event::Answer(Ok(Some(answer))) => return Some(self.received(answer)),
                Event::Answer(Ok(None)) if self.in_flight.is_empty() && self.requests.is_none() => {
                    return None;
                }
                Event::Answer(Ok(None)) => {
                    return Some(Err(Unreachable::from_string("the follower ended the stream").into()));
                }
                Event::Answer(Err(status)) => return Some(Err(failed(&self.process, &status))),
                Event::Silence => {
                    self.process.failed("append unanswered for too long");
                    let why = format!("no answer to an append within {ANSWER_MAX:?}");
                    return Some(Err(Unreachable::from_string(why).into()));
                }
            }
        }
    }

    /// Every branch may be dropped half-way without losing anything: a permit is given back, streams keep their state.
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
            answer = self.answers.message() => Event::Answer(answer),
            request = next_request, if has_room => Event::Request(request),
            () = tokio::time::sleep_until(silence_at.unwrap_or_else(Instant::now)), if silence_at.is_some() => Event::Silence,
        }
    }

    async fn send(&mut self, request: AppendEntriesRequest<TypeConfig>) -> Result<(), RPCError<TypeConfig>> {
        let message = append_to_wire(self.address.clone(), request)?;
        let bytes = message.entries.iter().map(|entry| entry.meta.len() + entry.body.len()).sum();
        self.in_flight.push_back(InFlight { bytes, since: Instant::now() });
        self.in_flight_bytes += bytes;
        if let Some(requests) = &self.requests {
            // There is room: next_event waited for it, and nobody else sends. When gRPC gave up, the answers say so.
            let _ = requests.send(message).await;
        }
        Ok(())
    }

    fn received(&mut self, answer: wire::AppendResponse) -> AppendResult {
        self.process.answered();
        let Some(request) = self.in_flight.pop_front() else {
            return Err(NetworkError::from_string("the follower answered what nobody asked").into());
        };
        self.in_flight_bytes -= request.bytes;
        append_answer(answer)
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

pub(crate) fn append_answer(answer: wire::AppendResponse) -> AppendResult {
    match answer.result {
        Some(Answer::Matched(id)) => Ok(Ok(Some(log_id_from_wire(id)))),
        Some(Answer::MatchedNone(_)) => Ok(Ok(None)),
        Some(Answer::ConflictAt(id)) => Ok(Err(StreamAppendError::Conflict(log_id_from_wire(id)))),
        Some(Answer::HigherVote(vote)) => {
            Ok(Err(StreamAppendError::HigherVote(vote_from_wire(Some(vote)).map_err(malformed)?)))
        }
        None => Err(malformed("an append answer of an unknown kind")),
    }
}
