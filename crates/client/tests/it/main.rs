//! The client against a whole store over loopback: SCM, OM and three datanodes, each with real disks.

mod cluster;
mod failover;
mod namespace;
mod sizes;
