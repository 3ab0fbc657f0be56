//! Removing what is left of copies that SCM no longer wants.

use super::Executor;
use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::import::incoming;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use types::{ContainerId, DiskId};

/// The time after which a copy that nobody wants is given up. A new leader of SCM wants nothing until it
/// knows enough.
const UNWANTED_MAX: Duration = Duration::from_secs(10 * 60);
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) struct UnwantedCopies {
    disks: Arc<Disks>,
    executor: Executor,
    unwanted_max: Duration,
    /// The copies that nobody wants, each with the time since when.
    unwanted: BTreeMap<(DiskId, ContainerId), Instant>,
}

impl UnwantedCopies {
    pub(crate) fn new(disks: Arc<Disks>, executor: Executor) -> UnwantedCopies {
        UnwantedCopies { disks, executor, unwanted_max: UNWANTED_MAX, unwanted: BTreeMap::new() }
    }

    /// Gives up copies that nobody wants, from time to time. May be dropped anywhere: what is half removed is
    /// removed by the next process.
    pub(crate) async fn run(mut self) {
        loop {
            self.look().await;
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look(&mut self) {
        let before = std::mem::take(&mut self.unwanted);
        for disk in self.disks.open.clone() {
            if disk.failure().is_some() {
                continue;
            }
            match incoming::list(&*disk.real).await {
                Ok(copies) => self.look_at(&disk, copies, &before).await,
                Err(failure) => {
                    let disk = disk.real.root().display();
                    warn!(%disk, error = format!("{failure:#}"), "cannot list copies that are under way");
                }
            }
        }
    }

    async fn look_at(
        &mut self,
        disk: &Arc<DatanodeDisk>,
        copies: Vec<ContainerId>,
        before: &BTreeMap<(DiskId, ContainerId), Instant>,
    ) {
        for container in copies {
            if self.executor.wants_copy(container) {
                continue;
            }
            let key = (disk.id, container);
            let since = before.get(&key).copied().unwrap_or_else(Instant::now);
            self.unwanted.insert(key, since);
            if since.elapsed() < self.unwanted_max {
                continue;
            }
            match incoming::remove(&*disk.real, container).await {
                Ok(()) => info!(%container, disk = %disk.real.root().display(), "gave a copy up"),
                Err(failure) => warn!(%container, error = format!("{failure:#}"), "cannot give a copy up"),
            }
        }
    }
}
