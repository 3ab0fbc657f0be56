//! Forced recovery: a metadata group whose majority is lost for good goes on with the one replica that is left, as it
//! stands on the disk of a node that does not run. docs/forced-recovery.md says when and how.
//!
//! What the others had acknowledged and this replica does not have is lost; what it has that was never committed becomes
//! committed. The old members must never come back: votes and entries of theirs are refused by the survivor, but where a
//! majority of them finds together again, that is a second group.

use crate::Member;
use crate::connector::{Connector, TcpConnector};
use crate::encoding::{applied_from, entry_from_meta, entry_to_record, log_id_from};
use crate::identity::{Identity, IdentityState, LOST_MAX};
use crate::membership::Members;
use crate::snapshot::newest_applied;
use crate::type_config::{Data, Peer, RaftEntry, RaftMembership};
use openraft::EntryPayload;
use prost::Message;
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use raftlog::{HardState, Log, LogSpace, LogSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use types::{GroupId, GroupKind, LogId, LogIndex, ReplicaId, Term};

/// How long a member that is said to be lost may take to say that it is not.
const ASK_MAX: Duration = Duration::from_secs(3);
/// Entries read at once while the log is searched for its members.
const SCAN_COUNT_MAX: usize = 1024;

/// Why a group is not reset. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResetError {
    #[error("{0} is a pipeline: it is closed and replaced, never reset")]
    Pipeline(GroupId),
    #[error("no replica of {0} is on this disk, or nothing says which")]
    NoReplica(GroupId),
    /// Damaged, in use, or unreadable.
    #[error("the log cannot be used: {why}")]
    Log { why: String },
    #[error("the log does not say who the members are: it begins after the entry that did")]
    NoMembers,
    #[error("replica {replica} votes for nothing in {members:?}: what it has was never needed for a commit")]
    NotVoter { replica: ReplicaId, members: Vec<ReplicaId> },
    #[error("{left:?} are a majority of the voters {voters:?}: start them, they need no reset")]
    QuorumIsLeft { left: Vec<ReplicaId>, voters: Vec<Vec<ReplicaId>> },
    #[error("the other members are {others:?}: name exactly these as lost, not {named:?}")]
    OthersDiffer { others: Vec<ReplicaId>, named: Vec<ReplicaId> },
    #[error("{alive:?} are said to be lost and answer: stop them for good first")]
    Alive { alive: Vec<Member> },
    #[error("no more than {limit} lost replicas are remembered")]
    TooManyLost { limit: usize },
}

/// What a reset would do.
#[derive(Clone, Debug)]
pub struct ResetPlan {
    pub group: GroupId,
    pub survivor: Member,
    pub members: Members,
    /// The members that are given up.
    pub lost: Vec<Member>,
    /// The survivor's last entry: all up to here will be committed.
    pub last: LogId,
    /// Known to have been committed at least up to here; entries after it may not have been.
    pub committed: Option<LogId>,
    /// The term of the reset.
    pub term: Term,
}

/// A replica whose node does not run.
pub struct OfflineReplica {
    group: GroupId,
    identity: Identity,
    space: Arc<LogSpace>,
    log: Log,
    /// The newest one there is.
    membership: RaftMembership,
}

fn log_failed(error: impl Display) -> ResetError {
    ResetError::Log { why: error.to_string() }
}

impl OfflineReplica {
    /// Opens a log as a start of its node would: a torn tail is cut, damage before it is refused.
    pub async fn open(
        group: GroupId,
        space: &Arc<LogSpace>,
        spec: LogSpec,
    ) -> Result<OfflineReplica, ResetError> {
        if group.kind == GroupKind::Pipeline {
            return Err(ResetError::Pipeline(group));
        }
        let identity = Identity::read(space.disk(), group).await.map_err(log_failed)?;
        let is_in_use =
            |identity: &Identity| matches!(identity.state, IdentityState::First | IdentityState::Joined);
        let identity = identity.filter(is_in_use).ok_or(ResetError::NoReplica(group))?;
        let log = space.open(spec).await.map_err(log_failed)?;
        let membership = match newest_membership(group, space, &log).await {
            Ok(membership) => membership,
            Err(error) => {
                log.close().await;
                return Err(error);
            }
        };
        Ok(OfflineReplica { group, identity, space: space.clone(), log, membership })
    }

    /// What a reset would do, with `lost` given up; or why it is refused.
    pub fn plan(&self, lost: &BTreeSet<ReplicaId>) -> Result<ResetPlan, ResetError> {
        let members = Members::of(&self.membership);
        let all: Vec<ReplicaId> = members.all.iter().map(|member| member.replica).collect();
        let replica = self.identity.replica;
        if !members.is_voter(replica) {
            return Err(ResetError::NotVoter { replica, members: all });
        }
        let left: Vec<ReplicaId> = all.iter().copied().filter(|replica| !lost.contains(replica)).collect();
        let is_quorum = |voters: &BTreeSet<ReplicaId>| {
            2 * left.iter().filter(|replica| voters.contains(replica)).count() > voters.len()
        };
        if members.voter_sets.iter().all(is_quorum) {
            let voters = members.voter_sets.iter().map(|set| set.iter().copied().collect()).collect();
            return Err(ResetError::QuorumIsLeft { left, voters });
        }
        let others: BTreeSet<ReplicaId> = all.into_iter().filter(|other| *other != replica).collect();
        if others != *lost {
            let (others, named) = (others.into_iter().collect(), lost.iter().copied().collect());
            return Err(ResetError::OthersDiffer { others, named });
        }
        if self.identity.lost.len() + others.len() > LOST_MAX {
            return Err(ResetError::TooManyLost { limit: LOST_MAX });
        }
        let state = self.log.state();
        let last = state.last.max(state.purged).ok_or(ResetError::NoMembers)?;
        let voted = state.hard_state.map_or(0, |state| state.vote_term);
        Ok(ResetPlan {
            group: self.group,
            survivor: members.get(replica).cloned().ok_or(ResetError::NoMembers)?,
            lost: others.iter().filter_map(|other| members.get(*other).cloned()).collect(),
            members,
            last,
            committed: state.committed,
            term: Term(voted.max(last.term.0) + 1),
        })
    }

    /// Makes the survivor the only member. Durable on return. A crash leaves the old members or the new one, and the call
    /// may be repeated: what cannot be undone, the entry that names the only member, comes last.
    pub async fn reset(self, plan: &ResetPlan, at_unix_ms: u64, reason: &str) -> Result<(), ResetError> {
        let OfflineReplica { mut identity, space, log, .. } = self;
        // First: from now on nothing of theirs is listened to, whatever else comes about.
        let known: BTreeSet<ReplicaId> = identity.lost.iter().copied().collect();
        identity.lost = known.into_iter().chain(plan.lost.iter().map(|member| member.replica)).collect();
        identity.lost.sort_unstable();
        identity.lost.dedup();
        identity.write(space.disk()).await.map_err(log_failed)?;
        // A promise newer than any the replica gave: nobody else was elected in this term with its vote.
        let (vote_term, vote_replica) = (plan.term.0, plan.survivor.replica.0);
        let vote = HardState { vote_term, vote_replica, vote_committed: true };
        log.save_hard_state(vote).await.map_err(log_failed)?;
        let entries = reset_entries(plan, at_unix_ms, reason)?;
        let token = log.append(entries).map_err(log_failed)?;
        token.durable().await.map_err(log_failed)?;
        log.close().await;
        Ok(())
    }

    pub async fn close(self) {
        self.log.close().await;
    }
}

/// The record of what is done, and the membership after it. In this order: no log has the second without the first.
fn reset_entries(plan: &ResetPlan, at_unix_ms: u64, reason: &str) -> Result<Vec<raftlog::Entry>, ResetError> {
    let replica = plan.survivor.replica.0;
    let record = wire::ResetRecord {
        at_unix_ms,
        survivor: replica,
        before: Some(plan.members.to_wire()),
        lost: plan.lost.iter().map(|member| member.replica.0).collect(),
        last: Some(wire::LogId { term: plan.last.term.0, index: plan.last.index.0 }),
        reason: reason.to_owned(),
    };
    let peer = Peer { node: plan.survivor.node, address: plan.survivor.address.clone() };
    let membership = RaftMembership::new(vec![BTreeSet::from([replica])], BTreeMap::from([(replica, peer)]))
        .map_err(log_failed)?;
    let payloads = [
        EntryPayload::Normal(Data::Reset(record.encode_to_vec().into())),
        EntryPayload::Membership(membership),
    ];
    let entries = payloads.into_iter().zip(plan.last.index.next().0..).map(|(payload, index)| {
        let log_id = log_id_from(LogId { term: plan.term, index: LogIndex(index) });
        entry_to_record(RaftEntry { log_id, payload }).map_err(log_failed)
    });
    entries.collect()
}

/// What the log says is newer than what any snapshot says.
async fn newest_membership(
    group: GroupId,
    space: &Arc<LogSpace>,
    log: &Log,
) -> Result<RaftMembership, ResetError> {
    if let Some(membership) = log_membership(log).await? {
        return Ok(membership);
    }
    snapshot_membership(space, group).await?.ok_or(ResetError::NoMembers)
}

async fn log_membership(log: &Log) -> Result<Option<RaftMembership>, ResetError> {
    let state = log.state();
    let mut next = state.purged.map_or(LogIndex(0), |purged| purged.index.next());
    let end = state.last.map_or(next, |last| last.index.next());
    let mut newest = None;
    while next < end {
        for record in log.read_meta(next..end, SCAN_COUNT_MAX).await.map_err(log_failed)? {
            next = record.id.index.next();
            if let EntryPayload::Membership(membership) = entry_from_meta(record).map_err(log_failed)?.payload
            {
                newest = Some(membership);
            }
        }
    }
    Ok(newest)
}

/// The members at the newest snapshot, for a log that was purged past the entry that named them.
async fn snapshot_membership(
    space: &Arc<LogSpace>,
    group: GroupId,
) -> Result<Option<RaftMembership>, ResetError> {
    let applied = newest_applied(space.disk(), group).await.map_err(log_failed)?;
    let Some(applied) = applied else { return Ok(None) };
    Ok(Some(applied_from(&applied).map_err(log_failed)?.membership().clone()))
}

impl ResetPlan {
    /// The members among the lost that a process answers for, at the address their group knows or at one of `addresses`.
    pub async fn alive(&self, addresses: &[String]) -> Vec<Member> {
        let mut alive = Vec::new();
        for member in &self.lost {
            for address in std::iter::once(&member.address).chain(addresses) {
                if answers(self.group, member.replica, address).await {
                    alive.push(member.clone());
                    break;
                }
            }
        }
        alive
    }
}

/// Whether a process has the replica. One that cannot tell counts as having it.
async fn answers(group: GroupId, replica: ReplicaId, address: &str) -> bool {
    let Ok(channel) = TcpConnector.connect(address) else { return false };
    let mut client = RaftTransportClient::new(channel);
    let request = wire::HelloRequest { group: group.to_u64(), replica: replica.0 };
    match tokio::time::timeout(ASK_MAX, client.hello(request)).await {
        Ok(Ok(answer)) => answer.into_inner().is_here,
        Ok(Err(status)) => status.code() != tonic::Code::Unavailable,
        Err(_) => false,
    }
}
