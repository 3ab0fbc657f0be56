//! Many Raft groups in one process. The only crate that names openraft.
//!
//! A [`RaftHost`] answers for all groups of a process on one gRPC service. A group is a log in a
//! [`raftlog::LogSpace`], a [`StateMachine`] and a [`Group`] handle to propose, read and observe.
//!
//! Inside: `host` opens groups (`beginning`, `identity`, `removal`: how a replica comes and goes) and `registry` finds
//! them; `membership` changes who belongs to one, `standing` keeps some from voting, `reads` makes
//! them linearizable and `parked` waits, `reset` is what is
//! left when a majority is not (`begun_reset`: one cut short); `group` and `proposal` are what callers hold. openraft
//! works against `log_store` (a [`raftlog::Log`]), `machine` (a [`StateMachine`]) and `network` (whose `exchange` is
//! the append stream to a follower, over the connections of `peers`, made by a `connector`, or by that of `tls`); `service` receives what other members send
//! (`appends`: a leader's entries, `elections`: votes and leadership).
//! `forgetting` shortens the logs of groups without snapshots. `snapshot` is copies of a state, for members that the log cannot serve (`unserved`: where there is none); `generations` a RocksDB they are installed into.
//! `heartbeats` go together for all groups of two processes, and `doze` lets groups that nobody uses cost little.
//! `gate` is the door of a process's gRPC port: what may come in, and how much of it.
//! `runtime` is what openraft runs on, with its `queue` and `watch`. `counts` is what they count while they work, `host_metrics` what comes of it, `prometheus` how that is shown.
//! `encoding` alone knows how openraft's types look on disk and on the wire; `terms` which numbers pass for terms.

mod alive;
mod append_check;
mod appends;
mod beginning;
mod begun_reset;
mod command;
mod config;
mod connector;
mod counts;
mod db;
mod dismissal;
mod doze;
mod elections;
mod encoding;
mod error;
mod exchange;
mod failure;
mod first_answer;
mod forgetting;
mod gate;
mod generations;
mod group;
mod heartbeats;
mod host;
mod host_metrics;
mod identity;
mod log_store;
mod machine;
mod member;
mod membership;
mod network;
mod options;
mod parked;
mod patience;
mod peers;
mod prometheus;
mod proposal;
mod protocol;
mod queue;
mod reads;
mod registry;
mod removal;
mod replay;
mod reset;
mod runtime;
mod service;
mod snapshot;
mod standing;
mod status;
#[cfg(test)]
mod suite_tests;
mod tables;
mod terms;
mod tls;
mod type_config;
mod unserved;
mod watch;

pub use command::{Applied, Command, Committed, StateMachine};
pub use connector::{Channel, Connector, TcpConnector};
pub use db::{Db, DbMemory, DbOptions, DbState};
pub use error::{
    Lag, OpenGroupError, ProposeError, ReadIndexError, RemoveGroupError, SetMembersError, TransferError,
};
pub use forgetting::ForgetError;
pub use gate::{
    Gate, GateConnection, GateCounts, GateIncoming, GateOptions, Gated, GatedBody, server_builder,
};
pub use generations::{DbGenerations, GroupDb};
pub use group::Group;
pub use host::RaftHost;
pub use host_metrics::{FollowerMetrics, GroupMetrics, HostMetrics};
pub use identity::ReplicaHere;
pub use member::{AddressBook, Member};
pub use membership::Members;
pub use options::{COMMAND_BYTES_MAX, GroupSpec, GroupStart, HostOptions, Timing, TimingError};
pub use parked::{WAIT_MAX, WaitAllError, WaitError};
pub use parking::LotCounts;
pub use proposal::{Done, Proposal};
pub use protocol::PROTOCOL_VERSION;
pub use reads::ReadPolicy;
pub use removal::ReplicaEnd;
pub use replay::Replay;
pub use reset::{Asked, OfflineReplica, ResetAnswer, ResetError, ResetPlan, check_lost};
pub use runtime::{blocking, seed_thread};
pub use snapshot::{SendProgress, SnapshotPolicy, SnapshotProgress, Snapshots};
pub use status::{GroupStatus, Role};
pub use tables::{Changes, Tables};
pub use tls::{
    TlsConnection, TlsConnector, TlsCounts, TlsIdentity, TlsIdentityError, TlsIncoming, TlsPart, TlsPem,
    TlsRefusal,
};
