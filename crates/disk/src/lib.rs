//! The only code that touches data files.
//!
//! Everything above works against [`Disk`] and [`File`], whose futures complete when the operation has; what is
//! durable when is said on each method. [`RealDisk`] is a data directory on this machine.

use bytes::Bytes;
use futures::future::BoxFuture;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::DiskId;

pub type IoFuture<T> = BoxFuture<'static, io::Result<T>>;

/// A data directory. Paths are relative to it and use `/`; a path that leaves it is refused.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing; it must exist unless `create` is set. A created file is durable only
    /// after [`Disk::sync_dir`] on its directory.
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>>;
    /// Creates a directory and its missing parents, durably.
    fn create_dir_all(&self, path: &str) -> IoFuture<()>;
    /// Makes creations, renames and removals in `path` durable.
    fn sync_dir(&self, path: &str) -> IoFuture<()>;
    /// Names in `path`, in no order; empty when it does not exist.
    fn list(&self, path: &str) -> IoFuture<Vec<String>>;
    /// Renames a file over whatever has the new name; durable after [`Disk::sync_dir`] on both directories.
    fn rename(&self, from: &str, to: &str) -> IoFuture<()>;
    fn remove_file(&self, path: &str) -> IoFuture<()>;
    /// Removes a directory and all below it; what does not exist is removed already.
    fn remove_dir_all(&self, path: &str) -> IoFuture<()>;
    fn space(&self) -> IoFuture<Space>;
    /// Why the disk is failed, once it is: after a failed write or sync every later call fails too, until restart.
    fn failure(&self) -> Option<String>;
}

/// An open file. Offsets are positions in the file; operations on disjoint ranges may run at the same time.
pub trait File: Send + Sync + 'static {
    /// Writes the buffers one after another from `offset`, all of them, without copying them. Not durable.
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()>;
    /// Reads up to `bytes` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes>;
    /// Makes written data durable (and the length, if it changed).
    fn sync_data(&self) -> IoFuture<()>;
    /// Allocates zeroed space up to `bytes` and extends the file to it, so that later syncs change no metadata.
    fn preallocate(&self, bytes: u64) -> IoFuture<()>;
    /// Cuts or extends the file (with zeros).
    fn set_len(&self, bytes: u64) -> IoFuture<()>;
    /// Gives the space of a range back; it reads as zeros.
    fn punch_hole(&self, offset: u64, bytes: u64) -> IoFuture<()>;
    fn len(&self) -> IoFuture<u64>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub capacity_bytes: u64,
    pub free_bytes: u64,
}

/// What a data directory is and whose: kept in its file `VERSION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub disk: DiskId,
    /// Empty until the directory has joined a cluster.
    pub cluster: String,
    /// 16 random bytes of the process that formatted it first, the same on all its directories.
    pub node_uuid: u128,
    /// The number SCM gave the node; 0 until then, and for processes that are no datanode.
    pub node: u64,
}

/// Why a data directory cannot be used; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    #[error("data directory {path} is in use by another process; stop it, or give this one another directory")]
    InUse { path: PathBuf },
    #[error("data directory {path} has format {found}, this version reads up to {known}; run a newer flotilla")]
    NewerFormat { path: PathBuf, found: u32, known: u32 },
    #[error("{path}/VERSION cannot be read as a data directory's stamp: {why}")]
    BadStamp { path: PathBuf, why: String },
    #[error("data directory {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// A data directory on this machine, locked by this process.
pub struct RealDisk {}

impl RealDisk {
    /// Opens `root`, creating and stamping it when it is empty or missing (with a new disk id and `node_uuid`).
    pub fn open(_root: &Path, _node_uuid: u128) -> Result<RealDisk, OpenDiskError> {
        todo!()
    }

    /// Reads the stamp of a directory without opening or locking it; `None` when it has none.
    pub fn peek(_root: &Path) -> Result<Option<Stamp>, OpenDiskError> {
        todo!()
    }

    pub fn root(&self) -> &Path {
        todo!()
    }

    pub fn stamp(&self) -> Stamp {
        todo!()
    }

    /// Writes cluster and node into the stamp, durably. A stamp that names another cluster or node is refused.
    pub fn join_cluster(&self, _cluster: &str, _node: u64) -> Result<(), OpenDiskError> {
        todo!()
    }
}

/// Replaces `path` by `contents` so that a crash leaves the old file or the new one, never a mixture: for small
/// files next to the data (credentials, settings). Creates missing parents.
pub fn write_file_durably(_path: &Path, _contents: &[u8]) -> io::Result<()> {
    todo!()
}

/// Reads a whole small file; `None` when it does not exist.
pub fn read_file(_path: &Path) -> io::Result<Option<Vec<u8>>> {
    todo!()
}
