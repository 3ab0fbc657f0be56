//! Owners whose records were copied into later segments, without those that were discarded.

use crate::support::*;
use raftlog::{
    Compacted, Discard, Discards, LogSpace, OwnerWalk, Step, WalkEnd, WalkedRecord, owner_files,
    stray_segments,
};
use std::sync::Arc;
use types::{LogId, OwnerId};

const OWNERS: &str = "containers";
const FIRST: OwnerId = OwnerId(1000);
const SECOND: OwnerId = OwnerId(2000);

/// Owner 1000 with entries 0..10 over four segments, the last rolls to 2000, which has three.
async fn two_owners() -> (Machine, Arc<LogSpace>) {
    let machine = Machine::small_segments(100_000).without_cache();
    let log = machine.start().open(spec(1)).await.unwrap();
    let mut first = entries(1, 0..10, 30_000);
    first[9].roll_to = Some(SECOND);
    append(&log, first).await;
    append(&log, entries(2, 10..13, 70_000)).await;
    log.close().await;
    drop(log);
    let space = machine.start_again().await;
    (machine, space)
}

async fn walk(space: &LogSpace, owner: OwnerId) -> (Vec<WalkedRecord>, WalkEnd) {
    let mut walk = OwnerWalk::new(space.disk().clone(), OWNERS, owner).await.unwrap();
    let mut records = Vec::new();
    loop {
        match walk.next().await.unwrap() {
            Step::Record(record) => records.push(*record),
            Step::End(end) => return (records, end),
        }
    }
}

async fn discard(space: &LogSpace, owner: OwnerId, indexes: &[u64]) {
    let (records, _) = walk(space, owner).await;
    let chosen = records.iter().filter(|record| indexes.contains(&record.meta.id.index.0));
    let discard =
        |record: &WalkedRecord| Discard { tag: record.meta.id.index.0, name: 7, place: record.meta.place };
    let chosen: Vec<Discard> = chosen.map(discard).collect();
    let discards = space.remember_discards(OWNERS, owner, &chosen).await.unwrap();
    space.punch_discards(OWNERS, &discards, |_| true).await.unwrap();
}

/// Compacts an owner that ends with a record, and leaves more out than was discarded.
async fn compact(space: &LogSpace, owner: OwnerId, last: LogId, also: &[u64]) {
    let disk = &**space.disk();
    let first = space.unused_segment(OWNERS, owner).await.unwrap();
    let before = Compacted::read(disk, OWNERS, owner).await.unwrap().before(first);
    before.write(disk, OWNERS, owner).await.unwrap();
    let discards = Arc::new(Discards::read(disk, OWNERS, owner).await.unwrap());
    let mut walk = OwnerWalk::over(space.disk().clone(), OWNERS, discards.clone(), 0).await.unwrap();
    let mut rewrite = space.rewrite(OWNERS, owner, first);
    let mut begins = None;
    while let Step::Record(record) = walk.next().await.unwrap() {
        let index = record.meta.id.index;
        begins.get_or_insert(index);
        if discards.contains(index, &record.meta.place) || also.contains(&index.0) {
            continue;
        }
        let body = walk.read_last_body(&record).await.unwrap();
        if rewrite.needs_segment(&record) {
            rewrite.begin_segment().await.unwrap();
        }
        let place = rewrite.push(&record, &body).await.unwrap();
        assert!(place.segment >= first && place.body_bytes == record.meta.place.body_bytes);
        // What is written so far is of no walk.
        assert!(owner_files(disk, OWNERS, owner).await.unwrap().iter().all(|it| it.segment() < Some(first)));
    }
    let segments = rewrite.finish().await.unwrap();
    assert_eq!(stray_segments(disk, OWNERS, owner).await.unwrap(), segments.clone().collect::<Vec<_>>());
    let (begins, notes) = (begins.unwrap(), Default::default());
    let is_again = before.is_compacted();
    let begins = if is_again { before.first } else { begins };
    let after = Compacted { segments: segments.start..u32::MAX, first: begins, last, notes };
    after.write(disk, OWNERS, owner).await.unwrap();
    assert!(space.remove_stray_segments(OWNERS, owner).await.unwrap() > 0);
    assert_eq!(space.remove_stray_segments(OWNERS, owner).await.unwrap(), 0);
}

fn indexes(records: &[WalkedRecord]) -> Vec<u64> {
    records.iter().map(|record| record.meta.id.index.0).collect()
}

#[tokio::test]
async fn live_records_are_the_same_in_other_segments_again_and_again() {
    let (machine, space) = two_owners().await;
    let (all, end) = walk(&space, FIRST).await;
    discard(&space, FIRST, &[0, 1, 4]).await;
    let before = Discards::read(&**space.disk(), OWNERS, FIRST).await.unwrap().sum();
    assert!(before.dead_bytes > 0);
    compact(&space, FIRST, id(1, 9), &[]).await;
    discard(&space, FIRST, &[2, 8]).await;
    compact(&space, FIRST, id(1, 9), &[]).await;

    let (left, end_now) = walk(&space, FIRST).await;
    assert_eq!((indexes(&left), end_now), (vec![3, 5, 6, 7, 9], end));
    for record in &left {
        let then = &all[record.meta.id.index.0 as usize];
        assert_eq!(record.placeless_head(), then.placeless_head());
        let place = record.meta.place;
        let body = space.read_body(OWNERS, place, 0..place.body_bytes).await.unwrap();
        assert!(*body.bytes == *entry(1, record.meta.id.index.0, 30_000).body.bytes());
        assert!(space.read_body(OWNERS, then.meta.place, 0..9).await.is_err(), "where it stood is nothing");
    }
    let after = Discards::read(&**space.disk(), OWNERS, FIRST).await.unwrap();
    assert_eq!((after.sum().blocks, after.sum().dead_bytes, after.sum().hole_bytes), (5, 0, 0));
    assert!(after.iter().all(|record| record.name == Some(7)));
    // A deletion that is finished again looks for no file that is gone.
    space.punch_discards(OWNERS, &after, |_| true).await.unwrap();

    // Whoever looks at the files finds nothing wrong, and the log, which has them still, nothing of them.
    let directory = raftlog::inspect::ReadOnly(space.disk().clone());
    let directory = raftlog::inspect::DataDirectory::new(Arc::new(directory)).only(FIRST);
    let look = async || {
        let report = directory.log("log-1", None).await.unwrap();
        let [owner] = <[_; 1]>::try_from(report.owners).unwrap();
        owner
    };
    let owner = look().await;
    assert!(owner.problems.is_empty(), "{:?}", owner.problems);
    assert!(owner.segments.iter().all(|segment| segment.summary.damage.is_empty()), "{owner:?}");

    // Damage in the file that says what is left is told of like any other.
    let file = machine.segment(FIRST.0, 0).with_file_name("compacted");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let owner = look().await;
    assert!(owner.is_damaged() && owner.problems[0].contains("compacted"), "{:?}", owner.problems);
    drop((space, machine));
}

#[tokio::test]
async fn a_record_that_is_missing_and_was_not_discarded_is_damage() {
    let check = async |also: &[u64], says: &str| {
        let (_machine, space) = two_owners().await;
        discard(&space, FIRST, &[1, 4]).await;
        compact(&space, FIRST, id(1, 9), also).await;
        let (_, end) = walk(&space, FIRST).await;
        assert!(matches!(&end, WalkEnd::Bad { why, .. } if why.contains(says)), "{end:?}");
    };
    check(&[5], "index is 6, expected 4").await;
    check(&[0], "index is 2, expected 0").await;
    check(&[9], "entry 9 should follow, and entry 9 is the last").await;
}

/// An owner that no roll ends may have had its last records discarded.
#[tokio::test]
async fn the_end_of_an_owner_may_be_left_out() {
    let (_machine, space) = two_owners().await;
    discard(&space, SECOND, &[10, 12]).await;
    compact(&space, SECOND, id(2, 12), &[]).await;
    let (left, end) = walk(&space, SECOND).await;
    assert_eq!(indexes(&left), [11]);
    assert!(matches!(end, WalkEnd::Unfinished { .. }), "{end:?}");
}

/// What is written, and counts for nothing, is no part of an owner whoever looks at it.
#[tokio::test]
async fn a_rewriting_that_is_given_up_leaves_the_owner_as_it_was() {
    let (_machine, space) = two_owners().await;
    let (all, end) = walk(&space, SECOND).await;
    let first = space.unused_segment(OWNERS, SECOND).await.unwrap();
    Compacted::NEVER.before(first).write(&**space.disk(), OWNERS, SECOND).await.unwrap();
    let mut rewrite = space.rewrite(OWNERS, SECOND, first);
    let mut reader = OwnerWalk::new(space.disk().clone(), OWNERS, SECOND).await.unwrap();
    let Step::Record(record) = reader.next().await.unwrap() else { panic!("there is one") };
    rewrite.begin_segment().await.unwrap();
    rewrite.push(&record, &reader.read_last_body(&record).await.unwrap()).await.unwrap();
    rewrite.finish().await.unwrap();
    let (still, end_now) = walk(&space, SECOND).await;
    assert_eq!((indexes(&still), end_now), (indexes(&all), end));
    assert!(space.remove_stray_segments(OWNERS, SECOND).await.unwrap() > 70_000);
    assert_eq!(space.unused_segment(OWNERS, SECOND).await.unwrap(), first);
}
