//! A real SCM over loopback, with datanodes that only register and report.

#![allow(clippy::unwrap_used)] // all of this is tests

mod closing;
mod datanodes;
mod placement;
mod replication;
mod restart;
mod server;
mod watch;
