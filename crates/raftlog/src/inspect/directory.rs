use disk::{Disk, File, IoFuture};
use std::sync::Arc;

/// A data directory that is only looked at: no lock, no stamp, no writes.
pub trait Directory: Send + Sync + 'static {
    fn open(&self, path: &str) -> IoFuture<Arc<dyn File>>;
    /// Names in `path`, in no order; empty when it does not exist.
    fn list(&self, path: &str) -> IoFuture<Vec<String>>;
}

/// A disk that somebody has opened already.
pub struct ReadOnly(pub Arc<dyn Disk>);

impl Directory for ReadOnly {
    fn open(&self, path: &str) -> IoFuture<Arc<dyn File>> {
        self.0.open(path, false)
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        self.0.list(path)
    }
}
