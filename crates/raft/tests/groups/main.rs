//! Groups of three real hosts: real disks, real gRPC on loopback, RocksDB state machines.

mod cluster;
mod failover;
mod ledger;
mod limits;
mod membership;
mod metadata;
mod metrics;
mod replication;
mod restart;
mod throughput;
mod wire;
