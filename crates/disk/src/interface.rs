use bytes::Bytes;
use futures::future::BoxFuture;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// An operation under way. It starts when its method is called if the disk has room in its queue, at the
/// latest when the future is first polled; dropping the future of a started operation does not stop it.
pub type IoFuture<T> = BoxFuture<'static, io::Result<T>>;

/// A data directory. Paths are relative to it and use `/`; a path that leaves it is refused. `""` is the
/// directory itself.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing; it must exist unless `create` is set. A created file is durable
    /// only after [`Disk::sync_dir`] on its directory.
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>>;
    /// Creates a directory and its missing parents, durably.
    fn create_dir_all(&self, path: &str) -> IoFuture<()>;
    /// Makes creations, renames and removals in `path` durable.
    fn sync_dir(&self, path: &str) -> IoFuture<()>;
    /// Names in `path`, in no order; empty when it does not exist.
    fn list(&self, path: &str) -> IoFuture<Vec<String>>;
    /// Renames a file over whatever file has the new name, or a directory over an empty one or nothing;
    /// durable after [`Disk::sync_dir`] on both directories.
    fn rename(&self, from: &str, to: &str) -> IoFuture<()>;
    /// Removes a file; durable after [`Disk::sync_dir`] on its directory.
    fn remove_file(&self, path: &str) -> IoFuture<()>;
    /// Removes a directory and all below it; what does not exist is removed already. Durable after
    /// [`Disk::sync_dir`] on its parent.
    fn remove_dir_all(&self, path: &str) -> IoFuture<()>;
    /// Whether two names are of one file: not where one of them is not there. A disk that cannot tell says
    /// no.
    fn is_same_file(&self, one: &str, other: &str) -> IoFuture<bool> {
        let _ = (one, other);
        Box::pin(std::future::ready(Ok(false)))
    }
    fn space(&self) -> IoFuture<Space>;
    /// The reason why the disk is failed, once it is: after a failed write or sync every later call fails
    /// too, until restart. A full disk is not a failed one, and neither is one that cannot read a sector.
    fn failure(&self) -> Option<String>;
}

/// An open file. Offsets are positions in the file; operations on disjoint ranges may run at the same time,
/// but large writes (64 KiB and more) of ranges that share a page of memory should follow one another: they
/// may go around the page cache.
#[allow(clippy::len_without_is_empty)] // asking is an operation of the disk; nobody asks only that
pub trait File: Send + Sync + 'static {
    /// Writes the buffers one after another from `offset`, all of them, without copying them. Not durable.
    /// When it fails, any part of the range may have been written.
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()>;
    /// [`File::write_at`] and then [`File::sync_data`], as one operation: durable on return.
    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()>;
    /// Reads up to `bytes` bytes; fewer only at the end of the file. What is in memory already may be there
    /// at once.
    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes>;
    /// Makes written data durable (and the length, if it changed).
    fn sync_data(&self) -> IoFuture<()>;
    /// [`File::sync_data`], and what is read from then on is what the disk has. After a sync that failed the
    /// page cache goes on showing what never reached the disk, to this process and to the next, and a later
    /// sync succeeds without writing it.
    fn settle(&self) -> IoFuture<()>;
    /// Allocates zeroed space up to `bytes` and extends the file to it, so that later syncs change no length.
    /// Never shortens. Fails with [`io::ErrorKind::StorageFull`], and changes nothing, when the disk is full.
    fn preallocate(&self, bytes: u64) -> IoFuture<()>;
    /// Cuts or extends the file (with zeros). Durable after [`File::sync_data`].
    fn set_len(&self, bytes: u64) -> IoFuture<()>;
    /// Gives the space of ranges back, one after the other; they read as zeros. Durable after
    /// [`File::sync_data`]. When it fails, any of them may be given back.
    fn punch_holes(&self, holes: Vec<Range<u64>>) -> IoFuture<()>;
    fn len(&self) -> IoFuture<u64>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub capacity_bytes: u64,
    /// Bytes that an unprivileged process may still write.
    pub free_bytes: u64,
}

/// Whether an operation was refused for lack of something that may be there again: space, or files that the
/// process may open. Nothing of it was done.
pub fn may_be_repeated(error: &io::Error) -> bool {
    is_full(error) || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether an operation failed for lack of space.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
