//! The namespace alone: OMs and an SCM as processes, and `flotilla load` on them.

mod cluster;
mod etcd;
mod large;
mod load;

pub use cluster::OmCluster;
pub use etcd::EtcdCluster;
pub use large::Large;
pub use load::{Load, Measured, load};
