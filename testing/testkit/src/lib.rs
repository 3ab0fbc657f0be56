//! Real `flotilla` processes for tests, drills and benches. Not part of any server.

// Tests and benches touch files and clocks of their own.
#![allow(clippy::disallowed_methods)]

mod cluster;
mod full_tables;
pub mod fuzz;
mod ports;
mod process;
pub mod prometheus;
mod room;

pub use cluster::{ACCESS_KEY, Cluster, ClusterOptions, Detour, SECRET_KEY};
pub use full_tables::FullTables;
pub use ports::free_addresses;
pub use process::{Process, Ready};
pub use room::disk_bytes;
