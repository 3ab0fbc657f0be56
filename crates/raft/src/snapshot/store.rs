use crate::Applied;
use crate::adapter::alive::Alive;
use crate::snapshot::manifest::{FileEntry, MANIFEST_BYTES_MAX, Manifest, PIECE_BYTES, Piece, check_name};
use crate::snapshot::stored::{Stored, files_dir};
use crate::snapshot::{Counters, Limits, Snapshots};
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use disk::Disk;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore};
use types::{GroupId, LogId};

/// The directory of all groups' snapshots, on the disks of their logs.
pub(crate) const ROOT: &str = "snapshots";

/// The directory of a group's snapshots.
pub(crate) fn root(group: GroupId) -> String {
    format!("{ROOT}/{group}")
}

/// The file that makes a snapshot complete: it is written when all else is durable.
const MANIFEST: &str = "manifest";
/// The manifest of a snapshot that is being received.
const OFFER: &str = "offer";

/// The snapshots of a group on its state machine's disk: docs/format/snapshot.md. One is current; those
/// before it stay as long as they are being sent.
pub(crate) struct SnapshotStore {
    group: GroupId,
    snapshots: Arc<dyn Snapshots>,
    pub(crate) disk: Arc<dyn Disk>,
    root: String,
    pub(crate) limits: Arc<Limits>,
    pub(crate) counters: Arc<Counters>,
    state: Mutex<State>,
    writing: Semaphore,
    sweeping: Semaphore,
    pub(crate) receiving: Arc<Semaphore>,
    /// The signal to the keeper that the current snapshot was found damaged.
    pub(crate) attention: Notify,
    /// The signal that somebody may have held an old snapshot for the last time.
    pub(crate) let_go: Notify,
    /// The field stands after `snapshots`, so it is dropped after it.
    _alive: Alive,
}

struct State {
    current: Option<Arc<Stored>>,
    partial: Option<Partial>,
    /// Snapshots that are to be removed when nobody else holds them.
    retired: Vec<Arc<Stored>>,
    /// Directories to be removed: they stay here until they are gone, whoever stops waiting for that.
    garbage: Vec<String>,
    next_number: u64,
}

/// A snapshot that is not all here.
pub(crate) struct Partial {
    pub(crate) dir: String,
    pub(crate) manifest: Manifest,
    pub(crate) encoded: Bytes,
    /// The first piece that is missing; `None` when that has to be found out.
    pub(crate) cursor: Option<Piece>,
}

/// A place for a snapshot that is being made. Dropped before it is kept, its files go with the next
/// [`SnapshotStore::sweep`].
struct NewDir<'a> {
    store: &'a SnapshotStore,
    path: String,
}

impl NewDir<'_> {
    fn keep(mut self) -> String {
        std::mem::take(&mut self.path)
    }
}

impl Drop for NewDir<'_> {
    fn drop(&mut self) {
        if !self.path.is_empty() {
            self.store.discard(std::mem::take(&mut self.path));
        }
    }
}

enum Found {
    Complete(Stored),
    Partial(Partial),
    Nothing,
}

impl SnapshotStore {
    /// Opens a group's snapshots: finds what there is, and removes what an earlier run left half-written.
    pub(crate) async fn open(
        group: GroupId,
        snapshots: Arc<dyn Snapshots>,
        limits: Arc<Limits>,
        counters: Arc<Counters>,
        alive: Alive,
    ) -> anyhow::Result<SnapshotStore> {
        let disk = snapshots.disk();
        let root = root(group);
        disk.create_dir_all(&root).await.with_context(|| format!("create {root}"))?;
        let state =
            State { current: None, partial: None, retired: Vec::new(), garbage: Vec::new(), next_number: 1 };
        let store = SnapshotStore {
            group,
            snapshots,
            disk,
            root,
            limits,
            counters,
            state: Mutex::new(state),
            writing: Semaphore::new(1),
            sweeping: Semaphore::new(1),
            receiving: Arc::new(Semaphore::new(1)),
            attention: Notify::new(),
            let_go: Notify::new(),
            _alive: alive,
        };
        store.open_look().await.with_context(|| format!("open the snapshots in {}", store.root))?;
        Ok(store)
    }

    async fn open_look(&self) -> anyhow::Result<()> {
        let mut numbers: Vec<u64> =
            self.disk.list(&self.root).await?.iter().filter_map(|name| parse_number(name)).collect();
        // A disk lists names in any order.
        numbers.sort_unstable();
        let (mut complete, mut partial, mut garbage) = (None::<Stored>, None::<Partial>, Vec::new());
        for &number in &numbers {
            let dir = self.dir(number);
            match self.look(&dir).await? {
                Found::Nothing => garbage.push(dir),
                Found::Partial(found) => garbage.extend(partial.replace(found).map(|old| old.dir)),
                Found::Complete(found) if complete.as_ref().is_some_and(|old| old.id() > found.id()) => {
                    garbage.push(dir);
                }
                Found::Complete(found) => garbage.extend(complete.replace(found).map(|old| old.dir)),
            }
        }
        let is_old = |partial: &Partial| {
            complete.as_ref().is_some_and(|complete| complete.id() >= partial.manifest.applied.id)
        };
        if let Some(old) = partial.take_if(|partial| is_old(partial)) {
            garbage.push(old.dir);
        }
        for dir in garbage {
            self.remove(&dir).await?;
        }
        let mut state = self.lock();
        state.next_number = numbers.last().map_or(1, |last| last + 1);
        state.current = complete.map(Arc::new);
        state.partial = partial;
        Ok(())
    }

    async fn look(&self, dir: &str) -> anyhow::Result<Found> {
        if let Some((manifest, encoded)) = self.read_manifest(dir, MANIFEST).await? {
            if let Some(path) = missing_file(&self.disk, dir, &manifest).await? {
                tracing::warn!(group = %self.group, path, "a snapshot lacks a file and is removed");
                return Ok(Found::Nothing);
            }
            let stored = Stored::new(self.disk.clone(), dir.to_owned(), manifest, encoded);
            return Ok(Found::Complete(stored.map_err(anyhow::Error::msg)?));
        }
        Ok(match self.read_manifest(dir, OFFER).await? {
            Some((manifest, encoded)) => {
                Found::Partial(Partial { dir: dir.to_owned(), manifest, encoded, cursor: None })
            }
            None => Found::Nothing,
        })
    }

    /// Reads a manifest; `None` when it is not there, or not whole: a crash tore it, and the snapshot never
    /// counted.
    async fn read_manifest(&self, dir: &str, name: &str) -> anyhow::Result<Option<(Manifest, Bytes)>> {
        let path = format!("{dir}/{name}");
        let Some(bytes) = file_bytes(&self.disk, &path).await? else { return Ok(None) };
        if bytes > MANIFEST_BYTES_MAX as u64 {
            return Ok(None);
        }
        let encoded = self.disk.open(&path, false).await?.read_at(0, bytes as usize).await?;
        match Manifest::decode(&encoded) {
            Ok(manifest) => {
                ensure!(manifest.group == self.group, "{path} is of {}", manifest.group);
                Ok(Some((manifest, encoded)))
            }
            Err(error) => {
                tracing::warn!(group = %self.group, path, %error, "a snapshot does not count");
                Ok(None)
            }
        }
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    pub(crate) fn current(&self) -> Option<Arc<Stored>> {
        self.lock().current.clone()
    }

    /// The last entry that the newest snapshot here has.
    pub(crate) fn current_id(&self) -> Option<LogId> {
        self.lock().current.as_ref().map(|current| current.id())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn dir(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.root)
    }

    fn new_dir(&self) -> NewDir<'_> {
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        NewDir { store: self, path: self.dir(number) }
    }

    /// Writes a snapshot of the state as it is, when its turn has come; it is current on return, unless a
    /// newer one was installed meanwhile. What this leaves when it is dropped half way is the next sweep's.
    pub(crate) async fn write(&self) -> anyhow::Result<Arc<Stored>> {
        let _only_one = self.writing.acquire().await.context("write a snapshot")?;
        let _few = self.limits.writers.acquire().await.context("write a snapshot")?;
        let dir = self.new_dir();
        match self.write_in(&dir.path).await {
            Ok(stored) => {
                self.counters.written_count.fetch_add(1, Ordering::Relaxed);
                dir.keep();
                Ok(self.make_current(Arc::new(stored)))
            }
            Err(error) => {
                self.counters.write_failed_count.fetch_add(1, Ordering::Relaxed);
                drop(dir);
                self.sweep().await;
                Err(error.context(format!("write a snapshot of {}", self.group)))
            }
        }
    }

    async fn write_in(&self, dir: &str) -> anyhow::Result<Stored> {
        self.disk.create_dir_all(dir).await.with_context(|| format!("create {dir}"))?;
        let applied = self.snapshots.write(files_dir(dir)).await?;
        let mut names = self.disk.list(&files_dir(dir)).await?;
        names.sort_unstable();
        let last = self.current();
        let (mut files, mut inherited) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            let known = self.known(last.as_deref(), dir, &name).await?;
            files.push(match (known, &last) {
                (Some(known), Some(last)) => {
                    inherited.extend(last.is_damaged(&name).then_some(name));
                    known
                }
                _ => self.write_take_stock(dir, name).await?,
            });
        }
        let manifest = Manifest { group: self.group, applied, files };
        let encoded = manifest.encode();
        if encoded.len() > MANIFEST_BYTES_MAX {
            bail!("{} bytes of state need a manifest of {} bytes", manifest.bytes(), encoded.len());
        }
        self.write_small(dir, MANIFEST, encoded.clone()).await?;
        let stored = Stored::new(self.disk.clone(), dir.to_owned(), manifest, encoded);
        Ok(stored.map_err(anyhow::Error::msg)?.inheriting(inherited))
    }

    /// The entry of a file that the last snapshot has too: with as many bytes, and under the same name, of
    /// which nobody writes any more. What it has lost on its disk since is found by who reads it, also when
    /// it was found before: read now, it would be called whole, and be copied to other members as it is.
    async fn known(&self, last: Option<&Stored>, dir: &str, name: &str) -> anyhow::Result<Option<FileEntry>> {
        let Some(last) = last else { return Ok(None) };
        let files = &last.manifest.files;
        let Ok(at) = files.binary_search_by(|file| file.name.as_str().cmp(name)) else { return Ok(None) };
        let (path, known) = (format!("{}/{name}", files_dir(dir)), format!("{}/{name}", last.files_dir()));
        let is_same = self.disk.is_same_file(&path, &known).await?
            && file_bytes(&self.disk, &path).await? == Some(files[at].bytes);
        Ok(is_same.then(|| files[at].clone()))
    }

    async fn write_take_stock(&self, dir: &str, name: String) -> anyhow::Result<FileEntry> {
        check_name(&name).map_err(anyhow::Error::msg)?;
        let file = self.disk.open(&format!("{}/{name}", files_dir(dir)), false).await?;
        let bytes = file.len().await?;
        let mut crcs = Vec::new();
        let mut offset = 0;
        while offset < bytes {
            let data = file.read_at(offset, PIECE_BYTES).await?;
            ensure!(!data.is_empty(), "{name} became shorter than its {bytes} bytes");
            crcs.push(crc32c::crc32c(&data));
            offset += data.len() as u64;
        }
        Ok(FileEntry { name, bytes, crcs })
    }

    /// Writes a small file, durably on return.
    async fn write_small(&self, dir: &str, name: &str, contents: Bytes) -> io::Result<()> {
        let file = self.disk.open(&format!("{dir}/{name}"), true).await?;
        file.write_and_sync(0, vec![contents]).await?;
        self.disk.sync_dir(dir).await
    }

    fn make_current(&self, stored: Arc<Stored>) -> Arc<Stored> {
        let mut state = self.lock();
        state.retired.retain(|retired| !Arc::ptr_eq(retired, &stored));
        if state.current.as_ref().is_some_and(|current| current.id() > stored.id()) {
            state.retired.push(stored);
        } else if let Some(old) = state.current.replace(stored) {
            state.retired.push(old);
        }
        // Nobody needs the rest of what is older than the state here.
        let newest = state.current.as_ref().map(|current| current.id());
        if let Some(old) = state.partial.take_if(|partial| Some(partial.manifest.applied.id) <= newest) {
            state.garbage.push(old.dir);
        }
        state.current.clone().expect("set above, or newer")
    }

    /// The begun reception, if there is one.
    pub(crate) fn take_partial(&self) -> Option<Partial> {
        self.lock().partial.take()
    }

    pub(crate) fn put_partial(&self, partial: Partial) {
        let mut state = self.lock();
        let newest = state.current.as_ref().map(|current| current.id());
        if Some(partial.manifest.applied.id) <= newest {
            state.garbage.push(partial.dir);
        } else {
            state.partial = Some(partial);
        }
    }

    /// Has the next [`SnapshotStore::sweep`] remove a directory that nobody reads or writes.
    pub(crate) fn discard(&self, dir: String) {
        self.lock().garbage.push(dir);
    }

    /// A place for a snapshot that is offered; found again after a restart.
    pub(crate) async fn begin_partial(&self, manifest: Manifest, encoded: Bytes) -> io::Result<Partial> {
        let dir = self.new_dir();
        self.disk.create_dir_all(&files_dir(&dir.path)).await?;
        self.write_small(&dir.path, OFFER, encoded.clone()).await?;
        Ok(Partial { dir: dir.keep(), manifest, encoded, cursor: Some(Piece { file: 0, number: 0 }) })
    }

    /// Makes a snapshot of a reception whose files are all here and durable. It counts after
    /// [`SnapshotStore::install`] only: openraft first removes log entries that contradict it.
    pub(crate) fn complete(&self, partial: Partial) -> Result<Arc<Stored>, String> {
        let Partial { dir, manifest, encoded, .. } = partial;
        let stored = Stored::new(self.disk.clone(), dir.clone(), manifest, encoded);
        let stored = Arc::new(stored.inspect_err(|_| self.discard(dir))?);
        self.lock().retired.push(stored.clone());
        Ok(stored)
    }

    /// Whether the state in the files is what the manifest says. They come from a member; the pieces agree
    /// with their checksums, and that is all that is known of them.
    pub(crate) async fn check_state(&self, stored: &Stored) -> Result<(), String> {
        match self.snapshots.check(stored.files_dir()).await {
            Ok(applied) if applied == stored.manifest.applied => Ok(()),
            Ok(applied) => {
                Err(format!("a snapshot up to {:?} whose state is at {:?}", stored.id(), applied.id))
            }
            Err(error) => Err(format!("a snapshot whose files are no state: {error:#}")),
        }
    }

    /// Replaces the state by a snapshot. From the moment that the snapshot is named complete, a restart
    /// finishes what a crash interrupts: openraft installs a snapshot that is ahead of the state.
    pub(crate) async fn install(&self, stored: &Arc<Stored>) -> anyhow::Result<()> {
        let offer = format!("{}/{OFFER}", stored.dir);
        if file_bytes(&self.disk, &offer).await?.is_some() {
            self.disk.rename(&offer, &format!("{}/{MANIFEST}", stored.dir)).await?;
            self.disk.sync_dir(&stored.dir).await?;
        }
        self.snapshots.install(stored.files_dir()).await.context("install a snapshot")?;
        self.counters.installed_count.fetch_add(1, Ordering::Relaxed);
        self.make_current(stored.clone());
        Ok(())
    }

    /// Removes what is left of snapshots that came to nothing. Cancellation safe: what is not removed yet is
    /// the next sweep's.
    pub(crate) async fn sweep(&self) {
        let Ok(_only_one) = self.sweeping.acquire().await else { return };
        let garbage = self.lock().garbage.clone();
        for dir in garbage {
            match self.remove(&dir).await {
                Ok(()) => self.lock().garbage.retain(|left| *left != dir),
                Err(error) => tracing::warn!(group = %self.group, dir, %error, "remove a snapshot"),
            }
        }
    }

    /// Removes old snapshots that nobody reads. The disk gets their bytes back file by file, with time
    /// between them, so that nobody is to wait for this. Cancellation safe, as [`SnapshotStore::sweep`] is.
    pub(crate) async fn sweep_unused(&self) {
        let unused: Vec<(Arc<Stored>, Vec<FileEntry>)> = {
            let state = self.lock();
            let current = state.current.as_ref().map(|stored| &stored.manifest);
            let unused = state.retired.iter().filter(|stored| Arc::strong_count(stored) == 1);
            unused.map(|stored| (stored.clone(), stored.manifest.freed_beside(current))).collect()
        };
        for (stored, freed) in unused {
            if let Err(error) = self.thin_out(&stored.dir, &freed).await {
                tracing::warn!(group = %self.group, dir = stored.dir, %error, "remove files of a snapshot");
            }
            let mut state = self.lock();
            state.retired.retain(|retired| !Arc::ptr_eq(retired, &stored));
            state.garbage.push(stored.dir.clone());
        }
        self.sweep().await;
    }

    /// Removes these files of a snapshot that nobody reads, which counts no more from then on.
    async fn thin_out(&self, dir: &str, freed: &[FileEntry]) -> io::Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        self.remove_marks(dir).await?;
        for file in freed {
            self.limits.removing.take(file.bytes as usize).await;
            self.remove_if_there(&format!("{}/{}", files_dir(dir), file.name)).await?;
        }
        Ok(())
    }

    /// Removes a snapshot: first what makes it count, so that half of one never does.
    async fn remove(&self, dir: &str) -> io::Result<()> {
        self.remove_marks(dir).await?;
        self.disk.remove_dir_all(dir).await?;
        self.disk.sync_dir(&self.root).await
    }

    /// Removes, durably, what makes a snapshot count.
    async fn remove_marks(&self, dir: &str) -> io::Result<()> {
        for name in [MANIFEST, OFFER] {
            if self.remove_if_there(&format!("{dir}/{name}")).await? {
                self.disk.sync_dir(dir).await?;
            }
        }
        Ok(())
    }

    async fn remove_if_there(&self, path: &str) -> io::Result<bool> {
        match self.disk.remove_file(path).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The position of the newest whole snapshot of a group on a disk, for a tool that has no state machine.
pub(crate) async fn newest_applied(disk: &Arc<dyn Disk>, group: GroupId) -> io::Result<Option<Applied>> {
    let mut newest = None::<Applied>;
    for name in disk.list(&root(group)).await? {
        let dir = format!("{}/{name}", root(group));
        let file = match disk.open(&format!("{dir}/{MANIFEST}"), false).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let encoded = file.read_at(0, MANIFEST_BYTES_MAX).await?;
        let Ok(manifest) = Manifest::decode(&encoded) else { continue };
        let is_newer = newest.as_ref().is_none_or(|newest| newest.id.index < manifest.applied.id.index);
        if manifest.group == group && is_newer && missing_file(disk, &dir, &manifest).await?.is_none() {
            newest = Some(manifest.applied);
        }
    }
    Ok(newest)
}

/// A file of a snapshot that is not there, or has another length.
async fn missing_file(disk: &Arc<dyn Disk>, dir: &str, manifest: &Manifest) -> io::Result<Option<String>> {
    for file in &manifest.files {
        let path = format!("{}/{}", files_dir(dir), file.name);
        if file_bytes(disk, &path).await? != Some(file.bytes) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

async fn file_bytes(disk: &Arc<dyn Disk>, path: &str) -> io::Result<Option<u64>> {
    match disk.open(path, false).await {
        Ok(file) => file.len().await.map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_number(name: &str) -> Option<u64> {
    let is_ours = name.len() == 16 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_ours { u64::from_str_radix(name, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostOptions;
    use crate::snapshot::stored::{PieceError, PieceReader};
    use crate::snapshot::testing::{GROUP, applied_at};
    use disk::RealDisk;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;
    use types::{LogIndex, Term};

    /// A state of one table that stays, and of a file that each snapshot has anew.
    struct Tables {
        disk: Arc<dyn Disk>,
        root: PathBuf,
        written: AtomicU64,
    }

    impl Snapshots for Tables {
        fn disk(&self) -> Arc<dyn Disk> {
            self.disk.clone()
        }

        #[allow(clippy::disallowed_methods)]
        fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
            let index = self.written.fetch_add(1, Ordering::Relaxed) + 1;
            let (to, table) = (self.root.join(dir), self.root.join("table"));
            async move {
                std::fs::create_dir(&to)?;
                std::fs::hard_link(table, to.join("table"))?;
                std::fs::write(to.join("state"), index.to_string())?;
                Ok(applied_at(LogId { term: Term(1), index: LogIndex(index) }))
            }
            .boxed()
        }

        fn check(&self, _: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
            unreachable!("nothing is received")
        }

        fn install(&self, _: String) -> BoxFuture<'static, anyhow::Result<()>> {
            unreachable!("nothing is received")
        }
    }

    /// The disk has other things to do than to free a whole snapshot at once.
    #[tokio::test(start_paused = true)]
    #[allow(clippy::disallowed_methods)]
    async fn what_a_snapshot_leaves_behind_goes_file_by_file_with_time_between() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path(), 1).unwrap());
        // The table that all have is as large, and its bytes are nobody's to give back.
        std::fs::File::create(dir.path().join("table")).unwrap().set_len(128 << 20).unwrap();
        let state = Tables { disk, root: dir.path().to_owned(), written: AtomicU64::default() };
        let (limits, counters) = (Arc::new(Limits::new(&HostOptions::default())), Arc::default());
        let store =
            SnapshotStore::open(GROUP, Arc::new(state), limits, counters, Alive::new().0).await.unwrap();
        let first = store.write().await.unwrap();
        let files = dir.path().join(files_dir(&first.dir));
        let mut manifest = first.manifest.clone();
        for name in ["x", "y", "z"] {
            std::fs::File::create(files.join(name)).unwrap().set_len(64 << 20).unwrap();
            manifest.files.push(FileEntry { name: name.to_owned(), bytes: 64 << 20, crcs: Vec::new() });
        }
        let (disk, dir, encoded) = (first.disk.clone(), first.dir.clone(), first.encoded.clone());
        let larger = Stored::new(disk, dir, manifest, encoded).map_err(anyhow::Error::msg).unwrap();
        drop(first);
        store.lock().current = Some(Arc::new(larger));
        let begun = tokio::time::Instant::now();
        let held = store.current().unwrap();
        store.write().await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(100), "who writes does not wait for it");
        store.sweep_unused().await;
        let piece = PieceReader::new(held.clone()).read(Piece { file: 0, number: 0 }).await;
        assert_eq!(piece.unwrap(), "1", "somebody reads it");
        drop(held);
        store.sweep_unused().await;
        assert!(!files.exists());
        // All but the last, and what may go at once; what the next snapshot has too takes no time.
        let took = begun.elapsed();
        assert!((Duration::from_millis(900)..Duration::from_millis(1600)).contains(&took), "{took:?}");
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods)]
    async fn a_file_that_the_last_snapshot_has_too_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path(), 1).unwrap());
        let table = dir.path().join("table");
        let write = |byte: u8| std::fs::write(&table, vec![byte; 3 * PIECE_BYTES]).unwrap();
        write(7);
        let state = Arc::new(Tables { disk, root: dir.path().to_owned(), written: AtomicU64::default() });
        let (limits, counters) = (Arc::new(Limits::new(&HostOptions::default())), Arc::default());
        let store = SnapshotStore::open(GROUP, state, limits, counters, Alive::new().0).await.unwrap();
        let entry = |stored: &Stored| stored.manifest.files[1].clone();

        let first = store.write().await.unwrap();
        // It is not what it was, which is seen by who reads it.
        write(8);
        let piece = Piece { file: 1, number: 0 };
        let damaged = PieceReader::new(first.clone()).read(piece).await;
        assert!(matches!(damaged, Err(PieceError::Damaged(..))));
        assert!(first.needs_next(), "it may be this snapshot's alone");
        let second = store.write().await.unwrap();
        assert_eq!(entry(&second), entry(&first));
        assert_ne!(first.manifest.files[0], second.manifest.files[0], "the other file is another");

        let damaged = PieceReader::new(second.clone()).read(piece).await;
        assert!(matches!(damaged, Err(PieceError::Damaged(..))));
        assert!(!second.needs_next(), "the state has it so, and would be written again and again");
        let third = store.write().await.unwrap();
        assert_eq!(entry(&third), entry(&second), "what is damaged stays so");

        // The last snapshot has lost it.
        std::fs::remove_file(dir.path().join(third.files_dir()).join("table")).unwrap();
        store.write().await.unwrap();

        std::fs::remove_file(&table).unwrap();
        write(9);
        let fourth = store.write().await.unwrap();
        assert_ne!(entry(&fourth), entry(&third), "another file has the name");
    }
}
