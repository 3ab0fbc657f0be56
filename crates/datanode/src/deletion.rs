//! Deleting blocks of a closed container on this replica: docs/format/discarded.md.
//!
//! ```text
//! the list of discarded bodies, synced   a crash after it: repeating the deletion, or the scrubber, finishes it
//! the rows go, the index is flushed      before it a crash would bring rows back over bodies that are gone
//! the holes, synced                      then the deletion is acknowledged
//! ```
//!
//! A record that is given up cannot be sent to a member of the pipeline that has yet to get it, and an
//! elected leader that looks for the end of its followers' logs reads records they have. So the service
//! refuses while the pipeline's log is open here.

use crate::blocking::blocking;
use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::index::records::ContainerState;
use crate::layout::OWNERS_DIR;
use proto::{Code, Failure, Retry};
use raftlog::{Discards, Place, ReadError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::error;
use types::{BlockId, ContainerId, OwnerId};

/// Deletes blocks of a closed container; answers how many were here. **Only where no log reads the
/// container's records any more**, which the service sees to.
pub(crate) async fn delete_blocks(
    disks: &Arc<Disks>,
    container: ContainerId,
    locals: Vec<u64>,
) -> Result<u64, Failure> {
    let disks = disks.clone();
    let found = blocking(move || Ok(disks.holding(container)?.map(|(disk, _)| disk.clone())));
    let found = found.await.map_err(|failure| Failure::internal(format!("{failure:#}")))?;
    let Some(disk) = found else { return Ok(0) };
    // On a task of its own: a caller that hangs up must not leave a deletion half way.
    let deleting = tokio::spawn(async move { delete_from(&disk, container, locals).await });
    deleting.await.map_err(|failure| Failure::internal(format!("delete blocks: {failure}")))?
}

/// Deletes blocks; those that are not here are skipped. On return the space is given back, durably; answers
/// how many blocks were here. Repeating it changes nothing. Not to be dropped half way, though a crash there
/// does no harm.
async fn delete_from(
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
    locals: Vec<u64>,
) -> Result<u64, Failure> {
    let _deleting = disk.deleting.lock().await;
    let locals: BTreeSet<u64> = locals.into_iter().collect();
    let records = find_records(disk, container, &locals).await?;
    let owner = OwnerId::from(container);
    let discards = match disk.space.remember_discards(OWNERS_DIR, owner, &records).await {
        Ok(discards) => discards,
        Err(failure) => return Err(unreadable(disk, container, failure).await),
    };
    carry_out(disk, container, &discards, locals).await
}

/// Finishes what was begun and not acknowledged.
pub(crate) async fn finish_deletions(
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
) -> Result<(), Failure> {
    let _deleting = disk.deleting.lock().await;
    let discards = disk.space.discards(OWNERS_DIR, OwnerId::from(container)).await;
    let discards =
        discards.map_err(|failure| failed(container, "read what was discarded", &failure.into()))?;
    let tags: BTreeSet<u64> = discards.iter().map(|record| record.tag).collect();
    if tags.is_empty() {
        return Ok(());
    }
    // A crash may have come before the rows went, or before the holes.
    carry_out(disk, container, &discards, tags).await.map(drop)
}

/// The places of the bodies of the blocks, each with its block's number.
async fn find_records(
    disk: &DatanodeDisk,
    container: ContainerId,
    locals: &BTreeSet<u64>,
) -> Result<Vec<(u64, Place)>, Failure> {
    let wanted = locals.clone();
    let found = disk.index.with(move |index| {
        let Some(record) = index.container(container)? else { return Ok(None) };
        let mut records = Vec::new();
        if record.state == ContainerState::Closed {
            for local in wanted {
                let places = index.places(BlockId { container, local })?;
                records.extend(places.into_iter().map(|place| (local, place)));
            }
        }
        Ok(Some((record.state, records)))
    });
    match found.await.map_err(|failure| failed(container, "look for blocks", &failure))? {
        Some((ContainerState::Closed, records)) => Ok(records),
        Some((ContainerState::Open | ContainerState::QuasiClosed | ContainerState::WithoutLog, _)) => {
            let message =
                format!("container {container} is not closed; its blocks can be deleted once it is");
            Err(Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) })
        }
        None => {
            let message = format!("container {container} is not on this node");
            Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) })
        }
    }
}

async fn carry_out(
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
    discards: &Discards,
    locals: BTreeSet<u64>,
) -> Result<u64, Failure> {
    let gone = locals.clone();
    let forgotten = disk.index.with(move |index| {
        let forgotten = index.forget_blocks(container, gone)?;
        if forgotten > 0 {
            index.flush()?;
        }
        Ok(forgotten)
    });
    let forgotten = forgotten.await.map_err(|failure| failed(container, "forget blocks", &failure))?;
    let punched = disk.space.punch_discards(OWNERS_DIR, discards, |tag| locals.contains(&tag)).await;
    punched.map_err(|failure| failed(container, "punch holes", &failure.into()))?;
    disk.inventory.look_again(disk.id, container);
    if forgotten > 0 {
        let holes = discards.iter().filter(|record| locals.contains(&record.tag)).map(|record| record.hole());
        let hole_bytes = holes.map(|hole| hole.end - hole.start).sum();
        disk.counters.hole_bytes.fetch_add(hole_bytes, Ordering::Relaxed);
        disk.counters.deleted_blocks.fetch_add(forgotten, Ordering::Relaxed);
    }
    Ok(forgotten)
}

async fn unreadable(disk: &Arc<DatanodeDisk>, container: ContainerId, failure: ReadError) -> Failure {
    if failure.condemns() {
        disk.mark_unhealthy(container, failure.to_string()).await;
        return Failure::new(Code::Corrupt, format!("delete blocks of container {container}: {failure}"));
    }
    failed(container, "remember what is discarded", &failure.into())
}

fn failed(container: ContainerId, what: &str, failure: &anyhow::Error) -> Failure {
    error!(%container, error = format!("{failure:#}"), "{what}");
    Failure::new(Code::DiskFailed, format!("{what} of container {container}: {failure:#}"))
}
