//! Deleted segments' files become those of the next ones.

use crate::support::*;
use raftlog::{Entry, Log, ReadError};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use types::{LogIndex, OwnerId};

fn inode(machine: &Machine, owner: u64, segment: u32) -> u64 {
    std::fs::metadata(machine.segment(owner, segment)).unwrap().ino()
}

fn spares(machine: &Machine) -> Vec<std::fs::DirEntry> {
    let Ok(dir) = std::fs::read_dir(machine.dir.path().join("disk/spares")) else { return Vec::new() };
    dir.map(Result::unwrap).collect()
}

/// Ten segments of three records, all but the last one purged and deleted.
async fn purged_log(space: &std::sync::Arc<raftlog::LogSpace>) -> Log {
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..30, 3000)).await;
    log.purge(id(1, 28)).await.unwrap();
    log.delete_purged_segments().await.unwrap();
    log
}

#[tokio::test]
async fn the_next_segments_take_over_purged_ones_and_have_the_same_bytes_as_new_ones() {
    let machine = Machine::small_segments(10_000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..30, 3000)).await;
    let old: BTreeSet<_> = (0..9).map(|segment| inode(&machine, 1000, segment)).collect();
    log.purge(id(1, 28)).await.unwrap();
    log.delete_purged_segments().await.unwrap();
    assert_eq!(spares(&machine).len(), 9);
    // Bodies of zeros and one that ends in the middle, so that old bytes would show.
    let next: Vec<Entry> =
        (30..50).map(|index| entry(2, index, if index % 2 == 0 { 0 } else { 4000 })).collect();
    append(&log, next.clone()).await;
    let last = log.read_meta(LogIndex(49)..LogIndex(50), 1).await.unwrap()[0].place.segment;
    assert!(last > 12);
    let recycled = (10..=last).filter(|segment| old.contains(&inode(&machine, 1000, *segment))).count();
    assert_eq!(recycled as u32, last - 9, "each new segment has the file of an old one");
    log.close().await;

    let replica = Machine::small_segments(10_000);
    let other = replica.start().open(spec(1)).await.unwrap();
    append(&other, [entries(1, 0..30, 3000), next.clone()].concat()).await;
    other.close().await;
    for segment in 9..=last {
        let bytes =
            [&machine, &replica].map(|machine| std::fs::read(machine.segment(1000, segment)).unwrap());
        assert!(bytes[0] == bytes[1], "segment {segment}");
    }
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await[1..], next);
}

#[tokio::test]
async fn a_deleted_owner_s_segments_serve_other_logs_and_are_not_read_in_their_old_places() {
    let machine = Machine::small_segments(10_000).without_cache();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..9, 3000)).await;
    let place = log.read_meta(LogIndex(3)..LogIndex(4), 1).await.unwrap()[0].place;
    space.read_body("containers", place, 0..3000).await.unwrap();
    let old = inode(&machine, 1000, 1);
    space.remove(&spec(1)).await.unwrap();
    space.delete_owner("containers", OwnerId(1000)).await.unwrap();
    assert_eq!(spares(&machine).len(), 2, "the last segment may be unfinished, it is removed");
    let other = space.open(spec(2)).await.unwrap();
    append(&other, entries(1, 0..4, 3000)).await;
    assert_eq!(inode(&machine, 2000, 1), old);
    let read = space.read_body("containers", place, 0..3000).await;
    assert!(matches!(read, Err(ReadError::NotFound { .. })), "{read:?}");
    assert_eq!(read_all(&other).await, entries(1, 0..4, 3000));
}

#[tokio::test]
async fn no_segment_gets_its_own_bytes_back() {
    let machine = Machine::small_segments(10_000);
    let space = machine.start();
    for round in 0..3 {
        let log = space.open(spec(1)).await.unwrap();
        append(&log, entries(1, 0..6, 3000)).await;
        let old = inode(&machine, 1000, 0);
        space.remove(&spec(1)).await.unwrap();
        space.delete_owner("containers", OwnerId(1000)).await.unwrap();
        let log = space.open(spec(1)).await.unwrap();
        append(&log, entries(1, 0..6, 3000)).await;
        assert_eq!(inode(&machine, 1000, 1), old, "round {round}: what was segment 0 may be segment 1");
        space.remove(&spec(1)).await.unwrap();
        // Now what was 0 and 1 has the records of both.
        space.delete_owner("containers", OwnerId(1000)).await.unwrap();
    }
}

/// The first owner's segments were kept as spares, and then removed as leftovers of an earlier process.
#[tokio::test]
async fn an_owner_may_be_deleted_before_any_log_is_opened() {
    let machine = Machine::small_segments(10_000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..9, 3000)).await;
    space.remove(&spec(1)).await.unwrap();
    drop((log, space));
    let space = machine.start_again().await;
    space.delete_owner("containers", OwnerId(1000)).await.unwrap();
    let other = space.open(spec(2)).await.unwrap();
    append(&other, entries(1, 0..9, 3000)).await;
    assert_eq!(spares(&machine).len(), 0, "both are in use");
}

#[tokio::test]
async fn spares_have_a_limit_and_do_not_outlive_the_process() {
    let mut machine = Machine::small_segments(10_000);
    machine.options.spare_bytes_max = 25_000;
    let space = machine.start();
    let log = purged_log(&space).await;
    let kept: u64 = spares(&machine).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!((15_000..=25_000).contains(&kept), "{kept}");
    log.close().await;
    drop((log, space));
    let space = machine.start_again().await;
    space.open(spec(1)).await.unwrap();
    assert_eq!(spares(&machine).len(), 0);

    let mut machine = Machine::small_segments(10_000);
    machine.options.spare_bytes_max = 0;
    purged_log(&machine.start()).await;
    assert!(!machine.dir.path().join("disk/spares").exists());
}

/// Somebody knows where a log is going to end, and stored an object that has the next record in just that
/// place.
#[tokio::test]
async fn an_object_that_holds_a_forged_record_never_becomes_one() {
    let machine = Machine::small_segments(10_000);
    let next = entry(2, 30, 1000);
    // The forgery is a record that another machine really wrote there.
    let elsewhere = Machine::small_segments(10_000);
    let log = elsewhere.start().open(spec(1)).await.unwrap();
    append(&log, [entries(1, 0..30, 3000), vec![next.clone(), entry(2, 31, 500)]].concat()).await;
    let place = log.read_meta(LogIndex(31)..LogIndex(32), 1).await.unwrap()[0].place;
    log.close().await;
    let whole = std::fs::read(elsewhere.segment(1000, place.segment)).unwrap();
    let forged = &whole[place.offset as usize..];

    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let malicious = entries(1, 0..30, 3000).into_iter().map(|entry| {
        let mut body = entry.body.bytes().to_vec();
        let body_start = 72 + 4 + entry.meta.len();
        let at = place.offset as usize - body_start;
        body[at..at + forged.len()].copy_from_slice(forged);
        Entry { body: types::Payload::checksummed(body.into()), ..entry }
    });
    append(&log, malicious.collect()).await;
    log.purge(id(1, 28)).await.unwrap();
    log.delete_purged_segments().await.unwrap();
    append(&log, vec![next]).await;
    let segment = std::fs::read(machine.segment(1000, place.segment)).unwrap();
    assert_eq!(place.segment, 10);
    assert!(segment.len() > 9000, "a recycled file, with old bytes behind the record");
    // The process is killed here.
    let killed = Machine::small_segments(10_000);
    copy_tree(&machine.dir.path().join("disk"), &killed.dir.path().join("disk"));
    std::fs::remove_file(killed.dir.path().join("disk/LOCK")).unwrap();
    let log = killed.start().open(spec(1)).await.unwrap();
    assert_eq!(log.state().last, Some(id(2, 30)));
}

/// An operator with a full disk makes room.
#[tokio::test]
async fn spares_that_were_removed_by_hand_are_not_missed() {
    let machine = Machine::small_segments(10_000);
    let space = machine.start();
    let log = purged_log(&space).await;
    assert_eq!(spares(&machine).len(), 9);
    for spare in spares(&machine).iter().skip(1) {
        std::fs::remove_file(spare.path()).unwrap();
    }
    append(&log, entries(1, 30..36, 3000)).await;
    std::fs::remove_dir_all(machine.dir.path().join("disk/spares")).unwrap();
    append(&log, entries(1, 36..42, 3000)).await;
    log.purge(id(1, 40)).await.unwrap();
    log.delete_purged_segments().await.unwrap();
    assert!(!machine.segment(1000, 10).exists(), "deleted, as there is no place for spares");
    assert_eq!(read_all(&log).await, entries(1, 41..42, 3000));
}

#[tokio::test]
async fn a_recycled_segment_that_was_cut_ends_with_its_records_too() {
    let machine = Machine::small_segments(8 << 20);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..24, 1_000_000)).await;
    log.purge(id(1, 22)).await.unwrap();
    log.delete_purged_segments().await.unwrap();
    append(&log, entries(1, 24..28, 1_000_000)).await;
    let recycled = log.read_meta(LogIndex(25)..LogIndex(26), 1).await.unwrap()[0].place.segment;
    log.truncate_after(Some(LogIndex(24))).await.unwrap();
    // More than the first step of an allocation, at once.
    append(&log, entries(2, 25..30, 1_000_000)).await;
    append(&log, entries(2, 30..40, 1_000_000)).await;
    let metas = log.read_meta(LogIndex(25)..LogIndex(40), 100).await.unwrap();
    let last = metas.iter().rfind(|meta| meta.place.segment == recycled).unwrap();
    let head = 72 + 4 * u64::from(last.place.body_bytes.div_ceil(65536)) + last.meta.len() as u64;
    let end = (last.place.offset + head + u64::from(last.place.body_bytes)).next_multiple_of(8);
    assert_eq!(std::fs::metadata(machine.segment(1000, recycled)).unwrap().len(), end);
}
