//! Three `kvnode` processes under load, for the benches `kv` and `raft`.

mod cluster;
mod load;
mod raw;

pub use cluster::{Counters, KvCluster};
pub use load::{KvLoad, Measured, PutLoad, Windows, run};
pub use raw::{raw_processes, raw_writer};
