//! Removing a closed container's second replica: a disk that was out of use for a while comes back with what was
//! copied to another disk of its node meanwhile.
//!
//! SCM is told of the one that is read ([`crate::disks::Disks::holding`]), and discards in that one. The other goes once all of
//! this is so, whoever says it:
//!
//! 1. both are CLOSED and end with the same record: neither has anything that the container has not;
//! 2. no log reads either;
//! 3. the one that is told of was read to its end in good order (it has a hash, and nothing is known against it), and
//!    its disk works.
//!
//! The node counts once, so no decision of SCM rests on the one that goes. A replica that is not CLOSED stays: it may
//! have what only a person can give up.

use super::delete::delete_from;
use super::order::Means;
use crate::datanode_disk::DatanodeDisk;
use crate::index::Index;
use crate::index::records::{ContainerRecord, ContainerState};
use anyhow::ensure;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tracing::warn;
use types::{ContainerId, DiskId};

const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// The worker that looks for them.
pub(crate) struct SecondReplicas {
    means: Means,
}

impl SecondReplicas {
    pub(crate) fn new(means: Means) -> SecondReplicas {
        SecondReplicas { means }
    }

    /// May be dropped anywhere: what is half removed is removed by the next process.
    pub(crate) async fn run(self) {
        loop {
            sleep(LOOK_INTERVAL).await;
            self.look().await;
        }
    }

    async fn look(&self) {
        for disk in self.means.disks.open.iter().filter(|disk| disk.failure().is_none()) {
            if let Err(failure) = self.remove_from(disk).await {
                let (error, disk) = (format!("{failure:#}"), disk.real.root().display());
                warn!(%disk, error, "cannot remove second replicas of containers; trying on");
            }
        }
    }

    async fn remove_from(&self, disk: &Arc<DatanodeDisk>) -> anyhow::Result<()> {
        for (container, record) in disk.index.with(Index::containers).await? {
            if !self.is_second(disk.id, container, &record) {
                continue;
            }
            let is_second_still = || {
                ensure!(self.is_second(disk.id, container, &record), "the other replica has changed");
                Ok(())
            };
            delete_from(&self.means, disk, container, is_second_still).await?;
        }
        Ok(())
    }

    fn is_second(&self, disk: DiskId, container: ContainerId, record: &ContainerRecord) -> bool {
        let Some(told) = self.means.disks.inventory.get(container).filter(|told| told.disk != disk) else {
            return false;
        };
        let are_closed =
            [told.state, record.state] == [ContainerState::Closed; 2] && told.last == record.last;
        let are_released = told.released && self.means.pipelines.has_released(record);
        let is_good = told.hash.is_some() && told.unhealthy.is_none();
        let works = self.means.disks.get(told.disk).is_some_and(|other| other.failure().is_none());
        are_closed && are_released && is_good && works
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Facts, Measure};
    use crate::inventory::Surveyor;
    use crate::offline::tests::{FIRST, Left};
    use crate::workers::Workers;

    /// A node with the same containers on two disks.
    async fn of_two_disks(left: [&Left; 2]) -> Means {
        Means::over(left.map(Left::root).to_vec()).await
    }

    async fn take_inventory(means: &Means) {
        Surveyor::new(means.disks.clone(), means.pipelines.clone(), Workers::default()).look_at_all().await;
    }

    fn holders(means: &Means) -> Vec<bool> {
        let is_held = |disk: &Arc<DatanodeDisk>| {
            let has_files = disk.real.root().join(format!("containers/{:016x}", FIRST.0)).is_dir();
            assert_eq!(disk.index.container(FIRST).unwrap().is_some(), has_files);
            has_files
        };
        means.disks.open.iter().map(is_held).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_one_that_is_not_told_of_goes_once_the_other_is_known_to_be_good() {
        let template = Left::of_small_blocks().await;
        let left = [template.copy(), template.copy_to_another_disk()];
        let means = of_two_disks([&left[0], &left[1]]).await;
        let (read_from, record) = means.disks.holding(FIRST).unwrap().unwrap();
        let seconds = SecondReplicas::new(means.clone());

        take_inventory(&means).await;
        assert_eq!(means.disks.inventory.get(FIRST).unwrap().disk, read_from.id);
        seconds.look().await;
        assert_eq!(holders(&means), [true, true], "nobody has read the one that is told of");

        let measure = Measure { disk_bytes: 1, copied: false, hash: Some([7; 32]), facts: Facts::default() };
        read_from.index.save_measure(FIRST, &measure).unwrap();
        take_inventory(&means).await;
        let shorter =
            record.last.map(|last| types::LogId { index: types::LogIndex(last.index.0 - 1), ..last });
        let other = &means.disks.open[1];
        assert!(!seconds.is_second(other.id, FIRST, &ContainerRecord { last: shorter, ..record }));
        let quasi = ContainerRecord { state: ContainerState::QuasiClosed, ..record };
        assert!(!seconds.is_second(other.id, FIRST, &quasi));
        means.disks.inventory.set_unhealthy(FIRST, read_from.id, "a flipped byte");
        seconds.look().await;
        assert_eq!(holders(&means), [true, true], "the one that is told of is bad");

        take_inventory(&means).await;
        seconds.look().await;
        assert_eq!(holders(&means), [true, false]);
        assert_eq!(means.disks.inventory.get(FIRST).unwrap().disk, read_from.id);
    }
}
