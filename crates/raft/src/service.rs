//! The gRPC service on which the groups of a process answer other members.

use crate::append_check::{append_check, check_sender};
use crate::counts::HostCounts;
use crate::dismissal::Dismissal;
use crate::doze::Doze;
use crate::encoding::{
    entry_from_wire, log_id_checked, log_id_from_wire, log_id_of, log_id_to_wire, member_to_wire,
    vote_from_wire, vote_to_wire,
};
use crate::group::Group;
use crate::heartbeats::{self, BATCH_COUNT_MAX};
use crate::registry::Registry;
use crate::snapshot::{SnapshotStore, receive};
use crate::standing::Standing;
use crate::type_config::{Raft, TypeConfig};
use crate::{GroupStatus, ReadIndexError, ReadPolicy, Role};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError, TransferLeaderRequest,
    VoteRequest,
};
use proto::raft::raft_transport_server::RaftTransport;
use proto::{Code, Failure, raft as wire};
use raftlog::LogSpace;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use types::{GroupId, ReplicaId};
use wire::append_response::Result as Answer;

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) registry: Arc<Registry>,
    pub(crate) counts: Arc<HostCounts>,
}

impl Service {
    /// What the sender is told, and what was counted.
    fn refused(&self, failure: Failure) -> Status {
        self.counts.refused(&failure);
        failure.into()
    }

    /// A message that gRPC could not read. One that is too large gets our words for it; the rest are broken connections.
    fn unread(&self, status: Status) -> Status {
        match status.code() {
            tonic::Code::OutOfRange => {
                let why = format!("a message is above the limit of {} bytes", proto::MESSAGE_BYTES_MAX);
                self.refused(Failure::new(Code::TooLarge, why))
            }
            _ => status,
        }
    }
}

#[tonic::async_trait]
impl RaftTransport for Service {
    type AppendStream = BoxStream<'static, Result<wire::AppendResponse, Status>>;

    /// Answers with headers at once: the sender starts when it has them.
    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let answers = append(self.clone(), request.into_inner());
        Ok(Response::new(stream::once(answers).try_flatten().boxed()))
    }

    async fn heartbeats(
        &self,
        request: Request<wire::HeartbeatsRequest>,
    ) -> Result<Response<wire::HeartbeatsResponse>, Status> {
        let heartbeats = request.into_inner().heartbeats;
        if heartbeats.len() > BATCH_COUNT_MAX {
            let why = format!("{} heartbeats, the limit is {BATCH_COUNT_MAX}", heartbeats.len());
            return Err(self.refused(Failure::new(Code::TooLarge, why)));
        }
        let answers = heartbeats::answer(&self.registry, &self.counts, heartbeats).await;
        Ok(Response::new(wire::HeartbeatsResponse { answers }))
    }

    type SnapshotStream = BoxStream<'static, Result<wire::SnapshotToLeader, Status>>;

    async fn snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotToFollower>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let answers = snapshot(self.clone(), request.into_inner());
        Ok(Response::new(stream::once(answers).try_flatten().boxed()))
    }

    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let answer = vote(&self.registry, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }

    async fn read_index(
        &self,
        request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexResponse>, Status> {
        let answer = read_index(&self.registry, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }

    async fn hello(
        &self,
        request: Request<wire::HelloRequest>,
    ) -> Result<Response<wire::HelloResponse>, Status> {
        let wire::HelloRequest { group, replica } = request.into_inner();
        let is_here = GroupId::try_from(group).is_ok_and(|id| self.registry.has(id, ReplicaId(replica)));
        Ok(Response::new(wire::HelloResponse { is_here }))
    }

    async fn dismiss(&self, request: Request<wire::DismissRequest>) -> Result<Response<wire::Empty>, Status> {
        let answer = dismiss(&self.registry, request.into_inner());
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let answer = transfer_leader(&self.registry, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }
}

async fn vote(registry: &Registry, request: wire::VoteRequest) -> Result<wire::VoteResponse, Failure> {
    let group = registry.addressed(request.to.as_ref())?;
    let vote = vote_from_wire(request.vote)?;
    let last = request.last.map(log_id_checked).transpose()?;
    let candidate = vote.leader_id.voted_for;
    check_sender(candidate, request.to.as_ref())?;
    // A leader that hands over has given its lease up before it asks.
    if group.standing().holds_off().is_some() && !request.leadership_transfer {
        let why = format!("{} was restarted here and may have promised its vote before", group.id());
        return Err(Failure::new(Code::NotYet, why));
    }
    let dismissal = dismissal_of(&group, candidate);
    if group.standing().is_lost(candidate) {
        return Ok(refused_vote(&group, dismissal));
    }
    // What dismissed this replica is passed on: those that were given up must not find together. A candidate that is in
    // that membership is one of the group's, and may need this vote: it hears what openraft says.
    if let Some(told) = group.dismissal().filter(|told| told.is_of(candidate)) {
        return Ok(refused_vote(&group, Some(told)));
    }
    let mut ask = VoteRequest::new(vote, last);
    ask.leadership_transfer = request.leadership_transfer;
    group.doze().used();
    let raft = group.raft();
    let answer = if request.pre_vote { raft.pre_vote(ask).await } else { raft.vote(ask).await };
    let answer = answer.map_err(|error| stopped(group.id(), error))?;
    Ok(wire::VoteResponse {
        vote: Some(vote_to_wire(&answer.vote)),
        granted: answer.vote_granted,
        last: answer.last_log_id.as_ref().map(log_id_to_wire),
        dismissal: dismissal.as_ref().map(Dismissal::to_wire),
    })
}

/// A replica that a forced reset gave up would overwrite what the group has done since.
fn check_not_lost(standing: &Standing, from: u64) -> Result<(), Failure> {
    if standing.is_lost(from) {
        let why = format!("replica {from} was given up when the group was reset: it must never come back");
        return Err(Failure::invalid(why));
    }
    Ok(())
}

/// What a replica hears that a forced reset gave up: nothing of it counts, and that it is dismissed.
fn refused_vote(group: &Group, dismissal: Option<Dismissal>) -> wire::VoteResponse {
    let metrics = group.raft().metrics();
    let metrics = metrics.borrow_watched();
    wire::VoteResponse {
        vote: Some(vote_to_wire(&metrics.vote)),
        granted: false,
        last: None,
        dismissal: dismissal.as_ref().map(Dismissal::to_wire),
    }
}

/// The newest committed membership here, when the candidate is not in it. It is for the candidate to tell whether it
/// knows a newer one.
fn dismissal_of(group: &Group, candidate: u64) -> Option<Dismissal> {
    let metrics = group.raft().metrics();
    let metrics = metrics.borrow_watched();
    Dismissal::by(&metrics.committed_membership_config).filter(|dismissal| dismissal.is_of(candidate))
}

async fn read_index(
    registry: &Registry,
    request: wire::ReadIndexRequest,
) -> Result<wire::ReadIndexResponse, Failure> {
    use wire::read_index_response::Result as Answer;
    let group = registry.addressed(request.to.as_ref())?;
    let policy = if request.lease { ReadPolicy::Lease } else { ReadPolicy::Index };
    let result = match group.confirm_leader(policy).await {
        Ok(index) => Answer::Index(index.0),
        Err(ReadIndexError::NotLeader { leader }) => {
            Answer::NotLeader(wire::NotLeader { leader: leader.map(member_to_wire) })
        }
        Err(ReadIndexError::NoQuorum { why }) => Answer::NoQuorum(why),
        Err(error) => return Err(error.into_failure(group.addresses())),
    };
    Ok(wire::ReadIndexResponse { result: Some(result) })
}

fn dismiss(registry: &Registry, request: wire::DismissRequest) -> Result<wire::Empty, Failure> {
    let group = registry.addressed(request.to.as_ref())?;
    check_sender(request.from, request.to.as_ref())?;
    check_not_lost(group.standing(), request.from)?;
    let dismissal = request.dismissal.ok_or_else(|| Failure::invalid("the membership is not named"))?;
    group.standing().dismissed(Dismissal::from_wire(dismissal)?);
    Ok(wire::Empty {})
}

async fn transfer_leader(
    registry: &Registry,
    request: wire::TransferLeaderRequest,
) -> Result<wire::TransferLeaderResponse, Failure> {
    use wire::transfer_leader_response::Refused;
    let group = registry.addressed(request.to.as_ref())?;
    let from = vote_from_wire(request.from_leader)?;
    let last = request.last.map(log_id_checked).transpose()?;
    check_sender(from.leader_id.voted_for, request.to.as_ref())?;
    check_not_lost(group.standing(), from.leader_id.voted_for)?;
    let ask = TransferLeaderRequest::new(from, request.to_replica, last);
    group.doze().used();
    let answer =
        group.raft().handle_transfer_leader(ask).await.map_err(|error| stopped(group.id(), error))?;
    let refused = answer.err().map(|error| match error {
        TransferLeaderError::VoteChanged { actual, .. } => Refused::VoteChanged(vote_to_wire(&actual)),
        TransferLeaderError::LogNotFlushed { actual, .. } => {
            Refused::LogNotFlushed(wire::LastLog { last: actual.as_ref().map(log_id_to_wire) })
        }
    });
    Ok(wire::TransferLeaderResponse { refused })
}

/// Feeds one sender's messages to its group, verified one by one. The first bad one ends the stream: those before it
/// are answered, then comes the status; it changes nothing.
async fn append(
    service: Service,
    mut messages: Streaming<wire::AppendRequest>,
) -> Result<impl Stream<Item = Result<wire::AppendResponse, Status>>, Status> {
    let first = messages.message().await.map_err(|status| service.unread(status))?;
    let Some(first) = first else { return Ok(stream::empty().left_stream()) };
    let to = first.to.clone();
    // Of the group only what does not keep its log open: a stream may stand idle for long.
    let (raft, id, mut statuses, space, standing, doze) = {
        let group = service.registry.addressed(to.as_ref());
        let group = group.map_err(|failure| service.refused(failure))?;
        (
            group.raft().clone(),
            group.id(),
            group.watch(),
            group.log().space().clone(),
            group.standing().clone(),
            group.doze().clone(),
        )
    };
    let closed = async move {
        let _ = statuses.wait_for(|status| status.role == Role::Stopped).await;
    };
    let refusal = Arc::new(Mutex::new(None));

    let (refused, member) = (refusal.clone(), raft.clone());
    let receiver = doze.clone();
    let messages = stream::once(std::future::ready(Ok(first))).chain(messages).take_until(closed.boxed());
    let requests = messages.scan((), move |(), message| {
        let request = message.map_err(|status| service.unread(status)).and_then(|message| {
            append_request(message, &to, &member, &space, &standing)
                .map_err(|failure| service.refused(failure))
        });
        if request.as_ref().is_ok_and(|request| !request.entries.is_empty()) {
            receiver.used();
        }
        std::future::ready(match request {
            Ok(request) => Some(request),
            Err(status) => {
                *refused.lock().expect("no holder panics") = Some(status);
                None
            }
        })
    });

    // openraft's stream borrows its `Raft`, so both live in a future of their own, polled with the answers it makes.
    let (answers_tx, answers) = mpsc::channel(1);
    let answering = async move {
        let mut answers = pin!(raft.stream_append(requests));
        while let Some(answer) = answers.next().await {
            let answer = answer.map(|answer| append_response(answer, &doze));
            let answer = answer.map_err(|error| stopped(id, error).into());
            if answers_tx.send(answer).await.is_err() {
                return;
            }
        }
        let refused = refusal.lock().expect("no holder panics").take();
        if let Some(status) = refused {
            let _ = answers_tx.send(Err(status)).await;
        }
    };
    let answering = stream::once(answering).filter_map(|()| std::future::ready(None));
    Ok(stream::select(ReceiverStream::new(answers), answering).right_stream())
}

/// Has a group receive what is offered. The stream of answers drives it: it ends when the leader drops that, or when
/// the group is closed.
async fn snapshot(
    service: Service,
    mut messages: Streaming<wire::SnapshotToFollower>,
) -> Result<impl Stream<Item = Result<wire::SnapshotToLeader, Status>>, Status> {
    use wire::snapshot_to_follower::Message::Offer;
    let first = messages.message().await.map_err(|status| service.unread(status))?;
    let Some(Offer(offer)) = first.and_then(|first| first.message) else {
        return Err(service.refused(Failure::invalid("a snapshot begins with its offer")));
    };
    let offered = snapshot_offered(&service.registry, &offer);
    let (raft, store, mut statuses) = offered.map_err(|failure| service.refused(failure))?;
    let (answers_tx, answers) = mpsc::channel(SNAPSHOT_ANSWERS_MAX);
    let receiving = async move {
        let closed = statuses.wait_for(|status| status.role == Role::Stopped);
        let received = tokio::select! {
            received = receive(store, raft, offer, messages, &answers_tx) => received.map_err(Failure::from),
            _ = closed => Err(Failure::new(Code::Unavailable, "the group stopped here")),
        };
        if let Err(failure) = received {
            let _ = answers_tx.send(Err(failure.into())).await;
        }
    };
    let receiving = stream::once(receiving).filter_map(|()| std::future::ready(None));
    Ok(stream::select(ReceiverStream::new(answers), receiving))
}

type SnapshotReceiver = (Raft, Arc<SnapshotStore>, watch::Receiver<GroupStatus>);

/// Of the group only what does not keep its log open.
fn snapshot_offered(registry: &Registry, offer: &wire::SnapshotOffer) -> Result<SnapshotReceiver, Failure> {
    let group = registry.addressed(offer.to.as_ref())?;
    let vote = vote_from_wire(offer.vote)?;
    check_sender(vote.leader_id.voted_for, offer.to.as_ref())?;
    check_not_lost(group.standing(), vote.leader_id.voted_for)?;
    let why = || Failure::invalid(format!("{} has no snapshots here", group.id()));
    Ok((group.raft().clone(), group.snapshot_store().ok_or_else(why)?, group.watch()))
}

/// Wishes for pieces that gRPC has not taken yet.
const SNAPSHOT_ANSWERS_MAX: usize = 4;

fn append_request(
    message: wire::AppendRequest,
    to: &Option<wire::Address>,
    raft: &Raft,
    space: &LogSpace,
    standing: &Standing,
) -> Result<AppendEntriesRequest<TypeConfig>, Failure> {
    if message.to != *to {
        return Err(Failure::invalid("messages of one stream are for one replica"));
    }
    append_check(&message, raft.metrics().borrow_watched().local_committed.as_ref().map(log_id_of))?;
    check_not_lost(standing, message.vote.as_ref().map_or(0, |vote| vote.replica))?;
    let bytes = message.entries.iter().map(|entry| entry.meta.len() + entry.body.len()).sum();
    if !message.entries.is_empty()
        && let Err(full) = space.check_space(bytes)
    {
        // The sender pauses and tries again. In openraft this would end the group for good.
        return Err(Failure::new(Code::DiskFull, full.to_string()));
    }
    let entries = message.entries.into_iter().map(entry_from_wire).collect::<Result<Vec<_>, _>>()?;
    Ok(AppendEntriesRequest {
        vote: vote_from_wire(message.vote)?,
        prev_log_id: message.prev.map(log_id_from_wire),
        entries,
        leader_commit: message.committed.map(log_id_from_wire),
    })
}

/// Hands a heartbeat to its group.
pub(crate) async fn heartbeat(
    registry: &Registry,
    message: wire::AppendRequest,
) -> Result<wire::AppendResponse, Failure> {
    let to = message.to.clone();
    let group = registry.addressed(to.as_ref())?;
    if !message.entries.is_empty() {
        return Err(Failure::invalid("heartbeats have no entries"));
    }
    let request = append_request(message, &to, group.raft(), group.log().space(), group.standing())?;
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

fn stopped(group: GroupId, error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Unavailable, format!("{group} stopped here: {error}"))
}
