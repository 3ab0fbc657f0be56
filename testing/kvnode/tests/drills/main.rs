//! The five drills of a production Raft, on real processes over loopback.

// Drills may panic in helpers too.
#![allow(clippy::unwrap_used)]

mod campaign;
mod cluster;
mod failover;
mod history;
mod load;
mod partition;
mod proxy;
mod recovery;
mod restart;
