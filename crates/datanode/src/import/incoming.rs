//! The directory of a container that is being copied here: `incoming/<number>`, which becomes
//! `containers/<number>`.

use super::imported_file;
use crate::import::manifest::{Manifest, SegmentFile};
use crate::layout::{INCOMING_DIR, OWNERS_DIR, container_dir, incoming_dir};
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use disk::{Disk, File};
use std::io::ErrorKind;
use std::sync::Arc;
use types::{ContainerId, OwnerId};

/// A copy under way, and how far it has come.
pub(crate) struct Incoming {
    disk: Arc<dyn Disk>,
    dir: String,
    manifest: Manifest,
    /// The file that is being written, and how far; past the last file when all are there.
    file: usize,
    offset: u64,
    open: Option<Arc<dyn File>>,
}

impl Incoming {
    /// Goes on with what an earlier attempt, or an earlier process, left of the same container, or begins.
    /// Bytes that a loss of power left wrong are found when the copy is verified.
    pub(crate) async fn open(disk: Arc<dyn Disk>, manifest: Manifest) -> anyhow::Result<Incoming> {
        let dir = incoming_dir(manifest.container);
        // A manifest that cannot be read is no reason to fail: the copy is begun anew.
        let left = imported_file::read(&*disk, &dir).await.ok().flatten();
        if left.as_ref() != Some(manifest.message()) {
            remove(&*disk, manifest.container).await?;
            disk.create_dir_all(&dir).await.context("create a directory for a copy")?;
            if let Some(compacted) = &manifest.compacted {
                let written = compacted.write(&*disk, INCOMING_DIR, OwnerId::from(manifest.container)).await;
                written.context("write how a copy was compacted")?;
            }
            imported_file::write(&*disk, &dir, manifest.message()).await?;
        }
        let mut incoming = Incoming { disk, dir, manifest, file: 0, offset: 0, open: None };
        incoming.find_position().await?;
        Ok(incoming)
    }

    /// The first file that is not whole, by the lengths of the files: they are written in order, each from
    /// its beginning. What is read of those that are there is from here on what the disk has: where a sync of
    /// an earlier process failed, the page cache would show the verification what is not there.
    async fn find_position(&mut self) -> anyhow::Result<()> {
        for (n, file) in self.manifest.files.iter().enumerate() {
            let path = format!("{}/{}", self.dir, file.name);
            let bytes = match self.disk.open(&path, false).await {
                Ok(opened) => {
                    opened.settle().await.with_context(|| format!("sync {path}"))?;
                    opened.len().await.with_context(|| format!("read {path}"))?
                }
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                Err(error) => return Err(error).with_context(|| format!("open {path}")),
            };
            (self.file, self.offset) = (n, bytes.min(file.bytes));
            if bytes < file.bytes || file.bytes == 0 {
                return Ok(());
            }
        }
        (self.file, self.offset) = (self.manifest.files.len(), 0);
        Ok(())
    }

    /// The file that comes next, and the offset to go on at; `None` when all is there.
    pub(crate) fn position(&self) -> Option<(&SegmentFile, u64)> {
        self.manifest.files.get(self.file).map(|file| (file, self.offset))
    }

    pub(crate) fn bytes_done(&self) -> u64 {
        self.manifest.files[..self.file].iter().map(|file| file.bytes).sum::<u64>() + self.offset
    }

    /// Writes the next bytes of a file. What lies between them and those before is a hole: bodies that were
    /// given up are not sent.
    pub(crate) async fn write(&mut self, name: &str, offset: u64, data: Bytes) -> anyhow::Result<()> {
        while self.position().is_some_and(|(file, _)| file.name != name) {
            self.finish_file().await?;
        }
        let Some((file, at)) = self.position() else { bail!("nothing of {name} is to come any more") };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= file.bytes);
        let fits = offset >= at && end.is_some();
        ensure!(fits, "{} bytes at {offset} of {name}, which has {at} of {}", data.len(), file.bytes);
        let path = format!("{}/{name}", self.dir);
        if self.open.is_none() {
            let opened = self.disk.open(&path, true).await;
            self.open = Some(opened.with_context(|| format!("create {path}"))?);
        }
        let open = self.open.as_ref().expect("opened above");
        let bytes = data.len() as u64;
        open.write_at(offset, vec![data]).await.with_context(|| format!("write {path}"))?;
        self.offset = offset + bytes;
        Ok(())
    }

    /// Makes the file that is being written as long as it is to be, and durable, and goes on to the next.
    async fn finish_file(&mut self) -> anyhow::Result<()> {
        let file = &self.manifest.files[self.file];
        let path = format!("{}/{}", self.dir, file.name);
        let finish = async {
            let open = match self.open.take() {
                Some(open) => open,
                None => self.disk.open(&path, true).await?,
            };
            open.set_len(file.bytes).await?;
            open.sync_data().await
        };
        finish.await.with_context(|| format!("finish {path}"))?;
        (self.file, self.offset) = (self.file + 1, 0);
        Ok(())
    }

    /// Makes all files durable once all bytes were sent, also what an earlier attempt wrote.
    pub(crate) async fn finish(&mut self) -> anyhow::Result<()> {
        (self.file, self.open) = (0, None);
        while self.file < self.manifest.files.len() {
            self.finish_file().await?;
        }
        self.disk.sync_dir(&self.dir).await.context("sync the directory of a copy")
    }

    /// Gives the copy its place: a container from here on, which lacks its index.
    pub(crate) async fn publish(self) -> anyhow::Result<()> {
        let to = container_dir(self.manifest.container);
        ensure!(self.disk.list(&to).await?.is_empty(), "there is a directory {to} already");
        self.disk.create_dir_all(OWNERS_DIR).await?;
        let publish = async {
            self.disk.rename(&self.dir, &to).await?;
            self.disk.sync_dir(OWNERS_DIR).await?;
            self.disk.sync_dir(INCOMING_DIR).await
        };
        publish.await.with_context(|| format!("rename {} to {to}", self.dir))
    }
}

/// Takes a published copy back that cannot be indexed, and gives it up: removed in its place, half of it
/// would look like a container that the index has forgotten.
pub(crate) async fn unpublish(disk: &dyn Disk, container: ContainerId) -> anyhow::Result<()> {
    remove(disk, container).await?;
    disk.create_dir_all(INCOMING_DIR).await?;
    let (from, to) = (container_dir(container), incoming_dir(container));
    let rename = async {
        disk.rename(&from, &to).await?;
        disk.sync_dir(INCOMING_DIR).await?;
        disk.sync_dir(OWNERS_DIR).await
    };
    rename.await.with_context(|| format!("rename {from} to {to}"))?;
    remove(disk, container).await
}

/// Lists the copies that are not finished.
pub(crate) async fn list(disk: &dyn Disk) -> anyhow::Result<Vec<ContainerId>> {
    let owners = raftlog::owners(disk, INCOMING_DIR).await.context("list copies that are under way")?;
    Ok(owners.into_iter().map(|owner| ContainerId(owner.0)).collect())
}

/// Gives a copy up.
pub(crate) async fn remove(disk: &dyn Disk, container: ContainerId) -> anyhow::Result<()> {
    let remove = async {
        if disk.list(INCOMING_DIR).await?.is_empty() {
            return Ok(());
        }
        disk.remove_dir_all(&incoming_dir(container)).await?;
        disk.sync_dir(INCOMING_DIR).await
    };
    remove.await.with_context(|| format!("remove {}", incoming_dir(container)))
}
