use crate::adapter::encoding::log_id_of;
use crate::adapter::type_config::{WriteError, WriteResponse, WriteResult, member_of};
use crate::{GroupStatus, ProposeError, Role};
use bytes::Bytes;
use openraft::errors::ForwardToLeader;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use types::LogId;

/// The time for which openraft's own answer (it may still be: applied) is awaited after leadership is lost.
const LAST_ANSWER_MAX: Duration = Duration::from_millis(500);

/// A command that was applied, with the state machine's answer.
#[derive(Clone, Debug)]
pub struct Done {
    pub id: LogId,
    pub reply: Bytes,
}

/// A command on its way.
#[must_use = "a proposal's outcome is in its future"]
pub struct Proposal {
    pub(crate) answer: oneshot::Receiver<WriteResult>,
    pub(crate) statuses: watch::Receiver<GroupStatus>,
}

impl Proposal {
    /// Resolves when the command was applied here, or when it is known that we cannot know.
    pub async fn done(mut self) -> Result<Done, ProposeError> {
        match self.answer().await? {
            Ok(result) => outcome(result),
            // The core stopped with the command in its queue or in its log.
            Err(_) => Err(ProposeError::OutcomeUnknown),
        }
    }

    /// openraft's answer, if it comes while the replica leads or shortly after.
    async fn answer(&mut self) -> Result<Result<WriteResult, oneshot::error::RecvError>, ProposeError> {
        loop {
            tokio::select! {
                biased;
                answer = &mut self.answer => return Ok(answer),
                () = leadership_lost(&mut self.statuses) => {}
            }
            if let Ok(answer) = tokio::time::timeout(LAST_ANSWER_MAX, &mut self.answer).await {
                return Ok(answer);
            }
            // A leader so new that its status came after the proposal goes on waiting.
            if self.statuses.borrow().role != Role::Leader {
                return Err(ProposeError::OutcomeUnknown);
            }
        }
    }
}

/// Resolves when the replica is seen not to lead. A replica that never led answers by itself, at once.
async fn leadership_lost(statuses: &mut watch::Receiver<GroupStatus>) {
    // Err: the group is gone, and with it its leadership.
    let _ = statuses.wait_for(|status| status.role != Role::Leader).await;
}

fn outcome(result: WriteResult) -> Result<Done, ProposeError> {
    match result {
        Ok(WriteResponse { log_id, data, .. }) => Ok(Done { id: log_id_of(&log_id), reply: data.0 }),
        // Refused before an entry was made of it.
        Err(WriteError::ForwardToLeader(ForwardToLeader { leader_id, leader_node, .. })) => {
            let leader = leader_id.zip(leader_node).map(|(replica, peer)| member_of(replica, &peer));
            Err(ProposeError::NotLeader { leader })
        }
        // The entry was cut from our log, but another member may have it and lead.
        Err(WriteError::LogEntryDiscarded(_)) => Err(ProposeError::OutcomeUnknown),
        // Only for changes of membership and conditional writes, which we never propose.
        Err(error @ (WriteError::ChangeMembershipError(_) | WriteError::PreconditionFailed(_))) => {
            Err(ProposeError::Stopped { why: error.to_string() })
        }
    }
}
