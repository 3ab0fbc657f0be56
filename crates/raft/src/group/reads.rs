//! Linearizable reads, on any member of a group: docs/adr/0005-reads-by-lease.md.

use crate::adapter::encoding::{member_from_wire, member_to_wire};
use crate::adapter::type_config::{TypeConfig, member_of};
use crate::group::Group;
use crate::group::waiting::WaitError;
use crate::open_groups::OpenGroups;
use crate::{GroupStatus, Member, ReadIndexError, Role};
use futures::TryFutureExt;
use openraft::errors::{ForwardToLeader, LinearizableReadError, RaftError};
use openraft::raft::linearizable_read::LinearizerOption;
use planted::Bug;
use proto::{Code, Failure, raft as wire};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use types::{LogIndex, ReplicaId};
use wire::read_index_response::Result as Answer;

/// The ways in which a leader makes sure that it still leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPolicy {
    /// The leader asks a quorum.
    Index,
    /// The leader relies on what a quorum promised it not long ago, where the group allows that
    /// ([`crate::GroupSpec`]), and else asks.
    Lease,
}

/// The share of a follower's promise that the leader relies on. The rest is for clocks that do not run alike:
/// they may differ by a ninth of the leader's time before a promise ends too soon, and real ones differ by
/// less than a thousandth.
const LEASE_SHARE: (u32, u32) = (9, 10);

impl Group {
    /// Waits until this replica's state machine has applied everything that was acknowledged before the call,
    /// no longer than two elections take. On any member.
    pub async fn read_index(&self) -> Result<LogIndex, ReadIndexError> {
        self.read_soon(ReadPolicy::Index).await
    }

    /// Does what [`Group::read_index`] does, with a choice of how the leader is confirmed.
    pub async fn read_soon(&self, policy: ReadPolicy) -> Result<LogIndex, ReadIndexError> {
        self.read(policy, Instant::now() + 2 * self.election_max()).await
    }

    /// Does what [`Group::read_soon`] does, until a deadline. Where no leader is known, or the one that
    /// answers leads no more, the caller may try again.
    pub async fn read(&self, policy: ReadPolicy, deadline: Instant) -> Result<LogIndex, ReadIndexError> {
        let asked = tokio::time::timeout_at(deadline, self.read_position(policy)).await;
        let index = asked.map_err(|_| ReadIndexError::Expired)??;
        match self.wait_applied_until(index, deadline).await {
            Ok(()) => Ok(index),
            Err(WaitError::Expired) => Err(ReadIndexError::Expired),
            Err(WaitError::Busy { limit }) => Err(ReadIndexError::Busy { limit }),
            Err(WaitError::Stopped) => Err(ReadIndexError::Stopped { why: "it was closed".to_owned() }),
        }
    }

    /// The last entry that must be applied before a read that begins at this moment.
    async fn read_position(&self, policy: ReadPolicy) -> Result<LogIndex, ReadIndexError> {
        if self.other_leader(&self.status()).is_none() {
            return self.confirm_leader(policy).await;
        }
        let _permit = self.read_permit()?;
        let group = self.clone();
        let asked = match policy {
            ReadPolicy::Index => &self.leader_asked().by_index,
            ReadPolicy::Lease => &self.leader_asked().by_lease,
        };
        asked.join(async move { group.ask_leader(policy).await }).await
    }

    /// The leader, where that is another replica.
    fn other_leader(&self, status: &GroupStatus) -> Option<Member> {
        let is_other = |leader: &&Member| status.role != Role::Leader && leader.replica != self.replica();
        status.leader.as_ref().filter(is_other).cloned()
    }

    /// Asks the leader, and where it is replaced meanwhile its successor: a leader that is paused may not
    /// answer for long. One that stays is asked again after a while: all who read here wait for its answer,
    /// and a call may be swallowed.
    async fn ask_leader(&self, policy: ReadPolicy) -> Result<LogIndex, ReadIndexError> {
        let mut statuses = self.watch();
        loop {
            let leader = self.other_leader(&statuses.borrow_and_update());
            let Some(asked) = &leader else { return self.confirm_leader(policy).await };
            let is_replaced = |status: &GroupStatus| self.other_leader(status) != leader;
            tokio::select! {
                answer = timeout(self.election_max(), self.read_position_of(asked, policy)) => {
                    if let Ok(answer) = answer {
                        return answer;
                    }
                }
                replaced = statuses.wait_for(is_replaced).map_ok(drop) => {
                    replaced.map_err(|_| ReadIndexError::Stopped { why: "it was closed".to_owned() })?;
                }
            }
        }
    }

    /// Makes sure that this replica leads, and answers the last entry that a read must have applied. Leader
    /// only.
    pub(crate) async fn confirm_leader(&self, policy: ReadPolicy) -> Result<LogIndex, ReadIndexError> {
        let index = self.confirm_leader_by(policy).await?;
        // A leader that takes itself out relies on voters among which it is not, and one that is left alone
        // needs nobody's vote: it is elected in spite of what it promised. Looked at after the answer: nobody
        // but the leader knows of the new voters before.
        if policy == ReadPolicy::Lease && !self.members().is_voter(self.replica()) {
            return self.confirm_leader_by(ReadPolicy::Index).await;
        }
        Ok(index)
    }

    async fn confirm_leader_by(&self, policy: ReadPolicy) -> Result<LogIndex, ReadIndexError> {
        // openraft, asked to, would still rely on no promise that is older than its own lease.
        if policy == ReadPolicy::Lease
            && planted::has(Bug::LeasesNotChecked)
            && let GroupStatus { role: Role::Leader, committed: Some(committed), .. } = self.status()
        {
            return Ok(committed);
        }
        let option = match policy {
            ReadPolicy::Lease if self.lease_reads() => {
                let (share, of) = LEASE_SHARE;
                LinearizerOption::new(Some(self.election_max() * share / of), true)
            }
            ReadPolicy::Lease | ReadPolicy::Index => LinearizerOption::new(Some(Duration::ZERO), true),
        };
        // What waits in openraft has no limit of its own.
        let _permit = self.read_permit()?;
        match self.raft().get_read_log_id(option).await {
            Ok((read, _)) => Ok(LogIndex(read.index())),
            Err(RaftError::Fatal(fatal)) => Err(ReadIndexError::Stopped { why: fatal.to_string() }),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(error))) => {
                Err(ReadIndexError::NoQuorum { why: error.to_string() })
            }
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(ReadIndexError::NotLeader { leader: leader_of(forward) })
            }
        }
    }

    async fn read_position_of(
        &self,
        leader: &Member,
        policy: ReadPolicy,
    ) -> Result<LogIndex, ReadIndexError> {
        let (to, from) = (Some(self.address_of(leader)), self.replica().0);
        let request = wire::ReadIndexRequest { to, lease: policy == ReadPolicy::Lease, from };
        let unreachable = |why: String| ReadIndexError::Unreachable { leader: leader.clone(), why };
        let mut client = self.processes().of(leader).map_err(unreachable)?.client();
        let answer = client.read_index(request).await;
        let answer = answer.map_err(|status| unreachable(status.message().to_owned()))?.into_inner();
        match answer.result {
            Some(Answer::Index(index)) => Ok(LogIndex(index)),
            Some(Answer::NotLeader(wire::NotLeader { leader })) => {
                Err(ReadIndexError::NotLeader { leader: leader.map(member_from_wire) })
            }
            Some(Answer::NoQuorum(why)) => Err(ReadIndexError::NoQuorum { why }),
            None => Err(unreachable("it answered nothing this version knows".to_owned())),
        }
    }
}

/// The leader's answer to a member that reads. Any other replica is refused: nobody sends it entries, and
/// what it has may be of a log that a forced reset of the group has left.
pub(crate) async fn answer(
    open_groups: &OpenGroups,
    request: wire::ReadIndexRequest,
) -> Result<wire::ReadIndexResponse, Failure> {
    let group = open_groups.addressed(request.to.as_ref())?;
    let from = ReplicaId(request.from);
    if group.members().get(from).is_none() {
        let why = format!("replica {from} is no member of {} that is known here", group.id());
        return Err(Failure::new(Code::NotFound, why));
    }
    let policy = if request.lease { ReadPolicy::Lease } else { ReadPolicy::Index };
    let result = match group.confirm_leader(policy).await {
        Ok(index) => Answer::Index(index.0),
        Err(ReadIndexError::NotLeader { leader }) => {
            Answer::NotLeader(wire::NotLeader { leader: leader.map(member_to_wire) })
        }
        Err(ReadIndexError::NoQuorum { why }) => Answer::NoQuorum(why),
        Err(error) => return Err(error.into_failure(group.addresses())),
    };
    Ok(wire::ReadIndexResponse { result: Some(result) })
}

fn leader_of(forward: ForwardToLeader<TypeConfig>) -> Option<Member> {
    let leader = forward.leader_id.zip(forward.leader_node);
    leader.map(|(replica, peer)| member_of(replica, &peer))
}
