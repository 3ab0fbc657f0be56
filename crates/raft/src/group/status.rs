use crate::Member;
use crate::adapter::machine::Raft;
use crate::adapter::type_config::{RaftStoredMembership, TypeConfig, member_of};
use crate::members::standing::Standing;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal;
use openraft::{RaftMetrics, ServerState};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::watch;
use types::{LogIndex, ReplicaId, Term};

/// The reason for a stop that openraft does not tell, as its task panicked.
const PANICKED: &str = "its task panicked; the process's log says where";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Leader,
    Follower,
    Candidate,
    Learner,
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    pub role: Role,
    pub term: Term,
    pub leader: Option<Member>,
    pub last: Option<LogIndex>,
    pub committed: Option<LogIndex>,
    pub applied: Option<LogIndex>,
    /// Whether the group goes on without this replica, as another member told or a committed entry says. It
    /// stands for no election any more; what it has may be removed ([`crate::RaftHost::remove`]).
    pub is_removed: bool,
    /// Whether the group dozes: nobody used it for a while ([`crate::HostOptions::doze_after`]).
    pub is_dozing: bool,
    /// The members that the log of this leader can no longer bring up to date, in a group without snapshots:
    /// they are lost. Told by [`crate::Group::status`] alone.
    pub unserved: BTreeSet<ReplicaId>,
    /// The reason why the group stopped by itself, if it did.
    pub failure: Option<String>,
}

impl Role {
    /// The role's name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Stopped => "stopped",
        }
    }
}

impl GroupStatus {
    /// The reason why the group serves nobody through this replica now, as far as its status tells.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        match (&self.failure, self.role, &self.leader) {
            (Some(failure), ..) => Err(format!("its group stopped: {failure}")),
            (None, Role::Stopped, _) => Err("its group stopped".to_owned()),
            (None, _, None) => Err("its group has no leader".to_owned()),
            (None, _, Some(_)) => Ok(()),
        }
    }

    /// Entries that are committed, as far as is known here, and not applied.
    pub fn lag(&self) -> u64 {
        let after = |index: Option<LogIndex>| index.map_or(0, |index| index.0 + 1);
        after(self.committed).saturating_sub(after(self.applied))
    }

    pub(crate) fn of(metrics: &RaftMetrics<TypeConfig>, standing: &Standing) -> GroupStatus {
        let (is_running, failure) = match &metrics.running_state {
            Ok(()) => (true, None),
            Err(Fatal::Stopped) => (false, standing.contradiction()),
            Err(fatal) => (false, Some(fatal.to_string())),
        };
        let role = if is_running { role_of(metrics.state) } else { Role::Stopped };
        let leader = metrics.current_leader.filter(|_| is_running);
        GroupStatus {
            role,
            term: Term(metrics.current_term),
            leader: leader.and_then(|leader| member(&metrics.membership_config, leader)),
            last: metrics.last_log_index.map(LogIndex),
            committed: metrics.cluster_committed.as_ref().map(|id| LogIndex(id.index)),
            applied: metrics.last_applied.as_ref().map(|id| LogIndex(id.index)),
            is_removed: is_removed(metrics, standing),
            is_dozing: false,
            unserved: BTreeSet::new(),
            failure,
        }
    }
}

fn is_removed(metrics: &RaftMetrics<TypeConfig>, standing: &Standing) -> bool {
    let committed = &metrics.committed_membership_config;
    // A newer membership that has it, committed or not, is of a group that takes it in again.
    let is_in_newest = metrics.membership_config.get_node(&metrics.id).is_some();
    let is_left_out = standing.is_left_out(committed) && !is_in_newest;
    is_left_out || standing.is_dismissed(metrics.membership_config.log_id())
}

fn role_of(state: ServerState) -> Role {
    match state {
        ServerState::Leader => Role::Leader,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Learner => Role::Learner,
        ServerState::Shutdown => Role::Stopped,
    }
}

fn member(membership: &RaftStoredMembership, replica: u64) -> Option<Member> {
    membership.get_node(&replica).map(|peer| member_of(replica, peer))
}

/// The sender of a group's status. Its last word, however it ends, is that the group has stopped: who does
/// something while this replica leads would go on for ever with what it said before.
pub(crate) struct Statuses(pub(crate) watch::Sender<GroupStatus>);

impl Drop for Statuses {
    fn drop(&mut self) {
        self.0.send_if_modified(|status| {
            let is_news = status.role != Role::Stopped;
            (status.role, status.leader) = (Role::Stopped, None);
            is_news
        });
    }
}

/// Publishes changes of role, term, leader, removal or failure until the group has stopped, and tells
/// openraft whether the replica stands for election.
pub(crate) async fn publish(raft: Raft, standing: Arc<Standing>, statuses: Statuses) {
    let mut server = raft.server_metrics();
    let metrics = raft.metrics();
    let mut dismissed = standing.watch();
    loop {
        let is_over = tokio::select! {
            changed = server.changed() => changed.is_err(),
            Ok(()) = dismissed.changed() => false,
            () = standing.held_off() => false,
        };
        let mut status = {
            let metrics = metrics.borrow_watched();
            standing.decide(&raft, metrics.membership_config.log_id());
            GroupStatus::of(&metrics, &standing)
        };
        if is_over {
            if status.role != Role::Stopped {
                status.failure = Some(PANICKED.to_owned());
            }
            status.role = Role::Stopped;
            status.leader = None;
        } else {
            // The two channels are written one after the other; the one that woke us has the news.
            let server = server.borrow_watched();
            status.term = Term(server.vote.leader_id.term);
            status.leader =
                server.current_leader.and_then(|leader| member(&server.membership_config, leader));
            status.role = role_of(server.state);
        }
        statuses.0.send_if_modified(|old| {
            let key = |status: &GroupStatus| {
                (status.role, status.term, status.leader.clone(), status.is_removed, status.failure.clone())
            };
            let is_news = key(old) != key(&status);
            *old = status;
            is_news
        });
        if is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::beginning::tests::{Site, first, knows_members};

    #[tokio::test(start_paused = true)]
    async fn one_whose_task_panicked_says_so() {
        let site = Site::new();
        let group = site.open(first()).await.expect("it opens");
        knows_members(&group).await;
        let mut statuses = group.watch();
        group.raft().external_request(|_| panic!("meant")).await.expect("it is asked");
        let stopped = statuses.wait_for(|status| status.role == Role::Stopped).await;
        let failure = stopped.expect("its last word stays").failure.clone().expect("a reason");
        assert!(failure.contains("panicked"), "{failure}");
        assert_eq!(group.status().failure, Some(failure));
        site.host.close(group.id()).await;
    }

    /// A member that led, and let go of its pipeline, tried to roll it until its process ended.
    #[tokio::test(start_paused = true)]
    async fn the_last_word_is_that_it_stopped_whatever_ends_the_task_that_says_so() {
        let site = Site::new();
        let group = site.open(first()).await.expect("it opens");
        knows_members(&group).await;
        let (statuses, told) = watch::channel(GroupStatus { role: Role::Leader, ..group.status() });
        drop(Statuses(statuses));
        assert_eq!((told.borrow().role, told.borrow().leader.clone()), (Role::Stopped, None));
        site.host.close(group.id()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_told_to_stop_has_no_failure() {
        let site = Site::new();
        let group = site.open(first()).await.expect("it opens");
        knows_members(&group).await;
        site.host.close(group.id()).await;
        assert_eq!((group.status().role, group.status().failure), (Role::Stopped, None));
    }
}
