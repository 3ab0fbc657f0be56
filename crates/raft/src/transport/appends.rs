//! A replica takes the entries and heartbeats of its leader.

use crate::Role;
use crate::adapter::encoding::{log_id_to_wire, vote_to_wire};
use crate::adapter::type_config::TypeConfig;
use crate::counts::HostCounts;
use crate::idle::doze::Doze;
use crate::open_groups::OpenGroups;
use crate::transport::refusal::{refused, stopped, unread};
use crate::transport::taker::Taker;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use openraft::raft::{StreamAppendError, StreamAppendResult};
use proto::{Code, Failure, raft as wire};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::Status;
use wire::append_response::Result as Answer;

/// The time for which the receiver lets one group keep the answers of its batch waiting. Groups answer in
/// microseconds; one whose disk hangs must not make the others' heartbeats late, of which the most frequent
/// have 200 ms ([`crate::Timing::METADATA`]).
const ANSWER_MAX: Duration = Duration::from_millis(100);

/// Feeds one sender's messages to its group, verified one by one. The first bad one ends the stream: those
/// before it are answered, then comes the status; it changes nothing.
pub(crate) async fn append(
    open_groups: Arc<OpenGroups>,
    counts: Arc<HostCounts>,
    mut messages: impl Stream<Item = Result<wire::AppendRequest, Status>> + Send + Unpin + 'static,
) -> Result<impl Stream<Item = Result<wire::AppendResponse, Status>>, Status> {
    let first = messages.try_next().await.map_err(|status| unread(&counts, status))?;
    let Some(first) = first else { return Ok(stream::empty().left_stream()) };
    let to = first.to.clone();
    // Of the group the stream holds only what does not keep its log open: it may stand idle for long.
    let (raft, id, mut statuses, taker, doze) = {
        let group = open_groups.addressed(to.as_ref());
        let group = group.map_err(|failure| refused(&counts, failure))?;
        (group.raft().clone(), group.id(), group.watch(), Taker::new(&group), group.doze().clone())
    };
    let closed = async move {
        let _ = statuses.wait_for(|status| status.role == Role::Stopped).await;
    };
    let refusal = Arc::new(Mutex::new(None));

    let noted = refusal.clone();
    let receiver = doze.clone();
    let messages = stream::once(std::future::ready(Ok(first))).chain(messages).take_until(closed.boxed());
    let requests = messages.scan(taker, move |taker, message| {
        let request = message
            .map_err(|status| unread(&counts, status))
            .and_then(|message| taker.take(message, &to).map_err(|failure| refused(&counts, failure)));
        if request.as_ref().is_ok_and(|request| !request.entries.is_empty()) {
            receiver.used();
        }
        std::future::ready(match request {
            Ok(request) => Some(request),
            Err(status) => {
                *noted.lock().expect("no holder panics") = Some(status);
                None
            }
        })
    });

    let answers = raft.stream_append(requests).map(move |answer| {
        let answer = answer.map(|answer| append_response(answer, &doze));
        answer.map_err(|error| stopped(id, error).into())
    });
    let why = stream::once(async move { refusal.lock().expect("no holder panics").take() });
    let why = why.filter_map(|status| std::future::ready(status.map(Err)));
    Ok(answers.chain(why).boxed().right_stream())
}

/// Hands each heartbeat to its group, and answers for all of them together.
pub(crate) async fn heartbeats(
    open_groups: &OpenGroups,
    counts: &HostCounts,
    heartbeats: Vec<wire::AppendRequest>,
) -> Vec<wire::HeartbeatAnswer> {
    let refused =
        |code: Code, why: String| wire::HeartbeatAnswer { answer: None, refusal: why, code: code as i32 };
    let silent = refused(Code::Unavailable, "no answer in time".to_owned());
    let mut answers = vec![silent; heartbeats.len()];
    let asked = heartbeats.into_iter().enumerate().map(async |(n, message)| {
        let answer = match heartbeat(open_groups, message).await {
            Ok(answer) => wire::HeartbeatAnswer { answer: Some(answer), ..Default::default() },
            Err(failure) => {
                counts.refused(&failure);
                refused(failure.code, failure.message)
            }
        };
        (n, answer)
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut deadline = pin!(tokio::time::sleep(ANSWER_MAX));
    loop {
        tokio::select! {
            biased;
            Some((n, answer)) = asked.next() => answers[n] = answer,
            () = &mut deadline, if !asked.is_empty() => return answers,
            else => return answers,
        }
    }
}

/// Hands a heartbeat to its group.
async fn heartbeat(
    open_groups: &OpenGroups,
    message: wire::AppendRequest,
) -> Result<wire::AppendResponse, Failure> {
    let to = message.to.clone();
    let group = open_groups.addressed(to.as_ref())?;
    if !message.entries.is_empty() {
        return Err(Failure::invalid("heartbeats have no entries"));
    }
    let request = Taker::new(&group).take(message, &to)?;
    let prev = request.prev_log_id;
    let answer = group.raft().append_entries(request).await;
    let answer = answer.map_err(|error| stopped(group.id(), error))?;
    Ok(append_response(answer.into_stream_result(prev, prev), group.doze()))
}

fn append_response(answer: StreamAppendResult<TypeConfig>, doze: &Doze) -> wire::AppendResponse {
    if !matches!(answer, Err(StreamAppendError::HigherVote(_))) {
        doze.heard();
    }
    let result = match answer {
        Ok(Some(id)) => Answer::Matched(log_id_to_wire(&id)),
        Ok(None) => Answer::MatchedNone(wire::Empty {}),
        Err(StreamAppendError::Conflict(id)) => Answer::ConflictAt(log_id_to_wire(&id)),
        Err(StreamAppendError::HigherVote(vote)) => Answer::HigherVote(vote_to_wire(&vote)),
    };
    wire::AppendResponse { result: Some(result) }
}
