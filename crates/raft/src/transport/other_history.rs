//! A leader of another history than this member's, which members with other disks than they had, or without
//! them, can elect. A member of a pipeline that finds one stops, so that its pipeline is replaced and
//! somebody is told: if it only refused, it would look like a follower that has everything.
//!
//! A message proves nothing, as strangers send messages too. So whom it names is asked, at the address where
//! the group has it: the member stops when that one leads as the message says, is heard by a majority, and
//! has something else than what is committed here.

use crate::Member;
use crate::Role;
use crate::adapter::encoding::vote_to_wire;
use crate::adapter::type_config::{RaftVote, member_of};
use crate::group::Group;
use crate::open_groups::OpenGroups;
use crate::transport::protocol;
use crate::transport::taker::Taker;
use openraft::async_runtime::watch::WatchReceiver;
use proto::{Failure, raft as wire};
use std::time::Duration;
use tracing::info;
use types::{LogId, LogIndex};

/// The time for an answer. The leader that spoke speaks again soon, and is asked again.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The contradiction between two votes that each led one term. A disk that came back with old votes lets a
/// term have two leaders, and openraft, which tells terms apart by their numbers alone, would take the
/// entries of one for those of the other.
pub(super) fn two_leaders(known: &RaftVote, vote: &RaftVote) -> Option<String> {
    let is_same_term = known.leader_id.term == vote.leader_id.term;
    let are_two = known.leader_id.voted_for != vote.leader_id.voted_for;
    let (term, leader, other) = (vote.leader_id.term, known.leader_id.voted_for, vote.leader_id.voted_for);
    (known.committed && vote.committed && is_same_term && are_two).then(|| {
        format!("term {term} was led by replica {leader}, and is by replica {other}: a disk came back with old votes")
    })
}

/// The proof, in words, that the leader of this vote has another history than what is known here, by its own
/// answer. What it has purged, it has applied: that proves nothing.
fn proof(
    (known, committed): (RaftVote, Option<LogId>),
    vote: &RaftVote,
    answer: &wire::LeadResponse,
) -> Option<String> {
    if answer.leads != Some(vote_to_wire(vote)) {
        return None;
    }
    let lacks = |committed: LogId| {
        let LogId { term, index } = committed;
        let there = match (&answer.at, &answer.last) {
            (Some(at), _) if at.term != term.0 => format!("has one of term {} there", at.term),
            (_, Some(last)) if last.index < index.0 => format!("ends with entry {}", last.index),
            (_, None) => "has no entry".to_owned(),
            _ => return None,
        };
        let (replica, its_term) = (vote.leader_id.voted_for, vote.leader_id.term);
        Some(format!(
            "entry {index} of term {term} is committed here, and replica {replica}, which leads term {its_term}, {there}: \
             members of the group came back without what they had"
        ))
    };
    two_leaders(&known, vote).or_else(|| committed.and_then(lacks))
}

impl Taker {
    fn member(&self, replica: u64) -> Option<Member> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&replica).map(|peer| member_of(replica, peer))
    }

    /// Asks in the background, one question at a time, whether the leader of this vote has another history.
    /// The group stops when the answer proves it.
    pub(super) fn ask_leader(&self, vote: RaftVote) {
        let Some(leader) = self.member(vote.leader_id.voted_for) else { return };
        let Some(turn) = self.standing.turn_to_ask() else { return };
        let group = self.group;
        let process = match self.processes.of(&leader) {
            Ok(process) => process,
            Err(why) => {
                return info!(%group, leader = leader.replica.0, %why, "ask a leader of another history");
            }
        };
        let ((_, committed), raft, standing) = (self.known(), self.raft.clone(), self.standing.clone());
        let index = committed.map_or(0, |committed| committed.index.0);
        let to = Some(protocol::address(group, leader.replica, &self.cluster));
        tokio::spawn(async move {
            let _turn = turn;
            let mut client = process.control();
            let asked = client.lead(wire::LeadRequest { to, index });
            let answer = match tokio::time::timeout(ANSWER_MAX, asked).await {
                Ok(Ok(answer)) => answer.into_inner(),
                Ok(Err(status)) => {
                    let why = Failure::from(status);
                    return info!(%group, leader = leader.replica.0, %why, "what seems to lead another history does not say so");
                }
                Err(_) => {
                    return info!(%group, leader = leader.replica.0, "what seems to lead another history does not answer");
                }
            };
            let known = raft.metrics().borrow_watched().vote;
            if let Some(why) = proof((known, committed), &vote, &answer)
                && standing.contradict(why)
            {
                let _ = raft.shutdown().await;
            }
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
    let leads = leading(&group);
    let at = group.log().id_at(LogIndex(request.index)).await.ok();
    let log = group.log().state();
    Ok(wire::LeadResponse { leads, at: at.map(to_wire), last: log.last.max(log.purged).map(to_wire) })
}

/// The vote by which this replica leads. openraft's metrics alone keep that of a leader that was restarted,
/// or stopped.
fn leading(group: &Group) -> Option<wire::Vote> {
    let leads = group.status().role == Role::Leader && group.hears_majority();
    let vote = group.raft().metrics().borrow_watched().vote;
    let is_own = vote.committed && vote.leader_id.voted_for == group.replica().0;
    (leads && is_own).then(|| vote_to_wire(&vote))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Term;

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
    fn a_leader_proves_it_by_what_it_has_and_not_by_what_others_send_in_its_name() {
        let vote = RaftVote::new_committed(5, 2);
        let id = |(term, index)| wire::LogId { term, index };
        let proves = |known: RaftVote, leads: Option<RaftVote>, at: Option<(u64, u64)>, last: (u64, u64)| {
            let committed = Some(LogId { term: Term(3), index: LogIndex(10) });
            let leads = leads.as_ref().map(vote_to_wire);
            let answer = wire::LeadResponse { leads, at: at.map(id), last: Some(id(last)) };
            proof((known, committed), &vote, &answer).is_some()
        };
        let known = RaftVote::new_committed(4, 1);
        assert!(proves(known, Some(vote), Some((5, 10)), (5, 12)), "another entry");
        assert!(proves(known, Some(vote), None, (5, 9)), "no entry");
        assert!(!proves(known, Some(vote), Some((3, 10)), (5, 12)), "it has what is committed");
        assert!(!proves(known, Some(vote), None, (5, 12)), "it has purged it");
        assert!(
            !proves(known, Some(RaftVote::new_committed(4, 2)), None, (5, 9)),
            "it leads in another term"
        );
        assert!(!proves(known, None, None, (5, 9)), "it does not lead");
        assert!(proves(RaftVote::new_committed(5, 1), Some(vote), Some((3, 10)), (5, 12)), "a second leader");
    }
}
