//! Many Raft groups in one process. The only crate that names openraft.
//!
//! A [`RaftHost`] answers for all groups of a process on one gRPC service. A group is a log in a
//! [`raftlog::LogSpace`], a [`StateMachine`] and a [`Group`] handle to propose, read and observe.
//!
//! `host` opens groups and `open_groups` finds them. `replica` is how a replica comes and goes on its disk,
//! `members` who belongs to a group, `group` what callers hold. openraft works with what is in `adapter`: its
//! log is kept by `log` (a [`raftlog::Log`]), what it sends to other members goes by `transport`, which also
//! takes what they send. `snapshot` is copies of a state, for members that the log cannot serve; `idle` lets
//! groups that nobody uses cost little; `counts` is what they count while they work, and how that is shown.

mod adapter;
mod command;
mod counts;
mod error;
mod failure;
mod group;
mod host;
mod idle;
mod log;
mod members;
mod open_groups;
mod options;
mod replica;
mod snapshot;
#[cfg(test)]
mod suite_tests;
mod transport;

pub use adapter::runtime::blocking;
pub use command::{Applied, Command, Committed, StateMachine};
pub use counts::host_metrics::{FollowerMetrics, GroupMetrics, HostMetrics};
pub use counts::tally::Tally;
pub use error::{
    Lag, OpenGroupError, ProposeError, ReadIndexError, RemoveGroupError, SetMembersError, TransferError,
};
pub use group::Group;
pub use group::proposal::{Done, Proposal};
pub use group::reads::ReadPolicy;
pub use group::status::{GroupStatus, Role};
pub use group::waiting::{WAIT_MAX, WaitAllError, WaitError};
pub use host::RaftHost;
pub use log::forgetting::ForgetError;
pub use log::replay::Replay;
pub use members::member::{AddressBook, Member};
pub use members::membership::Members;
pub use options::{COMMAND_BYTES_MAX, GroupSpec, GroupStart, HostOptions, Timing, TimingError};
pub use parking::LotCounts;
pub use replica::record::{ReplicaRecord, ReplicaStage};
pub use replica::reset::{Asked, OfflineReplica, ResetAnswer, ResetError, ResetPlan, check_lost};
pub use snapshot::{SendProgress, SnapshotPolicy, SnapshotProgress, Snapshots};
pub use transport::protocol::PROTOCOL_VERSION;
