use crate::health::{Health, Operation};
use crate::path::below;
use crate::pool::Pool;
use crate::queue::Kind;
use crate::real_file::RealFile;
use crate::ring::Ring;
use crate::small_file::{create_dir_all_durably, read_file, sync_dir, write_file_durably};
use crate::stamp::{DecodeStampError, FORMAT, Stamp};
use crate::{Disk, DiskIo, File, IoFuture, Space, syscalls};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use types::DiskId;

/// Why a data directory cannot be used; the message says what to do. It has the system's own words in it, so they are no
/// `source`: an error that is printed with its sources would repeat them.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    #[error(
        "data directory {path} is in use by another process; stop it, or give this one another directory"
    )]
    InUse { path: PathBuf },
    #[error(
        "data directory {path} has format {found}, this version reads up to {known}; run a newer flotilla"
    )]
    NewerFormat { path: PathBuf, found: u32, known: u32 },
    #[error("{path}/VERSION cannot be read as a data directory's stamp: {why}")]
    BadStamp { path: PathBuf, why: String },
    #[error(
        "data directory {path} holds files but no VERSION, so it is no data directory; give an empty directory, \
         or restore its VERSION"
    )]
    NotEmpty { path: PathBuf },
    #[error(
        "data directory {path} belongs to {found}, not to {asked}; give this node the directory that is its own"
    )]
    OtherOwner { path: PathBuf, found: String, asked: String },
    #[error(
        "data directory {path} cannot be used through io_uring, which the kernel (or the container this runs in) \
         refuses: {why}; allow it, or choose `threads` or `auto`"
    )]
    NoRing { path: PathBuf, why: io::Error },
    #[error("data directory {path}: {why}")]
    Io { path: PathBuf, why: io::Error },
}

/// A data directory on this machine, locked by this process until the last handle to it and its files is gone.
pub struct RealDisk {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    root: PathBuf,
    stamp: Mutex<Stamp>,
    pub(crate) health: Arc<Health>,
    // Fields drop in this order: ring and pool finish their operations before the lock is given up.
    /// Reads, writes and syncs go here, if it is there; all else, and all if it is not, to the pool.
    pub(crate) ring: Option<Ring>,
    pub(crate) pool: Pool,
    _lock: fs::File,
}

const LOCK: &str = "LOCK";
const VERSION: &str = "VERSION";

impl RealDisk {
    /// Opens `root`, creating and stamping it when it is empty or missing (with a new disk id and `node_uuid`).
    pub fn open(root: &Path, node_uuid: u128) -> Result<RealDisk, OpenDiskError> {
        RealDisk::open_with(root, node_uuid, DiskIo::Auto)
    }

    /// [`RealDisk::open`], by a way of your choice.
    pub fn open_with(root: &Path, node_uuid: u128, io: DiskIo) -> Result<RealDisk, OpenDiskError> {
        let io_error = |why| OpenDiskError::Io { path: root.to_owned(), why };
        create_dir_all_durably(root).map_err(io_error)?;
        let root = root.canonicalize().map_err(io_error)?;
        let lock = open_lock(&root)?;
        let stamp = match RealDisk::peek(&root)? {
            Some(stamp) => stamp,
            None => format(&root, node_uuid)?,
        };
        let health = Arc::new(Health::default());
        let ring = start_ring(&root, io, &health)?;
        Ok(RealDisk {
            inner: Arc::new(Inner {
                root,
                stamp: Mutex::new(stamp),
                health,
                ring,
                pool: Pool::new(),
                _lock: lock,
            }),
        })
    }

    /// Reads the stamp of a directory without opening or locking it; `None` when it has none.
    pub fn peek(root: &Path) -> Result<Option<Stamp>, OpenDiskError> {
        let path = root.to_owned();
        match read_file(&root.join(VERSION)) {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => Stamp::decode(&bytes).map(Some).map_err(|error| match error {
                DecodeStampError::Newer { found } => {
                    OpenDiskError::NewerFormat { path, found, known: FORMAT }
                }
                DecodeStampError::Bad { why } => OpenDiskError::BadStamp { path, why },
            }),
            Err(why) => Err(OpenDiskError::Io { path, why }),
        }
    }

    /// How reads, writes and syncs are done: never [`DiskIo::Auto`].
    pub fn io(&self) -> DiskIo {
        if self.inner.ring.is_some() { DiskIo::Uring } else { DiskIo::Threads }
    }

    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    pub fn stamp(&self) -> Stamp {
        self.inner.stamp.lock().expect("no holder of the stamp panics").clone()
    }

    /// Writes cluster and node into the stamp, durably. A stamp that names another cluster or node is refused;
    /// node 0 means "no number yet" and never contradicts.
    pub fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError> {
        let path = self.inner.root.clone();
        Stamp::check_cluster(cluster).map_err(|why| OpenDiskError::BadStamp { path: path.clone(), why })?;
        let mut stamp = self.inner.stamp.lock().expect("no holder of the stamp panics");
        let other_cluster = !stamp.cluster.is_empty() && stamp.cluster != cluster;
        let other_node = stamp.node != 0 && node != 0 && stamp.node != node;
        if other_cluster || other_node {
            return Err(OpenDiskError::OtherOwner {
                path,
                found: format!("node {} of cluster `{}`", stamp.node, stamp.cluster),
                asked: format!("node {node} of cluster `{cluster}`"),
            });
        }
        let node = if node == 0 { stamp.node } else { node };
        let joined = Stamp { cluster: cluster.to_owned(), node, ..stamp.clone() };
        if joined != *stamp {
            write_file_durably(&self.inner.root.join(VERSION), &joined.encode())
                .map_err(|why| OpenDiskError::Io { path, why })?;
            *stamp = joined;
        }
        Ok(())
    }
}

fn start_ring(root: &Path, io: DiskIo, health: &Arc<Health>) -> Result<Option<Ring>, OpenDiskError> {
    let disk = root.display();
    let (ring, why) = match io {
        DiskIo::Threads => (None, "as configured"),
        DiskIo::Uring => match Ring::start(health.clone()) {
            Ok(ring) => (Some(ring), "as configured"),
            Err(why) => return Err(OpenDiskError::NoRing { path: root.to_owned(), why }),
        },
        DiskIo::Auto => match Ring::start(health.clone()) {
            Ok(ring) => (Some(ring), "the kernel offers it"),
            Err(error) => {
                let why = format!("the kernel offers no io_uring: {error}");
                tracing::warn!(%disk, io = %DiskIo::Threads, why, "open data directory");
                return Ok(None);
            }
        },
    };
    let by = if ring.is_some() { DiskIo::Uring } else { DiskIo::Threads };
    tracing::info!(%disk, io = %by, why, "open data directory");
    Ok(ring)
}

fn open_lock(root: &Path) -> Result<fs::File, OpenDiskError> {
    let path = root.to_owned();
    let open = fs::OpenOptions::new().create(true).truncate(false).write(true).open(root.join(LOCK));
    let lock = open.map_err(|why| OpenDiskError::Io { path: path.clone(), why })?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(OpenDiskError::InUse { path }),
        Err(fs::TryLockError::Error(why)) => Err(OpenDiskError::Io { path, why }),
    }
}

/// Stamps a directory that holds nothing but what an earlier attempt may have left, or a file system's own.
fn format(root: &Path, node_uuid: u128) -> Result<Stamp, OpenDiskError> {
    let path = root.to_owned();
    let io_error = |why| OpenDiskError::Io { path: path.clone(), why };
    for entry in fs::read_dir(root).map_err(io_error)? {
        let name = entry.map_err(io_error)?.file_name();
        if ![LOCK, "VERSION.tmp", "lost+found"].iter().any(|known| name == *known) {
            return Err(OpenDiskError::NotEmpty { path: path.clone() });
        }
    }
    let disk = DiskId(uuid::Uuid::new_v4().as_u128());
    let stamp = Stamp { disk, cluster: String::new(), node_uuid, node: 0 };
    write_file_durably(&root.join(VERSION), &stamp.encode()).map_err(io_error)?;
    Ok(stamp)
}

impl RealDisk {
    fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        name: &'static str,
        path: &str,
        call: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let full = match below(&self.inner.root, path) {
            Ok(full) => full,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        let (health, path) = (self.inner.health.clone(), path.to_owned());
        self.inner
            .pool
            .run(operation.kind(), move || health.run(operation, || format!("{name} {path}"), || call(&full)))
    }
}

/// Creates a directory and its parents below `root`; their names are durable on return.
fn create_dir_all(health: &Health, root: &Path, full: &Path) -> io::Result<()> {
    let what = || format!("create directory {}", full.display());
    health.run(Operation::Change, what, || fs::create_dir_all(full))?;
    // All of them, also those that exist: a process that died may have created and not synced them.
    for parent in full.ancestors().skip(1).take_while(|parent| parent.starts_with(root)) {
        let what = || format!("sync directory {}", parent.display());
        // That it cannot be opened (too many open files, say) has lost nothing.
        let parent = health.run(Operation::Change, what, || fs::File::open(parent))?;
        health.run(Operation::Sync, what, || parent.sync_all())?;
    }
    Ok(())
}

impl Disk for RealDisk {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        // Opening what exists changes nothing; that it fails (too many open files, say) says nothing of the disk.
        let operation = if create { Operation::Change } else { Operation::Read };
        let opened = self.run(operation, "open", path, move |full| {
            fs::OpenOptions::new().read(true).write(true).create(create).truncate(false).open(full)
        });
        let (disk, path) = (self.inner.clone(), Arc::<str>::from(path));
        Box::pin(async move {
            Ok(Arc::new(RealFile { disk, file: Arc::new(opened.await?), path }) as Arc<dyn File>)
        })
    }

    fn create_dir_all(&self, path: &str) -> IoFuture<()> {
        let full = match below(&self.inner.root, path) {
            Ok(full) => full,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        let (health, root) = (self.inner.health.clone(), self.inner.root.clone());
        self.inner.pool.run(Kind::Change, move || create_dir_all(&health, &root, &full))
    }

    fn sync_dir(&self, path: &str) -> IoFuture<()> {
        self.run(Operation::Sync, "sync directory", path, sync_dir)
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        self.run(Operation::Read, "list", path, |full| match fs::read_dir(full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
            // Names that are no text are none of ours.
            Ok(entries) => entries
                .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
                .collect(),
        })
    }

    fn rename(&self, from: &str, to: &str) -> IoFuture<()> {
        let to = match below(&self.inner.root, to) {
            Ok(to) => to,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        self.run(Operation::Change, "rename", from, move |from| fs::rename(from, to))
    }

    fn remove_file(&self, path: &str) -> IoFuture<()> {
        self.run(Operation::Change, "remove", path, |full| fs::remove_file(full))
    }

    fn remove_dir_all(&self, path: &str) -> IoFuture<()> {
        if path.is_empty() {
            let error =
                io::Error::new(io::ErrorKind::InvalidInput, "a data directory does not remove itself");
            return Box::pin(async { Err(error) });
        }
        self.run(Operation::Change, "remove directory", path, |full| match fs::remove_dir_all(full) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        })
    }

    fn space(&self) -> IoFuture<Space> {
        self.run(Operation::Read, "stat", "", syscalls::space)
    }

    fn failure(&self) -> Option<String> {
        self.inner.health.failure()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_whose_parent_cannot_be_synced_fails_the_disk() {
        let health = Health::default();
        // Directories of /proc refuse a sync, cleanly had it been a change.
        let refused = create_dir_all(&health, Path::new("/proc/self"), Path::new("/proc/self/fd"));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(health.failure().unwrap().contains("sync directory /proc/self"), "{:?}", health.failure());
    }

    #[test]
    fn a_directory_that_cannot_be_created_for_want_of_a_name_does_not() {
        let health = Health::default();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(create_dir_all(&health, dir.path(), &dir.path().join("file/d")).is_err());
        assert_eq!(health.failure(), None);
    }
}
