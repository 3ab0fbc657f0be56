use crate::{Db, DbOptions};
use anyhow::{Context, bail, ensure};
use disk::{Disk, RealDisk};
use futures::FutureExt;
use futures::future::BoxFuture;
use raft::{Applied, Snapshots};
use rocksdb::checkpoint::Checkpoint;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

/// The database of one group, which a snapshot replaces as a whole: [`DbGenerations`], or one in memory in
/// simulations.
pub trait GroupDb: Snapshots {
    /// The database that counts. Whoever holds it goes on reading it when another replaces it: what must be
    /// of one state, like the pieces of a long scan, is read from one such handle. That is why there is no
    /// other way to read.
    fn current(&self) -> Arc<Db>;
}

/// A [`Db`] of one group that can be replaced as a whole while others read it: docs/format/snapshot.md. Each
/// one is a generation in a directory of its own; a pointer file says which one counts. Cheap to clone.
#[derive(Clone)]
pub struct DbGenerations {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<RealDisk>,
    /// The directory of generation 0; the others have their number behind it.
    dir: String,
    options: DbOptions,
    applied_key: &'static [u8],
    current: RwLock<Current>,
}

struct Current {
    number: u64,
    db: Arc<Db>,
}

/// The pointer file: magic, number, CRC32C of both.
const POINTER_MAGIC: [u8; 4] = *b"FLdb";
const POINTER_BYTES: usize = 4 + 8 + 4;

impl DbGenerations {
    /// Opens the generation that counts in `dir` on `disk`, and removes the others. `applied_key` is where
    /// the state machine keeps its applied position. Blocks, as RocksDB does.
    pub async fn open(
        disk: Arc<RealDisk>,
        dir: &str,
        options: &DbOptions,
        applied_key: &'static [u8],
    ) -> anyhow::Result<DbGenerations> {
        let number = read_pointer(&disk, dir).await?;
        remove_others(&disk, dir, number).await?;
        let db = Arc::new(Db::open(&disk.root().join(generation_dir(dir, number)), options)?);
        let current = RwLock::new(Current { number, db });
        let (dir, options) = (dir.to_owned(), options.clone());
        Ok(DbGenerations { inner: Arc::new(Inner { disk, dir, options, applied_key, current }) })
    }

    /// Deletes all that is of the database in `dir`, durably: on return one that is opened there is empty.
    /// What is not there is deleted already. Nobody may have it open, and until a call has returned nobody
    /// may open it: a crash leaves any part of it.
    pub async fn delete(disk: &RealDisk, dir: &str) -> anyhow::Result<()> {
        let (parent, name) = dir.rsplit_once('/').unwrap_or(("", dir));
        let in_parent =
            |name: &str| if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") };
        for found in disk.list(parent).await.context("list generations")? {
            let path = in_parent(&found);
            if is_generation(name, &found) {
                disk.remove_dir_all(&path).await.with_context(|| format!("remove {path}"))?;
            } else if path == pointer_path(dir) {
                disk.remove_file(&path).await.with_context(|| format!("remove {path}"))?;
            }
        }
        disk.sync_dir(parent).await.with_context(|| format!("sync `{parent}`"))
    }

    /// The database that counts, as [`GroupDb::current`] says.
    pub fn current(&self) -> Arc<Db> {
        self.inner.current()
    }
}

impl GroupDb for DbGenerations {
    fn current(&self) -> Arc<Db> {
        self.inner.current()
    }
}

fn generation_dir(dir: &str, number: u64) -> String {
    if number == 0 { dir.to_owned() } else { format!("{dir}.{number:016x}") }
}

fn pointer_path(dir: &str) -> String {
    format!("{dir}.generation")
}

fn encode_pointer(number: u64) -> [u8; POINTER_BYTES] {
    let mut out = [0; POINTER_BYTES];
    out[..4].copy_from_slice(&POINTER_MAGIC);
    out[4..12].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&out[..12]);
    out[12..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Reads the number of the generation that counts: 0 in a directory from before the first install, which has
/// no pointer.
async fn read_pointer(disk: &RealDisk, dir: &str) -> anyhow::Result<u64> {
    let path = disk.root().join(pointer_path(dir));
    let stored = disk::read_file(&path).with_context(|| format!("read {}", path.display()))?;
    let Some(stored) = stored else { return Ok(0) };
    let number = stored.get(4..12).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    ensure!(stored == encode_pointer(number), "{} is damaged", path.display());
    Ok(number)
}

/// Removes generations that an install left half made, or that somebody still read when they were replaced.
async fn remove_others(disk: &RealDisk, dir: &str, number: u64) -> anyhow::Result<()> {
    let (parent, name) = dir.rsplit_once('/').unwrap_or(("", dir));
    let kept = generation_dir(name, number);
    for found in disk.list(parent).await.context("list generations")? {
        if is_generation(name, &found) && found != kept {
            let path = if parent.is_empty() { found } else { format!("{parent}/{found}") };
            disk.remove_dir_all(&path).await.with_context(|| format!("remove {path}"))?;
        }
    }
    Ok(())
}

/// Whether `found` is a generation of the database called `name`.
fn is_generation(name: &str, found: &str) -> bool {
    let is_number = |suffix: &str| {
        suffix
            .strip_prefix('.')
            .is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    found.strip_prefix(name).is_some_and(|suffix| suffix.is_empty() || is_number(suffix))
}

impl Inner {
    fn current(&self) -> Arc<Db> {
        self.current.read().expect("no holder panics").db.clone()
    }

    /// Writes a checkpoint: RocksDB flushes, links the tables it has on disk and copies its own small files;
    /// writing goes on meanwhile. What it linked is durable in the database itself too.
    fn write(&self, dir: &Path) -> anyhow::Result<Applied> {
        let db = self.current();
        let checkpoint = Checkpoint::new(db.rocks()).context("prepare a checkpoint")?;
        checkpoint.create_checkpoint(dir).with_context(|| format!("checkpoint to {}", dir.display()))?;
        let logs = tempdir_for_logs(dir);
        let applied = Db::open_read_only(dir, &logs)?.applied(self.applied_key)?;
        applied.context("nothing is applied yet that a snapshot could have")
    }

    fn install(&self, from: &Path) -> anyhow::Result<()> {
        let number = self.current.read().expect("no holder panics").number + 1;
        let path = self.disk.root().join(generation_dir(&self.dir, number));
        disk::link_dir(from, &path, |name| name.ends_with(".sst"))
            .with_context(|| format!("link the files of {}", from.display()))?;
        let db = Arc::new(Db::open(&path, &self.options)?);
        if db.applied(self.applied_key)?.is_none() {
            bail!("{} is no state of this group: it has no applied position", from.display());
        }
        // Once this is written, a crash leaves the new generation.
        let pointer = self.disk.root().join(pointer_path(&self.dir));
        disk::write_file_durably(&pointer, &encode_pointer(number))
            .with_context(|| format!("write {}", pointer.display()))?;
        let old = {
            let mut current = self.current.write().expect("no holder panics");
            std::mem::replace(&mut *current, Current { number, db })
        };
        old.db.retire();
        Ok(())
    }
}

/// The directory of the text log that RocksDB writes also where it only reads: beside the checkpoint, not in
/// it.
fn tempdir_for_logs(dir: &Path) -> PathBuf {
    dir.with_extension("logs")
}

impl Snapshots for DbGenerations {
    fn disk(&self) -> Arc<dyn Disk> {
        self.inner.disk.clone()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let inner = self.inner.clone();
        async move {
            let parent = dir.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
            let (path, disk) = (inner.disk.root().join(&dir), inner.disk.clone());
            let applied = tokio::task::spawn_blocking(move || inner.write(&path)).await;
            let applied = applied.context("write a snapshot")??;
            disk.remove_dir_all(&format!("{dir}.logs")).await.context("remove RocksDB's text log")?;
            disk.sync_dir(&parent).await.with_context(|| format!("sync {parent}"))?;
            Ok(applied)
        }
        .boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let inner = self.inner.clone();
        async move {
            let (path, disk) = (inner.disk.root().join(&dir), inner.disk.clone());
            let applied = tokio::task::spawn_blocking(move || {
                Db::open_read_only(&path, &tempdir_for_logs(&path))?.applied(inner.applied_key)
            });
            let applied = applied.await.context("look into a snapshot")?;
            disk.remove_dir_all(&format!("{dir}.logs")).await.context("remove RocksDB's text log")?;
            applied?.context("it has no applied position")
        }
        .boxed()
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let inner = self.inner.clone();
        async move {
            let path = inner.disk.root().join(&dir);
            tokio::task::spawn_blocking(move || inner.install(&path)).await.context("install a snapshot")?
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Db;
    use bytes::Bytes;
    use tempfile::TempDir;
    use types::{LogId, LogIndex, Term};

    const KEY: &[u8] = b"a";

    async fn open(disk: &Arc<RealDisk>) -> DbGenerations {
        DbGenerations::open(disk.clone(), "db", &DbOptions::default(), KEY).await.unwrap()
    }

    fn disk(dir: &TempDir) -> Arc<RealDisk> {
        Arc::new(RealDisk::open(&dir.path().join("disk"), 1).unwrap())
    }

    fn apply(dbs: &DbGenerations, index: u64) {
        let id = LogId { term: Term(1), index: LogIndex(index) };
        let mut batch = rocksdb::WriteBatch::default();
        batch.put(b"value", index.to_le_bytes());
        Db::put_applied(&mut batch, KEY, &Applied { id, membership: Bytes::new() });
        dbs.current().write(batch).unwrap();
    }

    fn value(db: &Db) -> u64 {
        u64::from_le_bytes(db.rocks().get(b"value").unwrap().unwrap().try_into().unwrap())
    }

    async fn names(disk: &RealDisk) -> Vec<String> {
        let mut names = disk.list("").await.unwrap();
        names.retain(|name| name.starts_with("db"));
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn readers_keep_what_they_have_when_it_is_replaced() {
        let dir = TempDir::new().unwrap();
        let disk = disk(&dir);
        let dbs = open(&disk).await;
        apply(&dbs, 1);
        let written = Snapshots::write(&dbs, "snapshot".to_owned()).await.unwrap();
        assert_eq!(written.id.index, LogIndex(1));
        apply(&dbs, 2);
        let before = dbs.current();
        dbs.install("snapshot".to_owned()).await.unwrap();
        assert_eq!((value(&before), value(&dbs.current())), (2, 1));
        assert_eq!(names(&disk).await, ["db", "db.0000000000000001", "db.generation"]);
        drop(before);
        assert_eq!(names(&disk).await, ["db.0000000000000001", "db.generation"], "its last reader is gone");

        // The snapshot is as it was: it can be installed again, and what is written since does not change it.
        apply(&dbs, 3);
        Db::flush(&dbs.current()).unwrap();
        dbs.install("snapshot".to_owned()).await.unwrap();
        assert_eq!(value(&dbs.current()), 1);
        drop(dbs);
        assert_eq!(value(&open(&disk).await.current()), 1);
    }

    #[tokio::test]
    async fn what_an_install_left_half_done_is_removed() {
        let dir = TempDir::new().unwrap();
        let disk = disk(&dir);
        let dbs = open(&disk).await;
        apply(&dbs, 1);
        Snapshots::write(&dbs, "snapshot".to_owned()).await.unwrap();
        apply(&dbs, 2);
        drop(dbs);
        // The install stopped before the pointer was written.
        let root = disk.root().to_owned();
        let half = root.join("db.0000000000000001");
        disk::link_dir(&root.join("snapshot"), &half, |_| true).unwrap();
        let dbs = open(&disk).await;
        assert_eq!((value(&dbs.current()), names(&disk).await), (2, vec!["db".to_owned()]));
        drop(dbs);
        // The install stopped after it: the old generation is still there.
        disk::link_dir(&root.join("snapshot"), &half, |_| true).unwrap();
        disk::write_file_durably(&root.join("db.generation"), &encode_pointer(1)).unwrap();
        let dbs = open(&disk).await;
        assert_eq!(value(&dbs.current()), 1);
        assert_eq!(names(&disk).await, ["db.0000000000000001", "db.generation"]);
    }

    #[tokio::test]
    async fn of_a_deleted_one_nothing_is_left_wherever_a_crash_came_and_others_stay() {
        let dir = TempDir::new().unwrap();
        let disk = disk(&dir);
        let other = DbGenerations::open(disk.clone(), "db-2", &DbOptions::default(), KEY).await.unwrap();
        apply(&other, 7);
        let dbs = open(&disk).await;
        apply(&dbs, 1);
        Snapshots::write(&dbs, "snapshot".to_owned()).await.unwrap();
        dbs.install("snapshot".to_owned()).await.unwrap();
        drop(dbs);
        // A crash has taken the generation that counts, and not the word that it does.
        disk.remove_dir_all("db.0000000000000001").await.unwrap();
        for _ in 0..2 {
            DbGenerations::delete(&disk, "db").await.unwrap();
            assert_eq!(names(&disk).await, ["db-2"]);
        }
        assert!(open(&disk).await.current().applied(KEY).unwrap().is_none());
        assert_eq!(value(&other.current()), 7);
    }

    /// The bytes are those of docs/format/snapshot.md.
    #[test]
    fn the_pointer_keeps_its_bytes() {
        assert_eq!(encode_pointer(0x0102)[..12], *b"FLdb\x02\x01\0\0\0\0\0\0");
    }
}
