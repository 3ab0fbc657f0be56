use crate::direct::DataFile;
use crate::health::Operation;
use crate::queue::Kind;
use crate::real_disk::Inner;
use crate::{File, IoFuture, syscalls};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// An open file of a [`crate::RealDisk`]. Holds on to the disk and so to its lock.
pub(crate) struct RealFile {
    pub(crate) disk: Arc<Inner>,
    pub(crate) data: DataFile,
    pub(crate) path: Arc<str>,
}

impl RealFile {
    fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        name: &'static str,
        call: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (health, file, path) = (self.disk.health.clone(), self.data.file.clone(), self.path.clone());
        self.disk
            .pool
            .run(operation.kind(), move || health.run(operation, || format!("{name} {path}"), || call(&file)))
    }
}

impl File for RealFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        if let Some(ring) = &self.disk.ring {
            return ring.write(&self.data, &self.path, offset, buffers, false);
        }
        self.run(Operation::Change, "write", move |file| syscalls::write_all_at(file, offset, buffers))
    }

    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        if let Some(ring) = &self.disk.ring {
            return self.data.synced(ring.write(&self.data, &self.path, offset, buffers, true));
        }
        let (health, file, path) = (self.disk.health.clone(), self.data.file.clone(), self.path.clone());
        self.disk.pool.run(Kind::Change, move || {
            let name = |operation: &str| format!("{operation} {path}");
            health.run(
                Operation::Change,
                || name("write"),
                || syscalls::write_all_at(&file, offset, buffers),
            )?;
            health.run(Operation::Sync, || name("sync"), || file.sync_data())
        })
    }

    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        let mut buffer = Vec::new();
        // A failed disk gives nothing, and says why.
        if self.disk.health.check().is_ok() {
            match self.disk.in_place.read(&self.data.file, offset, bytes) {
                Ok(read) => {
                    return Box::pin(async {
                        // Who reads on and on leaves the thread to others from time to time.
                        tokio::task::coop::consume_budget().await;
                        Ok(read)
                    });
                }
                Err(begun) => buffer = begun,
            }
        }
        if let Some(ring) = &self.disk.ring {
            return ring.read(&self.data.file, &self.path, offset, bytes, buffer);
        }
        self.run(Operation::Read, "read", move |file| {
            syscalls::read_at(file, offset, bytes, &mut buffer)?;
            Ok(buffer.into())
        })
    }

    fn sync_data(&self) -> IoFuture<()> {
        if let Some(ring) = &self.disk.ring {
            return self.data.synced(ring.sync(&self.data.file, &self.path));
        }
        self.run(Operation::Sync, "sync", |file| file.sync_data())
    }

    fn settle(&self) -> IoFuture<()> {
        self.data.synced(self.run(Operation::Sync, "settle", |file| {
            file.sync_data()?;
            syscalls::forget_cached(file)
        }))
    }

    fn preallocate(&self, bytes: u64) -> IoFuture<()> {
        self.run(Operation::Change, "preallocate", move |file| syscalls::preallocate(file, bytes))
    }

    fn set_len(&self, bytes: u64) -> IoFuture<()> {
        self.run(Operation::Change, "set the length of", move |file| file.set_len(bytes))
    }

    fn punch_holes(&self, holes: Vec<Range<u64>>) -> IoFuture<()> {
        self.run(Operation::Change, "punch holes in", move |file| {
            holes.into_iter().try_for_each(|hole| syscalls::punch_hole(file, hole))
        })
    }

    fn len(&self) -> IoFuture<u64> {
        self.run(Operation::Read, "stat", |file| Ok(file.metadata()?.len()))
    }
}
