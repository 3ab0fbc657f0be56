//! Deleting blocks of a closed container on this replica: docs/format/discarded.md.
//!
//! ```text
//! the list of discarded bodies, synced   a crash after it: the next start finishes it
//! the rows go, the index is flushed      before it a crash would bring rows back over bodies that are gone
//! the holes, synced                      then the deletion is acknowledged
//! ```
//!
//! A record that is given up cannot be sent to a member of the pipeline that has yet to get it, and an
//! elected leader that looks for the end of its followers' logs reads records they have. So a container whose
//! log is open here is refused.

use crate::container_reader::disk_use;
use crate::datanode_disk::DatanodeDisk;
use crate::index::Index;
use crate::index::records::ReplicaState;
use crate::layout::OWNERS_DIR;
use crate::pipelines::Pipelines;
use crate::verdict::condemns;
use anyhow::Context;
use proto::{Code, Failure, Retry};
use raftlog::{Discard, Discards, ReadError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::{error, info, warn};
use types::{BlockName, ContainerId, OwnerId};

/// The most blocks of one portion, which is listed, flushed and punched at once: their records are in memory,
/// some forty bytes for each chunk.
pub(crate) const BLOCKS_MAX: usize = 4096;

/// The word of an index on blocks that are to go.
#[derive(Default)]
struct Found {
    /// The records of the blocks that are here.
    records: Vec<Discard>,
    /// The numbers of all blocks that go, those included that are gone already: their bodies may be there
    /// still.
    locals: BTreeSet<u64>,
    /// The names under whose numbers other blocks stand here.
    others: Vec<BlockName>,
}

/// Deletes blocks of a container, by their names; answers how many were here. On return the space is given
/// back, durably; repeating it changes nothing. Not to be dropped half way, though a crash there does no
/// harm. `may_begin` is asked when all others are out of the way, which may take long.
pub(crate) async fn delete_blocks(
    disk: &Arc<DatanodeDisk>,
    pipelines: &Pipelines,
    container: ContainerId,
    names: Vec<BlockName>,
    may_begin: impl FnOnce() -> anyhow::Result<()>,
) -> Result<u64, Failure> {
    let _deleting = disk.deleting.lock().await;
    may_begin().map_err(|why| Failure::new(Code::NotYet, format!("{why:#}")))?;
    check_is_released(disk, pipelines, container).await?;
    let found = disk.index.with(move |index| find(index, container, names)).await;
    let Found { records, locals, others } =
        found.map_err(|failure| failed(container, "look for blocks", &failure))?;
    if let Some(other) = others.first() {
        warn!(%container, %other, count = others.len(), "blocks are not those that are to be deleted; they stay");
        disk.counters.other_blocks.fetch_add(others.len() as u64, Ordering::Relaxed);
    }
    let owner = OwnerId::from(container);
    let discards = match disk.space.remember_discards(OWNERS_DIR, owner, &records).await {
        Ok(discards) => discards,
        Err(failure) => return Err(unreadable(disk, container, failure).await),
    };
    carry_out(disk, container, &discards, locals).await
}

/// Finishes deletions of blocks that a crash cut short: those since which nobody has measured the container.
/// To be called before anything reads the disk.
pub(crate) async fn recover(disk: &Arc<DatanodeDisk>) -> anyhow::Result<()> {
    let mut last_failure = None;
    for (container, record) in disk.index.with(Index::containers).await? {
        if record.state != ReplicaState::Closed {
            continue;
        }
        match recover_in(disk, container).await {
            Ok(()) => {}
            // A container that is bad says nothing of those after it.
            Err(failure) if condemns(&failure) => {
                disk.mark_unhealthy(container, format!("{failure:#}")).await;
            }
            Err(failure) => last_failure = Some(failure),
        }
    }
    last_failure.map_or(Ok(()), Err)
}

async fn recover_in(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<()> {
    let (list_bytes, measure) =
        disk.index.with(move |index| Ok((index.list_bytes(container)?, index.measure(container)?))).await?;
    // Also of a copy that was taken in since the disk was opened.
    disk.space.expect_discards(OwnerId::from(container), list_bytes);
    let before = measure.map(|measure| measure.used);
    let used = disk_use(&disk.space, container, before.as_ref()).await?;
    let is_measured = before.is_some_and(|before| before.list_bytes == used.list_bytes);
    if used.discards.blocks > 0 && !is_measured {
        info!(%container, "finish deletions of blocks that a crash may have cut short");
        finish_deletions(disk, container).await?;
    }
    Ok(())
}

/// Finishes the deletions of a container's blocks that were begun and not acknowledged.
pub(crate) async fn finish_deletions(disk: &Arc<DatanodeDisk>, container: ContainerId) -> anyhow::Result<()> {
    let _deleting = disk.deleting.lock().await;
    let discards = disk.space.settled_discards(OWNERS_DIR, OwnerId::from(container)).await;
    let discards = discards.context("read what was discarded")?;
    let tags = discards.tags();
    if tags.is_empty() {
        return Ok(());
    }
    // A crash may have come before the rows went, or before the holes.
    carry_out(disk, container, &discards, tags).await?;
    Ok(())
}

/// Refuses a container that is not closed, or that a log still reads. A log without its bodies cannot bring a
/// member up to date, and an elected leader that looks for the end of its followers' logs reads its own: it
/// would find a hole and stop.
async fn check_is_released(
    disk: &DatanodeDisk,
    pipelines: &Pipelines,
    container: ContainerId,
) -> Result<(), Failure> {
    let record = disk.index.with(move |index| index.container(container)).await;
    let record = record.map_err(|failure| failed(container, "look for the container", &failure))?;
    let not_yet = |message| Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) };
    match record {
        None => {
            let message = format!("container {container} is not on this node");
            Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) })
        }
        Some(record) if record.state != ReplicaState::Closed => {
            let message = "is not closed; its blocks can be deleted once it is";
            Err(not_yet(format!("container {container} {message}")))
        }
        Some(record) if !pipelines.has_released(&record) => {
            Err(not_yet(format!("a log still has the blocks of container {container}")))
        }
        Some(_) => Ok(()),
    }
}

fn find(index: &Index, container: ContainerId, mut names: Vec<BlockName>) -> anyhow::Result<Found> {
    names.retain(|name| name.container == container);
    names.sort_unstable_by_key(|name| name.local);
    let mut found = Found::default();
    let records = index.block_records(container, names.iter().map(|name| name.local));
    for (name, record) in names.iter().copied().zip(records) {
        match record?.1 {
            Some(block) if block.nonce != name.nonce => {
                found.others.push(name);
                continue;
            }
            Some(block) if !found.locals.contains(&name.local) => {
                let places = index.places_of(name.id(), &block)?;
                let discard = |place| Discard { tag: name.local, name: name.nonce.0, place };
                found.records.extend(places.into_iter().map(discard));
            }
            _ => {}
        }
        found.locals.insert(name.local);
    }
    Ok(found)
}

async fn carry_out(
    disk: &Arc<DatanodeDisk>,
    container: ContainerId,
    discards: &Discards,
    locals: BTreeSet<u64>,
) -> Result<u64, Failure> {
    let forgotten = forget(disk, container, discards, locals.clone()).await;
    let forgotten = forgotten.map_err(|failure| failed(container, "forget blocks", &failure))?;
    let punched = disk.space.punch_discards(OWNERS_DIR, discards, |tag| locals.contains(&tag)).await;
    punched.map_err(|failure| failed(container, "punch holes", &failure.into()))?;
    if forgotten > 0 {
        disk.deleted_lately.note(container); // before others hear that it has changed
    }
    disk.inventory.look_again(disk.id, container);
    if forgotten > 0 {
        let holes = discards.iter().filter(|record| locals.contains(&record.tag)).map(|record| record.hole());
        let hole_bytes = holes.map(|hole| hole.end - hole.start).sum();
        disk.counters.hole_bytes.fetch_add(hole_bytes, Ordering::Relaxed);
        disk.counters.deleted_blocks.fetch_add(forgotten, Ordering::Relaxed);
    }
    Ok(forgotten)
}

/// Forgets the rows that a deletion left when it failed half way, and with them the hash of before. To be
/// called with the disk's lock for deletions.
pub(crate) async fn forget_listed(disk: &DatanodeDisk, container: ContainerId) -> anyhow::Result<()> {
    let discards = disk.space.settled_discards(OWNERS_DIR, OwnerId::from(container)).await?;
    forget(disk, container, &discards, discards.tags()).await.map(drop)
}

/// Forgets the rows of discarded blocks, durably; answers how many there were. To be called with the disk's
/// lock for deletions.
async fn forget(
    disk: &DatanodeDisk,
    container: ContainerId,
    discards: &Discards,
    locals: BTreeSet<u64>,
) -> anyhow::Result<u64> {
    let list_bytes = discards.list_bytes();
    let forgotten = disk.index.with(move |index| {
        let forgotten = index.forget_blocks(container, locals, list_bytes)?;
        if forgotten > 0 {
            index.flush()?;
        }
        Ok(forgotten)
    });
    forgotten.await
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::tests::{delete, open};
    use crate::disks::Disks;
    use crate::index::{DiskUse, Measure};
    use crate::layout::container_dir;
    use crate::offline::tests::{FIRST, Left};
    use crate::options::DatanodeOptions;
    use types::{BlockId, Nonce};

    /// A crash after each step but the last: the next start finishes the deletion, once.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start() {
        let block = BlockId { container: FIRST, local: 3 };
        for has_dropped_rows in [false, true] {
            let left = Left::new().await.copy();
            let options = DatanodeOptions { disks: vec![left.root()], ..DatanodeOptions::default() };
            let disks = Disks::open(&options).await.unwrap();
            let disk = disks.open[0].clone();
            let places = disk.index.places(block).unwrap();
            assert_eq!(places.len(), 2);
            let discard = |place| Discard { tag: block.local, name: 2, place };
            let records: Vec<Discard> = places.into_iter().map(discard).collect();
            let owner = OwnerId::from(FIRST);
            disk.space.remember_discards(OWNERS_DIR, owner, &records).await.unwrap();
            if has_dropped_rows {
                assert_eq!(disk.index.forget_blocks(FIRST, [block.local], 0).unwrap(), 1);
            }
            recover(&disk).await.unwrap();
            assert!(disk.index.block_record(block).unwrap().is_none());
            let record = disk.index.container(FIRST).unwrap().unwrap();
            assert_eq!((record.blocks, record.payload_bytes), (1, 10));
            let read = disk.space.read_body(OWNERS_DIR, records[0].place, 0..300_000).await;
            assert!(read.is_err(), "its body is a hole");
            let name = BlockName::new(block, Nonce(2));
            let again = delete_blocks(&disk, &Pipelines::default(), FIRST, vec![name], || Ok(())).await;
            assert_eq!(again, Ok(0));
        }
    }

    /// A compaction had made the list longer, and a crash took what was measured after it: nobody computed
    /// the container's hash again, so that nobody could copy it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_measure_of_a_shorter_list_is_taken_again() {
        let left = Left::of_small_blocks().await;
        let disk = open(&left).await;
        delete(&disk, 10..40).await;
        let used = disk_use(&disk.space, FIRST, None).await.unwrap();
        let before = DiskUse { list_bytes: used.list_bytes - 1, ..used };
        disk.index.save_measure(FIRST, &Measure { used: before, ..Measure::default() }).unwrap();
        recover(&disk).await.unwrap();
        assert_eq!(disk.index.measure(FIRST).unwrap(), None);
        assert_eq!(disk.index.list_bytes(FIRST).unwrap(), used.list_bytes);
    }

    /// A flipped bit makes the list look torn. Bodies of small blocks have no holes: nothing else would show
    /// that they are no longer listed.
    #[allow(clippy::disallowed_methods)]
    #[tokio::test(flavor = "multi_thread")]
    async fn a_list_that_has_lost_its_end_condemns_the_replica() {
        for (is_flipped, is_measured) in [(true, true), (false, true), (true, false), (false, false)] {
            let left = Left::of_small_blocks().await;
            let disk = open(&left).await;
            delete(&disk, 10..40).await;
            if is_measured {
                let used = disk_use(&disk.space, FIRST, None).await.unwrap();
                disk.index.save_measure(FIRST, &Measure { used, ..Measure::default() }).unwrap();
                disk.index.flush().unwrap();
            }
            drop(disk);
            let list = left.root().join(container_dir(FIRST)).join("discarded");
            let mut bytes = std::fs::read(&list).unwrap();
            let last = bytes.pop().unwrap();
            bytes.extend(is_flipped.then_some(last ^ 1));
            std::fs::write(&list, &bytes).unwrap();

            let disk = open(&left).await;
            let is_found = |disk: &DatanodeDisk| disk.index.unhealthy(FIRST).unwrap().is_some();
            recover(&disk).await.unwrap();
            // What is as long as it was when it was measured is not read at a start.
            assert_eq!(is_found(&disk), !(is_flipped && is_measured));
            if is_flipped && is_measured {
                assert!(disk.discards(FIRST).await.is_err());
                assert!(is_found(&disk), "whoever reads it for another node marks it");
                continue;
            }
            // The scrubber begins with this, and so does who deletes more.
            let finished = finish_deletions(&disk, FIRST).await;
            assert!(finished.is_err_and(|failure| condemns(&failure)));
            let more = BlockName::new(BlockId { container: FIRST, local: 50 }, Nonce(50));
            let deleted = delete_blocks(&disk, &Pipelines::default(), FIRST, vec![more], || Ok(())).await;
            assert!(deleted.is_err() && is_found(&disk), "{deleted:?}");
            assert_eq!(std::fs::read(&list).unwrap(), bytes, "nothing is cut off");
        }
    }
}
