//! Blocks written to and read from three datanode processes over gRPC, and what a cluster costs that nobody
//! uses.

mod cluster;
mod idle;
mod load;
mod window;

pub use cluster::BlocksCluster;
pub use idle::{Idle, idle_cluster, idle_dev};
pub use load::{Measured, READERS, WRITERS, read, write_chosen, write_spread};
pub use window::{Window, Windows};
