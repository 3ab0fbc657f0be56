//! Finding the containers of a disk that are worth being written anew, and doing so, one after the other.

use super::rewrite::{Done, GivenUp, compact};
use super::settle::settle_noted;
use crate::datanode_disk::DatanodeDisk;
use crate::deleted_lately::Pause;
use crate::index::records::ReplicaState;
use crate::inventory::Replica;
use crate::pipelines::Pipelines;
use parking::Throttle;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use types::ContainerId;

/// The interval at which the containers of a disk are looked at, in memory.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a container could not be compacted.
const RETRY: Duration = Duration::from_secs(300);
/// The part of a container that must be dead once its pause is overdue: what follows must be little.
const OVERDUE_PERCENT: u64 = 75;
/// The part that must be dead after a long pause, of the part that must be after a short one, in percent: the
/// container seems to be at its end, and to wait for more saves nothing.
const OF_LEAST_PERCENT: u64 = 60;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactOptions {
    /// The part of what a container takes on its disk that must be dead, in percent.
    pub above_percent: u64,
    pub bytes_per_second: u64,
}

impl CompactOptions {
    /// The part of a container that must be dead; `None`: more is to follow, however much is.
    fn above_percent_after(&self, pause: Pause) -> Option<u64> {
        match pause {
            Pause::NotYet => None,
            Pause::Overdue => Some(self.above_percent.max(OVERDUE_PERCENT)),
            Pause::Short => Some(self.above_percent),
            Pause::Long => Some((self.above_percent * OF_LEAST_PERCENT / 100).max(1)),
        }
    }
}

pub(crate) struct Compactor {
    disk: Arc<DatanodeDisk>,
    pipelines: Arc<Pipelines>,
    options: CompactOptions,
    throttle: Throttle,
    /// Whether containers may be compacted, as SCM last said: nobody has stopped it.
    may_reclaim: Arc<AtomicBool>,
    /// The containers whose compaction failed, and when each is tried again.
    failed: BTreeMap<ContainerId, Instant>,
}

/// A container that is worth compacting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub container: ContainerId,
    /// The bytes that go; `live_bytes` are written anew.
    pub dead_bytes: u64,
    pub live_bytes: u64,
}

impl Compactor {
    pub(crate) fn new(
        disk: Arc<DatanodeDisk>,
        pipelines: Arc<Pipelines>,
        options: CompactOptions,
        may_reclaim: Arc<AtomicBool>,
    ) -> Compactor {
        let throttle = Throttle::new(options.bytes_per_second);
        Compactor { disk, pipelines, options, throttle, may_reclaim, failed: BTreeMap::new() }
    }

    /// Compacts one container after the other, until the disk fails. May be dropped anywhere: a crash may cut
    /// a compaction short as well.
    pub(crate) async fn run(mut self) {
        let mut settle_due = Instant::now();
        while self.disk.failure().is_none() {
            // Settling only gives back, so it is done also where SCM has stopped compactions.
            if settle_due <= Instant::now() {
                settle_noted(&self.disk).await;
                settle_due = Instant::now() + RETRY;
            }
            match self.next() {
                Some(candidate) => self.compact(candidate).await,
                None => sleep(LOOK_INTERVAL).await,
            }
        }
    }

    /// The container that gives back most for what is written, of those that are worth compacting and whose
    /// copies fit on the disk.
    pub(super) fn next(&mut self) -> Option<Candidate> {
        if !self.may_reclaim.load(Ordering::Relaxed) {
            return None;
        }
        let now = Instant::now();
        self.failed.retain(|_, until| *until > now);
        let above =
            |container| self.options.above_percent_after(self.disk.deleted_lately.pause_of(container));
        let found = self.disk.inventory.select(|(container, replica)| {
            let is_here = replica.disk == self.disk.id && !self.failed.contains_key(container);
            is_here.then(|| candidate(*container, replica, above(*container)?)).flatten()
        });
        let room = self.disk.room_to_compact();
        let fitting = found.into_iter().filter(|candidate| candidate.live_bytes <= room);
        fitting.max_by(|one, other| one.worth().total_cmp(&other.worth()))
    }

    async fn compact(&mut self, candidate: Candidate) {
        let (container, counters) = (candidate.container, &self.disk.counters);
        let disk = self.disk.real.root().display();
        let began = Instant::now();
        counters.compacting.store(container.0, Ordering::Relaxed);
        let ended = compact(&self.disk, &self.pipelines, container, &self.throttle).await;
        counters.compacting.store(0, Ordering::Relaxed);
        let why = match ended {
            Ok(Some(Done { written_bytes, removed_bytes })) => {
                let given_back = removed_bytes.saturating_sub(written_bytes);
                counters.compacted.fetch_add(1, Ordering::Relaxed);
                counters.compaction_written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
                counters.compaction_removed_bytes.fetch_add(removed_bytes, Ordering::Relaxed);
                counters.compaction_given_back_bytes.fetch_add(candidate.dead_bytes, Ordering::Relaxed);
                let took = began.elapsed();
                info!(%container, %disk, written_bytes, removed_bytes, given_back, ?took, "compacted a container");
                self.disk.inventory.looked().await;
                return;
            }
            Ok(None) => "nothing of it would be left; SCM deletes it".to_owned(),
            Err(GivenUp::Damaged(why)) => {
                self.disk.mark_unhealthy(container, why.clone()).await;
                why
            }
            Err(GivenUp::Failed(failure)) => format!("{failure:#}"),
        };
        counters.compactions_failed.fetch_add(1, Ordering::Relaxed);
        warn!(%container, %disk, why, retry = ?RETRY, "a container cannot be compacted");
        self.failed.insert(container, Instant::now() + RETRY);
    }
}

impl Candidate {
    fn worth(&self) -> f64 {
        self.dead_bytes as f64 / self.live_bytes.max(1) as f64
    }
}

/// Judges a container: it is worth compacting once enough of it is dead, unless nothing is left in it: SCM
/// deletes that whole.
pub(super) fn candidate(container: ContainerId, replica: &Replica, above_percent: u64) -> Option<Candidate> {
    let (dead_bytes, disk_bytes) = (replica.discards.dead_bytes, replica.disk_bytes);
    let may_be = replica.state == ReplicaState::Closed && replica.released && replica.unhealthy.is_none();
    let is_worth =
        dead_bytes > 0 && dead_bytes.saturating_mul(100) >= disk_bytes.saturating_mul(above_percent);
    let live_bytes = disk_bytes.saturating_sub(dead_bytes);
    (may_be && is_worth && replica.blocks > 0).then_some(Candidate { container, dead_bytes, live_bytes })
}
