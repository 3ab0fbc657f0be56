use crate::stamp::Stamp;
use crate::{Disk, IoFuture, OpenDiskError, RealDisk};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A disk that says whose it is: a data directory of this machine, or a simulated one.
pub trait DataDirectory: Disk {
    /// The directory's name for people.
    fn root(&self) -> &Path;

    /// The path by which RocksDB opens the database that is in `dir`, or makes one there. The database moves
    /// and goes with `dir`.
    fn database(&self, dir: &str) -> IoFuture<PathBuf>;

    fn stamp(&self) -> Stamp;

    /// Writes cluster and node into the stamp, durably. A stamp that names another cluster or node is
    /// refused; node 0 means "no number yet" and never contradicts.
    fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError>;

    /// The longest time for which one of the disk's queues, of reads or of changes, has had operations and
    /// ended none. One may hang while the other goes on: what is in memory can be read.
    fn ends_nothing_for(&self) -> Duration;
}

impl DataDirectory for RealDisk {
    fn root(&self) -> &Path {
        RealDisk::root(self)
    }

    fn database(&self, dir: &str) -> IoFuture<PathBuf> {
        let path = RealDisk::root(self).join(dir);
        Box::pin(async move { Ok(path) })
    }

    fn stamp(&self) -> Stamp {
        RealDisk::stamp(self)
    }

    fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError> {
        RealDisk::join_cluster(self, cluster, node)
    }

    fn ends_nothing_for(&self) -> Duration {
        RealDisk::ends_nothing_for(self)
    }
}
