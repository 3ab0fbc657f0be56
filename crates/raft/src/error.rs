use crate::adapter::type_config::{TypeConfig, WriteError, member_of};
use crate::{Member, TimingError};
use openraft::errors::{ChangeMembershipError, RaftError};
use std::fmt;
use types::{GroupId, ReplicaId};

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenGroupError {
    #[error("{group} is open on this host already")]
    AlreadyOpen { group: GroupId },
    #[error("open log of {group}: {why}")]
    Log { group: GroupId, why: String },
    #[error("open {group}: {why}")]
    Timing { group: GroupId, why: TimingError },
    #[error("open {group}: {why}")]
    Failed { group: GroupId, why: String },
}

/// The reason why a removal did not come to its end; it is to be repeated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RemoveGroupError {
    #[error("{group} is being opened or closed")]
    Busy { group: GroupId },
    #[error("remove {group}: {why}")]
    Io { group: GroupId, why: String },
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// Nothing was proposed.
    #[error("not the leader")]
    NotLeader { leader: Option<Member> },
    /// Nothing was proposed: the group's proposals in flight are at their limit.
    #[error("{in_flight} bytes of proposals are in flight, the limit is {limit}")]
    Busy { in_flight: usize, limit: usize },
    /// Nothing was proposed: the disk of the group's log has only its reserve left.
    #[error("{why}")]
    DiskFull { why: String },
    /// Nothing was proposed: such a command would not fit into a message between members.
    #[error("a command of {bytes} bytes is above the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// Nothing was proposed: the group is stopping or failed.
    #[error("the group stopped: {why}")]
    Stopped { why: String },
    /// The command may or may not be applied, now or later.
    #[error("leadership was lost while the command was under way")]
    OutcomeUnknown,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadIndexError {
    #[error("not the leader")]
    NotLeader { leader: Option<Member> },
    #[error("no quorum confirmed the leader: {why}")]
    NoQuorum { why: String },
    /// This replica does not lead, and the one that does was not reached.
    #[error("the leader, replica {}, was not reached: {why}", leader.replica)]
    Unreachable { leader: Member, why: String },
    /// The deadline passed before the leader answered, or before this replica had applied what it named.
    #[error("the read was not confirmed, or not applied, in time")]
    Expired,
    #[error("{limit} operations wait on this host already")]
    Busy { limit: usize },
    #[error("the group stopped: {why}")]
    Stopped { why: String },
}

/// The distance of a member behind its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    pub replica: ReplicaId,
    /// Entries of the leader that the member is not known to have durably.
    pub entries: u64,
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} by {} entries", self.replica, self.entries)
    }
}

/// The reason why members did not change, or may not have. Whatever it is, the same call may be repeated, and
/// finishes what this one began.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetMembersError {
    #[error("members of a pipeline never change: it is closed and replaced")]
    FixedMembers,
    /// Nothing was changed.
    #[error("{why}")]
    Invalid { why: String },
    #[error("not the leader")]
    NotLeader { leader: Option<Member> },
    /// Members that are too far behind to vote: those that were to become voters are still learners.
    #[error("members lag behind: {}", join(members))]
    Lagging { members: Vec<Lag> },
    /// Members that do not answer: those that were to become voters, or so many that the rest is no majority
    /// of the new members. The voters are as they were.
    #[error("members do not answer: {}", ids(members))]
    Silent { members: Vec<ReplicaId> },
    /// The deadline passed with a change under way, which may still come about.
    #[error("the change of members did not come about in time: {why}")]
    Expired { why: String },
    /// Leadership was lost, and the change may still come about.
    #[error("leadership was lost while members changed")]
    OutcomeUnknown,
    #[error("the group stopped: {why}")]
    Stopped { why: String },
}

/// The reason why leadership stays where it is, or may not have moved.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransferError {
    #[error("not the leader")]
    NotLeader { leader: Option<Member> },
    #[error("replica {replica} is no member of the group")]
    NotMember { replica: ReplicaId },
    #[error("replica {replica} is a learner: it cannot lead")]
    Learner { replica: ReplicaId },
    /// Nothing was asked of the member.
    #[error("the member is too far behind to lead: {lag}")]
    Lagging { lag: Lag },
    /// Nothing was asked of the member.
    #[error("replica {replica} does not answer")]
    Silent { replica: ReplicaId },
    /// The member was asked, and may still take over.
    #[error("replica {replica} did not take over in time")]
    Expired { replica: ReplicaId },
    #[error("the group stopped: {why}")]
    Stopped { why: String },
}

fn ids(replicas: &[ReplicaId]) -> String {
    replicas.iter().map(ReplicaId::to_string).collect::<Vec<_>>().join(", ")
}

fn join(lags: &[Lag]) -> String {
    lags.iter().map(Lag::to_string).collect::<Vec<_>>().join(", ")
}

/// openraft's refusal of a change of members, in our words.
pub(crate) fn step_failed(error: RaftError<TypeConfig, WriteError>) -> SetMembersError {
    let error = match error {
        RaftError::Fatal(fatal) => return SetMembersError::Stopped { why: fatal.to_string() },
        RaftError::APIError(error) => error,
    };
    match error {
        WriteError::ForwardToLeader(forward) => {
            let leader = forward.leader_id.zip(forward.leader_node);
            let leader = leader.map(|(replica, peer)| member_of(replica, &peer));
            SetMembersError::NotLeader { leader }
        }
        // Another leader cut the entry from our log, or changed the members between our two steps.
        WriteError::LogEntryDiscarded(_) | WriteError::PreconditionFailed(_) => {
            SetMembersError::OutcomeUnknown
        }
        WriteError::ChangeMembershipError(error @ ChangeMembershipError::InProgress(_)) => {
            SetMembersError::Expired { why: error.to_string() }
        }
        WriteError::ChangeMembershipError(error) => SetMembersError::Invalid { why: error.to_string() },
    }
}
