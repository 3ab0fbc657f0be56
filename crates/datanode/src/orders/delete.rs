//! Deleting a replica of a container that no log reads any more.
//!
//! ```text
//! rows go, a mark stays, flushed    nobody finds the container from here on; a crash: the start goes on
//! its files go
//! the mark goes
//! ```
//!
//! Files before rows: a crash would leave rows of a container whose bytes are gone, which looks like damage.

use super::order::{Means, Run};
use crate::datanode_disk::DatanodeDisk;
use crate::layout::OWNERS_DIR;
use anyhow::{Context, ensure};
use proto::scm::DeleteReplica;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::info;
use types::{ContainerId, OwnerId};

/// Deletes the replica that SCM means. One that is not here is deleted already, also where another one is
/// told of by now: a disk that was out of use for a while may have one of which SCM had not heard, which may
/// be the last that has what the container lacks. SCM may say an order again that was carried out.
pub(super) async fn delete_replica(means: &Means, order: &DeleteReplica, run: &Run) -> anyhow::Result<()> {
    let container = ContainerId(order.container);
    let inventory = &means.disks.inventory;
    let meant = || inventory.get(container).filter(|replica| order.means(&replica.to_proto(container)));
    let Some(replica) = meant() else { return Ok(()) };
    ensure!(replica.released, "a log still reads container {container}; it is not released");
    let disk = means.disks.get(replica.disk).context("its disk is not in use")?;
    let may_begin = || {
        ensure!(meant().is_some(), "container {container} is another one here by now");
        run.check_holds()
    };
    let deleted = match disk.index.with(move |index| index.container(container)).await? {
        Some(_) => delete_from(means, disk, container, may_begin).await,
        None => {
            // A replica that only the inventory has is told of as gone.
            inventory.remove(container, disk.id);
            Ok(())
        }
    };
    // Also after an error: the replica may be gone by then.
    let others = means.disks.open.iter().filter(|other| other.id != disk.id);
    others.for_each(|other| inventory.look_again(other.id, container));
    deleted
}

/// Deletes the replica of this disk, if `may_begin` says so once all that may take long is over: others may
/// have had the lock, and the index may be read slowly.
pub(super) async fn delete_from(
    means: &Means,
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
    may_begin: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let _deleting = disk.deleting.lock().await;
    let record = disk.index.with(move |index| index.container(container)).await?;
    may_begin()?;
    let is_released = record.is_none_or(|record| means.pipelines.has_released(&record));
    ensure!(is_released, "a log reads container {container} again");
    if let Err(failure) = disk.index.with(move |index| index.begin_deletion(container)).await {
        // The rows may be gone all the same, and SCM must not go on counting the replica.
        disk.inventory.look_again(disk.id, container);
        return Err(failure);
    }
    disk.inventory.remove(container, disk.id);
    disk.unhealthy.lock().expect("no holder panics").remove(&container);
    finish_deletion(disk, container).await?;
    means.copies.counters.deleted.fetch_add(1, Ordering::Relaxed);
    info!(%container, disk = %disk.real.root().display(), "deleted a replica");
    Ok(())
}

/// Finishes the deletions of replicas that a crash, or an error, cut short: before anything reads the disk,
/// and from time to time. The answer is the first failure; the others are finished all the same.
pub(crate) async fn finish_begun(disk: &Arc<DatanodeDisk>) -> anyhow::Result<()> {
    let _deleting = disk.deleting.lock().await;
    let mut outcome = Ok(());
    for container in disk.index.with(move |index| index.deletions()).await? {
        disk.index.with(move |index| index.flush()).await?; // its mark may not be durable yet
        outcome = outcome.and(finish_deletion(disk, container).await);
    }
    outcome
}

/// Finishes the deletion of this replica, if it was begun: the files of a copy would be taken for those that
/// are to go.
pub(super) async fn finish_begun_of(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<()> {
    let _deleting = disk.deleting.lock().await;
    match disk.index.with(move |index| index.is_being_deleted(container)).await? {
        true => {
            disk.index.with(move |index| index.flush()).await?; // its mark may not be durable yet
            finish_deletion(disk, container).await
        }
        false => Ok(()),
    }
}

async fn finish_deletion(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<()> {
    let deleted = disk.space.delete_owner(OWNERS_DIR, OwnerId::from(container)).await;
    deleted.with_context(|| format!("delete the files of container {container}"))?;
    disk.index.with(move |index| index.finish_deletion(container)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::tests::{FIRST, Left};
    use crate::orders::order::ORDER_HOLDS;
    use std::time::Duration;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    /// A new leader of SCM that does not give the order counts the replica.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_order_that_is_taken_back_while_it_waits_deletes_nothing() {
        let left = Left::new().await.copy();
        let means = Means::over(vec![left.root()]).await;
        let disk = means.disks.open[0].clone();
        for is_taken_back in [true, false] {
            let (asked_at, stop) = (Instant::now(), CancellationToken::new());
            let node_ends = CancellationToken::new();
            let run = Run { asked_at, stop: stop.clone(), node_ends, progress: Arc::default() };
            let held = disk.deleting.lock().await;
            let (with, on) = (means.clone(), disk.clone());
            let deleting =
                tokio::spawn(async move { delete_from(&with, &on, FIRST, || run.check_holds()).await });
            if is_taken_back {
                stop.cancel();
            }
            drop(held);
            assert_eq!(deleting.await.unwrap().is_err(), is_taken_back);
            assert_eq!(disk.index.container(FIRST).unwrap().is_some(), is_taken_back);
        }
    }

    /// A node that stood still with the order in its hands may be the last that has the replica: SCM has
    /// decided anew meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_order_that_is_too_old_deletes_nothing() {
        let left = Left::new().await.copy();
        let means = Means::over(vec![left.root()]).await;
        let disk = means.disks.open[0].clone();
        for age in [ORDER_HOLDS, Duration::ZERO] {
            let (stop, node_ends) = (CancellationToken::new(), CancellationToken::new());
            let asked_at = Instant::now() - age;
            let run = Run { asked_at, stop, node_ends, progress: Arc::default() };
            let deleted = delete_from(&means, &disk, FIRST, || run.check_holds()).await;
            let is_too_old = age >= ORDER_HOLDS;
            assert_eq!(deleted.is_err(), is_too_old, "{age:?}: {deleted:?}");
            assert_eq!(disk.index.container(FIRST).unwrap().is_some(), is_too_old, "{age:?}");
        }
    }
}
