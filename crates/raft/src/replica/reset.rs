//! Forced recovery: a metadata group whose majority is lost for good goes on with the one replica that is
//! left, as it stands on the disk of a node that does not run. docs/forced-recovery.md says when and how.
//!
//! What the others had acknowledged and this replica does not have is lost; what it has that was never
//! committed becomes committed. The old members must never come back: votes and entries of theirs are refused
//! by the survivor, but where a majority of them finds together again, that is a second group.

use crate::Member;
use crate::adapter::encoding::{applied_from, entry_from_meta, entry_to_record, log_id_from};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{Data, Peer, RaftEntry, RaftMembership};
use crate::members::membership::Members;
use crate::replica::beginning::finish_install;
use crate::replica::begun_reset::settle_reset;
use crate::replica::identity::{Identity, LOST_MAX};
use crate::snapshot::newest_applied;
use crate::transport::protocol::PROTOCOL_VERSION;
use openraft::EntryPayload;
use prost::Message;
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, Failure};
use raftlog::{HardState, Log, LogSpace, LogSpec};
use rpc::{Connector, TcpConnector};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use types::{GroupId, LogId, LogIndex, ReplicaId, Term};

/// The time that a member that is said to be lost may take to say that it is not.
const ASK_MAX: Duration = Duration::from_secs(3);
/// Entries read at once while the log is searched for its members.
const SCAN_COUNT_MAX: usize = 1024;

/// The reason why a group is not reset. Nothing was changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResetError {
    #[error("{0} is a pipeline: it is closed and replaced, never reset")]
    FixedMembers(GroupId),
    #[error("no replica of {0} is on this disk, or nothing says which")]
    NoReplica(GroupId),
    /// The log is damaged, in use, or unreadable.
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
    #[error("{in_doubt:?} are said to be lost and may live: stop them for good first")]
    MayLive { in_doubt: Vec<Asked> },
    #[error("no more than {limit} lost replicas are remembered")]
    TooManyLost { limit: usize },
}

/// The plan of a reset: what it would do.
#[derive(Clone, Debug)]
pub struct ResetPlan {
    pub group: GroupId,
    pub survivor: Member,
    pub members: Members,
    /// The members that are given up.
    pub lost: Vec<Member>,
    /// The survivor's last entry: all up to here will be committed.
    pub last: LogId,
    /// The last entry that is known to have been committed; those after it may not have been.
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
    /// The newest membership there is.
    membership: RaftMembership,
}

fn log_failed(error: impl Display) -> ResetError {
    ResetError::Log { why: error.to_string() }
}

impl OfflineReplica {
    /// Opens a log as a start of its node would: a torn tail is cut, damage before it is refused, an install
    /// of a snapshot and a reset that were cut short are brought to an end.
    pub async fn open(
        group: GroupId,
        space: &Arc<LogSpace>,
        spec: LogSpec,
    ) -> Result<OfflineReplica, ResetError> {
        if group.kind.has_fixed_members() {
            return Err(ResetError::FixedMembers(group));
        }
        let identity = Identity::read(space.disk(), group).await.map_err(log_failed)?;
        let identity = identity.filter(|it| !it.is_being_removed()).ok_or(ResetError::NoReplica(group))?;
        let log = space.open(spec).await.map_err(log_failed)?;
        match open_settle(group, identity, space, &log).await {
            Ok((identity, membership)) => {
                Ok(OfflineReplica { group, identity, space: space.clone(), log, membership })
            }
            Err(error) => {
                log.close().await;
                Err(error)
            }
        }
    }

    /// Plans a reset with `lost` given up; or says why it is refused. A vote in a term that cannot have come
    /// about by `now_ms` is forgotten: nobody was elected in it, and whoever it was given to is given up.
    pub fn plan(&self, lost: &BTreeSet<ReplicaId>, now_ms: u64) -> Result<ResetPlan, ResetError> {
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
        let terms = TermLimit::at(now_ms);
        terms.check(last.term.0.saturating_add(1)).map_err(log_failed)?;
        let voted = state.hard_state.map_or(0, |state| state.vote_term);
        let voted = if terms.allows(Term(voted.saturating_add(1))) { voted } else { 0 };
        Ok(ResetPlan {
            group: self.group,
            survivor: members.get(replica).cloned().ok_or(ResetError::NoMembers)?,
            lost: others.iter().filter_map(|other| members.get(*other).cloned()).collect(),
            members,
            last,
            // What is purged was committed.
            committed: state.committed.max(state.purged),
            term: Term(voted.max(last.term.0) + 1),
        })
    }

    /// Makes the survivor the only member, durably on return. A crash or an error leaves the old members or
    /// the new one, and the call may be repeated, or not: until the entry that names the only member is
    /// durable, nothing is given up.
    pub async fn reset(self, plan: &ResetPlan, at_unix_ms: u64, reason: &str) -> Result<(), ResetError> {
        let OfflineReplica { mut identity, space, log, .. } = self;
        // The mark goes first: with the entries, the lost must be known before anybody is heard.
        identity.is_resetting = true;
        identity.write(space.disk()).await.map_err(log_failed)?;
        // A promise newer than any the replica gave: nobody else was elected in this term with its vote. It
        // is not that of an elected leader: where the reset is given up here, the replica must not take
        // itself for a leader of the old members.
        let (vote_term, vote_replica) = (plan.term.0, plan.survivor.replica.0);
        let vote = HardState { vote_term, vote_replica, vote_committed: false };
        log.save_hard_state(vote).await.map_err(log_failed)?;
        let entries = reset_entries(plan, at_unix_ms, reason)?;
        let token = log.append(entries).map_err(log_failed)?;
        token.durable().await.map_err(log_failed)?;
        settle_reset(identity, &log, space.disk()).await.map_err(log_failed)?;
        log.close().await;
        Ok(())
    }

    pub async fn close(self) {
        self.log.close().await;
    }
}

/// The record of what is done, and the membership after it. In this order: no log has the second without the
/// first.
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

/// Ends what was cut short, and finds the members: what the log says is newer than what a snapshot says, once
/// entries that a snapshot has overtaken are gone.
async fn open_settle(
    group: GroupId,
    identity: Identity,
    space: &Arc<LogSpace>,
    log: &Log,
) -> Result<(Identity, RaftMembership), ResetError> {
    let snapshot = newest_applied(space.disk(), group).await.map_err(log_failed)?;
    let whole = |error: anyhow::Error| log_failed(format!("{error:#}"));
    let at = snapshot.as_ref().map(|snapshot| snapshot.id);
    finish_install(log, at).await.map_err(whole)?;
    let identity = settle_reset(identity, log, space.disk()).await.map_err(whole)?;
    let membership = match (log_membership(log).await?, snapshot) {
        (Some(membership), _) => membership,
        (None, Some(snapshot)) => applied_from(&snapshot).map_err(log_failed)?.membership().clone(),
        (None, None) => return Err(ResetError::NoMembers),
    };
    Ok((identity, membership))
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

/// A member that is said to be lost, and its answer.
#[derive(Clone, Debug)]
pub struct Asked {
    pub member: Member,
    pub answer: ResetAnswer,
}

/// The answers, in the order of what they say against the loss of who gave them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResetAnswer {
    /// The machine at each of the addresses refuses the connection: it runs, and no process listens there.
    NobodyListens,
    /// No connection to an address comes about: a machine that is slow or cut off may be back any moment.
    NotReached { why: String },
    /// A process answers, and does not have the replica.
    NotThere,
    /// A connection came about, and no answer within [`ResetAnswer::WAITED_MAX`]: a process that hangs may go
    /// on.
    DidNotAnswer,
    /// A process has the replica, or cannot tell.
    IsThere,
}

impl ResetAnswer {
    pub const WAITED_MAX: Duration = ASK_MAX;
}

impl Display for ResetAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResetAnswer::NobodyListens => write!(f, "nobody listens there"),
            ResetAnswer::NotReached { why } => write!(f, "not reached ({why})"),
            ResetAnswer::NotThere => write!(f, "not there: a process answered that it does not have it"),
            ResetAnswer::DidNotAnswer => {
                let seconds = Self::WAITED_MAX.as_secs();
                write!(f, "did not answer within {seconds} s: make sure that it is dead and not slow")
            }
            ResetAnswer::IsThere => write!(f, "is there"),
        }
    }
}

impl ResetPlan {
    /// Asks the lost members, at the address their group knows and at `addresses`; answers of each what says
    /// most against its loss. `cluster`: the survivor's; empty when its disk does not say.
    pub async fn ask(&self, cluster: &str, addresses: &[String]) -> Vec<Asked> {
        let mut asked = Vec::new();
        for member in &self.lost {
            let mut answer = self.ask_at(member, cluster, &member.address).await;
            for address in addresses {
                if answer != ResetAnswer::IsThere {
                    answer = answer.max(self.ask_at(member, cluster, address).await);
                }
            }
            asked.push(Asked { member: member.clone(), answer });
        }
        asked
    }

    async fn ask_at(&self, member: &Member, cluster: &str, address: &str) -> ResetAnswer {
        if let Err(answer) = reach(address).await {
            return answer;
        }
        let not_reached = |why: &dyn Display| ResetAnswer::NotReached { why: format!("{address}: {why}") };
        let channel = match TcpConnector::default().connect(address) {
            Ok(channel) => channel,
            Err(error) => return not_reached(&error),
        };
        let request = wire::HelloRequest {
            group: self.group.to_u64(),
            replica: member.replica.0,
            cluster: cluster.to_owned(),
            version: PROTOCOL_VERSION,
        };
        let mut client = RaftTransportClient::new(channel);
        match tokio::time::timeout(ASK_MAX, client.hello(request)).await {
            Ok(Ok(answer)) if answer.get_ref().is_here => ResetAnswer::IsThere,
            Ok(Ok(_)) => ResetAnswer::NotThere,
            Ok(Err(status)) => match Failure::from(status).code {
                Code::WrongCluster => ResetAnswer::NotThere,
                // The address was reached a moment ago: whatever listens there is no member that runs as it
                // should.
                Code::Unavailable => not_reached(&"it breaks the connection"),
                _ => ResetAnswer::IsThere,
            },
            Err(_) => ResetAnswer::DidNotAnswer,
        }
    }
}

/// Refuses a reset unless every member that is said to be lost for good refused the connection: a process
/// that is silent may hang and go on, one that answers may be starting and about to open the replica, and a
/// machine that is not reached may be cut off. Were such a member taken for lost, a majority of the old
/// members could go on beside the survivor.
pub fn check_lost(asked: &[Asked]) -> Result<(), ResetError> {
    let in_doubt = asked.iter().filter(|asked| asked.answer != ResetAnswer::NobodyListens).cloned();
    let in_doubt: Vec<Asked> = in_doubt.collect();
    if in_doubt.is_empty() { Ok(()) } else { Err(ResetError::MayLive { in_doubt }) }
}

/// Connects to an address. `Err`: the answer, where no connection comes about.
async fn reach(address: &str) -> Result<(), ResetAnswer> {
    let not_reached = |why: &dyn Display| ResetAnswer::NotReached { why: format!("{address}: {why}") };
    let found = tokio::time::timeout(ASK_MAX, tokio::net::lookup_host(address)).await;
    let found = found.map_err(|_| not_reached(&"its name was not looked up in time"))?;
    let all = found.map_err(|error| not_reached(&error))?;
    let mut answer = not_reached(&"the name stands for no address");
    for (nth, one) in all.enumerate() {
        let refused = match tokio::time::timeout(ASK_MAX, TcpStream::connect(one)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => ResetAnswer::NobodyListens,
            Ok(Err(error)) => not_reached(&error),
            Err(_) => not_reached(&"no connection in time"),
        };
        // Of a name with several addresses, one that is silent is enough to doubt.
        answer = if nth == 0 { refused } else { answer.max(refused) };
    }
    Err(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::beginning::begin;
    use crate::replica::beginning::tests::{Site, first, id, knows_members, log_spec};
    use crate::snapshot::testing::GROUP;
    use disk::sim::{CrashPoint, Loss, SimDisk, SimOptions};

    const LOST: [ReplicaId; 2] = [ReplicaId(2), ReplicaId(3)];
    const NOW_MS: u64 = 1_700_000_000_000;

    async fn offline(site: &Site) -> OfflineReplica {
        OfflineReplica::open(GROUP, &site.space, log_spec()).await.expect("the log opens")
    }

    /// A crash between an install and the purge of the log, and then the majority is lost.
    #[tokio::test]
    async fn a_reset_goes_on_after_a_snapshot_that_is_ahead_of_the_log() {
        let site = Site::new();
        site.found().await;
        site.advance(6, id(5, 100)).await;
        site.snapshot(id(4, 5000)).await;
        let replica = offline(&site).await;
        let plan = replica.plan(&BTreeSet::from(LOST), NOW_MS).expect("it may be reset");
        assert_eq!((plan.last, plan.committed, plan.term), (id(4, 5000), Some(id(4, 5000)), Term(7)));
        replica.reset(&plan, 1, "test").await.expect("it is reset");
        let group = site.open(first()).await.expect("it opens");
        group
            .wait_applied(LogIndex(5002), Duration::from_secs(30))
            .await
            .expect("it elects itself and applies");
        assert_eq!(group.log().id_at(LogIndex(5002)).await.expect("the entry is there"), id(7, 5002));
        drop(group);
        site.host.close(GROUP).await;
    }

    /// The term was written by a release that took any number for one: there is none left to be elected in.
    #[tokio::test]
    async fn a_reset_forgets_a_term_that_cannot_have_come_about() {
        for term in [1 << 62, u64::MAX] {
            let site = Site::new();
            site.found().await;
            site.advance(term, id(5, 100)).await;
            let refused = site.open(first()).await.map(|_| ()).expect_err("nobody can be elected");
            assert!(refused.contains("forced-recovery.md"), "{refused}");
            let replica = offline(&site).await;
            let plan = replica.plan(&BTreeSet::from(LOST), NOW_MS).expect("it may be reset");
            assert_eq!(plan.term, Term(6));
            replica.reset(&plan, NOW_MS, "test").await.expect("it is reset");
            let group = site.open(first()).await.expect("it opens");
            let applied = group.wait_applied(LogIndex(102), Duration::from_secs(30)).await;
            applied.expect("it elects itself and applies");
            drop(group);
            site.host.close(GROUP).await;
        }
    }

    /// The entry that names the members is purged.
    #[tokio::test]
    async fn members_are_found_in_the_newest_snapshot_where_the_log_forgot_them() {
        let site = Site::new();
        site.found().await;
        site.advance(3, id(3, 100)).await;
        site.snapshot(id(1, 90)).await;
        let log = site.log().await;
        log.purge(id(1, 80)).await.expect("purged");
        log.close().await;
        drop(log);

        let replica = offline(&site).await;
        let plan = replica.plan(&BTreeSet::from(LOST), NOW_MS).expect("it may be reset");
        assert_eq!(plan.members.all, crate::snapshot::testing::members());
        replica.close().await;
        for _ in 0..2 {
            let group = site.open(first()).await.expect("it opens");
            knows_members(&group).await;
            assert_eq!(group.members().all, crate::snapshot::testing::members());
            assert_eq!(group.members().voter_sets, plan.members.voter_sets);
            drop(group);
            site.host.close(GROUP).await;
        }
    }

    /// Whoever gives up half way has a replica that listens to its group again.
    #[tokio::test]
    async fn a_reset_that_is_cut_short_and_not_repeated_gives_nobody_up() {
        let (mut step, mut undone, mut done) = (0, 0, 0);
        'steps: loop {
            for kind in 0..6 {
                let disk = SimDisk::new(SimOptions { seed: step, ..SimOptions::default() });
                let site = Site::on(Arc::new(disk.clone()));
                site.found().await;
                let replica = offline(&site).await;
                let plan = replica.plan(&BTreeSet::from(LOST), NOW_MS).expect("it may be reset");
                let at = disk.steps() + step;
                disk.crash_at(if kind % 2 == 0 { CrashPoint::Before(at) } else { CrashPoint::After(at) });
                let outcome = replica.reset(&plan, 1, "test").await;
                if !disk.is_down() {
                    outcome.expect("nothing stopped it");
                    break 'steps;
                }
                let loss = [Loss::AllUnsynced, Loss::Nothing, Loss::Random(step)][kind / 2];
                let disk = disk.lose_power(loss, SimOptions::default());
                let site = Site::on(Arc::new(disk));
                let replay = format!("step {step}, kind {kind}");
                let log = site.log().await;
                let begun = begin(&log, &site.disk, &first()).await.expect("it begins");
                let members = log_membership(&log).await.expect("read").expect("members");
                let is_done = members.voter_ids().eq([1]);
                assert_eq!(begun.lost, if is_done { LOST.to_vec() } else { Vec::new() }, "{replay}");
                let end = if is_done { 2 } else { 0 };
                assert_eq!(log.state().last.map(|last| last.index), Some(LogIndex(end)), "{replay}");
                let vote = log.state().hard_state;
                assert!(
                    vote.is_none_or(|vote| !vote.vote_committed),
                    "{replay}: nobody elected it: {vote:?}"
                );
                log.close().await;
                *(if is_done { &mut done } else { &mut undone }) += 1;
            }
            step += 1;
        }
        assert!(undone > 5 && done > 5, "{undone} undone, {done} done");
    }
}
