//! The state of a state machine in RocksDB, and what a state machine needs of any such store.
//!
//! [`Tables`] is what a store must do, and what simulations do in memory. [`Db`] does it in RocksDB, for a
//! state machine that shares it with others; [`DbGenerations`] is the one of a group that has it for itself,
//! replaced as a whole when a snapshot is installed.

mod db;
mod generations;
mod tables;

pub use db::{CacheBytes, Db, DbMemory, DbOptions, DbState, SharedMemory};
pub use generations::{DbGenerations, GroupDb};
pub use tables::{Changes, Tables};
