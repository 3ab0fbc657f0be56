use crate::support::*;
use disk::{Disk, RealDisk};
use raftlog::{Discard, Discards, HOLE_BLOCK_BYTES, OwnerWalk, Step, WalkEnd, WalkedRecord};
use std::sync::Arc;
use types::OwnerId;

const OWNERS: &str = "containers";

fn disk_of(machine: &Machine) -> Arc<dyn Disk> {
    Arc::new(RealDisk::open(&machine.dir.path().join("disk"), 1).unwrap())
}

async fn walk(disk: &Arc<dyn Disk>, owner: u64) -> (Vec<WalkedRecord>, WalkEnd) {
    let mut walk = OwnerWalk::new(disk.clone(), OWNERS, OwnerId(owner)).await.unwrap();
    let mut records = Vec::new();
    loop {
        match walk.next().await.unwrap() {
            Step::Record(record) => {
                walk.check_body(&record).await.unwrap();
                records.push(*record);
            }
            Step::End(end) => {
                assert!(matches!(walk.next().await.unwrap(), Step::End(again) if again == end));
                return (records, end);
            }
        }
    }
}

/// Log 1: entries 0..10 of 30 000 bytes over several segments of owner 1000, the last rolls to 2000, which
/// has three.
async fn two_owners() -> Machine {
    let machine = Machine::small_segments(100_000);
    let log = machine.start().open(spec(1)).await.unwrap();
    let mut first = entries(1, 0..10, 30_000);
    first[9].roll_to = Some(OwnerId(2000));
    append(&log, first).await;
    append(&log, entries(2, 10..13, 70_000)).await;
    log.close().await;
    machine
}

#[tokio::test]
async fn an_owners_records_are_walked_through_its_segments() {
    let machine = two_owners().await;
    drop(machine.start_again().await);
    let disk = disk_of(&machine);
    assert_eq!(raftlog::owners(&*disk, OWNERS).await.unwrap(), [OwnerId(1000), OwnerId(2000)]);
    let (records, end) = walk(&disk, 1000).await;
    assert_eq!(end, WalkEnd::Rolled { to: OwnerId(2000) });
    let found: Vec<_> = records.iter().map(|record| record.meta.id).collect();
    assert_eq!(found, (0..10).map(|index| id(1, index)).collect::<Vec<_>>());
    assert!(records.iter().all(|record| record.log == 1 && record.head.starts_with(b"FLog")));
    assert_eq!(records[9].meta.place.segment, 3);
    let (records, end) = walk(&disk, 2000).await;
    assert_eq!(records.len(), 3);
    assert!(matches!(end, WalkEnd::Unfinished { segment: 2, .. }), "{end:?}");

    let mut later = OwnerWalk::from_segment(disk.clone(), OWNERS, OwnerId(1000), 2).await.unwrap();
    let Step::Record(first) = later.next().await.unwrap() else { panic!("there is one") };
    assert_eq!((first.meta.id, first.meta.place.offset), (id(1, 6), 0));
    let (none, end) = walk(&disk, 3000).await;
    assert_eq!((none.len(), end), (0, WalkEnd::Unfinished { segment: 0, offset: 0 }));
}

#[tokio::test]
async fn damage_and_missing_segments_end_a_walk() {
    let machine = two_owners().await;
    drop(machine.start_again().await);
    let path = machine.segment(1000, 1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[50] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let disk = disk_of(&machine);
    let (records, end) = walk(&disk, 1000).await;
    assert_eq!(records.len(), 3);
    assert!(matches!(&end, WalkEnd::Bad { segment: 1, offset: 0, .. }), "{end:?}");
    std::fs::remove_file(&path).unwrap();
    let (records, end) = walk(&disk, 1000).await;
    assert_eq!(records.len(), 3);
    assert!(matches!(&end, WalkEnd::Bad { segment: 1, why, .. } if why.contains("missing")), "{end:?}");
}

#[tokio::test]
async fn a_bad_body_is_told_by_its_check() {
    let machine = two_owners().await;
    drop(machine.start_again().await);
    let path = machine.segment(2000, 0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[68_000] ^= 1; // in the second piece of the first body
    std::fs::write(&path, &bytes).unwrap();
    let mut walk = OwnerWalk::new(disk_of(&machine), OWNERS, OwnerId(2000)).await.unwrap();
    let Step::Record(first) = walk.next().await.unwrap() else { panic!("its head is whole") };
    let bad = walk.check_body(&first).await.unwrap_err().to_string();
    assert!(bad.contains("00000000.seg") && bad.contains("mismatch"), "{bad}");
    let Step::Record(second) = walk.next().await.unwrap() else { panic!("the walk goes on") };
    walk.check_body(&second).await.unwrap();
}

#[tokio::test]
async fn discarded_bodies_are_holes_and_their_heads_stay() {
    let machine = two_owners().await.without_cache();
    let space = machine.start_again().await;
    let disk = space.disk().clone();
    let (records, _) = walk(&disk, 1000).await;
    let discard = |tag: u64, place| Discard { tag, name: u128::from(tag), place };
    let chosen = [1, 4].map(|n: usize| discard(7 + n as u64, records[n].meta.place));
    let owner = OwnerId(1000);
    let discards = space.remember_discards(OWNERS, owner, &chosen).await.unwrap();
    let again = space.remember_discards(OWNERS, owner, &chosen).await.unwrap();
    assert_eq!(discards.iter().collect::<Vec<_>>(), again.iter().collect::<Vec<_>>(), "nothing twice");
    walk(&disk, 1000).await; // nothing is changed yet: all bodies check
    space.punch_discards(OWNERS, &discards, |tag| tag == 8).await.unwrap();
    let check = async |holes: &[u64]| {
        let mut walk = OwnerWalk::new(disk.clone(), OWNERS, owner).await.unwrap();
        while let Step::Record(record) = walk.next().await.unwrap() {
            let is_hole = holes.contains(&record.meta.id.index.0);
            assert_eq!(walk.check_body(&record).await.is_err(), is_hole, "{:?}", record.meta.id);
        }
    };
    check(&[1]).await;
    space.punch_discards(OWNERS, &discards, |_| true).await.unwrap();
    check(&[1, 4]).await;

    let read = Discards::read(&*disk, OWNERS, owner).await.unwrap();
    assert_eq!(read.iter().map(|record| record.tag).collect::<Vec<_>>(), [8, 11]);
    assert!(read.contains(records[1].meta.id.index, &records[1].meta.place));
    assert!(!read.contains(records[2].meta.id.index, &records[2].meta.place));
    let hole_bytes: u64 = read.iter().map(|record| record.hole()).map(|hole| hole.end - hole.start).sum();
    assert_eq!(hole_bytes % HOLE_BLOCK_BYTES, 0);
    assert!(hole_bytes >= 2 * (30_000 - 2 * HOLE_BLOCK_BYTES) && hole_bytes == read.hole_bytes());

    // A place that holds no such record is refused, and nothing is remembered.
    let wrong = raftlog::Place { body_bytes: 1, ..records[2].meta.place };
    let refused = [discard(1, records[5].meta.place), discard(2, wrong)];
    assert!(space.remember_discards(OWNERS, owner, &refused).await.is_err());
    assert_eq!(Discards::read(&*disk, OWNERS, owner).await.unwrap().iter().count(), 2);

    // Neither a start nor a look at the files takes the holes for damage.
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(log.state().last, Some(id(2, 12)));
    log.close().await;
    let directory = raftlog::inspect::DataDirectory::new(Arc::new(raftlog::inspect::ReadOnly(disk)));
    let report = directory.log("log-1", None).await.unwrap();
    assert!(!report.is_damaged(), "{report:?}");
}
