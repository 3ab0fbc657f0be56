//! Reading replicas from their disks.

use super::{Inventory, Replica};
use crate::blocking::blocking;
use crate::container_end::{ContainerEnd, EndFile};
use crate::container_reader::{ContainerReader, Reading, disk_use};
use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::index::records::{ContainerRecord, ReplicaState};
use crate::index::{Committed, Index, Measure, TermEnd, Terms};
use crate::index_age::is_copy;
use crate::pipelines::Pipelines;
use crate::verdict::condemns;
use crate::workers::Workers;
use raftlog::DiscardsSum;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::error;
use types::{ContainerId, DiskId, LogId, LogIndex, OwnerId};

/// The age that SCM's knowledge of an open container's size may have (its pipeline's report has the size too,
/// each second), and the time until a container is released whose log forgot it.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a disk could not be read.
const RETRY: Duration = Duration::from_secs(10);

/// Keeps the inventory as the disks are. One task for each node, so that no two looks at one container cross.
pub(crate) struct Surveyor {
    disks: Arc<Disks>,
    pipelines: Arc<Pipelines>,
    workers: Workers,
    inventory: Inventory,
}

impl Surveyor {
    pub(crate) fn new(disks: Arc<Disks>, pipelines: Arc<Pipelines>, workers: Workers) -> Surveyor {
        let inventory = disks.inventory.clone();
        Surveyor { disks, pipelines, workers, inventory }
    }

    /// Reads everything, before the first report.
    pub(crate) async fn look_at_all(&self) {
        for disk in &self.disks.open {
            let Some(containers) = disk.read_surely("its containers", Index::containers).await else {
                continue;
            };
            let containers = containers.into_iter().map(|(container, _)| (disk.id, container));
            self.look_at(containers.collect()).await;
        }
    }

    /// Surveys, round after round; whoever waits for a look may do so from the call on.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send {
        self.inventory.begin_rounds();
        async move {
            let stop = self.workers.stop().clone();
            // Dropped anywhere: the next process looks at everything.
            stop.run_until_cancelled(self.run_forever()).await;
            self.inventory.end_rounds();
        }
    }

    async fn run_forever(&self) {
        let mut look_due = Instant::now() + LOOK_INTERVAL;
        loop {
            // Both are safe to drop.
            tokio::select! {
                () = self.inventory.inner.look.notified() => {}
                () = sleep_until(look_due) => {
                    look_due = Instant::now() + LOOK_INTERVAL;
                    // Open containers, and those that a log has yet to forget.
                    let changing = self.inventory.select(|(id, it)| (!it.released).then_some((it.disk, *id)));
                    self.inventory.lock().stale.extend(changing);
                }
            }
            let stale = self.inventory.begin_round();
            self.look_at(stale).await;
            self.inventory.end_round();
        }
    }

    async fn look_at(&self, mut stale: BTreeSet<(DiskId, ContainerId)>) {
        // From the last on: looking at one may bring up the one before it.
        while let Some((disk, container)) = stale.pop_last() {
            let Some(disk) = self.disks.get(disk) else { continue };
            // A disk that failed stays so until restart: what was known of its replicas stands, and SCM knows
            // of the disk.
            if disk.failure().is_some() {
                continue;
            }
            match self.look(disk, container).await {
                Ok(before) => stale.extend(before.map(|before| (disk.id, before))),
                Err(failure) => {
                    let (error, disk_root) = (format!("{failure:#}"), disk.real.root().display());
                    error!(disk = %disk_root, %container, error, "cannot read what a container is; trying on");
                    self.note_unread(disk, container).await;
                    self.look_later(disk.id, container);
                }
            }
        }
    }

    /// Reads one replica; answers the container before it if that was open when it was last looked at: it no
    /// longer is. Or if nothing is known of it: several rolls that come at once (a member catches up) ring
    /// once, with the last one's container.
    async fn look(
        &self,
        disk: &Arc<DatanodeDisk>,
        container: ContainerId,
    ) -> anyhow::Result<Option<ContainerId>> {
        let as_of = self.inventory.removals();
        let read = disk.index.with(move |index| {
            let Some(record) = index.container(container)? else { return Ok(None) };
            let is_end = record.state == ReplicaState::Closed && index.is_written(container, &record)?;
            Ok(Some((record, is_end, index.measure(container)?, index.unhealthy(container)?)))
        });
        let Some((record, is_end, measure, mut unhealthy)) = read.await? else {
            self.inventory.remove(container, disk.id);
            if let Some(told) = self.told_elsewhere(disk, container).await? {
                self.inventory.look_again(told, container);
            }
            return Ok(None);
        };
        if let Some(told) = self.told_elsewhere(disk, container).await? {
            if self.inventory.get(container).is_none_or(|replica| replica.disk != told) {
                self.inventory.look_again(told, container);
            }
            return Ok(self.open_before(disk, &record));
        }
        if is_end && ContainerEnd::file(&**disk.space.disk(), container).await? == EndFile::None {
            // The pipeline ended with this container: nothing was ever in it, and to SCM it never was.
            self.inventory.remove(container, disk.id);
            return Ok(self.open_before(disk, &record));
        }
        // The last segment of a container that was just closed is cut to its length a moment later.
        let before = measure.as_ref().map(|measure| &measure.used);
        let used = match disk_use(&disk.space, container, before).await {
            // The replica's row says what it is nevertheless, so that it is replaced and can be deleted.
            Err(failure) if condemns(&failure) => {
                let why = format!("{failure:#}");
                disk.mark_unhealthy(container, why.clone()).await;
                unhealthy.get_or_insert(why);
                None
            }
            used => Some(used?),
        };
        let is_unread = used.is_none();
        let used = used.unwrap_or_default();
        let measure = match (record.state.is_over(), measure) {
            (true, None) if !is_unread => measure_closed(disk, container).await?,
            (true, Some(measure)) => measure,
            (false, _) | (true, None) => Measure { used, ..Measure::default() },
        };
        let (committed, terms_to_committed) = match record.state {
            ReplicaState::Open => (None, Vec::new()),
            ReplicaState::Closed => match record.last {
                Some(last) => {
                    let read = measure.facts.terms.last_to(last.index);
                    (Some(read.map_or(Committed::Unread(last), Committed::Read)), Vec::new())
                }
                None => (None, Vec::new()),
            },
            // The term is read from the segments, which is rare: without it the record is not to be told from
            // another that others have.
            ReplicaState::QuasiClosed | ReplicaState::WithoutLog => {
                last_committed(disk, container, &record, &measure).await?
            }
        };
        // While a deletion is half way the hash is of before it, and the list's sum of after it.
        let hash = measure.hash.filter(|_| measure.used.list_bytes == used.list_bytes);
        let replica = Replica {
            pipeline: record.pipeline,
            disk: disk.id,
            state: record.state,
            last: record.last,
            committed,
            copied: measure.copied,
            terms: measure.facts.terms,
            terms_to_committed,
            blocks: record.blocks,
            payload_bytes: record.payload_bytes,
            disk_bytes: used.bytes,
            discards: used.discards,
            hash,
            unhealthy,
            checked_ms: 0,
            released: self.pipelines.has_released(&record),
        };
        self.inventory.put_read(container, replica, as_of);
        Ok(self.open_before(disk, &record))
    }

    /// The other disk whose replica SCM is told of, of a container that this one has too.
    async fn told_elsewhere(
        &self,
        disk: &Arc<DatanodeDisk>,
        container: ContainerId,
    ) -> anyhow::Result<Option<DiskId>> {
        if self.disks.open.len() == 1 {
            return Ok(None);
        }
        let disks = self.disks.clone();
        let told = blocking(move || Ok(disks.told_of(container)?.map(|disk| disk.id))).await?;
        Ok(told.filter(|told| *told != disk.id))
    }

    /// Notes a replica that cannot be read at the moment, and of which nothing is known: it is there
    /// nevertheless. Where SCM took it for missing, it could decide that nobody has the container. As an open
    /// one it says that its end is not known, and SCM waits for that.
    async fn note_unread(&self, disk: &Arc<DatanodeDisk>, container: ContainerId) {
        if self.inventory.get(container).is_some() {
            return;
        }
        let as_of = self.inventory.removals();
        let read = disk.read_surely("a container", move |index| index.container(container));
        let Some(Some(record)) = read.await else { return };
        let replica = Replica {
            pipeline: record.pipeline,
            disk: disk.id,
            state: ReplicaState::Open,
            last: None,
            committed: None,
            copied: false,
            terms: Terms::default(),
            terms_to_committed: Vec::new(),
            blocks: record.blocks,
            payload_bytes: record.payload_bytes,
            disk_bytes: 0,
            discards: DiscardsSum::default(),
            hash: None,
            unhealthy: None,
            checked_ms: 0,
            released: false,
        };
        self.inventory.put_read(container, replica, as_of);
    }

    fn open_before(&self, disk: &Arc<DatanodeDisk>, record: &ContainerRecord) -> Option<ContainerId> {
        let is_to_be_read = match self.inventory.get(record.previous) {
            Some(known) => known.disk == disk.id && known.state == ReplicaState::Open,
            None => record.previous != ContainerId(0),
        };
        is_to_be_read.then_some(record.previous)
    }

    fn look_later(&self, disk: DiskId, container: ContainerId) {
        let inventory = self.inventory.clone();
        self.workers.spawn_until_stop(async move {
            tokio::time::sleep(RETRY).await;
            inventory.look_again(disk, container);
        });
    }
}

/// Finds what a closed container takes, and keeps that in the index: it changes only with deletions.
async fn measure_closed(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<Measure> {
    // Under the lock: blocks that are deleted meanwhile would not be in the measure.
    let _deleting = disk.deleting.lock().await;
    let used = disk_use(&disk.space, container, None).await?;
    disk.space.expect_discards(OwnerId::from(container), used.list_bytes);
    let copied = is_copy(disk.space.disk(), container).await?;
    let measure = Measure { used, copied, ..Measure::default() };
    let saved = measure.clone();
    disk.index.with(move |index| index.save_measure(container, &saved)).await?;
    Ok(measure)
}

/// The last record that this replica knows to be committed, and, where the replica was not read as a whole,
/// the terms up to there. Damage before that record hides its term, and makes it no older one.
async fn last_committed(
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
    record: &ContainerRecord,
    measure: &Measure,
) -> anyhow::Result<(Option<Committed>, Vec<TermEnd>)> {
    let Some(last) = record.last.filter(|_| record.committed > LogIndex(0)) else {
        return Ok((None, Vec::new()));
    };
    if !measure.facts.terms.ends.is_empty() {
        return Ok((measure.facts.terms.last_to(record.committed).map(Committed::Read), Vec::new()));
    }
    let until = record.committed.min(last.index);
    let unread = (Some(Committed::Unread(LogId { index: until, ..last })), Vec::new());
    let mut reader = match ContainerReader::of(&disk.space, container, Reading::Whole).await {
        Ok(reader) => reader,
        Err(failure) if condemns(&failure) => return Ok(unread),
        Err(failure) => return Err(failure),
    };
    let is_read = loop {
        match reader.next_readable().await? {
            Some(read) if read.walked.meta.id.index < until => {}
            read => break read.is_some(),
        }
    };
    if !is_read {
        return Ok(unread);
    }
    let terms = &reader.contents().terms;
    Ok((terms.last_to(until).map(Committed::Read), terms.ends.clone()))
}

#[cfg(test)]
mod tests;
