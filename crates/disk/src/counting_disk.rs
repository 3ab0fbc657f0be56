use crate::{Disk, File, IoFuture, RealDisk, Space};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A real disk that counts how often something is made durable, for measurements.
pub struct CountingDisk {
    disk: RealDisk,
    syncs: Arc<AtomicU64>,
}

struct CountingFile {
    file: Arc<dyn File>,
    syncs: Arc<AtomicU64>,
}

impl CountingDisk {
    pub fn new(disk: RealDisk) -> CountingDisk {
        CountingDisk { disk, syncs: Arc::default() }
    }

    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }
}

impl Disk for CountingDisk {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        let (opened, syncs) = (self.disk.open(path, create), self.syncs.clone());
        Box::pin(async move { Ok(Arc::new(CountingFile { file: opened.await?, syncs }) as Arc<dyn File>) })
    }

    fn create_dir_all(&self, path: &str) -> IoFuture<()> {
        self.disk.create_dir_all(path)
    }

    fn sync_dir(&self, path: &str) -> IoFuture<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
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

impl File for CountingFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        self.file.write_at(offset, buffers)
    }

    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.write_and_sync(offset, buffers)
    }

    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        self.file.read_at(offset, bytes)
    }

    fn sync_data(&self) -> IoFuture<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.sync_data()
    }

    fn settle(&self) -> IoFuture<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.settle()
    }

    fn preallocate(&self, bytes: u64) -> IoFuture<()> {
        self.file.preallocate(bytes)
    }

    fn set_len(&self, bytes: u64) -> IoFuture<()> {
        self.file.set_len(bytes)
    }

    fn punch_hole(&self, offset: u64, bytes: u64) -> IoFuture<()> {
        self.file.punch_hole(offset, bytes)
    }

    fn len(&self) -> IoFuture<u64> {
        self.file.len()
    }
}
