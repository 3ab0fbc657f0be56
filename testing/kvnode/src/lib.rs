//! A process with Raft groups of keys and values ([`kv::KvMachine`] on RocksDB, a real disk), and a client of
//! it. Drills kill and cut off such processes, benches load them; nothing of it is shipped.
//!
//! `node` opens the groups and serves; `session` is one client's connection, `lane` merges what all clients
//! ask of a group into few proposals. `client` finds leaders and tries again, over `connection`s, and may
//! batch too (`batcher`). `frame` is what they say to each other, `outbox` the bytes on their way out.

mod args;
mod batcher;
mod client;
mod connection;
mod frame;
mod lane;
mod node;
mod outbox;
mod prefixed;
mod session;

pub use args::{Args, DbPer};
pub use client::{CallError, Client, ClientOptions};
pub use frame::{GroupFacts, NodeFacts};
pub use node::{Node, replica_id};
