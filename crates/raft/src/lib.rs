//! Many Raft groups in one process. The only crate that names openraft.
//!
//! A [`RaftHost`] answers for all groups of a process on one gRPC service. A group is a log in a
//! [`raftlog::LogSpace`], a [`StateMachine`] and a [`Group`] handle to propose, read and observe.
//!
//! Inside: `host` opens groups and `registry` finds them; `group` and `proposal` are what callers hold. openraft
//! works against `log_store` (a [`raftlog::Log`]), `machine` (a [`StateMachine`]) and `network` (whose `exchange` is
//! the append stream to a follower, over the connections of `peers`, made by a `connector`); `service` receives what other members send.
//! `encoding` alone knows how openraft's types look on disk and on the wire.

mod alive;
mod command;
mod config;
mod connector;
mod db;
mod encoding;
mod error;
mod exchange;
mod failure;
mod group;
mod host;
mod log_store;
mod machine;
mod member;
mod network;
mod options;
mod peers;
mod proposal;
mod registry;
mod replay;
mod runtime;
mod service;
mod status;
#[cfg(test)]
mod suite_tests;
mod tables;
mod type_config;

pub use command::{Applied, Command, Committed, Snapshots, StateMachine};
pub use connector::{Channel, Connector, TcpConnector, server_builder};
pub use db::{Db, DbOptions};
pub use error::{OpenGroupError, ProposeError, ReadIndexError};
pub use group::Group;
pub use host::RaftHost;
pub use member::{AddressBook, Member};
pub use options::{COMMAND_BYTES_MAX, GroupSpec, HostOptions, Timing};
pub use proposal::{Done, Proposal};
pub use replay::Replay;
pub use runtime::seed_thread;
pub use status::{GroupStatus, Role};
pub use tables::{Changes, Tables};
