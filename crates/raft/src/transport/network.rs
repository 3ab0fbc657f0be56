//! openraft's way to other members.

use crate::adapter::encoding::{answered_vote, log_id_checked, log_id_to_wire, vote_from_wire, vote_to_wire};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{Peer, RaftLogId, RaftVote, TypeConfig};
use crate::counts::Counts;
use crate::log::unserved::Unserved;
use crate::members::dismissal::Dismissal;
use crate::members::standing::Standing;
use crate::snapshot::{SnapshotData, SnapshotStore, Transfer, send, streaming};
use crate::transport::exchange::{self, Exchange};
use crate::transport::processes::{Process, Processes};
use crate::transport::protocol;
use crate::transport::refusal::{failed, malformed};
use crate::{HostOptions, Member};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, stream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult, TransferLeaderError,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RPCTypes, RaftNetworkFactory};
use proto::raft as wire;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::Status;
use types::{Clock, GroupId, ReplicaId, Term};

/// The pauses before a follower that cannot be reached is tried again.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Makes the clients of one replica.
pub(crate) struct Network {
    pub(crate) cluster: Arc<str>,
    pub(crate) group: GroupId,
    pub(crate) replica: ReplicaId,
    pub(crate) processes: Arc<Processes>,
    pub(crate) options: HostOptions,
    pub(crate) snapshots: Option<Arc<SnapshotStore>>,
    pub(crate) unserved: Arc<Unserved>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) acknowledged: Acknowledged,
}

/// The furthest that each member has said it has, with the term of the leader who was told so: a later leader
/// may have had it cut.
type Acknowledged = Arc<Mutex<BTreeMap<ReplicaId, (u64, RaftLogId)>>>;

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, peer: &Peer) -> Client {
        self.client(target, peer, Use::Entries)
    }

    async fn new_heartbeat_client(&mut self, target: u64, peer: &Peer) -> Client {
        self.client(target, peer, Use::Heartbeats)
    }
}

impl Network {
    fn client(&self, target: u64, peer: &Peer, used_for: Use) -> Client {
        Client {
            cluster: self.cluster.clone(),
            group: self.group,
            replica: self.replica,
            target: Member { replica: ReplicaId(target), node: peer.node, address: peer.address.clone() },
            processes: self.processes.clone(),
            window_bytes: self.options.window_bytes,
            used_for,
            snapshots: self.snapshots.clone(),
            unserved: self.unserved.clone(),
            standing: self.standing.clone(),
            counts: self.counts.clone(),
            clock: self.options.clock.clone(),
            acknowledged: self.acknowledged.clone(),
        }
    }
}

/// The use that a client is to openraft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// A stream as long as all goes well.
    Entries,
    /// One message without entries at a time, sent together with those of other groups.
    Heartbeats,
}

/// One replica's way to another.
pub(crate) struct Client {
    cluster: Arc<str>,
    group: GroupId,
    replica: ReplicaId,
    target: Member,
    processes: Arc<Processes>,
    window_bytes: usize,
    used_for: Use,
    snapshots: Option<Arc<SnapshotStore>>,
    unserved: Arc<Unserved>,
    standing: Arc<Standing>,
    counts: Arc<Counts>,
    clock: Arc<dyn Clock>,
    acknowledged: Acknowledged,
}

impl Client {
    fn terms(&self) -> TermLimit {
        TermLimit::now(&*self.clock)
    }

    fn address(&self) -> wire::Address {
        protocol::address(self.group, self.target.replica, &self.cluster)
    }

    fn process(&self) -> Result<Arc<Process>, RPCError<TypeConfig>> {
        self.processes.of(&self.target).map_err(|why| Unreachable::from_string(why).into())
    }

    /// Waits for an answer as long as openraft would.
    async fn within<T>(
        &self,
        limit: Duration,
        action: RPCTypes,
        process: &Process,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, RPCError<TypeConfig>> {
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => {
                process.answered();
                Ok(answer)
            }
            Ok(Err(status)) => Err(failed(process, &status)),
            Err(_) => {
                process.failed("no answer in time");
                let (id, target) = (self.replica.0, self.target.replica.0);
                Err(Timeout { action, id, target, timeout: limit }.into())
            }
        }
    }

    async fn ask_vote(
        &self,
        request: VoteRequest<TypeConfig>,
        pre_vote: bool,
        limit: Duration,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.check_not_dismissed()?;
        let process = self.process()?;
        let asked = request.vote;
        let request = wire::VoteRequest {
            to: Some(self.address()),
            vote: Some(vote_to_wire(&asked)),
            last: request.last_log_id.as_ref().map(log_id_to_wire),
            pre_vote,
            leadership_transfer: request.leadership_transfer,
        };
        let mut client = process.control();
        let answer = self.within(limit, RPCTypes::Vote, &process, client.vote(request)).await?.into_inner();
        if let Some(dismissal) = answer.dismissal {
            self.standing.dismissed(Dismissal::from_wire(dismissal, self.terms()).map_err(malformed)?);
        }
        // A vote that was granted counts for nothing, either, when another member has dismissed this one
        // meanwhile.
        self.check_not_dismissed()?;
        let terms = self.terms();
        let vote = answered_vote(&asked, answer.vote, terms).map_err(malformed)?;
        let last = answer.last.map(|last| log_id_checked(last, terms)).transpose().map_err(malformed)?;
        Ok(VoteResponse::new(vote, last, answer.granted))
    }

    /// Refuses to ask for this replica when its group went on without it: it must not lead those that were
    /// left behind with it, whatever made it stand.
    fn check_not_dismissed(&self) -> Result<(), RPCError<TypeConfig>> {
        match self.standing.must_not_stand() {
            true => Err(Unreachable::from_string("this replica was removed from its group").into()),
            false => Ok(()),
        }
    }

    async fn heartbeat(
        &self,
        heartbeat: AppendEntriesRequest<TypeConfig>,
        limit: Duration,
    ) -> Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>> {
        let process = self.process()?;
        let sent = heartbeat.vote;
        let heartbeat = exchange::append_to_wire(self.address(), heartbeat)?;
        let answer = process.heartbeats().send(heartbeat);
        let answer = self.within(limit, RPCTypes::AppendEntries, &process, answer).await?;
        exchange::append_answer(&sent, answer, self.terms())
    }
}

impl NetStreamAppend<TypeConfig> for Client {
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        async move {
            // openraft's pause after a failure is in its input: who connects before asking for the first
            // request connects again and again without a pause while the follower is down.
            let mut input = input;
            let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
            if self.used_for == Use::Heartbeats {
                let term = first.vote.leader_id.term;
                let answer = self.heartbeat(first, option.hard_ttl()).await;
                self.answered(term, &answer);
                let answer = answer?;
                return Ok(stream::iter([Ok(answer)]).boxed());
            }
            let term = first.vote.leader_id.term;
            let counts = self.counts.clone();
            let input = stream::iter([first]).chain(input).inspect(move |request| {
                let sent = if request.entries.is_empty() {
                    &counts.tally.commits_sent
                } else {
                    &counts.tally.appends_sent
                };
                sent.count();
            });
            let process = self.process()?;
            let (requests, outgoing) = exchange::channel();
            let opening = process.append(outgoing);
            let answers = self
                .within(option.hard_ttl(), RPCTypes::AppendEntries, &process, opening)
                .await
                .inspect_err(|_| self.counts.tally.streams_broken.count())?;
            let exchange = Exchange::new(
                input,
                requests,
                answers.into_inner(),
                process,
                self.address(),
                self.window_bytes,
                self.clock.clone(),
            );
            let answers = exchange.into_stream().inspect(move |answer| self.answered(term, answer));
            Ok(answers.boxed())
        }
        .boxed()
    }
}

impl NetVote<TypeConfig> for Client {
    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_vote(request, false, option.hard_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_vote(request, true, option.hard_ttl()).await
    }
}

impl NetTransferLeader<TypeConfig> for Client {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        use wire::transfer_leader_response::Refused;
        let process = self.process()?;
        let message = wire::TransferLeaderRequest {
            to: Some(self.address()),
            from_leader: Some(vote_to_wire(request.from_leader())),
            to_replica: *request.to_node_id(),
            last: request.last_log_id().map(log_id_to_wire),
        };
        let mut client = process.control();
        let answer = client.transfer_leader(message);
        let answer =
            self.within(option.hard_ttl(), RPCTypes::TransferLeader, &process, answer).await?.into_inner();
        Ok(match answer.refused {
            None => Ok(()),
            Some(Refused::VoteChanged(actual)) => {
                let actual = vote_from_wire(Some(actual), self.terms()).map_err(malformed)?;
                Err(TransferLeaderError::VoteChanged { expected: *request.from_leader(), actual })
            }
            Some(Refused::LogNotFlushed(wire::LastLog { last })) => Err(TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: last.map(|last| log_id_checked(last, self.terms())).transpose().map_err(malformed)?,
            }),
        })
    }
}

impl NetBackoff<TypeConfig> for Client {
    fn backoff(&self) -> Option<Backoff> {
        let pauses = std::iter::successors(Some(BACKOFF_FIRST), |pause| Some((*pause * 2).min(BACKOFF_MAX)));
        Some(Backoff::new(pauses))
    }
}

impl NetSnapshot<TypeConfig> for Client {
    type SnapshotData = SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: SnapshotOf<TypeConfig, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let (Some(store), SnapshotData::Stored(stored)) = (&self.snapshots, snapshot.snapshot) else {
            return Err(self.cannot_serve(Term(vote.leader_id.term)));
        };
        let transfer = Transfer {
            store: store.clone(),
            stored,
            process: self.process().map_err(streaming)?,
            to: self.address(),
            from: self.replica,
            vote,
            silence_max: option.hard_ttl(),
            clock: self.clock.clone(),
        };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = send(transfer) => sent,
        }
    }
}

impl Client {
    /// Takes note of a follower's answer. A follower that lacks what it acknowledged has a disk that lost
    /// what it had called durable: openraft sends it again, and an operator should know.
    fn answered(&self, term: u64, answer: &Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>) {
        let member = self.target.replica;
        let mut all = self.acknowledged.lock().expect("no holder panics");
        let known = all.get(&member).filter(|(of, _)| *of == term).map(|(_, id)| *id);
        // A late answer to an earlier leadership says nothing of what was acknowledged since.
        let is_late = all.get(&member).is_some_and(|(of, _)| *of > term);
        match answer {
            Ok(_) if is_late => {}
            Ok(Ok(matched)) => {
                if let Some(furthest) = (*matched).max(known) {
                    all.insert(member, (term, furthest));
                }
            }
            Ok(Err(StreamAppendError::Conflict(at))) if Some(*at) <= known => {
                self.counts.tally.logs_reverted.count();
                let node = self.target.node;
                tracing::warn!(
                    group = %self.group, %member, %node, missing = at.index,
                    "a follower lost entries that it had acknowledged: its disk calls durable what is not"
                );
                all.remove(&member);
            }
            Ok(Err(_)) => {}
            Err(_) if self.used_for == Use::Entries => self.counts.tally.streams_broken.count(),
            Err(_) => {}
        }
    }

    /// The error for a member that the log can no longer serve; the process's log tells of it once. openraft
    /// does not try again until the group has another leader.
    fn cannot_serve(&self, term: Term) -> StreamingError<TypeConfig> {
        let member = self.target.replica;
        if self.unserved.found(member, term) {
            tracing::warn!(
                group = %self.group, %member,
                "a member needs entries that are purged, and its group has no snapshots: it is lost"
            );
        }
        ReplicationClosed::new(format!("member {member} cannot be served from the log")).into()
    }
}
