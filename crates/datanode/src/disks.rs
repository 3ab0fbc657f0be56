//! The node's disks: opened together, failing one by one.

use crate::blocking::blocking;
use crate::datanode_disk::DatanodeDisk;
use crate::index::records::{ContainerRecord, ReplicaState};
use crate::inventory::Inventory;
use crate::options::DatanodeOptions;
use crate::verdict::is_shortage;
use anyhow::{Context, bail};
use disk::{DataDirectory, OpenDiskError, RealDisk, Stamp};
use proto::scm::{DiskReport, DiskState};
use proto::uuid_bytes;
use raftlog::SharedMemory;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;
use tracing::{error, info};
use types::{ContainerId, DiskId, NodeId};

/// The most that is told of why a disk failed: every heartbeat has it, and SCM takes 1024 bytes, which four
/// times this may be.
const WHY_CHARS_MAX: usize = 250;

/// All disks of the node.
pub(crate) struct Disks {
    pub open: Vec<Arc<DatanodeDisk>>,
    /// The disks that could not be opened, as far as their id is known, and why.
    failed: Vec<(DiskId, String)>,
    pub unusable: Vec<PathBuf>,
    pub node_uuid: u128,
    /// The memory for what the logs of all disks keep, and for what others hold beside that.
    pub memory: SharedMemory,
    pub inventory: Inventory,
    /// Whether what nobody names may be given back, as SCM last said.
    pub may_reclaim: Arc<AtomicBool>,
}

/// This node's identity, by the stamps on its disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub node: NodeId,
    pub cluster: String,
}

/// The source of a node's data directories.
enum Source<'a> {
    /// Directories of this machine, by their paths.
    Machine(disk::DiskIo),
    Opened(&'a [Arc<dyn DataDirectory>]),
}

impl Source<'_> {
    async fn open(&self, path: &Path, node_uuid: u128) -> anyhow::Result<Arc<dyn DataDirectory>> {
        match self {
            Source::Machine(io) => {
                let (path, io) = (path.to_owned(), *io);
                blocking(move || Ok(Arc::new(RealDisk::open_with(&path, node_uuid, io)?) as Arc<_>)).await
            }
            Source::Opened(directories) => {
                let found = directories.iter().find(|directory| directory.root() == path);
                found.cloned().with_context(|| format!("nobody opened {}", path.display()))
            }
        }
    }
}

impl Disks {
    /// Opens what can be opened of this machine's data directories.
    pub(crate) async fn open(options: &DatanodeOptions) -> anyhow::Result<Disks> {
        let paths = options.disks.clone();
        let stamps = blocking(move || peek(&paths)).await?;
        let options = DatanodeOptions { db: options.of_indexes(), ..options.clone() };
        Disks::open_from(Source::Machine(options.disk_io), &stamps, &options).await
    }

    /// [`Disks::open`] with data directories that are open already.
    pub(crate) async fn over(
        directories: Vec<Arc<dyn DataDirectory>>,
        options: &DatanodeOptions,
    ) -> anyhow::Result<Disks> {
        let stamps: Vec<_> =
            directories.iter().map(|directory| (directory.root().to_owned(), directory.stamp())).collect();
        Disks::open_from(Source::Opened(&directories), &stamps, options).await
    }

    /// Opens the disks of a source. Those that contradict each other, are in use or of a newer version stop
    /// the node: to go on would harm somebody's data. A disk that merely does not work is left out, loudly.
    async fn open_from(
        source: Source<'_>,
        stamps: &[(PathBuf, Stamp)],
        options: &DatanodeOptions,
    ) -> anyhow::Result<Disks> {
        let node_uuid = agreed(stamps, "datanode", |stamp| Some(stamp.node_uuid))?;
        agreed(stamps, "cluster", |stamp| Some(stamp.cluster.clone()).filter(|cluster| !cluster.is_empty()))?;
        agreed(stamps, "datanode", |stamp| Some(stamp.node).filter(|&node| node != 0))?;
        let node_uuid = node_uuid.unwrap_or_else(|| uuid::Uuid::new_v4().as_u128());

        let log = options.log_of_each_disk();
        let memory = log.shared.clone().expect("all disks share it");
        let of_each = DatanodeOptions { log, ..options.clone() };
        let (open, failed, unusable, inventory, may_reclaim) = Default::default();
        let mut disks = Disks { open, failed, unusable, node_uuid, memory, inventory, may_reclaim };
        for path in &options.disks {
            let opened = async {
                let directory = source.open(path, node_uuid).await?;
                DatanodeDisk::open(directory, &of_each, disks.inventory.clone()).await
            };
            match opened.await {
                Ok(disk) => disks.open.push(Arc::new(disk)),
                Err(failure) if stops_the_node(&failure) => return Err(failure),
                Err(failure) => {
                    let why = format!("{failure:#}");
                    error!(disk = %path.display(), error = why, "disk cannot be used; going on without it");
                    disks.unusable.push(path.clone());
                    let stamp = stamps.iter().find(|(of, _)| of == path).map(|(_, stamp)| stamp);
                    disks.failed.extend(stamp.map(|stamp| (stamp.disk, why)));
                }
            }
        }
        if disks.open.is_empty() {
            bail!("none of the {} data directories can be used", options.disks.len());
        }
        Ok(disks)
    }

    pub(crate) fn get(&self, disk: DiskId) -> Option<&Arc<DatanodeDisk>> {
        self.open.iter().find(|open| open.id == disk)
    }

    /// The disk that holds a container, and what its index says of it: of two, the one whose replica is
    /// closed, and of two that are, one that is not known to be damaged. A disk that was out of use for a
    /// while may have what was never finished there, or has been damaged since, and was copied to another one
    /// meanwhile. One that has failed is asked last. Blocks.
    pub(crate) fn holding(
        &self,
        container: ContainerId,
    ) -> anyhow::Result<Option<(&Arc<DatanodeDisk>, ContainerRecord)>> {
        let (mut held, mut failed) = (None, None);
        for (disk, works) in self.to_be_asked() {
            if held.is_some() && !works {
                break;
            }
            match disk.index.container(container) {
                Ok(Some(record)) => match Worth::of(disk, container, &record, works) {
                    Worth::Whole => return Ok(Some((disk, record))),
                    worth => note_better(&mut held, (worth, disk, record)),
                },
                Ok(None) => {}
                Err(failure) => failed = Some(failure),
            }
        }
        match failed {
            Some(failure) if held.is_none() => Err(failure),
            _ => Ok(held.map(|(_, disk, record)| (disk, record))),
        }
    }

    /// The disk whose replica SCM is told of: of two, the one that is not closed, as SCM alone can say
    /// whether it has what the container lacks, and has it deleted otherwise; until then it is as if the
    /// other was not there, though that is read. Of two that are closed it is the one that is read. Blocks.
    pub(crate) fn told_of(&self, container: ContainerId) -> anyhow::Result<Option<&Arc<DatanodeDisk>>> {
        // An index that cannot be read just now is passed over, as readers do: its disk is looked at again.
        let is_unfinished = |disk: &&Arc<DatanodeDisk>| {
            let record = disk.index.container(container).ok().flatten();
            record.is_some_and(|record| record.state != ReplicaState::Closed)
        };
        if self.open.len() > 1
            && let Some(disk) = self.open.iter().filter(|disk| disk.failure().is_none()).find(is_unfinished)
        {
            return Ok(Some(disk));
        }
        Ok(self.holding(container)?.map(|(disk, _)| disk))
    }

    /// The disks in the order in which they are asked for a container: those that work, then those that do
    /// not.
    fn to_be_asked(&self) -> impl Iterator<Item = (&Arc<DatanodeDisk>, bool)> {
        let these = |works: bool| {
            let these = self.open.iter().filter(move |disk| disk.failure().is_none() == works);
            these.map(move |disk| (disk, works))
        };
        these(true).chain(these(false))
    }

    /// Whether a disk that works has a closed replica of a container. Blocks.
    pub(crate) fn have_closed(&self, container: ContainerId) -> anyhow::Result<bool> {
        for disk in self.open.iter().filter(|disk| disk.failure().is_none()) {
            let record = disk.index.container(container)?;
            if record.is_some_and(|record| record.state == ReplicaState::Closed) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// [`Disks::holding`] without blocking. `None` also where something of it is not in memory: what is found
    /// must not depend on which disk's index happens to be.
    pub(crate) fn holding_in_memory(
        &self,
        container: ContainerId,
    ) -> Option<(&Arc<DatanodeDisk>, ContainerRecord)> {
        let mut held = None;
        for (disk, works) in self.to_be_asked() {
            if held.is_some() && !works {
                break;
            }
            let Some(record) = disk.index.in_memory().container(container).ok()? else { continue };
            match Worth::of(disk, container, &record, works) {
                Worth::Whole => return Some((disk, record)),
                worth => note_better(&mut held, (worth, disk, record)),
            }
        }
        held.map(|(_, disk, record)| (disk, record))
    }

    /// The cluster this node has joined.
    pub(crate) fn cluster(&self) -> Option<String> {
        self.identity().map(|identity| identity.cluster)
    }

    pub(crate) fn identity(&self) -> Option<NodeIdentity> {
        let stamps = self.open.iter().map(|disk| disk.real.stamp());
        let joined = |stamp: Stamp| NodeIdentity { node: NodeId(stamp.node), cluster: stamp.cluster };
        stamps.map(joined).find(|identity| identity.node != NodeId(0))
    }

    /// Stamps all disks as SCM said. Blocks.
    pub(crate) fn join(&self, identity: &NodeIdentity) -> anyhow::Result<()> {
        for disk in &self.open {
            let stamp = disk.real.stamp();
            if stamp.node == identity.node.0 && stamp.cluster == identity.cluster {
                continue;
            }
            disk.real.join_cluster(&identity.cluster, identity.node.0).context("stamp data directory")?;
            info!(disk = %disk.real.root().display(), node = %identity.node, "disk joined the cluster");
        }
        Ok(())
    }

    /// The reports of the disks that SCM gets: what is known of them, without asking them.
    pub(crate) fn report(&self) -> Vec<DiskReport> {
        let mut reports = Vec::with_capacity(self.open.len() + self.failed.len());
        for disk in &self.open {
            let space = disk.room.get();
            let (capacity_bytes, free_bytes) =
                space.map_or((0, 0), |space| (space.capacity_bytes, space.free_bytes));
            let no_word = || space.is_none().then(|| "it cannot say how much room it has".to_owned());
            let failure = disk.failure().or_else(no_word);
            let state = match failure {
                Some(_) => DiskState::Failed,
                None if disk.hangs() => DiskState::Hangs,
                None if free_bytes < disk.full_below_bytes || disk.has_full_index() => DiskState::Full,
                None => DiskState::Works,
            };
            reports.push(DiskReport {
                disk: uuid_bytes(disk.id.0),
                capacity_bytes,
                free_bytes,
                state: state as i32,
                kept_bytes: disk.full_below_bytes,
                why: failure.as_deref().map(beginning).unwrap_or_default(),
                compacting: disk.counters.compacting.load(Ordering::Relaxed),
                given_back_per_second: disk.counters.given_back_per_second(Instant::now()),
            });
        }
        let failed = self.failed.iter();
        reports.extend(failed.map(|(id, why)| DiskReport {
            disk: uuid_bytes(id.0),
            state: DiskState::Failed as i32,
            why: beginning(why),
            ..DiskReport::default()
        }));
        reports
    }

    /// Makes the indexes durable, so that the next start has less to apply again. Blocks.
    pub(crate) fn flush(&self) {
        for disk in &self.open {
            if let Err(failure) = disk.db.flush() {
                error!(disk = %disk.real.root().display(), error = format!("{failure:#}"), "flush block index");
            }
        }
    }
}

/// The part of a reason that is told, in a line.
fn beginning(why: &str) -> String {
    why.chars().take(WHY_CHARS_MAX).map(|it| if it.is_control() { ' ' } else { it }).collect()
}

/// Reads the stamps there are. What cannot be read is left for opening to report.
fn peek(paths: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, Stamp)>> {
    let mut stamps: Vec<(PathBuf, Stamp)> = Vec::new();
    for path in paths {
        let Ok(Some(stamp)) = RealDisk::peek(path) else { continue };
        if let Some((other, _)) = stamps.iter().find(|(_, other)| other.disk == stamp.disk) {
            let (path, other) = (path.display(), other.display());
            bail!(
                "data directories {other} and {path} bear the same id: one is a copy of the other; remove one"
            );
        }
        stamps.push((path.clone(), stamp));
    }
    Ok(stamps)
}

/// The word of the stamps on one thing, if they say anything.
fn agreed<T: PartialEq + std::fmt::Debug>(
    stamps: &[(PathBuf, Stamp)],
    thing: &str,
    of: impl Fn(&Stamp) -> Option<T>,
) -> anyhow::Result<Option<T>> {
    let mut agreed: Option<(&PathBuf, T)> = None;
    for (path, stamp) in stamps {
        let Some(here) = of(stamp) else { continue };
        match &agreed {
            Some((other, there)) if *there != here => bail!(
                "data directory {} belongs to another {thing} ({here:?}) than {} ({there:?}); give this node only its own",
                path.display(),
                other.display()
            ),
            Some(_) => {}
            None => agreed = Some((path, here)),
        }
    }
    Ok(agreed.map(|(_, value)| value))
}

/// Whether a disk that cannot be opened stops the node: also where the process ran out of something, as the
/// disk may be well, and one that is left out is made up for elsewhere.
fn stops_the_node(failure: &anyhow::Error) -> bool {
    let known = failure.downcast_ref::<OpenDiskError>();
    matches!(known, Some(OpenDiskError::InUse { .. } | OpenDiskError::NewerFormat { .. }))
        || is_shortage(failure)
}

/// The worth of a replica on one of a node's disks, the best last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// The replica is not closed, or its disk failed.
    Least,
    Damaged,
    Whole,
}

impl Worth {
    fn of(disk: &DatanodeDisk, container: ContainerId, record: &ContainerRecord, works: bool) -> Worth {
        match works && record.state == ReplicaState::Closed {
            true if disk.is_unhealthy(container) => Worth::Damaged,
            true => Worth::Whole,
            false => Worth::Least,
        }
    }
}

fn note_better<'a>(
    held: &mut Option<(Worth, &'a Arc<DatanodeDisk>, ContainerRecord)>,
    found: (Worth, &'a Arc<DatanodeDisk>, ContainerRecord),
) {
    if held.as_ref().is_none_or(|(worth, ..)| found.0 > *worth) {
        *held = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::keys;
    use crate::layout::DB_DIR;
    use disk::sim::{SimDirectory, SimDisk, SimOptions};
    use rocksdb::WriteOptions;
    use statedb::Db;
    use std::time::Duration;
    use types::PipelineId;

    #[tokio::test]
    async fn a_disk_hangs_that_ended_nothing_for_long_and_still_ends_nothing_a_moment_later() {
        let dir = tempfile::tempdir().unwrap();
        let stamp = RealDisk::open(dir.path(), 1).unwrap().stamp();
        let directory = SimDirectory::new(dir.path(), SimDisk::new(SimOptions::default()), stamp);
        let directory = Arc::new(directory);
        let options = DatanodeOptions { disks: vec![dir.path().to_owned()], ..DatanodeOptions::default() };
        let disks = Disks::over(vec![directory.clone()], &options).await.unwrap();
        tokio::time::pause();
        let check = async |seconds, state| {
            directory.end_nothing_for(Duration::from_secs(seconds));
            assert_eq!(disks.report()[0].state(), state, "{seconds} s");
            tokio::time::advance(Duration::from_secs(1)).await;
        };
        check(30, DiskState::Works).await;
        check(31, DiskState::Works).await;
        check(32, DiskState::Hangs).await;
        check(0, DiskState::Works).await;
        check(31, DiskState::Works).await;
    }

    #[tokio::test]
    async fn a_disk_whose_index_opens_and_cannot_be_listed_is_failed_and_says_why() {
        for row in [keys::pipeline_spec(PipelineId(7)), keys::container(ContainerId(7))] {
            let (bad, good) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let paths = vec![bad.path().to_owned(), good.path().to_owned()];
            paths.iter().for_each(|path| drop(RealDisk::open(path, 1).unwrap()));
            let db = Db::open(&bad.path().join(DB_DIR), &statedb::DbOptions::default()).unwrap();
            db.rocks().put_opt(row, "no record", &WriteOptions::default()).unwrap();
            drop(db);
            let disks = Disks::open(&DatanodeOptions { disks: paths, ..Default::default() }).await.unwrap();
            let [good, bad] = &disks.report()[..] else { panic!("two disks report") };
            assert_eq!((good.state(), good.why.as_str()), (DiskState::Works, ""));
            assert_eq!(bad.state(), DiskState::Failed);
            assert!(bad.why.starts_with("read the block index of "), "{}", bad.why);
        }
    }

    #[test]
    fn no_heartbeat_grows_by_why_a_disk_failed() {
        assert_eq!(beginning(&"ä".repeat(1000)), "ä".repeat(WHY_CHARS_MAX));
        assert_eq!(beginning("a\nb"), "a b");
    }

    /// A disk that is left out as broken is made up for elsewhere.
    #[tokio::test]
    async fn a_disk_whose_index_is_open_still_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let real = Arc::new(RealDisk::open(dir.path(), 1).unwrap());
        let held = Db::open(&dir.path().join(DB_DIR), &statedb::DbOptions::default()).unwrap();
        let options = DatanodeOptions::default();
        let refused = DatanodeDisk::open(real.clone(), &options, Inventory::default()).await.map(drop);
        let refused = refused.unwrap_err();
        assert!(stops_the_node(&refused), "{refused:#}");
        drop(held);
        DatanodeDisk::open(real, &options, Inventory::default()).await.map(drop).unwrap();
    }

    #[tokio::test]
    async fn the_indexes_of_all_disks_share_memory() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let options = DatanodeOptions { disks: paths, memory_bytes_max: 128 << 20, ..Default::default() };
        let disks = Disks::open(&options).await.unwrap();
        let [first, second] = [0, 1].map(|i| disks.open[i].db.clone());
        let before = second.cache_bytes();
        assert_eq!(before.max, 32 << 20);
        let mut batch = rocksdb::WriteBatch::default();
        batch.put(b"key", vec![0; 4 << 20]);
        first.write(batch).unwrap();
        let grown = second.cache_bytes().used - before.used;
        assert!(grown >= 4 << 20, "the second knows of {grown} bytes");
    }
}
