//! Groups of three real hosts: real disks, real gRPC on loopback, RocksDB state machines.

mod closing;
mod cluster;
mod crashes;
mod dozing;
mod failover;
mod gate;
mod hostile;
mod hostile_heartbeats;
mod hostile_offers;
mod ledger;
mod limits;
mod links;
mod membership;
mod metadata;
mod metrics;
mod other_history;
mod partition;
mod reads;
mod recovery;
mod replication;
mod restart;
mod snapshots;
mod tls;
mod unserved;
mod waits;
mod wire;
