use crate::Member;
use types::GroupId;

#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenGroupError {
    #[error("{group} is open on this host already")]
    AlreadyOpen { group: GroupId },
    #[error("open log of {group}: {why}")]
    Log { group: GroupId, why: String },
    #[error("open {group}: {why}")]
    Failed { group: GroupId, why: String },
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
    #[error("the group stopped: {why}")]
    Stopped { why: String },
}
