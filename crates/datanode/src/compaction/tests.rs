//! Tests of what compactions leave of a container.

use super::recover;
use super::rewrite::{Done, GivenUp, compact};
use super::settle::settle_noted;
use super::worker::{CompactOptions, Compactor, candidate};
use crate::container_reader::{ContainerReader, Reading, disk_use};
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::delete_blocks;
use crate::import::incoming::Incoming;
use crate::import::manifest::Manifest;
use crate::index::Measure;
use crate::index::records::ReplicaState;
use crate::inventory::Inventory;
use crate::layout::OWNERS_DIR;
use crate::offline::tests::{FIRST, LARGE_BLOCK, Left, SMALL_BLOCKS, SMALL_BYTES, bytes_of};
use crate::offline::{OfflineDisk, RebuildOptions};
use crate::options::DatanodeOptions;
use crate::pipelines::Pipelines;
use disk::RealDisk;
use diskhooks::{Act, HookedDisk, Operation};
use parking::Throttle;
use proto::Failure;
use proto::datanode::{ContainerFile, ContainerManifest};
use raftlog::{Compacted, LogSpaceOptions, OwnerFile, owner_files, stray_segments};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use types::{BlockId, BlockName, LogIndex, Nonce, OwnerId};

const OWNER: OwnerId = OwnerId(FIRST.0);
const EMFILE: i32 = 24;

/// Small segments, so that a compaction makes several.
pub(super) fn options() -> DatanodeOptions {
    let log = LogSpaceOptions { segment_bytes_max: 200_000, reserve_bytes: 0, ..Default::default() };
    DatanodeOptions { log, ..Default::default() }
}

/// A disk with the container of [`Left::of_small_blocks`].
pub(crate) async fn open(left: &Left) -> Arc<DatanodeDisk> {
    // Whoever made the directory has yet to let go of it.
    let patience = std::time::Duration::from_secs(60);
    let real = Arc::new(RealDisk::open_once_free(&left.root(), 1, patience).await.unwrap());
    Arc::new(DatanodeDisk::open(real, &options(), Inventory::default()).await.unwrap())
}

pub(crate) async fn compacted(disk: &Arc<DatanodeDisk>) -> Result<Option<Done>, GivenUp> {
    compact(disk, &Pipelines::default(), FIRST, &Throttle::new(1 << 40)).await
}

pub(crate) async fn delete(disk: &Arc<DatanodeDisk>, locals: impl IntoIterator<Item = u64>) {
    try_delete(disk, locals).await.unwrap();
}

pub(super) async fn try_delete(
    disk: &Arc<DatanodeDisk>,
    locals: impl IntoIterator<Item = u64>,
) -> Result<u64, Failure> {
    let name = |local: u64| BlockName::new(BlockId { container: FIRST, local }, Nonce(local.into()));
    let names = locals.into_iter().map(name).collect();
    delete_blocks(disk, &Pipelines::default(), FIRST, names, || Ok(())).await
}

/// A container as everybody else sees it, whatever its places are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub blocks: BTreeMap<u64, Vec<u8>>,
    pub hash: [u8; 32],
    pub discarded: (u64, u64),
}

/// Reads all of the container, by its index and by its segments; an error says what is wrong.
pub(super) async fn look(disk: &Arc<DatanodeDisk>) -> Result<Seen, String> {
    let text = |failure: anyhow::Error| format!("{failure:#}");
    let mut blocks = BTreeMap::new();
    let rows: Result<Vec<_>, _> = disk.index.block_rows(FIRST, 0).collect();
    for (block, record) in rows.map_err(text)? {
        let mut bytes = Vec::new();
        for piece in disk.index.pieces(block, 0..record.length, 100).map_err(text)? {
            let read = disk.space.read_body(OWNERS_DIR, piece.place, 0..piece.place.body_bytes).await;
            bytes.extend_from_slice(&read.map_err(|failure| format!("block {block}: {failure}"))?.bytes);
        }
        blocks.insert(block.local, bytes);
    }
    let mut reader = ContainerReader::open(disk.space.disk(), FIRST, Reading::Whole).await.map_err(text)?;
    while let Some(record) = reader.next().await.map_err(|failure| failure.to_string())? {
        reader.check_body(&record).await.map_err(text)?;
    }
    if let Some(wrong) = reader.wrong_end().await.map_err(text)? {
        return Err(wrong);
    }
    let sum = reader.discards().sum();
    Ok(Seen { blocks, hash: reader.hash(), discarded: (sum.blocks, sum.digest) })
}

pub(super) async fn strays(disk: &DatanodeDisk) -> Vec<u32> {
    stray_segments(&**disk.space.disk(), OWNERS_DIR, OWNER).await.unwrap()
}

/// All blocks but those that were deleted.
pub(super) fn blocks_without(is_deleted: impl Fn(u64) -> bool) -> BTreeMap<u64, Vec<u8>> {
    let locals = SMALL_BLOCKS.chain([LARGE_BLOCK]).filter(|local| !is_deleted(*local));
    locals.map(|local| (local, bytes_of(local))).collect()
}

/// Checks that a container is the same to the offline tools, and by a rebuilt index.
async fn check_offline(left: &Left, seen: &Seen) {
    left.check(&[]).await;
    let report = OfflineDisk::open(&left.root()).unwrap().verify(Some(FIRST)).await.unwrap();
    assert_eq!(report.containers[&FIRST].hash, Some(crate::hash::to_hex(&seen.hash)));
    let rows = || left.index().derived_rows().map(Result::unwrap).collect::<Vec<_>>();
    let before = rows();
    let rebuilt = OfflineDisk::open(&left.root()).unwrap().rebuild(Default::default()).await.unwrap();
    assert!(rebuilt.is_whole(), "{rebuilt:#?}");
    assert_eq!(rows(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn discarded_records_go_and_everything_else_stays_as_it_was() {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    let all = look(&disk).await.unwrap();
    assert_eq!(all.blocks, blocks_without(|_| false));
    let is_deleted = |local: u64| !local.is_multiple_of(3) && local != LARGE_BLOCK;
    delete(&disk, SMALL_BLOCKS.filter(|local| is_deleted(*local))).await;
    let before = look(&disk).await.unwrap();
    let used = disk_use(&disk.space, FIRST, None).await.unwrap();
    assert!(used.discards.dead_bytes > 40 * SMALL_BYTES as u64, "small bodies give nothing back");

    let done = compacted(&disk).await.unwrap().unwrap();
    let after = look(&disk).await.unwrap();
    assert_eq!(after, before, "blocks, hash and digest");
    assert_eq!(after.blocks, blocks_without(is_deleted));
    let use_after = disk_use(&disk.space, FIRST, None).await.unwrap();
    assert_eq!(use_after.discards.dead_bytes, 0);
    assert!(use_after.bytes + 40 * SMALL_BYTES as u64 <= used.bytes, "{use_after:?} of {used:?}");
    assert!(done.written_bytes < done.removed_bytes, "{done:?}");
    let record = Compacted::read(&**disk.space.disk(), OWNERS_DIR, OWNER).await.unwrap();
    assert!(record.is_compacted() && record.segments.end == u32::MAX);

    // Blocks that stand in new places are deleted there, and the next compaction leaves them out.
    delete(&disk, [12, LARGE_BLOCK]).await;
    let before = look(&disk).await.unwrap();
    let dead = disk_use(&disk.space, FIRST, None).await.unwrap().discards.dead_bytes;
    assert!((1..100_000).contains(&dead), "a hole gave most of the large one back: {dead}");
    compacted(&disk).await.unwrap().unwrap();
    let after = look(&disk).await.unwrap();
    assert_eq!(after, before);
    assert_eq!(after.blocks, blocks_without(|local| is_deleted(local) || [12, LARGE_BLOCK].contains(&local)));
    assert_ne!(after.hash, all.hash);
    drop(disk);
    check_offline(&left, &after).await;
}

/// The hash and the digest are the same whoever compacts when.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_were_compacted_at_other_times_are_the_same() {
    let first = Left::of_small_blocks().await;
    let mut seen = Vec::new();
    for compacts_after in [&[][..], &[0], &[1], &[2], &[0, 1, 2]] {
        let left = first.copy();
        let disk = open(&left).await;
        for (n, step) in [(10..40), (40..55), (55..60)].into_iter().enumerate() {
            delete(&disk, step).await;
            if compacts_after.contains(&n) {
                compacted(&disk).await.unwrap().unwrap();
            }
        }
        seen.push(look(&disk).await.unwrap());
        drop(disk);
        check_offline(&left, seen.last().unwrap()).await;
    }
    assert_eq!(seen[0].blocks, blocks_without(|local| (10..60).contains(&local)));
    assert!(seen.iter().all(|other| *other == seen[0]));
}

/// A block is deleted while it is copied: the list says where it stood, and the copy counts for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_while_a_container_is_compacted_stays_deleted() {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, 10..40).await;
    // The throttle lets a little through at a time: 300 kB take three seconds.
    let slow = {
        let disk = disk.clone();
        tokio::spawn(
            async move { compact(&disk, &Pipelines::default(), FIRST, &Throttle::new(100_000)).await },
        )
    };
    let started = async || !strays(&disk).await.is_empty();
    while !started().await {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    delete(&disk, (40..60).chain([LARGE_BLOCK])).await;
    slow.await.unwrap().unwrap().unwrap();
    let used = disk_use(&disk.space, FIRST, None).await.unwrap();
    assert!(used.discards.dead_bytes > 10 * SMALL_BYTES as u64, "counted where they are now: {used:?}");
    let reader = ContainerReader::open(disk.space.disk(), FIRST, Reading::Whole).await.unwrap();
    assert!(!(10..60).any(|local| reader.is_known_repeat(LogIndex(local))), "they began blocks");
    drop(reader);
    let after = look(&disk).await.unwrap();
    let is_deleted = |local: u64| (10..60).contains(&local) || local == LARGE_BLOCK;
    assert_eq!(after.blocks, blocks_without(is_deleted));
    // The container is as it would have been without any compaction.
    let other = first_deleted(is_deleted).await;
    assert_eq!(after, other);
    compacted(&disk).await.unwrap().unwrap();
    assert_eq!(look(&disk).await.unwrap(), other);
    let left_dead = disk_use(&disk.space, FIRST, None).await.unwrap().discards.dead_bytes;
    assert_eq!(left_dead, 0, "the next one leaves them out");
    drop(disk);
    check_offline(&left, &other).await;
}

async fn first_deleted(is_deleted: impl Fn(u64) -> bool) -> Seen {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, SMALL_BLOCKS.chain([LARGE_BLOCK]).filter(|local| is_deleted(*local))).await;
    look(&disk).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_container_is_given_up_and_stays_as_it_was() {
    let left = Left::of_small_blocks().await;
    left.flip("containers/0000000000000064/00000000.seg", 150_000);
    let disk = open(&left).await;
    delete(&disk, 50..60).await;
    let given_up = compacted(&disk).await.unwrap_err();
    assert!(matches!(&given_up, GivenUp::Damaged(why) if why.contains("mismatch")), "{given_up:?}");
    assert_eq!(strays(&disk).await, []);
    assert!(!Compacted::read(&**disk.space.disk(), OWNERS_DIR, OWNER).await.unwrap().is_compacted());
}

/// RocksDB opens an index whose newest files are gone as it was before them.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods)] // the test puts an older index back
async fn an_index_that_is_older_than_a_compaction_is_told_of() {
    let left = Left::of_small_blocks().await;
    delete(&open(&left).await, 10..40).await;
    let before = left.copy();
    compacted(&open(&left).await).await.unwrap().unwrap();
    left.lose("db");
    std::fs::rename(before.root().join("db"), left.root().join("db")).unwrap();
    let disk = open(&left).await;
    recover(&disk).await.unwrap();
    let why = disk.index.unhealthy(FIRST).unwrap();
    assert!(why.is_some_and(|why| why.contains("older than the last compaction")));
    drop(disk);
    let rebuilt = OfflineDisk::open(&left.root()).unwrap().rebuild(Default::default()).await.unwrap();
    assert!(rebuilt.is_whole(), "{rebuilt:#?}");
    let disk = open(&left).await;
    recover(&disk).await.unwrap();
    assert_eq!(disk.index.unhealthy(FIRST).unwrap(), None);
    assert_eq!(look(&disk).await.unwrap().blocks, blocks_without(|local| (10..40).contains(&local)));
}

/// The copy counts by then: what it was made from goes all the same, with no start in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_fails_after_its_end_is_finished() {
    let left = Left::of_small_blocks().await;
    let before = {
        let disk = open(&left).await;
        delete(&disk, 10..40).await;
        look(&disk).await.unwrap()
    };
    let patience = std::time::Duration::from_secs(60);
    let real = Arc::new(RealDisk::open_once_free(&left.root(), 1, patience).await.unwrap());
    let fails = Arc::new(AtomicBool::new(true));
    let failing = {
        let fails = fails.clone();
        HookedDisk::new(real.clone(), move |call| {
            let is_failing = call.operation == Operation::RemoveFile && fails.load(Ordering::SeqCst);
            if is_failing { Act::Fail(std::io::Error::from_raw_os_error(EMFILE)) } else { Act::Pass }
        })
    };
    let disk = DatanodeDisk::open_over(real, Arc::new(failing), &options(), Inventory::default()).await;
    let disk = Arc::new(disk.unwrap());
    assert!(matches!(compacted(&disk).await, Err(GivenUp::Failed(_))));
    let record = Compacted::read(&**disk.space.disk(), OWNERS_DIR, OWNER).await.unwrap();
    assert!(record.is_compacted() && !strays(&disk).await.is_empty());
    for is_at_start in [false, true] {
        match is_at_start {
            false => settle_noted(&disk).await,
            true => recover(&disk).await.unwrap(),
        }
        assert_eq!(*disk.unsettled.lock().unwrap(), [FIRST].into(), "to be tried again");
    }
    assert_eq!(disk.index.unhealthy(FIRST).unwrap(), None, "nothing is wrong with it");
    fails.store(false, Ordering::SeqCst);
    settle_noted(&disk).await;
    assert!(disk.unsettled.lock().unwrap().is_empty());
    assert_eq!((strays(&disk).await, look(&disk).await), (Vec::new(), Ok(before)));
}

/// The block's row is there still, and so is the hash of the container with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_failed_half_way_is_finished_first() {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, 10..40).await;
    let hash = Some(look(&disk).await.unwrap().hash);
    let measure = Measure { hash, ..Measure::default() };
    disk.index.save_measure(FIRST, &measure).unwrap();
    let block = BlockId { container: FIRST, local: 50 };
    let discard = |place| raftlog::Discard { tag: 50, name: 50, place };
    let records: Vec<_> = disk.index.places(block).unwrap().into_iter().map(discard).collect();
    disk.space.remember_discards(OWNERS_DIR, OWNER, &records).await.unwrap();
    compacted(&disk).await.unwrap().unwrap();
    let is_deleted = |local: u64| (10..40).contains(&local) || local == 50;
    assert_eq!(look(&disk).await.unwrap().blocks, blocks_without(is_deleted));
}

/// Others may have taken the room since the container was chosen.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_would_take_the_reserve_is_given_up() {
    let left = Left::of_small_blocks().await;
    delete(&open(&left).await, 10..40).await;
    let patience = std::time::Duration::from_secs(60);
    let real = Arc::new(RealDisk::open_once_free(&left.root(), 1, patience).await.unwrap());
    let log = LogSpaceOptions { reserve_bytes: 1 << 60, ..options().log };
    let options = DatanodeOptions { log, ..options() };
    let disk = Arc::new(DatanodeDisk::open(real, &options, Inventory::default()).await.unwrap());
    let given_up = compacted(&disk).await;
    assert!(
        matches!(&given_up, Err(GivenUp::Failed(why)) if why.to_string().contains("reserve")),
        "{given_up:?}"
    );
    assert_eq!((strays(&disk).await, disk.index.unhealthy(FIRST).unwrap()), (Vec::new(), None));
}

/// A disk that takes no more data, since it has no room for a segment, compacts what fits.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_needs_no_more_room_than_its_records() {
    let left = Left::of_small_blocks().await;
    delete(&open(&left).await, 10..40).await;
    let patience = std::time::Duration::from_secs(60);
    let real = Arc::new(RealDisk::open_once_free(&left.root(), 1, patience).await.unwrap());
    let log = LogSpaceOptions { segment_bytes_max: 1 << 60, ..options().log };
    let options = DatanodeOptions { log, ..options() };
    let disk = Arc::new(DatanodeDisk::open(real, &options, Inventory::default()).await.unwrap());
    compacted(&disk).await.unwrap().unwrap();
    assert_eq!(look(&disk).await.unwrap().blocks, blocks_without(|local| (10..40).contains(&local)));
}

/// Where the hash was computed before, records that have another one are not written.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_another_hash_than_before_is_given_up() {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, 10..40).await;
    let used = disk_use(&disk.space, FIRST, None).await.unwrap();
    let measure = |hash| Measure { hash: Some(hash), used, ..Measure::default() };
    disk.index.save_measure(FIRST, &measure([7; 32])).unwrap();
    assert!(matches!(compacted(&disk).await, Err(GivenUp::Damaged(_))));
    let hash = look(&disk).await.unwrap().hash;
    disk.index.save_measure(FIRST, &measure(hash)).unwrap();
    compacted(&disk).await.unwrap().unwrap();
    let kept = disk.index.measure(FIRST).unwrap().unwrap();
    assert_eq!(kept.hash, Some(hash), "it need not be computed again");
    assert_eq!(kept.used.bytes, disk_use(&disk.space, FIRST, None).await.unwrap().bytes);
}

/// A missing record that nobody listed is no gap that a compaction may have left.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_missing_and_not_listed_is_damage() {
    planted::plant(Some(planted::Bug::CompactionLosesRecords));
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, SMALL_BLOCKS.chain([LARGE_BLOCK])).await;
    let before = look(&disk).await.unwrap();
    // The index is asked for each block's records, not for those that are no block's. The bug is of this
    // thread alone, where the test runs.
    compacted(&disk).await.unwrap().unwrap();
    planted::plant(None);
    let wrong = look(&disk).await.map(|after| after == before);
    assert!(wrong.as_ref().is_err_and(|wrong| wrong.contains("index is")), "{wrong:?}");
}

#[tokio::test]
async fn the_container_that_gives_most_for_what_it_costs_is_first_and_must_fit() {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    let replica = |dead_bytes, disk_bytes| {
        let mut replica = crate::inventory::Replica::of_test(disk.id);
        (replica.discards.dead_bytes, replica.disk_bytes) = (dead_bytes, disk_bytes);
        replica
    };
    let is_worth = |dead, all| candidate(FIRST, &replica(dead, all), 50).is_some();
    assert!(is_worth(50, 100) && !is_worth(49, 100) && !is_worth(0, 0));
    let mut empty = replica(50, 100);
    empty.blocks = 0;
    assert_eq!(candidate(FIRST, &empty, 50), None, "SCM deletes it");
    let unreleased = crate::inventory::Replica { released: false, ..replica(50, 100) };
    assert_eq!(candidate(FIRST, &unreleased, 50), None);

    let options = CompactOptions { above_percent: 50, bytes_per_second: 1 };
    let may_reclaim = Arc::new(AtomicBool::new(true));
    let mut compactor = Compactor::new(disk.clone(), Arc::default(), options, may_reclaim.clone());
    let put = |number, replica| {
        disk.inventory.put_read(types::ContainerId(number), replica, disk.inventory.removals())
    };
    let room = disk.room_to_compact();
    put(1, replica(31, 100));
    put(2, replica(90, 100));
    put(3, replica(60, 100));
    put(4, replica(100 * room, 100 * room + room + 1));
    let mut next = || compactor.next().map(|candidate| candidate.container.0);
    tokio::time::pause();
    assert_eq!(next(), None, "nobody knows what was deleted before the start");
    tokio::time::advance(std::time::Duration::from_secs(10)).await;
    assert_eq!(next(), Some(2));
    tokio::time::advance(std::time::Duration::from_secs(50)).await;
    let discard = || [2, 3].map(|number| disk.deleted_lately.note(types::ContainerId(number)));
    discard();
    assert_eq!(next(), Some(1), "the others wait until that pauses");
    for _ in 0..7 {
        tokio::time::advance(std::time::Duration::from_secs(9)).await;
        discard();
    }
    assert_eq!(next(), Some(2), "one that is nearly dead waits for a minute");
    disk.inventory.remove(types::ContainerId(2), disk.id);
    assert_eq!(next(), Some(1));
    may_reclaim.store(false, Ordering::Relaxed);
    assert_eq!(next(), None, "an operator has stopped it");
}

/// A source of which records are left out, and what a node makes of its files.
#[allow(clippy::disallowed_methods)]
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_compacted_container_is_the_same_and_is_compacted_in_its_turn() {
    let left = Left::of_small_blocks().await;
    let source = open(&left).await;
    delete(&source, 10..40).await;
    compacted(&source).await.unwrap().unwrap();
    delete(&source, 40..50).await;
    let expect = look(&source).await.unwrap();
    let compacted_so = Compacted::read(&**source.space.disk(), OWNERS_DIR, OWNER).await.unwrap();
    let files = owner_files(&**source.space.disk(), OWNERS_DIR, OWNER).await.unwrap();
    let is_sent = |file: &&OwnerFile| file.segment().is_some() || file.name == "discarded";
    let mut files: Vec<&OwnerFile> = files.iter().filter(is_sent).collect();
    files.sort_by_key(|file| file.segment());
    let file = |file: &&OwnerFile| ContainerFile { name: file.name.clone(), bytes: file.bytes };
    let last = source.index.container(FIRST).unwrap().unwrap().last.unwrap();
    let manifest = Manifest::parse(ContainerManifest {
        container: FIRST.0,
        pipeline: 3,
        files: files.iter().map(file).collect(),
        hash: crate::hash::to_hex(&expect.hash),
        last_term: last.term.0,
        last_index: last.index.0,
        repeats: vec![71, 72],
        compacted: compacted_so.encode(OWNER).into(),
    });
    let manifest = manifest.unwrap();
    drop(source);

    let dir = tempfile::tempdir().unwrap();
    let real = Arc::new(RealDisk::open(dir.path(), 1).unwrap());
    let disk = DatanodeDisk::open(real, &options(), Inventory::default()).await.unwrap();
    let mut incoming = Incoming::open(disk.space.disk().clone(), manifest.clone()).await.unwrap();
    for file in files {
        let path = left.root().join(format!("containers/{:016x}/{}", FIRST.0, file.name));
        incoming.write(&file.name, 0, std::fs::read(path).unwrap().into()).await.unwrap();
    }
    crate::import::take_in(disk.space.disk(), &disk.index, incoming, &manifest).await.unwrap();
    let disk = Arc::new(disk);
    assert_eq!(look(&disk).await.unwrap(), expect);
    compacted(&disk).await.unwrap().unwrap();
    assert_eq!(look(&disk).await.unwrap(), expect);
    drop(disk);
    let report = OfflineDisk::open(dir.path()).unwrap().verify(None).await.unwrap();
    assert!(report.is_whole(), "{report:#?}");
    assert!(OfflineDisk::open(dir.path()).unwrap().rebuild(Default::default()).await.unwrap().is_whole());
    let opened = async || {
        let real = Arc::new(RealDisk::open(dir.path(), 1).unwrap());
        DatanodeDisk::open(real, &options(), Inventory::default()).await.unwrap()
    };
    assert_eq!(look(&Arc::new(opened().await)).await.unwrap(), expect);

    // Where it ends is written down with it, whatever of it can be read: SCM has it replaced.
    let files = dir.path().join(format!("containers/{:016x}", FIRST.0));
    let segments = std::fs::read_dir(&files).unwrap().map(|file| file.unwrap().path());
    let segment = segments.filter(|path| path.extension().is_some_and(|it| it == "seg")).min().unwrap();
    for (harmed, byte) in [(segment, 20), (files.join("discarded"), 40), (files.join("compacted"), 40)] {
        let whole = std::fs::read(&harmed).unwrap();
        let mut bytes = whole.clone();
        bytes[byte] ^= 1;
        std::fs::write(&harmed, bytes).unwrap();
        let rebuild = async |accept_loss| {
            let disk = OfflineDisk::open(dir.path()).unwrap();
            disk.rebuild(RebuildOptions { accept_loss }).await.map_err(|why| format!("{why:#}"))
        };
        let refused = rebuild(false).await.map(drop);
        assert!(refused.is_err_and(|why| why.contains("--accept-loss")), "{harmed:?}");
        assert!(!rebuild(true).await.unwrap().is_whole(), "{harmed:?}");
        let index = opened().await.index;
        let record = index.container(FIRST).unwrap().unwrap();
        assert_eq!((record.state, record.last), (ReplicaState::Closed, Some(last)), "{harmed:?}");
        assert!(index.unhealthy(FIRST).unwrap().is_some(), "{harmed:?}");
        std::fs::write(&harmed, whole).unwrap();
        drop(index);
    }
    assert!(OfflineDisk::open(dir.path()).unwrap().rebuild(Default::default()).await.unwrap().is_whole());
}

/// The list as it was before it had names.
fn without_names(list: &[u8]) -> Vec<u8> {
    let (mut rest, mut before, mut out) = (list, 0, Vec::new());
    while !rest.is_empty() {
        let count = u32::from_le_bytes(rest[16..20].try_into().unwrap()) as usize;
        let (block, later) = rest.split_at(24 + 56 * count);
        let header = [&block[..4], &[1], &block[5..20]].concat();
        let records: Vec<u8> = block[24..].chunks(56).flat_map(|record| record[..40].to_vec()).collect();
        before = crc32c::crc32c_append(crc32c::crc32c_append(before, &header), &records);
        out.extend([&header[..], &before.to_le_bytes(), &records].concat());
        rest = later;
    }
    out
}

/// Other replicas are told names, which only heads had: they are written down before those go.
#[allow(clippy::disallowed_methods)]
#[tokio::test(flavor = "multi_thread")]
async fn names_of_an_older_list_are_written_down_before_heads_go() {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, 10..20).await;
    delete(&disk, 20..40).await;
    let path = left.root().join(format!("containers/{:016x}/discarded", FIRST.0));
    // A binary of then kept no length of the list.
    disk.index.save_measure(FIRST, &Measure::default()).unwrap();
    disk.index.flush().unwrap();
    drop(disk);
    std::fs::write(&path, without_names(&std::fs::read(&path).unwrap())).unwrap();
    let disk = open(&left).await;
    let names = async || {
        let discards = disk.space.discards(OWNERS_DIR, OWNER).await.unwrap();
        discards.iter().map(|record| (record.tag, record.name)).collect::<Vec<_>>()
    };
    let nameless: Vec<_> = (10..40).map(|local: u64| (local, None)).collect();
    assert_eq!(names().await, nameless);
    let before = look(&disk).await.unwrap();
    compacted(&disk).await.unwrap().unwrap();
    assert_eq!(look(&disk).await.unwrap(), before, "the digest too");
    let named: Vec<_> = (10..40).map(|local: u64| (local, Some(u128::from(local)))).collect();
    assert_eq!(names().await, named);
}
