//! Computing the hashes of closed containers, so that SCM can compare replicas.
//!
//! One task for each disk takes the closed containers that have no hash: those that just closed, those in
//! which blocks were deleted, and all of a rebuilt index. Only heads are read; bodies are the scrubber's.

use crate::container_reader::{ContainerReader, ReadRecord, Reading, disk_use};
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::finish_deletions;
use crate::index::{DiskUse, Facts, Measure};
use crate::repeats::{self, Repeats};
use crate::verdict::condemns;
use parking::Throttle;
use raftlog::ReadError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout_at};
use tracing::{debug, error};
use types::ContainerId;

/// A container of 2 GiB whose records are small, so that all of it is read, takes 32 s; it has just been
/// written and is in the page cache mostly.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// The cost of reading a head where bodies are large: a block of the file.
const HEAD_READ_BYTES: u64 = 4096;
/// The pause after a container could not be read.
const RETRY: Duration = Duration::from_secs(60);
/// The pause after a container changed while it was read.
const CHANGED_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Hasher {
    disk: Arc<DatanodeDisk>,
    throttle: Throttle,
    /// The last container that was read: those after it come first, so that each has its turn.
    last: ContainerId,
}

/// A hash and what was found with it, or why there is none.
type Hashed = Result<([u8; 32], Facts), String>;

impl Hasher {
    pub(crate) fn new(disk: Arc<DatanodeDisk>) -> Hasher {
        Hasher { disk, throttle: Throttle::new(BYTES_PER_SECOND), last: ContainerId(0) }
    }

    /// Computes the hashes that are missing, until the disk fails. May be dropped anywhere: a hash that was
    /// not saved is computed again.
    pub(crate) async fn run(mut self) {
        let mut changes = self.disk.inventory.watch();
        while self.disk.failure().is_none() {
            changes.borrow_and_update();
            let quiet_at = self.disk.deleted_lately.next_pause();
            let Some(container) = self.next() else {
                let changed = async { changes.changed().await.is_ok() };
                match quiet_at {
                    Some(at) => drop(timeout_at(at, changed).await),
                    None if changed.await => {}
                    None => return,
                }
                continue;
            };
            self.last = container;
            self.disk.hashes_wanted.lock().expect("no holder panics").remove(&container);
            if let Err(failure) = self.hash_marking(container).await {
                // A container that was compacted meanwhile is read again: its hash is the same.
                if matches!(failure.downcast_ref(), Some(ReadError::Compacted(_))) {
                    continue;
                }
                let disk = self.disk.real.root().display();
                error!(%disk, %container, error = format!("{failure:#}"), "compute the hash of a container; trying on");
                sleep(RETRY).await;
            }
        }
    }

    /// A closed container of this disk without a hash, of which nothing bad is known, and that is quiet: one
    /// that another node wants to copy, or the next in turn.
    fn next(&self) -> Option<ContainerId> {
        let lacking = self.disk.inventory.select(|(container, replica)| {
            let lacks = replica.state.is_over() && replica.hash.is_none();
            let is_good = replica.unhealthy.is_none() && replica.disk == self.disk.id;
            (lacks && is_good).then_some(*container)
        });
        let mut wanted = self.disk.hashes_wanted.lock().expect("no holder panics");
        wanted.retain(|container| lacking.binary_search(container).is_ok()); // others are gone, or read
        let lately = &self.disk.deleted_lately;
        let quiet = lacking.into_iter().filter(|container| !lately.has(*container));
        quiet.min_by_key(|container| (!wanted.contains(container), *container <= self.last, *container))
    }

    async fn hash_marking(&self, container: ContainerId) -> anyhow::Result<()> {
        let before = self.disk.index.with(move |index| index.measure(container)).await?;
        let used = disk_use(&self.disk.space, container, before.as_ref().map(|before| &before.used)).await;
        let is_measured =
            |used: &DiskUse| before.as_ref().is_some_and(|it| it.used.list_bytes == used.list_bytes);
        if used.is_ok_and(|used| !is_measured(&used)) {
            // A deletion has gone half way, and the hash would be of neither side of it; or a crash took what
            // was measured when a compaction made the list longer.
            finish_deletions(&self.disk, container).await?;
            self.look_again(container).await;
            return Ok(());
        }
        match self.hash(container).await? {
            Ok(hashed) => self.save(container, before, hashed).await,
            Err(why) => {
                // The container may be gone meanwhile.
                if self.disk.index.with(move |index| index.container(container)).await?.is_some() {
                    self.disk.mark_unhealthy(container, why).await;
                }
                self.look_again(container).await;
                Ok(())
            }
        }
    }

    async fn hash(&self, container: ContainerId) -> anyhow::Result<Hashed> {
        let mut reader = match ContainerReader::of(&self.disk.space, container, Reading::Whole).await {
            Err(failure) if condemns(&failure) => return Ok(Err(format!("{failure:#}"))),
            reader => reader?,
        };
        let mut repeats = Repeats::of(&self.disk.index, container);
        loop {
            let ReadRecord { walked, is_discarded } = match reader.next().await {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(failure) if failure.condemns() => return Ok(Err(failure.to_string())),
                Err(failure) => return Err(failure.into()),
            };
            if !is_discarded {
                repeats.see(&walked).await?;
            }
            self.throttle.take(walked.bytes.min(HEAD_READ_BYTES) as usize).await;
        }
        if let Some(why) = reader.wrong_end().await? {
            return Ok(Err(why));
        }
        let repeats = repeats.found().await?;
        repeats::check_count(&repeats)?;
        let facts = Facts { terms: reader.contents().terms.clone(), repeats };
        Ok(Ok((reader.hash(), facts)))
    }

    /// Keeps a hash, unless blocks were deleted since `before` was read: then it is of what no longer is, and
    /// the next look finds the container without one again.
    async fn save(
        &self,
        container: ContainerId,
        before: Option<Measure>,
        (hash, facts): ([u8; 32], Facts),
    ) -> anyhow::Result<()> {
        let _deleting = self.disk.deleting.lock().await;
        let terms = facts.terms.clone();
        let saved = self.disk.index.with(move |index| {
            let now = index.measure(container)?;
            let Some(measure) = now.filter(|now| before.as_ref() == Some(now)) else { return Ok(false) };
            let hashed = Measure { hash: Some(hash), facts, ..measure };
            index.save_measure(container, &hashed)?;
            Ok(true)
        });
        if saved.await? {
            debug!(%container, "computed the hash of a container");
            self.disk.inventory.set_hash(container, self.disk.id, hash, terms);
        } else {
            self.look_again(container).await;
        }
        Ok(())
    }

    /// Has a container read again, and gives the inventory time to be as the disk is.
    async fn look_again(&self, container: ContainerId) {
        self.disk.inventory.look_again(self.disk.id, container);
        sleep(CHANGED_WAIT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::tests::open;
    use crate::inventory::Replica;
    use crate::offline::tests::Left;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_others_wait_for_comes_first_and_the_rest_in_turn() {
        let left = Left::of_small_blocks().await.copy();
        let disk = open(&left).await;
        for container in (1..=4).map(ContainerId) {
            disk.inventory.put_read(container, Replica::of_test(disk.id), disk.inventory.removals());
        }
        let mut hasher = Hasher::new(disk.clone());
        let mut after = |last: u64| {
            hasher.last = ContainerId(last);
            hasher.next().expect("none has been read").0
        };
        assert_eq!([0, 1, 3, 4].map(&mut after), [1, 2, 4, 1]);
        disk.hashes_wanted.lock().unwrap().extend([ContainerId(3), ContainerId(9)]);
        assert_eq!([0, 3, 4].map(&mut after), [3, 3, 3]);
        assert_eq!(disk.hashes_wanted.lock().unwrap().len(), 1, "there is no container 9");
        disk.deleted_lately.note(ContainerId(3));
        assert_eq!([0, 2, 4].map(&mut after), [1, 4, 1], "it is not quiet yet");
    }
}
