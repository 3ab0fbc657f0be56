//! A disk that fails.

use crate::support::*;
use bytes::Bytes;
use disk::{Disk, File, IoFuture, RealDisk, Space};
use raftlog::{AppendError, HardState, LogSpace};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use types::LogIndex;

/// Passes everything on until its nth write with a sync, which fails after the write and before the sync.
struct FailingDisk {
    disk: RealDisk,
    syncs_left: Arc<AtomicI64>,
}

struct FailingFile {
    file: Arc<dyn File>,
    syncs_left: Arc<AtomicI64>,
}

impl Disk for FailingDisk {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        let (opened, syncs_left) = (self.disk.open(path, create), self.syncs_left.clone());
        Box::pin(
            async move { Ok(Arc::new(FailingFile { file: opened.await?, syncs_left }) as Arc<dyn File>) },
        )
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

impl File for FailingFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        self.file.write_at(offset, buffers)
    }
    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        if self.syncs_left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return self.file.write_and_sync(offset, buffers);
        }
        let write = self.file.write_at(offset, buffers);
        Box::pin(async move {
            write.await?;
            Err(io::Error::from_raw_os_error(5)) // EIO
        })
    }
    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        self.file.read_at(offset, bytes)
    }
    fn sync_data(&self) -> IoFuture<()> {
        self.file.sync_data()
    }
    fn settle(&self) -> IoFuture<()> {
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

#[tokio::test]
async fn a_failed_sync_fails_everything_after_it_and_nothing_before_it() {
    for syncs in 1..12 {
        let machine = Machine::small_segments(5000);
        let syncs_left = Arc::new(AtomicI64::new(syncs));
        let disk = RealDisk::open(&machine.dir.path().join("disk"), 1).unwrap();
        let disk = FailingDisk { disk, syncs_left };
        let space = LogSpace::new(Arc::new(disk), machine.options.clone());
        let Ok(log) = space.open(spec(1)).await else { continue }; // it failed when it was created
        let mut acknowledged = 0;
        let mut failed = false;
        for index in 0..20 {
            match log.append(vec![entry(1, index, 900)]) {
                Ok(token) => match token.durable().await {
                    Ok(()) => {
                        assert!(!failed, "nothing is acknowledged after a failure");
                        acknowledged = index + 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, AppendError::Poisoned { .. }), "{error}");
                        failed = true;
                    }
                },
                Err(error) => {
                    assert!(failed && matches!(error, AppendError::Poisoned { .. }), "{error}");
                }
            }
        }
        assert!(failed);
        assert!(log.save_hard_state(HardState::default()).await.is_err());
        assert!(log.truncate_after(Some(LogIndex(0))).await.is_err());
        assert!(log.purge(id(1, 0)).await.is_err());
        drop((log, space));
        let log = machine.start_again().await.open(spec(1)).await.unwrap();
        let found = read_all(&log).await;
        assert!(
            found.len() as u64 >= acknowledged,
            "{} of {acknowledged} entries, {syncs} syncs",
            found.len()
        );
        assert_eq!(found, entries(1, 0..found.len() as u64, 900));
    }
}
