//! Simulated clusters: a slice of what `./dev sim` runs by the thousands, and the bugs that it must find.

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

#[path = "sim/cluster.rs"]
mod cluster;
#[path = "sim/groups.rs"]
mod groups;
#[path = "sim/names.rs"]
mod names;
#[path = "sim/seeds.rs"]
mod seeds;
#[path = "sim/tables.rs"]
mod tables;
