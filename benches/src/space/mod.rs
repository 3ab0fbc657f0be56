//! What is deleted, on a whole cluster of real processes, and how soon its disks have it back.

mod cluster;
mod room;

pub use cluster::SpaceCluster;
pub use room::Room;
