//! A real SCM over loopback, with datanodes that only register and report.

#![allow(clippy::unwrap_used)] // all of this is tests

mod closing;
mod datanodes;
mod members;
mod oms;
mod placement;
mod registry;
mod registry_members;
mod replication;
mod restart;
mod server;
mod strangers;
mod watch;
