use crate::direct::{DataFile, Direct};
use crate::health::{Health, Operation};
use crate::in_place::InPlace;
use crate::path::below;
use crate::pool::Pool;
use crate::queue::Kind;
use crate::real_file::RealFile;
use crate::ring::Ring;
use crate::small_file::{
    FILE_MODE, create_dir_all_durably, private_directory, read_file, write_file_durably,
};
use crate::stamp::{DecodeStampError, FORMAT, Stamp};
use crate::{Disk, DiskIo, File, IoFuture, Space, syscalls};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use types::DiskId;

/// The reasons why a data directory cannot be used; the message says what to do. It has the system's own
/// words in it, so they are no `source`: an error that is printed with its sources would repeat them.
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

/// A data directory on this machine, locked by this process until the last handle to it and its files is
/// gone.
pub struct RealDisk {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    root: PathBuf,
    stamp: Mutex<Stamp>,
    pub(crate) health: Arc<Health>,
    // Fields drop in this order: ring and pool finish their operations before the lock is given up.
    /// The ring that reads, writes and syncs go to, if there is one; all else, and all if there is none, goes
    /// to the pool.
    pub(crate) ring: Option<Ring>,
    pub(crate) pool: Pool,
    /// The way around the page cache, for large writes through the ring.
    direct: Arc<Direct>,
    pub(crate) in_place: InPlace,
    _lock: fs::File,
}

const LOCK: &str = "LOCK";
const VERSION: &str = "VERSION";

impl RealDisk {
    /// Opens `root`, creating and stamping it when it is empty or missing (with a new disk id and
    /// `node_uuid`).
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
                direct: Arc::default(),
                in_place: InPlace::default(),
                _lock: lock,
            }),
        })
    }

    /// [`RealDisk::open`] for a directory that somebody has just stopped using, who holds it until what he
    /// began last has ended: a group that was shut down still asks its disk for its free space, for one. The
    /// error of one that stays in use comes after `patience`.
    pub async fn open_once_free(
        root: &Path,
        node_uuid: u128,
        patience: Duration,
    ) -> Result<RealDisk, OpenDiskError> {
        let give_up = Instant::now() + patience;
        loop {
            match RealDisk::open(root, node_uuid) {
                Err(OpenDiskError::InUse { .. }) if Instant::now() < give_up => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => return opened,
            }
        }
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

    /// The way in which reads, writes and syncs are done: never [`DiskIo::Auto`].
    pub fn io(&self) -> DiskIo {
        if self.inner.ring.is_some() { DiskIo::Uring } else { DiskIo::Threads }
    }

    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    pub(crate) fn ends_nothing_for(&self) -> Duration {
        let of_ring = self.inner.ring.as_ref().map_or(Duration::ZERO, Ring::ends_nothing_for);
        of_ring.max(self.inner.pool.ends_nothing_for())
    }

    pub fn stamp(&self) -> Stamp {
        self.inner.stamp.lock().expect("no holder of the stamp panics").clone()
    }

    /// Writes cluster and node into the stamp, durably. A stamp that names another cluster or node is
    /// refused; node 0 means "no number yet" and never contradicts.
    pub fn join_cluster(&self, cluster: &str, node: u64) -> Result<(), OpenDiskError> {
        let root = &self.inner.root;
        let mut stamp = self.inner.stamp.lock().expect("no holder of the stamp panics");
        let joined = stamp.joined(root, cluster, node)?;
        if joined != *stamp {
            write_file_durably(&root.join(VERSION), &joined.encode())
                .map_err(|why| OpenDiskError::Io { path: root.clone(), why })?;
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
    let mut options = fs::OpenOptions::new();
    let open = options.create(true).truncate(false).write(true).mode(FILE_MODE).open(root.join(LOCK));
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

/// Fails the disk when its directory was removed, unmounted or exchanged under it. Its open files would go on
/// taking data, and syncing it to where nobody finds it again.
fn check_still_there(root: &Path, disk: DiskId, health: &Health) -> io::Result<()> {
    let why = match RealDisk::peek(root) {
        Ok(Some(stamp)) if stamp.disk == disk => return Ok(()),
        Ok(Some(stamp)) => format!("disk {} is there instead", stamp.disk),
        Ok(None) => "there is no stamp: it was removed or unmounted".to_owned(),
        // A stamp that cannot be read at the moment (too many open files, say) does not say that the disk is
        // another one.
        Err(_) => return Ok(()),
    };
    let error = io::Error::other(why);
    health.judge(Operation::Change, || format!("look for disk {disk} at {}", root.display()), &error);
    Err(error)
}

/// Creates a directory and its parents below `root`; their names are durable on return.
fn create_dir_all(health: &Health, root: &Path, full: &Path) -> io::Result<()> {
    let what = || format!("create directory {}", full.display());
    health.run(Operation::Change, what, || private_directory().recursive(true).create(full))?;
    // All parents are synced, also those that exist: a process that died may have created and not synced
    // them.
    for parent in full.ancestors().skip(1).take_while(|parent| parent.starts_with(root)) {
        sync_names_in(health, parent)?;
    }
    Ok(())
}

/// Makes the names in a directory durable. One that cannot be opened (too many open files, say) has lost
/// nothing.
fn sync_names_in(health: &Health, full: &Path) -> io::Result<()> {
    let what = || format!("sync directory {}", full.display());
    let directory = health.run(Operation::Change, what, || fs::File::open(full))?;
    health.run(Operation::Sync, what, || directory.sync_all())
}

impl Disk for RealDisk {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        // Opening what exists changes nothing; a failure (too many open files, say) says nothing of the disk.
        let operation = if create { Operation::Change } else { Operation::Read };
        let opened = self.run(operation, "open", path, move |full| {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create(create).truncate(false).mode(FILE_MODE).open(full)
        });
        let (disk, path) = (self.inner.clone(), Arc::<str>::from(path));
        Box::pin(async move {
            let data = DataFile::new(opened.await?, disk.direct.clone());
            Ok(Arc::new(RealFile { disk, data, path }) as Arc<dyn File>)
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
        let full = match below(&self.inner.root, path) {
            Ok(full) => full,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        let health = self.inner.health.clone();
        self.inner.pool.run(Kind::Change, move || sync_names_in(&health, &full))
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

    fn is_same_file(&self, one: &str, other: &str) -> IoFuture<bool> {
        let other = match below(&self.inner.root, other) {
            Ok(other) => other,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        self.run(Operation::Read, "look at", one, move |one| {
            let file = |path: &Path| match fs::metadata(path) {
                Ok(found) => Ok(Some((found.dev(), found.ino()))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
            let one = file(one)?;
            Ok(one.is_some() && one == file(&other)?)
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
        let (health, disk) = (self.inner.health.clone(), self.stamp().disk);
        self.run(Operation::Read, "stat", "", move |root| {
            check_still_there(root, disk, &health)?;
            syscalls::space(root)
        })
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

    #[tokio::test]
    async fn a_disk_that_was_removed_or_exchanged_fails() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        let (disk, other) = (RealDisk::open(&here, 1).unwrap(), RealDisk::open(&there, 1).unwrap());
        assert!(disk.space().await.is_ok());
        assert_eq!(disk.failure(), None);
        fs::rename(&here, dir.path().join("away")).unwrap();
        assert!(disk.space().await.unwrap_err().to_string().contains("removed or unmounted"));
        assert!(disk.failure().unwrap().contains("removed or unmounted"));
        fs::rename(dir.path().join("away"), &here).unwrap();
        assert!(disk.space().await.is_err(), "what was written meanwhile is nowhere: final until restart");

        fs::rename(&there, dir.path().join("away")).unwrap();
        RealDisk::open(&there, 1).unwrap();
        assert!(other.space().await.unwrap_err().to_string().contains("is there instead"));
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
