//! Removing a closed container's second replica: a disk that was out of use for a while comes back with what
//! was copied to another disk of its node meanwhile.
//!
//! Where one of the two is not CLOSED, SCM is told of that ([`crate::disks::Disks::told_of`]), and says what
//! becomes of it: it may have what the container lacks. Where both are, SCM is told of the one that is read,
//! and discards in it. The other goes once all of this is so, whoever says it:
//!
//! 1. both are CLOSED, end with the same record, and have the same records but for what one of them has
//!    discarded: neither has anything that the container has not;
//! 2. no log reads either, and SCM lets bytes be given back;
//! 3. the one that is told of is hashed and nothing is known against it, its disk works, and every body of it
//!    was read and checked just before: it may be the one whose disk was away.
//!
//! The node counts once, so no decision of SCM rests on the one that goes. A CLOSED replica that has other
//! records stays: it may have what only a person can give up.

use super::check::check_bodies;
use super::delete::{delete_from, finish_begun};
use super::order::{Means, Progress};
use super::same::have_same_records;
use crate::datanode_disk::DatanodeDisk;
use crate::index::Index;
use crate::index::records::{ContainerRecord, ReplicaState};
use crate::inventory::Replica;
use anyhow::{Context, ensure};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;
use tracing::{error, warn};
use types::{ContainerId, DiskId};

const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// The pause after each removal: thousands may be due, and pipelines write to the same disk.
const PAUSE: Duration = Duration::from_secs(1);

/// The worker that looks for second replicas and removes them.
pub(crate) struct SecondReplicas {
    means: Means,
    /// Those that have other records than the one that is told of, as the log has said.
    others: BTreeSet<(DiskId, ContainerId)>,
}

/// A replica that is not told of, as its disk knows it.
struct Second<'a> {
    disk: &'a Arc<DatanodeDisk>,
    container: ContainerId,
    record: ContainerRecord,
}

impl SecondReplicas {
    pub(crate) fn new(means: Means) -> SecondReplicas {
        SecondReplicas { means, others: BTreeSet::new() }
    }

    /// Looks for second replicas from time to time. May be dropped anywhere: what is half removed is removed
    /// by the next process.
    pub(crate) async fn run(mut self) {
        loop {
            sleep(LOOK_INTERVAL).await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let disks = self.means.disks.clone();
        for disk in disks.open.iter().filter(|disk| disk.failure().is_none()) {
            let root = disk.real.root().display();
            if let Err(failure) = finish_begun(disk).await {
                warn!(disk = %root, error = format!("{failure:#}"), "cannot finish a deletion; trying on");
            }
            if disks.open.len() < 2 {
                continue;
            }
            let containers = match disk.index.with(Index::containers).await {
                Ok(containers) => containers,
                Err(failure) => {
                    warn!(disk = %root, error = format!("{failure:#}"), "cannot list containers");
                    continue;
                }
            };
            let here: BTreeSet<ContainerId> = containers.iter().map(|(container, _)| *container).collect();
            self.others.retain(|(of, other)| *of != disk.id || here.contains(other));
            for (container, record) in containers {
                let is_another = self.others.contains(&(disk.id, container));
                if is_another || self.told_elsewhere(disk.id, container).is_none() {
                    continue;
                }
                if let Err(failure) = self.remove_if_due(disk, container, record).await {
                    let error = format!("{failure:#}");
                    warn!(disk = %root, %container, error, "cannot remove a second replica; trying on");
                }
            }
        }
    }

    async fn remove_if_due(
        &mut self,
        disk: &Arc<DatanodeDisk>,
        container: ContainerId,
        record: ContainerRecord,
    ) -> anyhow::Result<()> {
        let second = Second { disk, container, record };
        let Some(told) = self.told_instead(&second) else { return Ok(()) };
        let disks = self.means.disks.clone();
        let read_from = disks.get(told.disk).context("its disk is not in use")?;
        if !have_same_records(&self.means.copies.receiving, [read_from, disk], container).await? {
            let [here, told_of] = [disk, read_from].map(|disk| disk.real.root().display());
            error!(%container, %here, %told_of, "two replicas end alike, and their records are not the same: both stay");
            self.others.insert((disk.id, container));
            return Ok(());
        }
        check_bodies(&self.means, read_from, container, &Progress::default()).await?;
        let is_due_still = || {
            let is_told_still = self.told_instead(&second).is_some_and(|now| now.disk == told.disk);
            ensure!(is_told_still, "the other replica has changed");
            Ok(())
        };
        delete_from(&self.means, disk, container, is_due_still).await?;
        sleep(PAUSE).await;
        Ok(())
    }

    fn told_elsewhere(&self, disk: DiskId, container: ContainerId) -> Option<Replica> {
        self.means.disks.inventory.get(container).filter(|told| told.disk != disk)
    }

    /// The replica that is told of, if the second one may go beside it.
    fn told_instead(&self, second: &Second<'_>) -> Option<Replica> {
        let told = self.told_elsewhere(second.disk.id, second.container)?;
        let record = &second.record;
        let end_alike = [told.state, record.state] == [ReplicaState::Closed; 2] && told.last == record.last;
        let are_released = told.released && self.means.pipelines.has_released(record);
        let is_good = told.hash.is_some() && told.unhealthy.is_none();
        let works = self.means.disks.get(told.disk).is_some_and(|disk| disk.failure().is_none());
        let may_reclaim = self.means.disks.may_reclaim.load(Ordering::Relaxed);
        let may_go = end_alike && are_released && is_good && works && may_reclaim;
        may_go.then_some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_end::ContainerEnd;
    use crate::container_reader::{ContainerReader, Reading};
    use crate::index::Measure;
    use crate::inventory::Surveyor;
    use crate::offline::tests::{FIRST, Left};
    use crate::orders::close::close_replica;
    use crate::orders::delete::delete_replica;
    use crate::orders::order::Run;
    use crate::workers::Workers;
    use proto::scm::DeleteReplica;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    /// A node with the same containers on two disks.
    async fn of_two_disks(left: [&Left; 2]) -> Means {
        Means::over(left.map(Left::root).to_vec()).await
    }

    async fn take_inventory(means: &Means) {
        Surveyor::new(means.disks.clone(), means.pipelines.clone(), Workers::default()).look_at_all().await;
    }

    /// SCM's order to delete the replica that it is told of.
    fn deletion(means: &Means) -> DeleteReplica {
        DeleteReplica::of(&means.disks.inventory.get(FIRST).unwrap().to_proto(FIRST))
    }

    async fn delete(means: &Means, order: &DeleteReplica) {
        let (stop, node_ends) = (CancellationToken::new(), CancellationToken::new());
        let run = Run { asked_at: Instant::now(), stop, node_ends, progress: Arc::default() };
        delete_replica(means, order, &run).await.unwrap();
    }

    /// Keeps the hash of a disk's replica, as somebody does who has read it.
    async fn note_hash(disk: &DatanodeDisk) {
        let mut reader = ContainerReader::of(&disk.space, FIRST, Reading::Whole).await.unwrap();
        while reader.next().await.unwrap().is_some() {}
        let measure = Measure { hash: Some(reader.hash()), ..Measure::default() };
        disk.index.save_measure(FIRST, &measure).unwrap();
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
        let mut seconds = SecondReplicas::new(means.clone());

        take_inventory(&means).await;
        assert_eq!(means.disks.inventory.get(FIRST).unwrap().disk, read_from.id);
        seconds.look().await;
        assert_eq!(holders(&means), [true, true], "nobody has read the one that is told of");

        note_hash(read_from).await;
        take_inventory(&means).await;
        means.disks.may_reclaim.store(true, Ordering::Relaxed);
        let other = &means.disks.open[1];
        let may_go = |record: ContainerRecord| {
            let second = Second { disk: other, container: FIRST, record };
            seconds.told_instead(&second).is_some()
        };
        assert!(may_go(record));
        let before = |last: types::LogId| types::LogId { index: types::LogIndex(last.index.0 - 1), ..last };
        assert!(!may_go(ContainerRecord { last: record.last.map(before), ..record }));
        assert!(!may_go(ContainerRecord { state: ReplicaState::QuasiClosed, ..record }));
        means.disks.inventory.set_unhealthy(FIRST, read_from.id, "a flipped byte");
        seconds.look().await;
        assert_eq!(holders(&means), [true, true], "the one that is told of is bad");

        take_inventory(&means).await;
        means.disks.may_reclaim.store(false, Ordering::Relaxed);
        seconds.look().await;
        assert_eq!(holders(&means), [true, true], "SCM lets nothing be given back");

        means.disks.may_reclaim.store(true, Ordering::Relaxed);
        seconds.look().await;
        assert_eq!(holders(&means), [true, false]);
        assert_eq!(means.disks.inventory.get(FIRST).unwrap().disk, read_from.id);
    }

    /// One of two logs had lost its votes, and both were closed alike: each may be the last of its kind.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_of_another_history_stays() {
        let left = [Left::of_small_blocks().await.copy(), Left::of_another_history().await.copy()];
        let means = of_two_disks([&left[0], &left[1]]).await;
        let told = means.disks.open[0].clone();
        let last = |n: usize| means.disks.open[n].index.container(FIRST).unwrap().unwrap().last;
        assert_eq!(last(0), last(1));
        let measure = Measure { hash: Some([7; 32]), ..Measure::default() };
        told.index.save_measure(FIRST, &measure).unwrap();
        take_inventory(&means).await;
        means.disks.may_reclaim.store(true, Ordering::Relaxed);
        let mut seconds = SecondReplicas::new(means.clone());
        seconds.look().await;
        assert_eq!(holders(&means), [true, true]);
        assert!(seconds.others.contains(&(means.disks.open[1].id, FIRST)));
        delete(&means, &deletion(&means)).await;
        assert_eq!(holders(&means), [false, true], "SCM has heard of the other one alone");
        take_inventory(&means).await;
        assert_eq!(means.disks.inventory.get(FIRST).unwrap().disk, means.disks.open[1].id);
    }

    /// The disk of the replica that is told of was away, and bytes of it went bad there.
    #[allow(clippy::disallowed_methods)]
    #[tokio::test(flavor = "multi_thread")]
    async fn the_one_that_is_told_of_is_read_first_and_where_it_is_bad_nothing_goes() {
        let template = Left::of_small_blocks().await;
        let left = [template.copy(), template.copy_to_another_disk()];
        let segment = left[0].root().join(format!("containers/{:016x}/00000000.seg", FIRST.0));
        let mut bytes = std::fs::read(&segment).unwrap();
        let body = bytes.windows(64).rposition(|bytes| bytes.iter().all(|byte| *byte != 0)).unwrap();
        bytes[body] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        let means = of_two_disks([&left[0], &left[1]]).await;
        note_hash(&means.disks.open[0]).await;
        means.disks.may_reclaim.store(true, Ordering::Relaxed);
        take_inventory(&means).await;
        SecondReplicas::new(means.clone()).look().await;
        assert_eq!(holders(&means), [true, true]);
        let known = means.disks.open[0].index.unhealthy(FIRST).unwrap();
        assert!(known.is_some(), "it is found");
        take_inventory(&means).await;
        let whole = means.disks.open[1].id;
        assert_eq!(
            means.disks.inventory.get(FIRST).unwrap().disk,
            whole,
            "SCM hears of the one that is whole"
        );
        assert_eq!(means.disks.holding(FIRST).unwrap().unwrap().0.id, whole, "which is read");
    }

    /// SCM has the bad one deleted before this node has looked whether another disk has a better one.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_whole_stays_when_the_bad_one_that_is_told_of_is_deleted() {
        let template = Left::of_small_blocks().await;
        let left = [template.copy(), template.copy_to_another_disk()];
        let means = of_two_disks([&left[0], &left[1]]).await;
        take_inventory(&means).await;
        means.disks.inventory.set_unhealthy(FIRST, means.disks.open[0].id, "a flipped byte");
        delete(&means, &deletion(&means)).await;
        assert_eq!(holders(&means), [false, true]);
        take_inventory(&means).await;
        assert_eq!(means.disks.inventory.get(FIRST).unwrap().disk, means.disks.open[1].id);
    }

    /// SCM knows of one alone, and says it again of the other where that is not wanted either.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_other_one_stays_when_the_one_that_is_told_of_is_deleted() {
        let template = Left::of_small_blocks().await;
        for end_state in [ReplicaState::Closed, ReplicaState::QuasiClosed] {
            let left = [template.copy(), template.copy_to_another_disk()];
            let means = of_two_disks([&left[0], &left[1]]).await;
            let first = means.disks.open[0].clone();
            let last = first.index.container(FIRST).unwrap().unwrap().last;
            let end = ContainerEnd { state: end_state, last, committed: types::LogIndex(0) };
            first.index.set_end(FIRST, end).unwrap();
            take_inventory(&means).await;
            let disk_told_of = || means.disks.inventory.get(FIRST).unwrap().disk;
            assert_eq!(disk_told_of(), first.id);
            let order = deletion(&means);
            delete(&means, &order).await;
            assert_eq!(holders(&means), [false, true]);
            take_inventory(&means).await;
            assert_eq!(disk_told_of(), means.disks.open[1].id);
            delete(&means, &order).await;
            assert_eq!(
                holders(&means),
                [false, true],
                "SCM has not yet heard that it is gone, and says it again"
            );
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_deletion_that_an_error_cut_short_is_finished() {
        let left = Left::of_small_blocks().await.copy();
        let means = Means::over(vec![left.root()]).await;
        let disk = means.disks.open[0].clone();
        disk.index.begin_deletion(FIRST).unwrap();
        SecondReplicas::new(means.clone()).look().await;
        assert_eq!(holders(&means), [false]);
        assert_eq!(disk.index.deletions().unwrap(), []);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_one_on_two_disks_the_closed_one_is_read_and_scm_says_what_becomes_of_the_other() {
        let template = Left::of_small_blocks().await;
        let left = [template.copy(), template.copy_to_another_disk()];
        let means = of_two_disks([&left[0], &left[1]]).await;
        let [first, second] = [0, 1].map(|n| means.disks.open[n].clone());
        let read_from = || means.disks.holding(FIRST).unwrap().unwrap().0.id;
        let last = first.index.container(FIRST).unwrap().unwrap().last;
        assert_eq!(read_from(), first.id);
        for state in [ReplicaState::QuasiClosed, ReplicaState::WithoutLog] {
            let end = ContainerEnd { state, last, committed: types::LogIndex(0) };
            first.index.set_end(FIRST, end).unwrap();
            take_inventory(&means).await;
            assert_eq!(read_from(), second.id);
            let told = means.disks.inventory.get(FIRST).unwrap();
            assert_eq!((told.disk, told.state), (first.id, state));
            close_replica(
                &means.disks,
                FIRST,
                Some(types::LogId { index: types::LogIndex(0), ..last.unwrap() }),
            )
            .await
            .expect_err("the one that is told of ends elsewhere");
        }
    }
}
