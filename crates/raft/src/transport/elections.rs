//! Answers of a replica to those who stand for election, hand their leadership over, or go on without it.

use crate::adapter::encoding::{log_id_checked, log_id_to_wire, vote_from_wire, vote_to_wire};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{RaftLogId, RaftVote};
use crate::group::Group;
use crate::members::dismissal::Dismissal;
use crate::members::standing::Standing;
use crate::open_groups::OpenGroups;
use crate::transport::append_check::check_sender;
use crate::transport::refusal::stopped;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{TransferLeaderError, TransferLeaderRequest, VoteRequest};
use proto::{Code, Failure, raft as wire};

pub(crate) async fn vote(
    open_groups: &OpenGroups,
    request: wire::VoteRequest,
) -> Result<wire::VoteResponse, Failure> {
    let group = open_groups.addressed(request.to.as_ref())?;
    let terms = group.terms();
    let vote = vote_from_wire(request.vote, terms)?;
    let last = last_checked(request.last, &vote, terms)?;
    let candidate = vote.leader_id.voted_for;
    check_sender(candidate, request.to.as_ref())?;
    // A leader that hands over has given up its lease before its successor asks.
    if group.standing().holds_off().is_some() && !request.leadership_transfer {
        let why = format!("{} was restarted here and may have promised its vote before", group.id());
        return Err(Failure::new(Code::NotYet, why));
    }
    let dismissal = dismissal_of(&group, candidate);
    if group.standing().is_lost(candidate) {
        return Ok(refused_vote(&group, dismissal));
    }
    // What dismissed this replica is passed on: those that were given up must not find together. A candidate
    // that is in that membership is one of the group's, and may need this vote: it hears what openraft says.
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

/// The end of a candidate's log, checked: nobody has an entry of a later term than the one it votes in.
fn last_checked(
    last: Option<wire::LogId>,
    vote: &RaftVote,
    terms: TermLimit,
) -> Result<Option<RaftLogId>, Failure> {
    let last = last.map(|last| log_id_checked(last, terms)).transpose()?;
    match &last {
        Some(id) if id.leader_id.term > vote.leader_id.term => {
            let (id, term) = (id.leader_id.term, vote.leader_id.term);
            Err(Failure::invalid(format!(
                "the message is of term {term}, its sender's last entry of term {id}"
            )))
        }
        _ => Ok(last),
    }
}

/// Refuses a replica that a forced reset gave up: it would overwrite what the group has done since.
pub(crate) fn check_not_lost(standing: &Standing, from: u64) -> Result<(), Failure> {
    if standing.is_lost(from) {
        let why = format!("replica {from} was given up when the group was reset: it must never come back");
        return Err(Failure::invalid(why));
    }
    Ok(())
}

/// The answer to a candidate that is no member any more, or that a forced reset gave up: nothing of its log
/// counts, and it is told of the membership that is without it.
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

/// The newest committed membership here, when the candidate is not in it. It is for the candidate to tell
/// whether it knows a newer one.
fn dismissal_of(group: &Group, candidate: u64) -> Option<Dismissal> {
    let metrics = group.raft().metrics();
    let metrics = metrics.borrow_watched();
    Dismissal::by(&metrics.committed_membership_config).filter(|dismissal| dismissal.is_of(candidate))
}

pub(crate) fn dismiss(
    open_groups: &OpenGroups,
    request: wire::DismissRequest,
) -> Result<wire::Empty, Failure> {
    let group = open_groups.addressed(request.to.as_ref())?;
    check_sender(request.from, request.to.as_ref())?;
    check_not_lost(group.standing(), request.from)?;
    let dismissal = request.dismissal.ok_or_else(|| Failure::invalid("the membership is not named"))?;
    group.standing().dismissed(Dismissal::from_wire(dismissal, group.terms())?);
    Ok(wire::Empty {})
}

pub(crate) async fn transfer_leader(
    open_groups: &OpenGroups,
    request: wire::TransferLeaderRequest,
) -> Result<wire::TransferLeaderResponse, Failure> {
    use wire::transfer_leader_response::Refused;
    let group = open_groups.addressed(request.to.as_ref())?;
    let terms = group.terms();
    let from = vote_from_wire(request.from_leader, terms)?;
    let last = last_checked(request.last, &from, terms)?;
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
