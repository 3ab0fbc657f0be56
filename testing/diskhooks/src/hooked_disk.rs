use crate::call::{Act, Call, Operation};
use bytes::Bytes;
use disk::{Disk, File, IoFuture, Space};
use std::future::{pending, ready};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A disk that asks before each operation what is to become of it.
pub struct HookedDisk {
    disk: Arc<dyn Disk>,
    hooks: Hooks,
}

struct HookedFile {
    file: Arc<dyn File>,
    path: Box<str>,
    hooks: Hooks,
}

/// The function that decides on a call. It is asked when the call is made, in the order of the calls.
type Decide = dyn Fn(Call<'_>) -> Act + Send + Sync;

/// The answer to a read of a path, from an offset, made of the true one.
type Show = dyn Fn(&str, u64, Bytes) -> Bytes + Send + Sync;

#[derive(Clone)]
struct Hooks {
    decide: Arc<Decide>,
    show: Option<Arc<Show>>,
}

impl HookedDisk {
    pub fn new(disk: Arc<dyn Disk>, decide: impl Fn(Call<'_>) -> Act + Send + Sync + 'static) -> HookedDisk {
        HookedDisk { disk, hooks: Hooks { decide: Arc::new(decide), show: None } }
    }

    /// The same disk, whose reads are answered with what `show` makes of them.
    pub fn showing(self, show: impl Fn(&str, u64, Bytes) -> Bytes + Send + Sync + 'static) -> HookedDisk {
        let hooks = Hooks { show: Some(Arc::new(show)), ..self.hooks };
        HookedDisk { hooks, ..self }
    }

    fn change(
        &self,
        operation: Operation,
        path: &str,
        change: impl FnOnce() -> IoFuture<()>,
    ) -> IoFuture<()> {
        self.hooks.change(Call { operation, path, buffers: &[] }, change)
    }
}

impl Hooks {
    /// Carries out an operation that answers with something.
    fn ask<T: Send + 'static>(&self, call: Call<'_>, ask: impl FnOnce() -> IoFuture<T>) -> IoFuture<T> {
        match (self.decide)(call) {
            Act::Pass => ask(),
            act => ended(act, call),
        }
    }

    /// Carries out an operation that answers with nothing and has no weaker one.
    fn change(&self, call: Call<'_>, change: impl FnOnce() -> IoFuture<()>) -> IoFuture<()> {
        match (self.decide)(call) {
            Act::Pass => change(),
            Act::Skip => Box::pin(ready(Ok(()))),
            act => ended(act, call),
        }
    }
}

/// An operation that ends without the disk.
fn ended<T: Send + 'static>(act: Act, call: Call<'_>) -> IoFuture<T> {
    match act {
        Act::Fail(error) => Box::pin(ready(Err(error))),
        Act::Hang => Box::pin(pending()),
        act => panic!("{act:?} cannot be done to {:?}", call.operation),
    }
}

async fn and_fail(done: IoFuture<()>, error: io::Error) -> io::Result<()> {
    done.await?;
    Err(error)
}

impl Disk for HookedDisk {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        let call = Call { operation: Operation::Open { create }, path, buffers: &[] };
        self.hooks.ask(call, || {
            let (opened, path, hooks) = (self.disk.open(path, create), path.into(), self.hooks.clone());
            Box::pin(
                async move { Ok(Arc::new(HookedFile { file: opened.await?, path, hooks }) as Arc<dyn File>) },
            )
        })
    }
    fn create_dir_all(&self, path: &str) -> IoFuture<()> {
        self.change(Operation::CreateDirAll, path, || self.disk.create_dir_all(path))
    }
    fn sync_dir(&self, path: &str) -> IoFuture<()> {
        self.change(Operation::SyncDir, path, || self.disk.sync_dir(path))
    }
    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        let call = Call { operation: Operation::List, path, buffers: &[] };
        self.hooks.ask(call, || self.disk.list(path))
    }
    fn rename(&self, from: &str, to: &str) -> IoFuture<()> {
        self.change(Operation::Rename, from, || self.disk.rename(from, to))
    }
    fn remove_file(&self, path: &str) -> IoFuture<()> {
        self.change(Operation::RemoveFile, path, || self.disk.remove_file(path))
    }
    fn remove_dir_all(&self, path: &str) -> IoFuture<()> {
        self.change(Operation::RemoveDirAll, path, || self.disk.remove_dir_all(path))
    }
    fn is_same_file(&self, one: &str, other: &str) -> IoFuture<bool> {
        self.disk.is_same_file(one, other)
    }
    fn space(&self) -> IoFuture<Space> {
        let call = Call { operation: Operation::Space, path: "", buffers: &[] };
        self.hooks.ask(call, || self.disk.space())
    }
    fn failure(&self) -> Option<String> {
        self.disk.failure()
    }
}

impl HookedFile {
    fn call(&self, operation: Operation) -> Call<'_> {
        Call { operation, path: &self.path, buffers: &[] }
    }

    fn change(&self, operation: Operation, change: impl FnOnce() -> IoFuture<()>) -> IoFuture<()> {
        self.hooks.change(self.call(operation), change)
    }
}

impl File for HookedFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        let call = Call { operation: Operation::WriteAt, path: &self.path, buffers: &buffers };
        match (self.hooks.decide)(call) {
            Act::Pass => self.file.write_at(offset, buffers),
            Act::Skip => Box::pin(ready(Ok(()))),
            act => ended(act, call),
        }
    }
    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        let call = Call { operation: Operation::WriteAndSync, path: &self.path, buffers: &buffers };
        match (self.hooks.decide)(call) {
            Act::Pass => self.file.write_and_sync(offset, buffers),
            Act::Skip => Box::pin(ready(Ok(()))),
            Act::Weaken => self.file.write_at(offset, buffers),
            Act::WeakenAndFail(error) => Box::pin(and_fail(self.file.write_at(offset, buffers), error)),
            Act::SyncLate(late) => {
                let (written, file) = (self.file.write_at(offset, buffers), self.file.clone());
                Box::pin(async move {
                    written.await?;
                    // The task ends by itself, or with its process.
                    tokio::spawn(async move {
                        tokio::time::sleep(late).await;
                        file.sync_data().await
                    });
                    Ok(())
                })
            }
            act => ended(act, call),
        }
    }
    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        self.hooks.ask(self.call(Operation::ReadAt), || {
            let read = self.file.read_at(offset, bytes);
            let Some(show) = self.hooks.show.clone() else { return read };
            let path = self.path.clone();
            Box::pin(async move { Ok(show(&path, offset, read.await?)) })
        })
    }
    fn sync_data(&self) -> IoFuture<()> {
        self.change(Operation::SyncData, || self.file.sync_data())
    }
    fn settle(&self) -> IoFuture<()> {
        let call = self.call(Operation::Settle);
        match (self.hooks.decide)(call) {
            Act::Pass => self.file.settle(),
            Act::Skip => Box::pin(ready(Ok(()))),
            Act::Weaken => self.file.sync_data(),
            Act::WeakenAndFail(error) => Box::pin(and_fail(self.file.sync_data(), error)),
            act => ended(act, call),
        }
    }
    fn preallocate(&self, bytes: u64) -> IoFuture<()> {
        self.change(Operation::Preallocate, || self.file.preallocate(bytes))
    }
    fn set_len(&self, bytes: u64) -> IoFuture<()> {
        self.change(Operation::SetLen, || self.file.set_len(bytes))
    }
    fn punch_holes(&self, holes: Vec<Range<u64>>) -> IoFuture<()> {
        self.change(Operation::PunchHoles, || self.file.punch_holes(holes))
    }
    fn len(&self) -> IoFuture<u64> {
        self.hooks.ask(self.call(Operation::Len), || self.file.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn disk_in(dir: &tempfile::TempDir) -> Arc<dyn Disk> {
        Arc::new(disk::RealDisk::open(&dir.path().join("disk"), 1).unwrap())
    }

    /// Does everything that can be done, and returns the operations that were asked about.
    async fn all_of(real: Arc<dyn Disk>) -> Vec<Operation> {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = asked.clone();
        let disk = HookedDisk::new(real, move |call| {
            told.lock().unwrap().push(call.operation);
            Act::Pass
        });
        disk.create_dir_all("a/b").await.unwrap();
        let file = disk.open("a/file", true).await.unwrap();
        file.preallocate(100).await.unwrap();
        file.write_at(0, vec!["one".into()]).await.unwrap();
        file.write_and_sync(3, vec!["two".into()]).await.unwrap();
        file.sync_data().await.unwrap();
        file.settle().await.unwrap();
        file.set_len(6).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 6);
        file.punch_holes(vec![0..1, 2..3]).await.unwrap();
        assert_eq!(file.read_at(0, 6).await.unwrap(), &b"\0n\0two"[..]);
        disk.sync_dir("a").await.unwrap();
        disk.rename("a/file", "a/other").await.unwrap();
        assert_eq!(disk.list("a").await.unwrap().len(), 2);
        assert!(disk.space().await.unwrap().capacity_bytes > 0);
        disk.remove_file("a/other").await.unwrap();
        disk.remove_dir_all("a").await.unwrap();
        let asked = asked.lock().unwrap();
        asked.clone()
    }

    #[tokio::test]
    async fn every_operation_is_asked_about_once_and_passed_on() {
        use Operation::*;
        let dir = tempfile::tempdir().unwrap();
        let asked = all_of(disk_in(&dir)).await;
        let expected = [
            CreateDirAll,
            Open { create: true },
            Preallocate,
            WriteAt,
            WriteAndSync,
            SyncData,
            Settle,
            SetLen,
            Len,
            PunchHoles,
            ReadAt,
            SyncDir,
            Rename,
            List,
            Space,
            RemoveFile,
            RemoveDirAll,
        ];
        assert_eq!(asked, expected);
    }

    #[tokio::test]
    async fn what_is_decided_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let real = disk_in(&dir);
        let file = async |decide: fn(Call<'_>) -> Act| {
            let disk = HookedDisk::new(real.clone(), move |call| match call.operation {
                Operation::Open { .. } | Operation::ReadAt => Act::Pass,
                _ => decide(call),
            });
            disk.open("file", true).await.unwrap()
        };
        let written = |text: &'static str| vec![Bytes::from(text)];
        let read = async || file(|_| Act::Pass).await.read_at(0, 10).await.unwrap();

        file(|_| Act::Skip).await.write_and_sync(0, written("skipped")).await.unwrap();
        assert_eq!(read().await, "");
        let failed = file(|_| Act::Fail(io::Error::other("no"))).await;
        assert_eq!(failed.write_at(0, written("failed")).await.unwrap_err().to_string(), "no");
        assert_eq!(read().await, "");
        let torn = file(|_| Act::WeakenAndFail(io::Error::other("no"))).await;
        assert_eq!(torn.write_and_sync(0, written("torn")).await.unwrap_err().to_string(), "no");
        assert_eq!(read().await, "torn");
        file(|_| Act::Weaken).await.write_and_sync(0, written("weak")).await.unwrap();
        assert_eq!(read().await, "weak");
        let hanging = file(|_| Act::Hang).await;
        let hung = tokio::time::timeout(std::time::Duration::from_millis(1), hanging.sync_data());
        assert!(hung.await.is_err());

        let shown = HookedDisk::new(real.clone(), |_| Act::Pass).showing(|path, offset, bytes| {
            assert_eq!((path, offset), ("file", 1));
            bytes.to_ascii_uppercase().into()
        });
        assert_eq!(shown.open("file", false).await.unwrap().read_at(1, 2).await.unwrap(), "EA");
    }
}
