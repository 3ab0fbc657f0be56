//! A leader of another history than this member's, which members with other disks than they had, or without
//! them, can elect. A member of a pipeline that finds one stops, so that its pipeline is replaced and somebody
//! is told: if it only refused, it would look like a follower that has everything.
//!
//! A message proves nothing, as strangers send messages too. So whom it names is asked, at the address where the
//! group has it: the member stops when that one leads as the message says, and what it has contradicts what is
//! committed here.

use crate::Member;
use crate::adapter::encoding::{vote_from_wire, vote_to_wire};
use crate::adapter::machine::Raft;
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{RaftVote, member_of};
use crate::group::Group;
use crate::members::standing::Standing;
use crate::open_groups::OpenGroups;
use crate::transport::append_check::contradiction;
use crate::transport::processes::Processes;
use crate::transport::protocol;
use openraft::async_runtime::watch::WatchReceiver;
use proto::{Failure, raft as wire};
use std::sync::Arc;
use std::time::Duration;
use types::{Clock, GroupId, LogId, LogIndex};

/// The time for an answer. The leader that spoke speaks again soon, and is asked again.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A contradiction between what a member knows and a message of a leader that was elected no earlier.
pub(crate) fn contradiction_of(
    known: &RaftVote,
    vote: &RaftVote,
    message: &wire::AppendRequest,
    committed: Option<LogId>,
) -> Option<String> {
    let is_current = vote.committed && vote.leader_id.term >= known.leader_id.term;
    let contradicts = || contradiction(message, committed).filter(|_| is_current);
    two_leaders(known, vote).or_else(contradicts)
}

/// The contradiction between two votes that each led one term. A disk that came back with old votes lets a term
/// have two leaders, and openraft, which tells terms apart by their numbers alone, would take the entries of one
/// for those of the other.
fn two_leaders(known: &RaftVote, vote: &RaftVote) -> Option<String> {
    let is_same_term = known.leader_id.term == vote.leader_id.term;
    let are_two = known.leader_id.voted_for != vote.leader_id.voted_for;
    let (term, leader, other) = (vote.leader_id.term, known.leader_id.voted_for, vote.leader_id.voted_for);
    (known.committed && vote.committed && is_same_term && are_two).then(|| {
        format!("term {term} was led by replica {leader}, and is by replica {other}: a disk came back with old votes")
    })
}

/// A leader whose message contradicts what is known here.
pub(crate) struct Suspicion {
    pub(crate) vote: RaftVote,
    pub(crate) committed: Option<LogId>,
    pub(crate) why: String,
}

impl Suspicion {
    /// Whether the answer of the leader that was named says so too. What it has purged, it has applied: that
    /// proves nothing.
    fn is_proven_by(&self, known: &RaftVote, answer: &wire::LeadResponse, terms: TermLimit) -> bool {
        let leads = vote_from_wire(answer.vote, terms).is_ok_and(|vote| vote == self.vote);
        let lacks_what_is_committed = self.committed.is_some_and(|committed| {
            let is_shorter = answer.last.is_none_or(|last| last.index < committed.index.0);
            let has_another = answer.at.is_some_and(|at| at.term != committed.term.0);
            is_shorter || has_another
        });
        leads && (two_leaders(known, &self.vote).is_some() || lacks_what_is_committed)
    }
}

/// What it takes to ask a leader and to stop, of which nothing keeps the group's log open.
pub(crate) struct AskLeader {
    group: GroupId,
    cluster: Arc<str>,
    raft: Raft,
    processes: Arc<Processes>,
    standing: Arc<Standing>,
    clock: Arc<dyn Clock>,
}

impl AskLeader {
    pub(crate) fn new(group: &Group) -> AskLeader {
        AskLeader {
            group: group.id(),
            cluster: group.shared_cluster(),
            raft: group.raft().clone(),
            processes: group.processes().clone(),
            standing: group.standing().clone(),
            clock: group.clock().clone(),
        }
    }

    fn member(&self, replica: u64) -> Option<Member> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&replica).map(|peer| member_of(replica, peer))
    }

    /// Asks in the background, one question at a time, and stops the group when the answer proves it.
    pub(crate) fn ask(&self, suspicion: Suspicion) {
        let Some(leader) = self.member(suspicion.vote.leader_id.voted_for) else { return };
        let Some(turn) = self.standing.turn_to_ask() else { return };
        let AskLeader { raft, standing, clock, .. } = self;
        let (raft, standing, terms) = (raft.clone(), standing.clone(), TermLimit::now(&**clock));
        let Ok(process) = self.processes.of(&leader) else { return };
        let index = suspicion.committed.map_or(0, |committed| committed.index.0);
        let to = Some(protocol::address(self.group, leader.replica, &self.cluster));
        tokio::spawn(async move {
            let mut client = process.control();
            let asked = tokio::time::timeout(ANSWER_MAX, client.lead(wire::LeadRequest { to, index })).await;
            let Ok(Ok(answer)) = asked else { return };
            let known = raft.metrics().borrow_watched().vote;
            if suspicion.is_proven_by(&known, answer.get_ref(), terms) && standing.contradict(suspicion.why) {
                let _ = raft.shutdown().await;
            }
            drop(turn);
        });
    }
}

/// Answers whether this replica leads, and what it has at an index.
pub(crate) async fn lead(
    open_groups: &OpenGroups,
    request: wire::LeadRequest,
) -> Result<wire::LeadResponse, Failure> {
    let group = open_groups.addressed(request.to.as_ref())?;
    let to_wire = |id: LogId| wire::LogId { term: id.term.0, index: id.index.0 };
    let at = group.log().id_at(LogIndex(request.index)).await.ok();
    let log = group.log().state();
    let vote = group.raft().metrics().borrow_watched().vote;
    Ok(wire::LeadResponse {
        vote: Some(vote_to_wire(&vote)),
        at: at.map(to_wire),
        last: log.last.max(log.purged).map(to_wire),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{LogIndex, Term};

    #[test]
    fn a_term_has_one_leader() {
        let check = |known: RaftVote, vote: RaftVote, expect: bool| {
            assert_eq!(two_leaders(&known, &vote).is_none(), expect, "{known} {vote}");
        };
        let led = RaftVote::new_committed;
        check(led(3, 1), led(3, 1), true);
        check(led(3, 1), led(4, 2), true);
        check(led(3, 1), led(2, 2), true);
        check(RaftVote::new(3, 1), led(3, 2), true);
        check(led(3, 1), led(3, 2), false);
    }

    #[test]
    fn a_newer_leader_without_what_is_committed_is_of_another_history_and_a_deposed_one_is_not() {
        let id = |(term, index)| wire::LogId { term, index };
        let says = |vote: RaftVote, prev, committed| {
            let message = wire::AppendRequest {
                prev: Some(id(prev)),
                committed: Some(id(committed)),
                ..wire::AppendRequest::default()
            };
            let settled = LogId { term: Term(3), index: LogIndex(10) };
            contradiction_of(&RaftVote::new_committed(4, 1), &vote, &message, Some(settled)).is_some()
        };
        assert!(says(RaftVote::new_committed(5, 2), (5, 9), (5, 9)), "it goes on before what is committed");
        assert!(says(RaftVote::new_committed(5, 2), (2, 8), (4, 9)), "it has committed something else");
        assert!(!says(RaftVote::new_committed(5, 2), (2, 8), (3, 10)));
        assert!(!says(RaftVote::new_committed(3, 2), (2, 11), (2, 9)), "it was deposed");
        assert!(!says(RaftVote::new(5, 2), (5, 9), (5, 9)), "it is not elected");
    }

    #[test]
    fn a_leader_proves_it_by_what_it_has_and_not_by_what_others_send_in_its_name() {
        let vote = RaftVote::new_committed(5, 2);
        let id = |(term, index)| wire::LogId { term, index };
        let proves = |known: RaftVote, leads: RaftVote, at: Option<(u64, u64)>, last: (u64, u64)| {
            let suspicion = Suspicion {
                vote,
                committed: Some(LogId { term: Term(3), index: LogIndex(10) }),
                why: String::new(),
            };
            let vote = Some(vote_to_wire(&leads));
            let answer = wire::LeadResponse { vote, at: at.map(id), last: Some(id(last)) };
            suspicion.is_proven_by(&known, &answer, TermLimit::now(&types::SystemClock))
        };
        let known = RaftVote::new_committed(4, 1);
        assert!(proves(known, vote, Some((5, 10)), (5, 12)), "another entry");
        assert!(proves(known, vote, None, (5, 9)), "no entry");
        assert!(!proves(known, vote, Some((3, 10)), (5, 12)), "it has what is committed");
        assert!(!proves(known, vote, None, (5, 12)), "it has purged it");
        assert!(!proves(known, RaftVote::new_committed(4, 2), None, (5, 9)), "it leads in another term");
        assert!(!proves(known, RaftVote::new(5, 2), None, (5, 9)), "it does not lead");
        assert!(proves(RaftVote::new_committed(5, 1), vote, Some((3, 10)), (5, 12)), "a second leader");
    }
}
