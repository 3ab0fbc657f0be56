//! Simulated clusters: a slice of what `./dev sim` runs by the thousands, and the bugs that it must find.

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

#[path = "sim/campaign.rs"]
mod campaign;
#[path = "sim/cluster.rs"]
mod cluster;
#[path = "sim/names.rs"]
mod names;
#[path = "sim/planted.rs"]
mod planted;
#[path = "sim/tables.rs"]
mod tables;
