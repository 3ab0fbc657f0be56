use crate::stamp::Stamp;
use crate::{Disk, OpenDiskError, RealDisk};
use std::path::Path;

/// A disk that says whose it is: a data directory of this machine, or a simulated one.
pub trait DataDirectory: Disk {
    /// Its name for people, and for databases that are opened in it.
    fn root(&self) -> &Path;

    fn stamp(&self) -> Stamp;

    /// Writes cluster and node into the stamp, durably. A stamp that names another cluster or node is refused;
    /// node 0 means "no number yet" and never contradicts.
    fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError>;
}

impl DataDirectory for RealDisk {
    fn root(&self) -> &Path {
        RealDisk::root(self)
    }

    fn stamp(&self) -> Stamp {
        RealDisk::stamp(self)
    }

    fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError> {
        RealDisk::join_cluster(self, cluster, node)
    }
}
