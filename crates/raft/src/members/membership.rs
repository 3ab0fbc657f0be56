//! The members of a metadata group, and how they change. Pipelines never do: a broken one is closed and
//! replaced.

use crate::adapter::encoding::member_to_wire;
use crate::adapter::type_config::{Peer, RaftLogId, RaftMembership, TypeConfig, WriteError, member_of};
use crate::error::step_failed;
use crate::group::Group;
use crate::members::dismissal::Dismissal;
use crate::{Lag, Member, Role, SetMembersError};
use futures::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ForwardReason, RaftError};
use openraft::rt::Instant as _;
use openraft::{ChangeMembers, RaftMetrics};
use proto::raft as wire;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::ReplicaId;

/// The most entries that a learner may lack and still count as caught up: the rest comes while it votes.
const LAG_COUNT_MAX: u64 = 64;
/// The pause before a step is tried again that has to wait for something of the group's own.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The time for which removed members are told that they are; those that do not hear it notice when they
/// stand for election.
const DISMISS_MAX: Duration = Duration::from_millis(500);

/// The members of a group as one replica knows them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Members {
    /// The set of voters; two sets while a change is under way, and then both must agree to everything.
    pub voter_sets: Vec<BTreeSet<ReplicaId>>,
    /// Voters and learners.
    pub all: Vec<Member>,
}

impl Members {
    pub(crate) fn of(membership: &RaftMembership) -> Members {
        let set = |voters: &BTreeSet<u64>| voters.iter().copied().map(ReplicaId).collect();
        Members {
            voter_sets: membership.get_joint_config().iter().map(set).collect(),
            all: membership.nodes().map(|(&replica, peer)| member_of(replica, peer)).collect(),
        }
    }

    pub(crate) fn to_wire(&self) -> wire::Membership {
        let set = |voters: &BTreeSet<ReplicaId>| wire::VoterSet {
            replicas: voters.iter().map(|replica| replica.0).collect(),
        };
        wire::Membership {
            voter_sets: self.voter_sets.iter().map(set).collect(),
            members: self.all.iter().cloned().map(member_to_wire).collect(),
        }
    }

    /// Whether a change is under way, or was left half done.
    pub fn is_joint(&self) -> bool {
        self.voter_sets.len() > 1
    }

    pub fn is_voter(&self, replica: ReplicaId) -> bool {
        self.voter_sets.iter().any(|voters| voters.contains(&replica))
    }

    pub fn get(&self, replica: ReplicaId) -> Option<&Member> {
        self.all.iter().find(|member| member.replica == replica)
    }

    /// Whether these are the voters and nobody else is a member, with no change under way.
    fn are(&self, voters: &BTreeSet<ReplicaId>) -> bool {
        let all: BTreeSet<ReplicaId> = self.all.iter().map(|member| member.replica).collect();
        self.voter_sets.as_slice() == std::slice::from_ref(voters) && all == *voters
    }
}

impl Group {
    /// The members this replica knows: the newest entry that names them, committed or not.
    pub fn members(&self) -> Members {
        Members::of(self.raft().metrics().borrow_watched().membership_config.membership())
    }

    /// Whether the newest members that this replica knows may still become others: they are between two sets,
    /// or not committed as far as is known here.
    pub fn is_changing_members(&self) -> bool {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let (newest, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
        newest.log_id() != committed.log_id() || newest.membership().get_joint_config().len() > 1
    }

    /// The committed membership that this replica was told it is not in.
    pub(crate) fn dismissal(&self) -> Option<Dismissal> {
        let metrics = self.raft().metrics();
        let known = *metrics.borrow_watched().membership_config.log_id();
        self.standing().dismissal_after(&known)
    }

    /// Adds a member that gets everything and votes for nothing. Leader only; safe to repeat.
    pub async fn add_learner(&self, learner: Member, deadline: Instant) -> Result<(), SetMembersError> {
        self.set_members_check(std::slice::from_ref(&learner))?;
        if self.members().get(learner.replica).is_some() {
            return Ok(());
        }
        let peer = Peer { node: learner.node, address: learner.address };
        let nodes = BTreeMap::from([(learner.replica.0, peer)]);
        self.change(ChangeMembers::AddNodes(nodes), deadline).await.map(drop)
    }

    /// Makes `members` the voters of the group, and nobody else a member: missing ones are added as learners
    /// and awaited, and so is a majority of all, then voters change by joint consensus, others are removed
    /// and told so. Leader only, one call at a time.
    ///
    /// Where a majority of `members` does not answer this leader until `deadline`, the voters stay as they
    /// are: without them nothing could be committed, nor the change be undone ([`SetMembersError::Silent`]).
    ///
    /// Safe to repeat, here or at the next leader, whatever became of an earlier call: what it left half done
    /// is finished, and what is reached already changes nothing. A leader that is not among `members` leads
    /// until that is committed, and then hands over.
    pub async fn set_members(&self, members: &[Member], deadline: Instant) -> Result<(), SetMembersError> {
        self.set_members_check(members)?;
        let voters: BTreeSet<ReplicaId> = members.iter().map(|member| member.replica).collect();
        self.doze().used();
        let before = self.members();
        let majority = voters.len() / 2 + 1;
        let old: BTreeSet<ReplicaId> =
            voters.iter().copied().filter(|replica| before.get(*replica).is_some()).collect();
        // Of those that are to be added nobody knows anything yet.
        let added = voters.len() - old.len();
        self.wait_there(&old, majority.saturating_sub(added), Needed::Answer, deadline).await?;
        // An earlier call was broken off: two majorities are asked for everything until this is finished.
        let mut done = None;
        if before.is_joint() {
            done = Some(self.change(ChangeMembers::AddVoterIds(BTreeSet::new()), deadline).await?);
        }
        let now = self.members();
        let learners = now.all.iter().map(|member| member.replica).filter(|replica| !now.is_voter(*replica));
        let left_over: BTreeSet<u64> =
            learners.filter(|replica| !voters.contains(replica)).map(|replica| replica.0).collect();
        if !left_over.is_empty() {
            done = Some(self.change(ChangeMembers::RemoveNodes(left_over), deadline).await?);
        }
        for member in members {
            self.add_learner(member.clone(), deadline).await?;
        }
        // Voters that are down do not keep others from being replaced, as long as a majority of the new ones
        // is there.
        let now = self.members();
        let joining: BTreeSet<ReplicaId> =
            voters.iter().copied().filter(|replica| !now.is_voter(*replica)).collect();
        self.wait_there(&joining, joining.len(), Needed::NearlyAll, deadline).await?;
        if !now.are(&voters) {
            self.wait_there(&voters, majority, Needed::NearlyAll, deadline).await?;
            let ids = voters.iter().map(|replica| replica.0).collect();
            done = Some(self.change(ChangeMembers::ReplaceAllVoters(ids), deadline).await?);
        }
        if let Some(at) = done {
            let removed = before.all.into_iter().filter(|member| !voters.contains(&member.replica));
            let dismissal = Dismissal::new(at, voters.iter().map(|replica| replica.0));
            self.dismiss(removed.collect(), &dismissal).await;
        }
        Ok(())
    }

    fn set_members_check(&self, members: &[Member]) -> Result<(), SetMembersError> {
        if self.id().kind.has_fixed_members() {
            return Err(SetMembersError::FixedMembers);
        }
        let invalid = |why: String| Err(SetMembersError::Invalid { why });
        let ids: BTreeSet<ReplicaId> = members.iter().map(|member| member.replica).collect();
        if ids.is_empty() || ids.len() != members.len() || ids.contains(&ReplicaId(0)) {
            return invalid("members need replica ids that are different and not 0".to_owned());
        }
        if let Some(lost) = ids.iter().find(|id| self.standing().is_lost(id.0)) {
            return invalid(format!("a forced reset gave replica {lost} up: it is never a member again"));
        }
        let known = self.members();
        for member in members {
            if let Some(here) = known.get(member.replica)
                && here.node != member.node
            {
                return invalid(format!(
                    "replica {} is on node {}, not on {}: another node's replica needs an id of its own",
                    here.replica, here.node, member.node
                ));
            }
        }
        let status = self.status();
        if status.role != Role::Leader {
            return Err(SetMembersError::NotLeader { leader: status.leader });
        }
        Ok(())
    }

    /// Makes one change, and, where it made the membership joint, the one that ends it: committed on return.
    /// Answers the last entry's id. Waits for changes that are under way.
    async fn change(
        &self,
        changes: ChangeMembers<u64, Peer>,
        deadline: Instant,
    ) -> Result<RaftLogId, SetMembersError> {
        loop {
            // A leader that was removed leads for a moment more, and openraft must not be asked for changes
            // then.
            if self.members().get(self.replica()).is_none() {
                return Err(SetMembersError::NotLeader { leader: None });
            }
            let step = self.raft().change_membership(changes.clone(), false);
            let done = tokio::time::timeout_at(deadline, step).await;
            let Ok(done) = done else {
                return Err(SetMembersError::Expired { why: "a quorum did not agree".to_owned() });
            };
            match done {
                Ok(done) => return Ok(done.log_id),
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(step_failed(error)),
            }
            if Instant::now() + RETRY_INTERVAL >= deadline {
                let why = "an earlier change is not committed".to_owned();
                return Err(SetMembersError::Expired { why });
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Waits until `enough` of `replicas` are there in the way that is `needed`; the leader itself always is.
    pub(crate) async fn wait_there(
        &self,
        replicas: &BTreeSet<ReplicaId>,
        enough: usize,
        needed: Needed,
        deadline: Instant,
    ) -> Result<(), SetMembersError> {
        let mut metrics = self.raft().metrics();
        loop {
            let absent = absent(&metrics.borrow_and_update(), replicas, needed, self.election_max());
            let Some(Absent { lagging, silent }) = absent else {
                let leader = self.status().leader;
                return Err(SetMembersError::NotLeader { leader });
            };
            if replicas.len() - lagging.len() - silent.len() >= enough {
                return Ok(());
            }
            match tokio::time::timeout_at(deadline, metrics.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(SetMembersError::Stopped { why: "its core is gone".to_owned() }),
                Err(_) if lagging.is_empty() => return Err(SetMembersError::Silent { members: silent }),
                Err(_) => return Err(SetMembersError::Lagging { members: lagging }),
            }
        }
    }

    /// Tells removed members that they are, once: openraft sends them nothing any more.
    async fn dismiss(&self, removed: Vec<Member>, dismissal: &Dismissal) {
        let tell = removed.into_iter().filter(|member| member.replica != self.replica()).map(|member| async move {
            let request = wire::DismissRequest {
                to: Some(self.address_of(&member)),
                dismissal: Some(dismissal.to_wire()),
                from: self.replica().0,
            };
            let Ok(process) = self.processes().of(&member) else { return };
            let mut client = process.client();
            if let Err(status) = client.dismiss(request).await {
                tracing::info!(group = %self.id(), replica = %member.replica, %status, "a removed member was not told");
            }
        });
        let _ = tokio::time::timeout(DISMISS_MAX, join_all(tell)).await;
    }
}

/// The conditions on which a member counts as there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The member has answered this leader within a lease.
    Answer,
    /// The member has answered within a lease, has all but the last few entries, and knows the newest
    /// members.
    ///
    /// A replica that was removed and is taken in again has nearly the whole log at once. Until it has the
    /// entry that takes it in, it says that it is removed, and may be deleted
    /// ([`crate::GroupStatus::is_removed`]): it must not vote yet.
    NearlyAll,
}

/// Members that cannot be counted on.
struct Absent {
    lagging: Vec<Lag>,
    /// Members that have what they need, but answer nothing.
    silent: Vec<ReplicaId>,
}

/// The members among `replicas` that are not there, the leader itself apart; `None` when this replica does
/// not lead.
fn absent(
    metrics: &RaftMetrics<TypeConfig>,
    replicas: &BTreeSet<ReplicaId>,
    needed: Needed,
    lease: Duration,
) -> Option<Absent> {
    let (replication, answers) = (metrics.replication.as_ref()?, metrics.heartbeat.as_ref()?);
    let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
    let last = next(metrics.last_log_index);
    let members_at = next(metrics.membership_config.log_id().map(|id| id.index));
    let mut absent = Absent { lagging: Vec::new(), silent: Vec::new() };
    for &replica in replicas.iter().filter(|replica| replica.0 != metrics.id) {
        let matched = replication.get(&replica.0).and_then(|matched| *matched);
        let has = next(matched.map(|id| id.index));
        let entries = last.saturating_sub(has);
        let answered = answers.get(&replica.0).and_then(|answered| *answered);
        if needed == Needed::NearlyAll && (entries > LAG_COUNT_MAX || has < members_at) {
            absent.lagging.push(Lag { replica, entries });
        } else if answered.is_none_or(|answered| answered.elapsed() >= lease) {
            absent.silent.push(replica);
        }
    }
    Some(absent)
}

type ChangeError = RaftError<TypeConfig, WriteError>;

/// Whether the same step may succeed a little later.
fn is_passing(error: &ChangeError) -> bool {
    match error {
        RaftError::APIError(WriteError::ChangeMembershipError(ChangeMembershipError::InProgress(_))) => true,
        RaftError::APIError(WriteError::ForwardToLeader(forward)) => {
            forward.reason == ForwardReason::LeaseExpired
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::type_config::RaftStoredMembership;
    use openraft::type_config::alias::InstantOf;
    use std::sync::Arc;

    const LEASE: Duration = Duration::from_secs(1);
    /// A change that adds replica 2 stands at this index; the log goes on after it.
    const TAKEN_IN_AT: u64 = 100;

    /// The metrics of replica 1, which leads, and whose log ends at `last`, when 2 is known to have all up to
    /// `matched` and has just answered.
    fn leading(last: u64, matched: Option<u64>) -> RaftMetrics<TypeConfig> {
        let id = |index| RaftLogId::new(1.into(), index);
        let mut metrics = RaftMetrics::new_initial(1);
        let peers: BTreeMap<u64, Peer> = [1, 2].map(|replica| (replica, Peer::default())).into();
        let membership = RaftMembership::new(vec![BTreeSet::from([1])], peers).expect("a voter is a member");
        metrics.membership_config = Arc::new(RaftStoredMembership::new(Some(id(TAKEN_IN_AT)), membership));
        metrics.last_log_index = Some(last);
        metrics.replication = Some([(2, matched.map(id))].into());
        metrics.heartbeat = Some([(2, Some(InstantOf::<TypeConfig>::now().into()))].into());
        metrics
    }

    fn check(last: u64, matched: Option<u64>, needed: Needed, lagging: &[u64]) {
        let replicas = [1, 2].map(ReplicaId).into();
        let absent = absent(&leading(last, matched), &replicas, needed, LEASE).expect("it leads");
        let entries: Vec<_> = absent.lagging.iter().map(|lag| lag.entries).collect();
        assert_eq!(entries, lagging, "{matched:?} of {last}, which were taken in at {TAKEN_IN_AT}");
        assert!(absent.silent.is_empty(), "it has answered");
    }

    #[tokio::test]
    async fn a_replica_that_is_taken_in_again_has_caught_up_only_with_the_entry_that_takes_it_in() {
        let near = LAG_COUNT_MAX - 1;
        // The member was removed a moment ago and lacks next to nothing, but says that it is removed.
        check(TAKEN_IN_AT, Some(TAKEN_IN_AT - 1), Needed::NearlyAll, &[1]);
        check(TAKEN_IN_AT + near, Some(TAKEN_IN_AT - 1), Needed::NearlyAll, &[near + 1]);
        check(TAKEN_IN_AT, None, Needed::NearlyAll, &[TAKEN_IN_AT + 1]);
        check(TAKEN_IN_AT, Some(TAKEN_IN_AT), Needed::NearlyAll, &[]);
        // Beyond that, a few entries do not matter, and many do.
        check(TAKEN_IN_AT + LAG_COUNT_MAX, Some(TAKEN_IN_AT), Needed::NearlyAll, &[]);
        check(TAKEN_IN_AT + LAG_COUNT_MAX + 1, Some(TAKEN_IN_AT), Needed::NearlyAll, &[LAG_COUNT_MAX + 1]);
        check(TAKEN_IN_AT, None, Needed::Answer, &[]);
    }
}
