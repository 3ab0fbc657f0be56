//! The checks of what a leader sends, before openraft has it.

use crate::adapter::encoding::{entry_from_wire, log_id_from_wire, log_id_of, vote_from_wire};
use crate::adapter::machine::Raft;
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{RaftVote, TypeConfig};
use crate::group::Group;
use crate::members::standing::Standing;
use crate::transport::append_check::{append_check, check_fixed_members, contradiction};
use crate::transport::elections::check_not_lost;
use crate::transport::processes::Processes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use proto::{Code, Failure, raft as wire};
use raftlog::LogSpace;
use std::sync::Arc;
use types::{Clock, GroupId, LogId};

/// Takes messages of one sender. Of the group it has only what does not keep the log open.
pub(super) struct Taker {
    pub(super) raft: Raft,
    space: Arc<LogSpace>,
    pub(super) standing: Arc<Standing>,
    clock: Arc<dyn Clock>,
    pub(super) group: GroupId,
    pub(super) cluster: Arc<str>,
    pub(super) processes: Arc<Processes>,
}

impl Taker {
    pub(super) fn new(group: &Group) -> Taker {
        Taker {
            raft: group.raft().clone(),
            space: group.log().space().clone(),
            standing: group.standing().clone(),
            clock: group.clock().clone(),
            group: group.id(),
            cluster: group.shared_cluster(),
            processes: group.processes().clone(),
        }
    }

    pub(super) fn take(
        &self,
        message: wire::AppendRequest,
        to: &Option<wire::Address>,
    ) -> Result<AppendEntriesRequest<TypeConfig>, Failure> {
        if message.to != *to {
            return Err(Failure::invalid("messages of one stream are for one replica"));
        }
        let vote = vote_from_wire(message.vote, TermLimit::now(&*self.clock))?;
        append_check(&message)?;
        self.check_history(&message, &vote)?;
        check_not_lost(&self.standing, vote.leader_id.voted_for)?;
        let bytes = message.entries.iter().map(|entry| entry.meta.len() + entry.body.len()).sum();
        if !message.entries.is_empty()
            && let Err(full) = self.space.check_space(bytes)
        {
            // The sender pauses and tries again. In openraft this would end the group for good.
            return Err(Failure::new(Code::DiskFull, full.to_string()));
        }
        let entries = message.entries.into_iter().map(entry_from_wire).collect::<Result<Vec<_>, _>>()?;
        if self.group.kind.has_fixed_members() {
            check_fixed_members(&entries)?;
        }
        Ok(AppendEntriesRequest {
            vote,
            prev_log_id: message.prev.map(log_id_from_wire),
            entries,
            leader_commit: message.committed.map(log_id_from_wire),
        })
    }

    /// Refuses what contradicts the history that is known here. A pipeline is replaced when a member stops,
    /// so the leader that is named is asked whether it leads another history. Groups of SCM and OM are not
    /// replaced, and each member goes on with what it has.
    fn check_history(&self, message: &wire::AppendRequest, vote: &RaftVote) -> Result<(), Failure> {
        let (known, committed) = self.known();
        let contradicts = contradiction(message, committed);
        // A leader that was deposed may not have heard of what was committed since.
        let is_of_now = vote.leader_id.term >= known.leader_id.term;
        if self.group.kind.has_fixed_members() && is_of_now {
            let two = super::other_history::two_leaders(&known, vote);
            if let Some(why) = two.or_else(|| contradicts.clone()) {
                self.ask_leader(*vote);
                return Err(Failure::invalid(why));
            }
        }
        contradicts.map_or(Ok(()), |why| Err(Failure::invalid(why)))
    }

    /// The vote of this replica, and what it knows to be committed.
    pub(super) fn known(&self) -> (RaftVote, Option<LogId>) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (metrics.vote, metrics.local_committed.as_ref().map(log_id_of))
    }
}
