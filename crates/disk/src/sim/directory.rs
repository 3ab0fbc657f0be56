use super::SimDisk;
use crate::stamp::Stamp;
use crate::{DataDirectory, Disk, File, IoFuture, OpenDiskError, Space};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A simulated data directory. Its stamp is written durably or not at all, and outlives every crash of the disk; a cheap handle.
#[derive(Clone)]
pub struct SimDirectory {
    root: PathBuf,
    disk: SimDisk,
    stamp: Arc<Mutex<Stamp>>,
}

impl SimDirectory {
    /// A formatted one.
    pub fn new(root: impl Into<PathBuf>, disk: SimDisk, stamp: Stamp) -> SimDirectory {
        SimDirectory { root: root.into(), disk, stamp: Arc::new(Mutex::new(stamp)) }
    }

    /// The same directory after its disk crashed.
    pub fn over(&self, disk: SimDisk) -> SimDirectory {
        SimDirectory { disk, ..self.clone() }
    }

    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }
}

impl DataDirectory for SimDirectory {
    fn root(&self) -> &Path {
        &self.root
    }

    fn stamp(&self) -> Stamp {
        self.stamp.lock().expect("no holder of the stamp panics").clone()
    }

    fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError> {
        if let Some(why) = self.disk.is_down().then(|| std::io::Error::other("the simulated machine is down"))
        {
            return Err(OpenDiskError::Io { path: self.root.clone(), why });
        }
        let mut stamp = self.stamp.lock().expect("no holder of the stamp panics");
        *stamp = stamp.joined(&self.root, cluster, node)?;
        Ok(())
    }
}

impl Disk for SimDirectory {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        self.disk.open(path, create)
    }

    fn create_dir_all(&self, path: &str) -> IoFuture<()> {
        self.disk.create_dir_all(path)
    }

    fn sync_dir(&self, path: &str) -> IoFuture<()> {
        self.disk.sync_dir(path)
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        self.disk.list(path)
    }

    fn rename(&self, from: &str, to: &str) -> IoFuture<()> {
        self.disk.rename(from, to)
    }

    fn remove_file(&self, path: &str) -> IoFuture<()> {
        self.disk.remove_file(path)
    }

    fn remove_dir_all(&self, path: &str) -> IoFuture<()> {
        self.disk.remove_dir_all(path)
    }

    fn space(&self) -> IoFuture<Space> {
        self.disk.space()
    }

    fn failure(&self) -> Option<String> {
        self.disk.failure()
    }
}
