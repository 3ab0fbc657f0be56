//! Simulated clusters from a seed: whole processes on one thread, with clocks, disks and a network that a
//! test rules.
//!
//! [`world`] knows runtimes, disks and the network, and nothing of what runs in them. [`scenario`] runs many
//! Raft groups in it, under faults, and checks what must hold; [`cluster`] runs SCM and datanodes, [`names`]
//! SCM and OMs, as real [`services`]; many seeds are [`seeds`].
//! [`MemTables`] is where simulated state machines keep their state, and [`MemSnapshots`] how it is copied.

pub mod cluster;
mod mem_snapshots;
mod mem_tables;
pub mod names;
pub mod scenario;
pub mod seeds;
pub mod services;
pub mod world;

pub use mem_snapshots::MemSnapshots;
pub use mem_tables::MemTables;
