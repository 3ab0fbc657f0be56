mod opening;

use crate::core::Core;
use crate::files::Files;
use crate::segment::{SegmentId, owner_dir, parent_dir};
use crate::shared_memory::{Caches, SharedMemory};
use crate::space_metrics::SpaceCounts;
use crate::spares::Spares;
use crate::{AppendError, LogSpaceOptions, LogSpec};
use disk::Disk;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::time::Instant;
use types::OwnerId;

/// The age of the disk's last answer from which on it is asked anew how much space it has free.
const FREE_BYTES_AGE_MAX: Duration = Duration::from_secs(1);

/// One disk's logs and their writers.
pub struct LogSpace {
    disk: Arc<dyn Disk>,
    options: LogSpaceOptions,
    files: Files,
    logs: Mutex<HashMap<String, Entry>>,
    /// Lists of discards that this process has settled, or was told of.
    pub(crate) known_lists: Mutex<HashMap<OwnerId, KnownList>>,
    pub(crate) unflushed_bytes: AtomicUsize,
    /// The bytes of the entries that logs keep. Signed: a log's memory may be counted off before it was
    /// counted in.
    pub(crate) cached_bytes: AtomicIsize,
    pub(crate) memory: SharedMemory,
    free: Arc<Free>,
    spares: Arc<Spares>,
    pub(crate) counts: SpaceCounts,
}

/// A list of discards ([`crate::discards`]) as this process knows it without reading it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownList {
    /// The bytes of the whole blocks that were acted upon: a list that ends before is damaged, and no crash
    /// has torn it.
    pub bytes: u64,
    /// Whether the disk has said that all of it is durable.
    pub is_settled: bool,
}

/// The state of a log's directory, which is opened by one at a time.
enum Entry {
    Opening,
    Open(Weak<Core>),
}

/// The space left on the disk, as of the last time somebody asked.
struct Free {
    bytes: AtomicU64,
    asking: AtomicBool,
    asked: Mutex<Option<Instant>>,
}

impl LogSpace {
    pub fn new(disk: Arc<dyn Disk>, options: LogSpaceOptions) -> Arc<LogSpace> {
        let own = || SharedMemory::new(options.cache_bytes_max);
        let memory = options.shared.clone().unwrap_or_else(own);
        let space = Arc::new(LogSpace {
            files: Files::new(disk.clone()),
            spares: Arc::new(Spares::new(disk.clone())),
            disk,
            options,
            logs: Mutex::default(),
            known_lists: Mutex::default(),
            unflushed_bytes: AtomicUsize::new(0),
            cached_bytes: AtomicIsize::new(0),
            memory: memory.clone(),
            counts: SpaceCounts::default(),
            // Until the first log is opened nobody has asked, and nobody appends.
            free: Arc::new(Free {
                bytes: AtomicU64::new(u64::MAX),
                asking: AtomicBool::new(false),
                asked: Mutex::new(None),
            }),
        });
        let caches: Arc<dyn Caches> = space.clone();
        memory.join(Arc::downgrade(&caches));
        space
    }

    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub fn options(&self) -> &LogSpaceOptions {
        &self.options
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    pub(crate) fn spares(&self) -> &Spares {
        &self.spares
    }

    /// Forgets a log (its `dir`), durably; its owners' segments stay. An open log is closed first. When a
    /// crash interrupted the removal, it is to be repeated before anything relies on it. Before a log of this
    /// number is created again, its owners are to be deleted, the first one last: as long as that has
    /// segments, `open` refuses to.
    pub async fn remove(&self, spec: &LogSpec) -> std::io::Result<()> {
        if let Some(core) = self.open_core(&spec.dir) {
            core.close();
            core.until_stopped().await;
        }
        self.disk.remove_dir_all(&spec.dir).await?;
        match self.disk.sync_dir(parent_dir(&spec.dir)).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Deletes an owner's segments, durably. No open log may have entries in them.
    pub async fn delete_owner(&self, owners_dir: &str, owner: OwnerId) -> std::io::Result<()> {
        let dir = owner_dir(owners_dir, owner);
        let names = self.disk.list(&dir).await?;
        let mut segments: Vec<_> = names.iter().filter_map(|name| SegmentId::parse_number(name)).collect();
        segments.sort_unstable();
        // The last one may be unfinished.
        segments.pop();
        let finished: Vec<_> = segments.into_iter().map(|segment| SegmentId { owner, segment }).collect();
        self.delete_finished_segments(owners_dir, &finished).await?;
        self.disk.remove_dir_all(&dir).await?;
        self.known_lists.lock().expect("no holder panics").remove(&owner);
        self.files.forget(&dir);
        match self.disk.sync_dir(owners_dir).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Deletes segments of one owner that have a successor, durably; keeps what it can of them as spares.
    pub(crate) async fn delete_finished_segments(
        &self,
        owners_dir: &str,
        segments: &[SegmentId],
    ) -> std::io::Result<()> {
        self.spares.remove_doomed().await?;
        let Some(id) = segments.first() else { return Ok(()) };
        let bytes_max = if self.free.is_short(&self.options) { 0 } else { self.options.spare_bytes_max };
        let collected = self.spares.collect(owners_dir, segments, bytes_max).await?;
        self.files.forget(&owner_dir(owners_dir, id.owner));
        self.spares.keep(collected);
        Ok(())
    }

    fn open_core(&self, dir: &str) -> Option<Arc<Core>> {
        match self.lock_logs().get(dir) {
            Some(Entry::Open(core)) => core.upgrade(),
            _ => None,
        }
    }

    /// Open logs, in no order.
    pub(crate) fn cores(&self) -> Vec<Arc<Core>> {
        let open = |entry: &Entry| match entry {
            Entry::Open(core) => core.upgrade(),
            Entry::Opening => None,
        };
        self.lock_logs().values().filter_map(open).collect()
    }

    /// Forgets a log that has closed.
    pub(crate) fn forget(&self, core: &Arc<Core>) {
        let mut logs = self.lock_logs();
        if let Some(Entry::Open(known)) = logs.get(&core.spec.dir)
            && std::ptr::eq(known.as_ptr(), Arc::as_ptr(core))
        {
            logs.remove(&core.spec.dir);
        }
    }

    fn lock_logs(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.logs.lock().expect("no holder of the logs panics")
    }
}

impl Free {
    /// Whether the space of spares is needed.
    fn is_short(&self, options: &LogSpaceOptions) -> bool {
        self.bytes.load(Ordering::Relaxed) < options.reserve_bytes.saturating_add(options.spare_bytes_max)
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.asked.lock().expect("no holder of the time panics")
    }
}

/// The budgets that logs of a disk share.
impl LogSpace {
    /// Takes room for an append, or says why there is none. One append always passes, however large.
    pub(crate) fn reserve_unflushed(&self, bytes: usize) -> Result<(), AppendError> {
        let queued = self.unflushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.options.unflushed_bytes_max;
        if queued > 0 && queued + bytes > limit {
            self.release_unflushed(bytes);
            return Err(AppendError::Busy { queued, limit });
        }
        Ok(())
    }

    /// Whether the disk has room for `bytes` more above its reserve. To be asked before something new is let
    /// in: what has been let in is appended even if that draws on the reserve, because a log cannot go on
    /// without it.
    pub fn check_space(&self, bytes: usize) -> Result<(), AppendError> {
        let queued = self.unflushed_bytes.load(Ordering::Relaxed);
        let needed = self.options.reserve_bytes.saturating_add((queued + bytes) as u64);
        if self.free_bytes() >= needed {
            return Ok(());
        }
        self.refresh_free_bytes();
        Err(self.disk_full())
    }

    /// The bytes that all logs of the disk have queued to be written: whether it is busy.
    pub fn unflushed_bytes(&self) -> usize {
        self.unflushed_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn release_unflushed(&self, bytes: usize) {
        self.unflushed_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn disk_full(&self) -> AppendError {
        AppendError::DiskFull { free_bytes: self.free_bytes(), reserve_bytes: self.options.reserve_bytes }
    }

    /// The space that the disk has free. Spares are part of it: they are removed when somebody needs it.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.bytes.load(Ordering::Relaxed).saturating_add(self.spares.bytes())
    }

    /// Asks the disk for its free space, unless somebody just did, and gives spares back if that is short.
    pub fn refresh_free_bytes(&self) {
        let free = self.free.clone();
        let fresh = free.asked().is_some_and(|asked| asked.elapsed() < FREE_BYTES_AGE_MAX);
        if fresh || free.asking.swap(true, Ordering::Relaxed) {
            return;
        }
        let answer = self.disk.space();
        let (spares, options) = (self.spares.clone(), self.options.clone());
        // The task ends with the few operations it waits for.
        tokio::spawn(async move {
            if let Ok(space) = answer.await {
                free.bytes.store(space.free_bytes, Ordering::Relaxed);
            }
            if free.is_short(&options)
                && let Err(error) = spares.give_back().await
            {
                tracing::warn!(%error, "remove spare segments");
            }
            *free.asked() = Some(Instant::now());
            free.asking.store(false, Ordering::Relaxed);
        });
    }

    pub(crate) fn account_cached(&self, before: usize, after: usize) {
        let change = after as isize - before as isize;
        self.cached_bytes.fetch_add(change, Ordering::Relaxed);
        self.memory.account(change);
    }

    pub(crate) fn release_cached(&self, bytes: usize) {
        self.cached_bytes.fetch_sub(bytes as isize, Ordering::Relaxed);
        self.memory.account(-(bytes as isize));
    }
}

impl Caches for LogSpace {
    fn cached_bytes_of_each(&self) -> Vec<usize> {
        self.cores().iter().map(|core| core.cached_bytes()).collect()
    }

    fn shrink_each_to(&self, bytes_max: usize) {
        for core in self.cores() {
            self.release_cached(core.shrink_cache(bytes_max));
        }
    }
}
