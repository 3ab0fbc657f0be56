//! The client against a whole store over loopback: SCM, OM and three datanodes, each with real disks.
#![allow(clippy::unwrap_used)] // a test that fails may panic

mod avoided;
mod busy;
mod checksums;
mod cluster;
mod failover;
mod local;
mod memory;
mod namespace;
mod repeats;
mod sizes;
