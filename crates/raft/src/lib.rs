//! Many Raft groups in one process. The only crate that names openraft.
//!
//! A [`RaftHost`] answers for all groups of a process on one gRPC service. A group is a log in a [`raftlog::LogSpace`],
//! a [`StateMachine`] and a [`Group`] handle to propose, read and observe.

mod db;
mod failure;

pub use db::{Db, DbOptions};

use bytes::Bytes;
use raftlog::{LogSpace, LogSpec, Place};
use std::sync::Arc;
use std::time::Duration;
use types::{GroupId, LogId, LogIndex, NodeId, OwnerId, Payload, ReplicaId, Term};

/// A command to replicate. `meta` reaches every state machine; `body` only reaches the disks.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub meta: Bytes,
    pub body: Payload,
    /// Log records after this command belong to another owner.
    pub roll_to: Option<OwnerId>,
}

/// A committed command as a state machine sees it.
#[derive(Clone, Debug)]
pub struct Committed {
    pub id: LogId,
    pub meta: Bytes,
    /// Where the record with the body stands.
    pub place: Place,
    pub roll_to: Option<OwnerId>,
}

/// How far a state machine has come, to be stored in the same batch as its effects. `membership` is opaque.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub id: LogId,
    pub membership: Bytes,
}

/// What a group replicates. Deterministic: a pure function of its state and the commands.
pub trait StateMachine: Send + Sync + 'static {
    /// How far the state on disk has come; `None` for a new one.
    fn applied(&self) -> anyhow::Result<Option<Applied>>;

    /// Applies commands in order and stores `applied` in the same atomic write; commands at or below the stored
    /// position never come again. Answers each command, in order. `batch` is empty when only `applied` moves on.
    /// An error stops the group: it means a broken disk or a bug, never a command that cannot be carried out.
    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>>;
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Member {
    pub replica: ReplicaId,
    pub node: NodeId,
    /// "host:port" when the group was made; [`AddressBook`] may know a newer one.
    pub address: String,
}

/// Where nodes are now. Updated from SCM's heartbeats; shared by everything in a process.
#[derive(Clone, Default)]
pub struct AddressBook {
    nodes: Arc<std::sync::RwLock<std::collections::HashMap<NodeId, String>>>,
}

impl AddressBook {
    pub fn set(&self, node: NodeId, address: String) {
        self.nodes.write().expect("no holder panics").insert(node, address);
    }

    pub fn get(&self, node: NodeId) -> Option<String> {
        self.nodes.read().expect("no holder panics").get(&node).cloned()
    }

    /// The newest known address of a member.
    pub fn of(&self, member: &Member) -> String {
        self.get(member.node).unwrap_or_else(|| member.address.clone())
    }
}

/// Election and heartbeat times of a group. The lease equals `election_max`, which must be the same on all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub heartbeat: Duration,
    pub election_min: Duration,
    pub election_max: Duration,
}

impl Timing {
    pub const PIPELINE: Timing = Timing {
        heartbeat: Duration::from_millis(500),
        election_min: Duration::from_millis(2000),
        election_max: Duration::from_millis(3000),
    };
    pub const METADATA: Timing = Timing {
        heartbeat: Duration::from_millis(200),
        election_min: Duration::from_millis(1000),
        election_max: Duration::from_millis(1500),
    };
}

/// Limits of a host; each group's share where it says so.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Bytes of proposals of one group that are not yet applied; more get [`ProposeError::Busy`].
    pub proposal_bytes_per_group_max: usize,
    /// Bytes of entries in flight to one follower of one group.
    pub window_bytes: usize,
    /// Bytes of entries read from the log for one append message.
    pub append_bytes_max: usize,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self { proposal_bytes_per_group_max: 64 << 20, window_bytes: 16 << 20, append_bytes_max: 4 << 20 }
    }
}

/// One replica of one group on this host.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    pub group: GroupId,
    pub replica: ReplicaId,
    pub timing: Timing,
    /// Members of the group when it was created, this replica among them. A group whose log is empty starts with
    /// them; all replicas must be given the same.
    pub first_members: Vec<Member>,
    /// Stand for election as soon as it is open instead of waiting for the timeout: one replica of each group, and
    /// harmless while there is a leader.
    pub campaign: bool,
}

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

/// A command that was applied, with the state machine's answer.
#[derive(Clone, Debug)]
pub struct Done {
    pub id: LogId,
    pub reply: Bytes,
}

/// A command on its way.
#[must_use = "a proposal's outcome is in its future"]
pub struct Proposal {}

impl Proposal {
    /// Resolves when the command was applied here, or when it is known that we cannot know.
    pub async fn done(self) -> Result<Done, ProposeError> {
        todo!()
    }
}

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
    /// Why the group stopped by itself, if it did.
    pub failure: Option<String>,
}

/// All Raft groups of a process.
#[derive(Clone)]
pub struct RaftHost {}

impl RaftHost {
    pub fn new(_options: HostOptions, _addresses: AddressBook) -> RaftHost {
        todo!()
    }

    /// Mounts the groups' service on the process's gRPC server.
    pub fn add_to(&self, _routes: &mut tonic::service::RoutesBuilder) {
        todo!()
    }

    /// Opens a replica: creates it when its log does not exist yet.
    pub async fn open(
        &self,
        _spec: GroupSpec,
        _space: &Arc<LogSpace>,
        _log: LogSpec,
        _state_machine: impl StateMachine,
    ) -> Result<Group, OpenGroupError> {
        todo!()
    }

    pub fn group(&self, _group: GroupId) -> Option<Group> {
        todo!()
    }

    pub fn groups(&self) -> Vec<Group> {
        todo!()
    }

    /// Stops a group and forgets it; its files stay.
    pub async fn close(&self, _group: GroupId) {
        todo!()
    }

    /// Stops all groups: leaders first hand over where they can.
    pub async fn shutdown(&self) {
        todo!()
    }
}

/// A handle to one group on this host; cheap to clone.
#[derive(Clone)]
pub struct Group {}

impl Group {
    pub fn id(&self) -> GroupId {
        todo!()
    }

    pub fn replica(&self) -> ReplicaId {
        todo!()
    }

    pub fn log(&self) -> &raftlog::Log {
        todo!()
    }

    /// Puts a command into the leader's queue. Commands are ordered as their `propose` calls returned.
    pub async fn propose(&self, _command: Command) -> Result<Proposal, ProposeError> {
        todo!()
    }

    /// [`Group::propose`] and wait.
    pub async fn apply(&self, command: Command) -> Result<Done, ProposeError> {
        self.propose(command).await?.done().await
    }

    /// On return, this replica's state machine has applied everything that was acknowledged before the call.
    /// Leader only.
    pub async fn read_index(&self) -> Result<LogIndex, ReadIndexError> {
        todo!()
    }

    /// Waits until this replica has applied `index`; false when `within` has passed first.
    pub async fn wait_applied(&self, _index: LogIndex, _within: Duration) -> bool {
        todo!()
    }

    pub fn status(&self) -> GroupStatus {
        todo!()
    }

    /// Changes of role, term or leader.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<GroupStatus> {
        todo!()
    }

    /// Hands leadership to another member.
    pub async fn transfer_leader(&self, _to: ReplicaId) -> anyhow::Result<()> {
        todo!()
    }
}
