//! The work of a node for its disks beside their pipelines: finishing what a crash cut short, knowing what is
//! there, hashing and scrubbing it, and asking each disk how it is.

use crate::compaction::{self, CompactOptions, Compactor};
use crate::deletion;
use crate::disks::Disks;
use crate::hasher::Hasher;
use crate::import;
use crate::inventory::Surveyor;
use crate::options::DatanodeOptions;
use crate::orders::{self, Executor, Means, SecondReplicas, UnwantedCopies};
use crate::pipelines::Pipelines;
use crate::scrub::{ScrubOptions, Scrubber};
use crate::workers::Workers;
use std::sync::Arc;
use tracing::error;
use types::Clock;

/// Finishes what a crash cut short, before anything is read. A disk where that fails is used all the same. In
/// this order: a replica that is to go is gone before a copy takes its place, and records are where they stay
/// before the holes of what was discarded are punched there.
pub(crate) async fn recover(disks: &Disks) {
    for disk in &disks.open {
        let finished = [
            ("deletions of replicas", orders::recover_deletions(disk).await),
            ("copies", import::recover(disk.space.disk(), &disk.index).await),
            ("compactions", compaction::recover(disk).await),
            ("deletions of blocks", deletion::recover(disk).await),
        ];
        for (what, finished) in finished {
            if let Err(failure) = finished {
                let disk = disk.real.root().display();
                error!(%disk, error = format!("{failure:#}"), "cannot finish {what} that a crash cut short");
            }
        }
    }
}

/// Reads what is here, and begins to keep up with what changes; to be called once pipelines are open.
pub(crate) async fn take_inventory(
    disks: &Arc<Disks>,
    pipelines: &Arc<Pipelines>,
    executor: &Executor,
    workers: &Workers,
) {
    let surveyor = Surveyor::new(disks.clone(), pipelines.clone(), workers.clone());
    surveyor.look_at_all().await;
    workers.spawn(surveyor.run());
    workers.spawn_until_stop(UnwantedCopies::new(disks.clone(), executor.clone()).run());
    for disk in &disks.open {
        workers.spawn_until_stop(Hasher::new(disk.clone()).run());
    }
}

/// Begins to look for containers that are on two disks of the node, and for deletions that were not finished.
pub(crate) fn start_removing_seconds(means: &Means, workers: &Workers) {
    workers.spawn_until_stop(SecondReplicas::new(means.clone()).run());
}

/// Begins to read the closed containers of each disk, again and again.
pub(crate) fn start_scrubbing(
    disks: &Disks,
    options: &DatanodeOptions,
    clock: &Arc<dyn Clock>,
    workers: &Workers,
) {
    let scrub =
        ScrubOptions { bytes_per_second: options.scrub_bytes_per_second, interval: options.scrub_interval };
    if scrub.bytes_per_second == 0 {
        return;
    }
    for disk in &disks.open {
        workers.spawn_until_stop(Scrubber::new(disk.clone(), scrub, clock.clone()).run());
    }
}

/// Begins to write those closed containers of each disk anew of which enough is dead.
pub(crate) fn start_compacting(
    disks: &Disks,
    pipelines: &Arc<Pipelines>,
    options: &DatanodeOptions,
    workers: &Workers,
) {
    let compact = CompactOptions {
        above_percent: options.compact_above_percent,
        bytes_per_second: options.compact_bytes_per_second,
    };
    if compact.bytes_per_second == 0 {
        return;
    }
    for disk in disks.open.iter().cloned() {
        let compactor = Compactor::new(disk, pipelines.clone(), compact, disks.may_reclaim.clone());
        workers.spawn_until_stop(compactor.run());
    }
}

/// Begins to ask each disk for its room, and whether its index takes writes, as often as SCM is told of it.
pub(crate) fn start_watching(disks: &Disks, options: &DatanodeOptions, workers: &Workers) {
    let interval = options.heartbeat;
    for disk in disks.open.iter().cloned() {
        workers.spawn_until_stop(async move {
            let root = disk.real.root().display().to_string();
            disk.room.keep_asking(&root, interval, || disk.ask()).await;
        });
    }
}
