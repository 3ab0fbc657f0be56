//! One disk of the node: its directory, the writer of its logs, its index, and what is known of it.

use crate::blocking::blocking;
use crate::counters::DiskCounters;
use crate::deleted_lately::DeletedLately;
use crate::index::Index;
use crate::index_age;
use crate::inventory::Inventory;
use crate::known_space::KnownSpace;
use crate::layout::{DB_DIR, GROUPS_DIR, OWNERS_DIR};
use crate::offline::install;
use crate::options::DatanodeOptions;
use anyhow::{Context, bail};
use disk::{DataDirectory, Disk, IoFuture, OpenDiskError, Space};
use proto::{Code, Failure};
use raftlog::LogSpace;
use statedb::{Db, DbState};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use types::{Backoff, ContainerId, DiskId};

/// The time for which a disk may end nothing of what it was asked before it hangs. One in order answers
/// within seconds.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// The time for which a disk must seem to hang: a machine that stood still itself finds its disks so, once.
const SURE_AFTER: Duration = Duration::from_millis(500);
/// The pauses between the tries of a read: what the index does not give in 13 s in all, it does not give.
const READ_RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(8));

/// The log has this much to write: the disk is busy ...
const BUSY_BYTES: usize = 1 << 20;
/// ... and what can wait does so, but for each record no longer than this: a disk that is always busy is
/// scrubbed too, with chunks of 1 MiB at 1 MiB/s.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(1);
const BUSY_LOOK: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Hanging {
    seems_to_since: Option<Instant>,
    /// Whether the log has it.
    is_told: bool,
}

/// One data directory with its log writer and its index.
pub(crate) struct DatanodeDisk {
    pub id: DiskId,
    pub real: Arc<dyn DataDirectory>,
    pub space: Arc<LogSpace>,
    pub db: Arc<Db>,
    pub index: Index,
    pub counters: DiskCounters,
    /// Containers known to be bad here, so that each is marked once.
    pub unhealthy: Mutex<BTreeSet<ContainerId>>,
    /// The reason why it cannot be told what is on the disk.
    unknown: OnceLock<String>,
    /// A lock that is held while a pipeline is opened, so that an order given twice opens it once.
    pub opening: tokio::sync::Mutex<()>,
    /// A lock that is held while blocks are deleted: the list of a container has one writer.
    pub deleting: tokio::sync::Mutex<()>,
    /// Whoever reads containers whole waits for pauses between their deletions.
    pub deleted_lately: DeletedLately,
    /// Containers that others want to copy, and that have no hash.
    pub hashes_wanted: Mutex<BTreeSet<ContainerId>>,
    /// Containers with what a compaction left and nobody could settle yet.
    pub unsettled: Mutex<BTreeSet<ContainerId>>,
    /// A lock that is held while it is written how a container ended: its file and its record have one
    /// writer.
    pub ending: tokio::sync::Mutex<()>,
    /// The inventory of the whole node: what changes here is told there.
    pub inventory: Inventory,
    pub room: KnownSpace,
    hanging: Mutex<Hanging>,
    /// The room below which pipelines on this disk take no more chunks: the log keeps a reserve and allocates
    /// whole segments.
    pub full_below_bytes: u64,
}

impl DatanodeDisk {
    pub(crate) async fn open(
        real: Arc<dyn DataDirectory>,
        options: &DatanodeOptions,
        inventory: Inventory,
    ) -> anyhow::Result<DatanodeDisk> {
        let log_disk = real.clone();
        Self::open_over(real, log_disk, options, inventory).await
    }

    /// [`DatanodeDisk::open`] with something between the disk and what changes the files of its logs.
    pub(crate) async fn open_over(
        real: Arc<dyn DataDirectory>,
        log_disk: Arc<dyn Disk>,
        options: &DatanodeOptions,
        inventory: Inventory,
    ) -> anyhow::Result<DatanodeDisk> {
        let space = LogSpace::new(log_disk, options.log.clone());
        check_index(&*real).await?;
        let path = real.database(DB_DIR).await.context("look where the block index is")?;
        let db_options = options.db.clone();
        let db = blocking(move || Db::open(&path, &db_options)).await;
        if db.as_ref().is_err_and(is_locked) {
            // Somebody has it open still: the disk is well, and must not be left out.
            return Err(OpenDiskError::InUse { path: real.root().to_owned() }.into());
        }
        let db = Arc::new(db.with_context(|| format!("open the block index of {}", real.root().display()))?);
        let (id, index) = (real.stamp().disk, Index::new(db.clone()));
        let room = KnownSpace::new(real.space().await.context("ask for free space")?);
        let full_below_bytes = options.log.reserve_bytes.saturating_add(options.log.segment_bytes_max);
        // An index that opens and cannot be read would make the disk look empty, and an empty disk says that
        // its logs have ended.
        let of_disk = index.clone();
        let listed = blocking(move || {
            of_disk.containers()?;
            Ok((of_disk.pipeline_specs()?, of_disk.all_unhealthy()?, of_disk.all_list_bytes()?))
        });
        let root = real.root().display();
        let (specs, unhealthy, list_bytes) =
            listed.await.with_context(|| format!("read the block index of {root}"))?;
        index_age::check(&*real, space.disk(), &index, &specs).await?;
        // Before anything acts upon a list that is shorter by now.
        let expect = |(container, bytes): (ContainerId, u64)| space.expect_discards(container.into(), bytes);
        list_bytes.into_iter().for_each(expect);
        let unhealthy = Mutex::new(unhealthy.into_keys().collect());
        let (counters, unknown, opening, deleting) = Default::default();
        let deleted_lately = DeletedLately::new(options.deletion_pause);
        let (hashes_wanted, unsettled, ending) = Default::default();
        Ok(DatanodeDisk {
            id,
            real,
            space,
            db,
            index,
            counters,
            unhealthy,
            unknown,
            opening,
            deleting,
            deleted_lately,
            hashes_wanted,
            unsettled,
            ending,
            inventory,
            room,
            hanging: Mutex::default(),
            full_below_bytes,
        })
    }

    /// The reason why the disk takes nothing until the next start: a write or a sync failed, or its index
    /// turned read-only, which stops every pipeline that applies something; or nobody can tell what is on it.
    pub(crate) fn failure(&self) -> Option<String> {
        let of_index = || match self.db.state() {
            DbState::Well | DbState::Full(_) => None,
            DbState::Failed(why) => Some(format!("its index takes no more writes: {why}")),
        };
        self.real.failure().or_else(of_index).or_else(|| self.unknown.get().cloned())
    }

    /// Whether the disk has ended nothing of what it was asked, or has not said how much room it has, for so
    /// long that nothing new is to go there. To be asked with each heartbeat.
    pub(crate) fn hangs(&self) -> bool {
        let still = self.real.ends_nothing_for().max(self.room.unanswered());
        let mut hanging = self.hanging.lock().expect("no holder panics");
        match still > HANGS_AFTER {
            true => _ = hanging.seems_to_since.get_or_insert_with(Instant::now),
            false => hanging.seems_to_since = None,
        }
        let hangs = hanging.seems_to_since.is_some_and(|since| since.elapsed() >= SURE_AFTER);
        let disk = self.real.root().display();
        match (std::mem::replace(&mut hanging.is_told, hangs), hangs) {
            (false, true) => warn!(%disk, ?still, "a disk hangs: it ends nothing of what it is asked"),
            (true, false) => info!(%disk, "the disk goes on"),
            _ => {}
        }
        hangs
    }

    /// Reads from the index what must not be taken for nothing where it cannot be read: SCM takes what a node
    /// does not tell of for what is not there. What fails is tried again for a while, and then the disk has
    /// failed. `None` for a disk that failed.
    pub(crate) async fn read_surely<T: Send + 'static>(
        &self,
        what: &str,
        read: impl Fn(&Index) -> anyhow::Result<T> + Clone + Send + 'static,
    ) -> Option<T> {
        let mut retry = READ_RETRY;
        while self.failure().is_none() {
            let read = read.clone();
            let failure = match self.index.with(move |index| read(index)).await {
                Ok(read) => return Some(read),
                Err(failure) => format!("{failure:#}"),
            };
            let disk = self.real.root().display();
            let pause = retry.pause();
            if retry.next_pause() == pause {
                error!(%disk, error = failure, "cannot read {what} from the index; the disk is out of use");
                self.unknown.get_or_init(|| format!("its index does not give {what}: {failure}"));
            } else {
                warn!(%disk, error = failure, "cannot read {what} from the index; trying on");
                sleep(pause).await;
            }
        }
        None
    }

    /// Lets logs go first that have much to write, for a while.
    pub(crate) async fn until_idle(&self) {
        let patience = Instant::now() + BUSY_WAIT_MAX;
        while self.space.unflushed_bytes() > BUSY_BYTES && Instant::now() < patience {
            sleep(BUSY_LOOK).await;
        }
    }

    /// The bytes that may be written so that more can be given back: a disk that takes no more data has some.
    pub(crate) fn room_to_compact(&self) -> u64 {
        let free_bytes = self.room.get().map_or(0, |space| space.free_bytes);
        free_bytes.saturating_sub(self.space.options().reserve_bytes)
    }

    /// Tells whether nothing is applied until RocksDB has found room.
    pub(crate) fn has_full_index(&self) -> bool {
        matches!(self.db.state(), DbState::Full(_))
    }

    /// Asks the disk for its room, and finds out whether its index takes writes: RocksDB flushes and compacts
    /// when it likes, also when nobody writes.
    pub(crate) fn ask(self: &Arc<Self>) -> IoFuture<Space> {
        let disk = self.clone();
        Box::pin(async move {
            let db = disk.db.clone();
            if let Err(failure) = blocking(move || Ok(db.probe())).await {
                warn!(disk = %disk.real.root().display(), error = format!("{failure:#}"), "probe an index");
            }
            disk.real.space().await
        })
    }

    /// Refuses chunks that should not even be proposed: a log that cannot append stops its replica.
    pub(crate) fn takes_chunks(&self) -> Result<(), Failure> {
        if let Some(why) = self.failure() {
            return Err(Failure::new(Code::DiskFailed, format!("disk {} failed: {why}", self.id)));
        }
        if let DbState::Full(why) = self.db.state() {
            let message = format!("disk {} is full: its index has no room: {why}", self.id);
            return Err(Failure::new(Code::DiskFull, message));
        }
        let free_bytes = self.room.get().map_or(0, |space| space.free_bytes);
        if free_bytes < self.full_below_bytes {
            let (id, full) = (self.id, self.full_below_bytes);
            let message =
                format!("disk {id} is full: {free_bytes} bytes are free, below {full} it takes no more data");
            return Err(Failure::new(Code::DiskFull, message));
        }
        Ok(())
    }
}

/// Finishes an index that was being replaced. A disk that has logs or containers and no index lost it: an
/// empty one would hide the closed containers, and forget which pipelines are here.
async fn check_index(real: &dyn DataDirectory) -> anyhow::Result<()> {
    install::finish(real).await?;
    let has_logs = !real.list(GROUPS_DIR).await.context("list the logs")?.is_empty();
    let has_data = has_logs || !real.list(OWNERS_DIR).await.context("list the containers")?.is_empty();
    if has_data && !install::has_index(real).await? {
        let root = real.root().display();
        bail!(
            "the block index {root}/{DB_DIR} is missing; `flotilla debug container rebuild {root}` recreates it from the \
             segments"
        );
    }
    Ok(())
}

/// Whether RocksDB found its own lock taken.
fn is_locked(failure: &anyhow::Error) -> bool {
    let of_rocksdb = failure.chain().filter_map(|cause| cause.downcast_ref::<rocksdb::Error>());
    let mut texts = of_rocksdb.map(|error| error.to_string());
    texts.any(|text| text.contains("lock hold by current process") || text.contains("While lock file"))
}
