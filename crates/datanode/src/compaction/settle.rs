//! Settling what a compaction left half done, because of a crash or a failure.

use super::rewrite::measure_again;
use crate::container_reader::{ContainerReader, Reading};
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::forget_listed;
use crate::index::{Index, Moves};
use crate::layout::OWNERS_DIR;
use crate::verdict::condemns;
use anyhow::{Context, bail};
use disk::Disk;
use raftlog::{Compacted, Discards, stray_segments_of};
use std::sync::Arc;
use tracing::{error, info};
use types::{ContainerId, OwnerId};

/// Settles all containers of a disk. To be called before anything reads the disk.
pub(crate) async fn recover(disk: &Arc<DatanodeDisk>) -> anyhow::Result<()> {
    for (container, _) in disk.index.with(Index::containers).await? {
        let _deleting = disk.deleting.lock().await;
        // A failure is logged by then, and what rows point to is there meanwhile.
        let _ = settle_or_note(disk, container).await;
    }
    Ok(())
}

/// Settles the containers that could not be settled before.
pub(super) async fn settle_noted(disk: &Arc<DatanodeDisk>) {
    let noted = disk.unsettled.lock().expect("no holder panics").clone();
    for container in noted {
        let _deleting = disk.deleting.lock().await;
        if settle_or_note(disk, container).await.is_ok() {
            disk.unsettled.lock().expect("no holder panics").remove(&container);
        }
    }
}

/// Settles a container. One where that fails is noted, to be tried again, and is marked unhealthy where the
/// failure says that its bytes are wrong. To be called with the disk's lock for deletions.
pub(super) async fn settle_or_note(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<()> {
    let Err(failure) = settle(disk, container).await else { return Ok(()) };
    error!(%container, error = format!("{failure:#}"), "cannot finish a compaction that was cut short; it is tried again");
    if condemns(&failure) {
        disk.mark_unhealthy(container, format!("finish a compaction: {failure:#}")).await;
    }
    disk.unsettled.lock().expect("no holder panics").insert(container);
    Err(failure)
}

/// Leaves of a container only the segments that count: rows point to them, and no other segment is there. To
/// be called with the disk's lock for deletions.
pub(super) async fn settle(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<()> {
    let owner = OwnerId::from(container);
    let compacted = Compacted::read(&**disk.space.disk(), OWNERS_DIR, owner).await?;
    let strays = stray_segments_of(&**disk.space.disk(), OWNERS_DIR, owner, &compacted);
    let strays = strays.await.context("list its segments")?;
    let start = compacted.segments.start;
    let is_behind = start > 0 && disk.index.with(move |index| index.points_before(container, start)).await?;
    let first_stray = strays.first().copied();
    if is_behind && first_stray.is_none_or(|first| first >= start) {
        let why = "the block index is older than the last compaction: `flotilla debug container rebuild` recreates it";
        disk.mark_unhealthy(container, why.to_owned()).await;
    }
    let Some(first_stray) = first_stray else { return Ok(()) };
    if is_behind && first_stray < start {
        forget_listed(disk, container).await?;
        let moves = find_moves(disk.space.disk(), container, &compacted, first_stray).await?;
        disk.space.move_discards(OWNERS_DIR, owner, |place| moves.get(place)).await?;
        let moved = disk.index.with(move |index| {
            index.check_moves(container, start, &moves)?;
            index.apply_moves(container, start, &moves)
        });
        moved.await.context("move rows")?;
    }
    let bytes = disk.space.remove_stray_segments(OWNERS_DIR, owner).await.context("remove segments")?;
    if first_stray < start {
        measure_again(disk, container).await?;
    }
    info!(%container, segments = strays.len(), bytes, "removed segments that a compaction left");
    Ok(())
}

/// Finds where the records of the segments that count stood in those before them, all of which are there as
/// long as a row points to one.
async fn find_moves(
    disk: &Arc<dyn Disk>,
    container: ContainerId,
    compacted: &Compacted,
    first_old: u32,
) -> anyhow::Result<Moves> {
    let discards = Discards::read(&**disk, OWNERS_DIR, OwnerId::from(container)).await?;
    let old = Compacted { segments: first_old..compacted.segments.start, ..compacted.clone() };
    let mut from = ContainerReader::over(disk, container, Reading::Whole, discards.after(old)).await?;
    let mut to = ContainerReader::open(disk, container, Reading::Whole).await?;
    let mut moves = Moves::default();
    while let Some(moved) = to.next().await? {
        let index = moved.walked.meta.id.index;
        loop {
            let Some(record) = from.next().await? else { bail!("entry {index} stood nowhere before") };
            if record.walked.meta.id.index == index {
                moves.push(record.walked.meta.place, moved.walked.meta.place)?;
                break;
            }
        }
    }
    Ok(moves)
}
