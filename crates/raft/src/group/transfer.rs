//! Leadership that goes from this member of a group to another.

use crate::group::Group;
use crate::members::membership::Needed;
use crate::{GroupStatus, Role, SetMembersError, TransferError};
use openraft::async_runtime::watch::WatchReceiver;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use types::ReplicaId;

impl Group {
    /// Hands leadership to another voter. The voter must have nearly the whole log: openraft takes no writes
    /// from the moment it tries, and does not give up by itself.
    pub async fn transfer_leader(&self, to: ReplicaId) -> Result<(), TransferError> {
        let status = self.status();
        if status.role != Role::Leader {
            return Err(TransferError::NotLeader { leader: status.leader });
        }
        let members = self.members();
        if members.get(to).is_none() {
            return Err(TransferError::NotMember { replica: to });
        }
        if !members.is_voter(to) {
            return Err(TransferError::Learner { replica: to });
        }
        self.doze().used();
        let stopped = |why: String| TransferError::Stopped { why };
        let within = Instant::now() + self.election_max();
        self.wait_there(&BTreeSet::from([to]), 1, Needed::NearlyAll, within).await.map_err(|error| {
            match error {
                SetMembersError::NotLeader { leader } => TransferError::NotLeader { leader },
                SetMembersError::Lagging { members } => TransferError::Lagging {
                    lag: *members.first().expect("one member was awaited, and it lags"),
                },
                SetMembersError::Silent { .. } => TransferError::Silent { replica: to },
                other => stopped(other.to_string()),
            }
        })?;
        let asked = self.raft().trigger().transfer_leader(to.0).await;
        asked.map_err(|fatal| stopped(fatal.to_string()))?;
        let is_moved =
            |status: &GroupStatus| status.leader.as_ref().is_some_and(|leader| leader.replica == to);
        let mut statuses = self.watch();
        match tokio::time::timeout_at(within, statuses.wait_for(is_moved)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(stopped("while its leadership moved".to_owned())),
            Err(_) => Err(TransferError::Expired { replica: to }),
        }
    }

    /// Hands leadership to the voter that has most of the log: on return this replica leads no more, if that
    /// one could take over within `limit`.
    pub async fn hand_over(&self, limit: Duration) {
        let target = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
            let members = metrics.replication.iter().flatten();
            let is_other_voter = |replica| voters.contains(replica) && *replica != self.replica().0;
            let others = members.filter(|(replica, _)| is_other_voter(replica));
            others.max_by_key(|(_, matched)| **matched).map(|(replica, _)| ReplicaId(*replica))
        };
        if let Some(target) = target {
            // The transfer is not a must: the others elect a leader without it, only later.
            if let Ok(Err(error)) = tokio::time::timeout(limit, self.transfer_leader(target)).await {
                tracing::debug!(group = %self.id(), %error, "leadership not handed over");
            }
        }
    }
}
