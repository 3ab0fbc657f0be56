use super::SimDisk;
use crate::stamp::Stamp;
use crate::{DataDirectory, Disk, File, IoFuture, OpenDiskError, Space};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A simulated data directory. Its stamp is written durably or not at all, and outlives every crash of the
/// disk; a cheap handle.
///
/// Databases are elsewhere: RocksDB knows no simulated disks. A file on the disk, which is named as one of
/// RocksDB's, says which of them is here; so it is renamed, removed and lost with its directory.
#[derive(Clone)]
pub struct SimDirectory {
    root: PathBuf,
    disk: SimDisk,
    stamp: Arc<Mutex<Stamp>>,
    databases_made: Arc<AtomicU64>,
    /// The time for which it says that it has ended nothing. It ends everything.
    ends_nothing_ms: Arc<AtomicU64>,
}

/// The name of a file by which RocksDB's own directories are known.
pub const DATABASE_FILE: &str = "CURRENT";
const NUMBER_BYTES: usize = 8;

impl SimDirectory {
    /// A directory that is formatted, with this stamp.
    pub fn new(root: impl Into<PathBuf>, disk: SimDisk, stamp: Stamp) -> SimDirectory {
        SimDirectory {
            root: root.into(),
            disk,
            stamp: Arc::new(Mutex::new(stamp)),
            databases_made: Arc::default(),
            ends_nothing_ms: Arc::default(),
        }
    }

    /// The same directory after its disk crashed.
    pub fn over(&self, disk: SimDisk) -> SimDirectory {
        SimDirectory { disk, ..self.clone() }
    }

    /// The same directory, whose databases were moved.
    pub fn moved_to(self, root: impl Into<PathBuf>) -> SimDirectory {
        SimDirectory { root: root.into(), ..self }
    }

    /// Has it say that it has ended nothing for so long.
    pub fn end_nothing_for(&self, time: Duration) {
        self.ends_nothing_ms.store(time.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Where the database is that the file in `dir` names, read without the machine, as its disk has it.
    pub fn stored_database(&self, dir: &str) -> Option<PathBuf> {
        let number = self.disk.stored(&format!("{dir}/{DATABASE_FILE}")).ok()?;
        let number = <[u8; NUMBER_BYTES]>::try_from(&number[..]).ok()?;
        Some(self.path_of(u64::from_le_bytes(number)))
    }

    fn path_of(&self, database: u64) -> PathBuf {
        self.root.join(format!("database.{database}"))
    }
}

impl DataDirectory for SimDirectory {
    fn root(&self) -> &Path {
        &self.root
    }

    fn database(&self, dir: &str) -> IoFuture<PathBuf> {
        let (this, dir) = (self.clone(), dir.to_owned());
        Box::pin(async move {
            let path = format!("{dir}/{DATABASE_FILE}");
            this.disk.create_dir_all(&dir).await?;
            let file = this.disk.open(&path, true).await?;
            // A crash may have left a name with nothing behind it: no database was opened by it.
            let number = match <[u8; NUMBER_BYTES]>::try_from(&file.read_at(0, NUMBER_BYTES).await?[..]) {
                Ok(number) => u64::from_le_bytes(number),
                Err(_) => {
                    let number = this.databases_made.fetch_add(1, Ordering::Relaxed);
                    file.write_and_sync(0, vec![Bytes::copy_from_slice(&number.to_le_bytes())]).await?;
                    this.disk.sync_dir(&dir).await?;
                    this.disk.sync_dir("").await?;
                    number
                }
            };
            Ok(this.path_of(number))
        })
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

    fn ends_nothing_for(&self) -> Duration {
        Duration::from_millis(self.ends_nothing_ms.load(Ordering::Relaxed))
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
