//! Reading all of a closed replica from its disk, before another one is deleted that may have what it lacks.

use super::order::{Means, Progress};
use crate::container_reader::{ContainerReader, Reading};
use crate::datanode_disk::DatanodeDisk;
use crate::verdict::condemns;
use anyhow::{Context, bail, ensure};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use types::ContainerId;

/// Reads the replica that this node tells of. Found right, it is told of with the time at which that was
/// asked for.
pub(super) async fn check_replica(
    means: &Means,
    container: ContainerId,
    asked_ms: u64,
    progress: &Progress,
) -> anyhow::Result<()> {
    let told = means.disks.inventory.get(container).context("the container is not here")?;
    let disk = means.disks.get(told.disk).context("its disk is not in use")?;
    progress.bytes_total.store(told.disk_bytes, Ordering::Relaxed);
    check_bodies(means, disk, container, progress).await?;
    means.disks.inventory.set_checked(container, disk.id, asked_ms);
    Ok(())
}

/// Reads all of a replica, at the rate of copies, and marks it where it is bad.
pub(super) async fn check_bodies(
    means: &Means,
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
    progress: &Progress,
) -> anyhow::Result<()> {
    let read = async {
        let measure = disk.index.with(move |index| index.measure(container)).await?;
        let mut reader = ContainerReader::of(&disk.space, container, Reading::FromDisk(0)).await?;
        while let Some(record) = reader.next().await? {
            means.copies.receiving.take(record.walked.bytes as usize).await;
            reader.check_body(&record).await?;
            progress.bytes_done.fetch_add(record.walked.bytes, Ordering::Relaxed);
        }
        if let Some(why) = reader.wrong_end().await? {
            bail!("{why}");
        }
        let hashed = measure.filter(|it| it.used.list_bytes == reader.discards().list_bytes());
        let is_as_hashed = hashed.and_then(|it| it.hash).is_none_or(|hash| hash == reader.hash());
        ensure!(is_as_hashed, "its records do not have the hash that was computed of them before");
        Ok(())
    };
    let read = read.await;
    if let Err(failure) = &read
        && condemns(failure)
    {
        disk.mark_unhealthy(container, format!("{failure:#}")).await;
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Surveyor;
    use crate::offline::tests::{FIRST, Left};
    use crate::workers::Workers;

    const SECOND_SEGMENT: &str = "containers/0000000000000064/00000001.seg";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replica_that_was_read_to_its_last_byte_says_so_and_a_bad_one_is_bad() {
        let template = Left::new().await;
        for is_bad in [false, true] {
            let left = template.copy();
            if is_bad {
                left.flip(SECOND_SEGMENT, 100_000);
            }
            let means = Means::over(vec![left.root()]).await;
            let surveyor = Surveyor::new(means.disks.clone(), means.pipelines.clone(), Workers::default());
            surveyor.look_at_all().await;
            let progress = Progress::default();
            let is_right = check_replica(&means, FIRST, 7, &progress).await.is_ok();
            assert!(is_bad || progress.bytes_done.load(Ordering::Relaxed) > 600_000, "it comes on");
            let told = means.disks.inventory.get(FIRST).unwrap();
            assert_eq!((is_right, told.unhealthy.is_some()), (!is_bad, is_bad));
            assert_eq!(told.checked_ms, if is_bad { 0 } else { 7 });
        }
    }
}
