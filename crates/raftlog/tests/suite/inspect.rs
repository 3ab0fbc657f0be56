//! Each kind of damage is named precisely, and nothing is changed by looking.

use crate::support::*;
use bytes::Bytes;
use disk::{File, IoFuture};
use raftlog::inspect::{
    Change, Clue, DataDirectory, Directory, Evidence, Fault, InspectError, Item, LogReport, Opening,
    SegmentName, SegmentScan, SegmentSummary, Verdict, read_hard_state, verdict,
};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use types::{LogIndex, OwnerId};

const GOLDEN: &[u8] = include_bytes!("../golden/segment-v1.seg");

/// Offsets of the golden segment's records.
const GOLDEN_AT: [u64; 4] = [0, 72, 160, 65_856];

async fn scan_bytes(bytes: &[u8], name: Option<SegmentName>) -> (SegmentScan, Vec<Item>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("any name");
    fs::write(&path, bytes).unwrap();
    let mut scan = SegmentScan::new(disk::open_read_only(&path).unwrap(), name).await.unwrap();
    let mut items = Vec::new();
    while let Some(item) = scan.next().await.unwrap() {
        items.push(item);
    }
    assert!(fs::read(&path).unwrap() == bytes, "looking changes nothing");
    (scan, items)
}

fn name(owner: u64, segment: u32) -> SegmentName {
    SegmentName { owner: OwnerId(owner), segment }
}

fn indexes(items: &[Item]) -> Vec<u64> {
    let index = |item: &Item| match item {
        Item::Record(record) => Some(record.id.index.0),
        _ => None,
    };
    items.iter().filter_map(index).collect()
}

fn damage(items: &[Item]) -> Vec<raftlog::inspect::Damage> {
    let damage = |item: &Item| match item {
        Item::Damage(damage) => Some(damage.clone()),
        _ => None,
    };
    items.iter().filter_map(damage).collect()
}

#[tokio::test]
async fn a_whole_segment_is_told_record_by_record() {
    let (scan, items) = scan_bytes(GOLDEN, None).await;
    assert_eq!((scan.found, scan.log, scan.is_renamed()), (Some(name(1000, 0)), Some(1), false));
    let records = items.iter().map(|item| match item {
        Item::Record(record) => (record.offset, record.to_string()),
        other => panic!("{other:?}"),
    });
    let records: Vec<_> = records.collect();
    assert_eq!(records.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), GOLDEN_AT);
    assert_eq!(records[1].1, "offset 72 index 1 term 1 kind 2 log 1 meta 4 body 6 bytes 88");
    assert_eq!(
        records[3].1,
        "offset 65856 index 3 term 3 kind 0 log 1 meta 4 body 0 bytes 80 roll 00000000000007d0"
    );
    let mut summary = SegmentSummary { file_bytes: GOLDEN.len() as u64, ..SegmentSummary::default() };
    items.into_iter().for_each(|item| summary.add(item));
    assert_eq!(
        summary.to_string(),
        "4 records, 65936 of 65936 bytes, index 0..=3, term 1..=3, goes on in owner 00000000000007d0, whole"
    );
}

#[tokio::test]
async fn files_of_another_name_are_told() {
    let (scan, items) = scan_bytes(GOLDEN, Some(name(1000, 7))).await;
    assert!(scan.is_renamed());
    assert_eq!((scan.found, indexes(&items)), (Some(name(1000, 0)), vec![0, 1, 2, 3]));
    assert_eq!(SegmentName::of_path("x/00000000000003e8/0000000a.seg"), Some(name(1000, 10)));
    for other in ["0000000a.seg", "x/3e8/0000000a.seg", "x/00000000000003e8/a.seg", ""] {
        assert_eq!(SegmentName::of_path(other), None, "{other}");
    }
}

#[tokio::test]
async fn every_flipped_bit_of_a_segment_is_found_and_put_right() {
    // Every bit of the heads, some of the bodies and paddings.
    let heads = (0..72).chain(72..160).chain(160..250).chain(65_856..65_936);
    let some = (250..65_856).step_by(4_001);
    for at in heads.chain(some) {
        let bit = (at % 8) as u8;
        let mut damaged = GOLDEN.to_vec();
        damaged[at] ^= 1 << bit;
        let (_, items) = scan_bytes(&damaged, Some(name(1000, 0))).await;
        let found = damage(&items);
        assert_eq!(found.len(), 1, "byte {at}: {found:?}");
        let record = GOLDEN_AT.iter().rposition(|start| *start <= at as u64).unwrap();
        assert_eq!(found[0].offset, GOLDEN_AT[record], "byte {at}");
        assert_eq!(
            found[0].end,
            GOLDEN_AT.get(record + 1).copied().unwrap_or(GOLDEN.len() as u64),
            "byte {at}"
        );
        match found[0].fault {
            Fault::Padding { offset } => assert_eq!(offset, at as u64),
            _ => {
                let clue = &found[0].clues[0];
                let Clue::FlippedBit { offset, bit: found, .. } = clue else { panic!("byte {at}: {clue:?}") };
                assert_eq!((*offset, *found), (at as u64, bit));
            }
        }
        let others: Vec<u64> = (0..4).filter(|index| *index != record as u64).collect();
        assert_eq!(indexes(&items), others, "byte {at}: all other records are found");
    }
}

#[tokio::test]
async fn each_kind_of_damage_is_named() {
    type Damaging = fn(&mut Vec<u8>);
    // What is done, which record begins the damage, words of the description, indexes still found.
    type Row = (&'static str, Damaging, u64, &'static [&'static str], &'static [u64]);
    let table: Vec<Row> = vec![
        (
            "flipped field",
            |b| b[72 + 24] ^= 4,
            72,
            &["checksum of header", "bit 2 of byte 96, in term"],
            &[0, 2, 3],
        ),
        ("flipped magic", |b| b[72] ^= 1, 72, &["magic is", "bit 0 of byte 72, in magic"], &[0, 2, 3]),
        (
            "flipped length",
            |b| b[72 + 63] ^= 0x80,
            72,
            &["meta_bytes is 2147483652", "in meta_bytes"],
            &[0, 2, 3],
        ),
        (
            "flipped body",
            |b| b[300] ^= 8,
            160,
            &["body piece 0", "1 of 2 pieces", "bit 3 of byte 300, in body"],
            &[0, 1, 3],
        ),
        ("unknown version", |b| b[72 + 4] = 9, 72, &["version is 9, 1 is allowed"], &[0, 2, 3]),
        (
            "lost sectors",
            |b| b[1024..4096].fill(0),
            160,
            &["whole sectors of zeros from byte 1024 to 4096"],
            &[0, 1, 3],
        ),
        ("torn", |b| b[32768..].fill(0), 160, &["body piece 0", "torn: from byte 32768"], &[0, 1]),
        (
            "cut",
            |b| b.truncate(5120),
            160,
            &["ends after 4960 of the record's 65696", "5120, a sector boundary"],
            &[0, 1],
        ),
        (
            "cut in a header",
            |b| b.truncate(100),
            72,
            &["ends after 28 bytes, inside the header", "no sector"],
            &[0],
        ),
        ("zeros in the middle", |b| b[72..160].fill(0), 72, &["zeros up to byte 160"], &[0, 2, 3]),
        (
            "a copy of itself",
            |b| b.copy_within(0..72, 72),
            72,
            &["another place", "its offset is 0, here it is 72"],
            &[0, 2, 3],
        ),
        ("garbage", |b| b[72..160].fill(0xa5), 72, &["magic is [a5, a5, a5, a5]"], &[0, 2, 3]),
        ("padding", |b| b[159] = 1, 72, &["padding is not zero at byte 159"], &[0, 2, 3]),
        (
            "behind the roll",
            |b| b.extend([7; 100]),
            65_936,
            &["behind the record that ends this owner"],
            &[0, 1, 2, 3],
        ),
    ];
    for (what, damaging, offset, words, left) in table {
        let mut bytes = GOLDEN.to_vec();
        damaging(&mut bytes);
        let (_, items) = scan_bytes(&bytes, None).await;
        let first = damage(&items).into_iter().next().unwrap_or_else(|| panic!("{what}: nothing is found"));
        let clues: Vec<_> = first.clues.iter().map(Clue::to_string).collect();
        let text = format!("{first}; {}", clues.join("; "));
        assert_eq!((first.offset, indexes(&items).as_slice()), (offset, left), "{what}: {text}");
        for word in words {
            assert!(text.contains(word), "{what}: `{word}` is missing in: {text}");
        }
    }
}

#[tokio::test]
async fn a_misdirected_record_in_a_body_and_one_of_another_log_are_told() {
    let foreign = |log: u64| {
        let machine = Machine::new();
        async move {
            let space = machine.start();
            let open = space.open(spec(log)).await.unwrap();
            append(&open, entries(1, 0..3, 60)).await;
            open.close().await;
            fs::read(machine.segment(log * 1000, 0)).unwrap()
        }
    };
    let other = foreign(2).await;
    let mut bytes = GOLDEN.to_vec();
    bytes[8192..8192 + other.len()].copy_from_slice(&other);
    let (_, items) = scan_bytes(&bytes, None).await;
    let found = damage(&items);
    assert_eq!((found.len(), indexes(&items)), (1, vec![0, 1, 3]));
    let told = found[0].clues.iter().any(
        |clue| matches!(clue, Clue::Foreign { record, count: 3 } if record.log == 2 && record.offset == 8192),
    );
    assert!(told, "{:?}", found[0].clues);
    // A whole block of another log in place of ours.
    let mut bytes = foreign(1).await;
    let at = bytes.len() / 3;
    bytes[at..2 * at].copy_from_slice(&other[at..2 * at]);
    let (_, items) = scan_bytes(&bytes, None).await;
    let found = damage(&items);
    assert!(
        matches!(&found[0].fault, Fault::Misplaced { field: "owner", found: 2000, expected: 1000, record } if record.log == 2),
        "{found:?}"
    );
    assert_eq!((found[0].entries_lost(), indexes(&items)), (Some(1), vec![0, 2]));
}

#[tokio::test]
async fn entries_that_are_missing_between_whole_records_are_told() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..2, 60)).await;
    log.truncate_after(Some(LogIndex(0))).await.unwrap();
    log.close().await;
    let start = fs::read(machine.segment(1000, 0)).unwrap();
    let machine = Machine::new();
    let log = machine.start().open(spec(1)).await.unwrap();
    append(&log, entries(1, 5..7, 60)).await;
    log.close().await;
    let mut bytes = fs::read(machine.segment(1000, 0)).unwrap();
    bytes[..start.len()].copy_from_slice(&start);
    let (_, items) = scan_bytes(&bytes, None).await;
    let found = damage(&items);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].fault, Fault::Index { found: LogIndex(6), expected: LogIndex(1) });
    assert_eq!((found[0].entries_lost(), indexes(&items)), (Some(5), vec![0, 6]));
}

#[tokio::test]
async fn what_is_no_segment_is_told_and_no_error() {
    let (scan, items) = scan_bytes(b"", None).await;
    assert_eq!((scan.found, items), (None, vec![]));
    let (_, items) = scan_bytes(&[0; 9000], None).await;
    assert_eq!(items, [Item::Unused { offset: 0, bytes: 9000 }]);
    for garbage in [vec![7; 9001], b"FLog".repeat(5000), b"FLog\x01\0\0\0".repeat(2000), vec![1]] {
        let (scan, items) = scan_bytes(&garbage, None).await;
        assert_eq!((scan.found, indexes(&items)), (None, vec![]));
        assert_eq!(damage(&items).len(), 1, "{items:?}");
    }
}

/// A directory that is read file by file, as tools do.
struct Looked(std::path::PathBuf);

impl Directory for Looked {
    fn open(&self, path: &str) -> disk::IoFuture<Arc<dyn disk::File>> {
        Box::pin(std::future::ready(disk::open_read_only(&self.0.join(path))))
    }

    fn list(&self, path: &str) -> disk::IoFuture<Vec<String>> {
        let names = match fs::read_dir(self.0.join(path)) {
            Ok(entries) => entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect(),
            Err(_) => Vec::new(),
        };
        Box::pin(std::future::ready(Ok(names)))
    }
}

fn directory(machine: &Machine) -> DataDirectory {
    DataDirectory::new(Arc::new(Looked(machine.dir.path().join("disk"))))
}

fn contents(dir: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for item in fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    files
}

/// Looks at log 1, which nobody writes to.
async fn look(machine: &Machine) -> LogReport {
    let before = contents(machine.dir.path());
    let report = directory(machine).log("log-1", None).await.unwrap();
    assert!(before == contents(machine.dir.path()), "looking changes nothing");
    report
}

/// Three segments of owner 1000, then owner 1500.
async fn rolled(machine: &Machine) -> raftlog::Log {
    let log = machine.start().open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..24, 60)).await;
    let roll = raftlog::Entry { roll_to: Some(OwnerId(1500)), ..entry(2, 24, 10) };
    append(&log, vec![roll]).await;
    append(&log, entries(2, 25..30, 60)).await;
    log
}

#[tokio::test]
async fn a_live_log_is_looked_at_whole_across_segments_and_owners() {
    let machine = Machine::small_segments(1500);
    let log = rolled(&machine).await;
    // The directory is in use: its server may write a hint meanwhile.
    let live = directory(&machine).log("log-1", None).await.unwrap();
    assert!(!live.is_damaged(), "{live:?}");
    log.close().await;
    let report = look(&machine).await;
    assert!(!report.is_damaged(), "{report:?}");
    assert!(
        matches!(report.opening, Opening::Opens { first: Some(_), last: Some(last), .. } if last == id(2, 29))
    );
    assert_eq!(report.owners.iter().map(|it| it.owner.0).collect::<Vec<_>>(), [1000, 1500]);
    let records: u64 = report.owners.iter().flat_map(|it| &it.segments).map(|it| it.summary.records).sum();
    assert_eq!((records, report.owners[0].segments.len()), (30, 3));
    assert_eq!(directory(&machine).groups().await.unwrap(), ["log-1"]);
    assert!(directory(&machine).orphans().await.unwrap().is_empty());
    assert!(matches!(directory(&machine).log("log-2", None).await, Err(InspectError::NoSuchLog { .. })));
    fs::remove_file(machine.hard_state(1)).unwrap();
    let orphans = directory(&machine).orphans().await.unwrap();
    assert_eq!(orphans.iter().map(|it| it.owner.0).collect::<Vec<_>>(), [1000, 1500]);
}

#[tokio::test]
async fn a_log_is_judged_as_its_recovery_would() {
    type Damaging = fn(&Machine, &[u8]);
    fn edit(machine: &Machine, owner: u64, segment: u32, change: fn(&mut Vec<u8>)) {
        let path = machine.segment(owner, segment);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    }
    let cases: Vec<(&str, Damaging, &str)> = vec![
        ("head that an index spares", |m, _| edit(m, 1000, 0, |b| b[30] ^= 1), "opens without"),
        (
            "head",
            |m, _| {
                fs::remove_file(m.segment(1000, 0).with_extension("idx")).unwrap();
                edit(m, 1000, 0, |b| b[30] ^= 1);
            },
            "refused",
        ),
        ("body in an early segment", |m, _| edit(m, 1000, 0, |b| b[140] ^= 1), "opens without"),
        ("cut of the durable tail", |m, _| edit(m, 1500, 0, |b| b.truncate(300)), "refused"),
        (
            "cut behind an old mark",
            |m, old| {
                fs::write(m.hard_state(1), old).unwrap();
                edit(m, 1500, 0, |b| b.truncate(300));
            },
            "cut",
        ),
        (
            "missing segment behind an old mark",
            |m, old| {
                fs::write(m.hard_state(1), old).unwrap();
                fs::remove_file(m.segment(1000, 1)).unwrap();
            },
            "refused",
        ),
        ("garbage behind a whole tail", |m, _| edit(m, 1500, 0, |b| b.extend([9; 700])), "cut"),
    ];
    for (what, damaging, expected) in cases {
        let machine = Machine::small_segments(1500);
        let space = machine.start();
        let log = space.open(spec(1)).await.unwrap();
        append(&log, entries(1, 0..2, 60)).await;
        log.close().await;
        let old_mark = fs::read(machine.hard_state(1)).unwrap();
        drop((log, space));
        rolled_on(&machine).await;
        damaging(&machine, &old_mark);
        let report = look(&machine).await;
        let opened = machine.start_again().await.open(spec(1)).await;
        match (&report.opening, &opened) {
            (Opening::Refused(rehearsed), Err(error)) => {
                assert_eq!((rehearsed.to_string(), expected), (error.to_string(), "refused"), "{what}");
                assert!(report.is_damaged());
            }
            (Opening::Opens { last, changes, .. }, Ok(log)) => {
                assert_eq!(*last, log.state().last, "{what}");
                let verdicts: Vec<_> = report.owners.iter().flat_map(|it| &it.segments).collect();
                let verdict = verdicts.iter().find_map(|it| it.verdicts.first());
                match (verdict, expected) {
                    (Some(Verdict::Cut { .. }), "cut") => {
                        assert!(!report.is_damaged(), "{what}: a torn tail is no damage");
                        assert!(
                            changes.iter().any(|it| matches!(it, Change::Cut { .. })),
                            "{what}: {changes:?}"
                        );
                    }
                    (Some(Verdict::OpensWithoutEntry { .. }), "opens without") => {
                        assert!(report.is_damaged())
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
            (rehearsed, opened) => panic!("{what}: {rehearsed}, {:?}", opened.as_ref().err()),
        }
    }
}

async fn rolled_on(machine: &Machine) {
    let space = machine.start_again().await;
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 2..24, 60)).await;
    let roll = raftlog::Entry { roll_to: Some(OwnerId(1500)), ..entry(2, 24, 10) };
    append(&log, vec![roll]).await;
    append(&log, entries(2, 25..30, 60)).await;
    log.close().await;
}

/// Found by the fuzzer: an owner was taken for the other log's, and its damage was not looked at.
#[tokio::test]
async fn a_file_of_another_log_in_the_way_hides_no_owner() {
    let machine = Machine::small_segments(1500);
    rolled(&machine).await.close().await;
    let other = Machine::new();
    let log = other.start().open(spec(2)).await.unwrap();
    append(&log, entries(1, 0..3, 60)).await;
    log.close().await;
    let path = machine.segment(1000, 0);
    let whole = fs::read(&path).unwrap();
    fs::copy(other.segment(2000, 0), &path).unwrap();
    let report = look(&machine).await;
    let owner = report.owners.iter().find(|it| it.owner == OwnerId(1000)).unwrap();
    assert!(report.is_damaged() && owner.segments[0].renamed == Some(name(2000, 0)), "{owner:?}");
    assert!(owner.problems[0].contains("holds records of log 2, not of log 1"), "{owner:?}");
    fs::write(path, whole).unwrap();
    assert!(!look(&machine).await.is_damaged());
}

#[tokio::test]
async fn one_file_alone_does_not_say_what_recovery_makes_of_it() {
    let mut bytes = GOLDEN.to_vec();
    bytes[72 + 30] ^= 1;
    let (_, items) = scan_bytes(&bytes, None).await;
    let damage = damage(&items);
    assert_eq!(verdict(&damage[0], Evidence::default()), Verdict::Depends);
    let later = Evidence { later: Some((1, LogIndex(4))), ..Evidence::default() };
    assert!(matches!(verdict(&damage[0], later), Verdict::Refused { .. }));
}

#[tokio::test]
async fn slots_of_a_hard_state_are_told_apart() {
    let machine = Machine::new();
    rolled(&machine).await.close().await;
    let path = machine.hard_state(1);
    let whole = read_hard_state(disk::open_read_only(&path).unwrap()).await.unwrap();
    let newest = whole.newest().unwrap();
    assert_eq!((newest.log, newest.durable, whole.is_damaged()), (1, Some(id(2, 29)), false));
    let mut bytes = fs::read(&path).unwrap();
    bytes[72] ^= 0x20;
    fs::write(&path, &bytes).unwrap();
    let file = read_hard_state(disk::open_read_only(&path).unwrap()).await.unwrap();
    assert!(file.is_damaged());
    assert!(file.to_string().contains("slot 0: INVALID"), "{file}");
    assert!(file.to_string().contains("one flipped bit explains it: bit 5 of the slot's byte 72"), "{file}");
    fs::write(&path, &bytes[..100]).unwrap();
    let file = read_hard_state(disk::open_read_only(&path).unwrap()).await.unwrap();
    assert!(file.to_string().contains("ends after 100 of the slot's 512 bytes"), "{file}");
    assert!(file.to_string().contains("the log does not open"), "{file}");
}

/// A directory whose files count the buffers that are still held of what was read of them.
struct Counted {
    of: Looked,
    held: Arc<()>,
}

struct CountedFile {
    of: Arc<dyn File>,
    held: Arc<()>,
}

struct CountedBuffer {
    bytes: Bytes,
    _held: Arc<()>,
}

impl AsRef<[u8]> for CountedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Directory for Counted {
    fn open(&self, path: &str) -> IoFuture<Arc<dyn File>> {
        let (opening, held) = (self.of.open(path), self.held.clone());
        Box::pin(async move { Ok(Arc::new(CountedFile { of: opening.await?, held }) as Arc<dyn File>) })
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        self.of.list(path)
    }
}

impl File for CountedFile {
    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        let (reading, _held) = (self.of.read_at(offset, bytes), self.held.clone());
        Box::pin(async move { Ok(Bytes::from_owner(CountedBuffer { bytes: reading.await?, _held })) })
    }

    fn len(&self) -> IoFuture<u64> {
        self.of.len()
    }

    fn write_at(&self, _: u64, _: Vec<Bytes>) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }

    fn write_and_sync(&self, _: u64, _: Vec<Bytes>) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }

    fn sync_data(&self) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }

    fn settle(&self) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }

    fn preallocate(&self, _: u64) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }

    fn set_len(&self, _: u64) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }

    fn punch_holes(&self, _: Vec<Range<u64>>) -> IoFuture<()> {
        unreachable!("looking changes nothing")
    }
}

/// A slice of what was read, as the meta of the last record was, kept a window of 1 MiB for each segment.
#[tokio::test]
async fn a_report_keeps_nothing_of_what_was_read() {
    let machine = Machine::small_segments(1500);
    rolled(&machine).await.close().await;
    // A record of another log in the middle of a segment, one of another offset, and bytes that are none.
    let path = machine.segment(1000, 1);
    let mut bytes = fs::read(&path).unwrap();
    let other = fs::read(machine.segment(1500, 0)).unwrap();
    let record_bytes = other.len() / 5;
    bytes[record_bytes..3 * record_bytes].copy_from_slice(&other[..2 * record_bytes]);
    bytes[4 * record_bytes] ^= 1;
    fs::write(&path, bytes).unwrap();
    let held = Arc::new(());
    let looked = Looked(machine.dir.path().join("disk"));
    let directory = DataDirectory::new(Arc::new(Counted { of: looked, held: held.clone() }));
    let report = directory.log("log-1", None).await.unwrap();
    drop(directory);
    assert!(report.owners[0].segments[1].summary.damage.len() > 1 && report.owners[1].segments.len() == 1);
    assert_eq!(Arc::strong_count(&held), 1, "buffers are held by {report:?}");
}

/// Log 1: all but its last full segment purged, and their files spares.
async fn with_spares(machine: &Machine) -> (Arc<raftlog::LogSpace>, raftlog::Log) {
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..30, 3000)).await;
    log.purge(id(1, 28)).await.unwrap();
    log.delete_purged_segments().await.unwrap();
    (space, log)
}

/// The same directory as after the death of its process.
fn killed(machine: &Machine) -> Machine {
    let killed = Machine::small_segments(machine.options.segment_bytes_max);
    copy_tree(&machine.dir.path().join("disk"), &killed.dir.path().join("disk"));
    fs::remove_file(killed.dir.path().join("disk/LOCK")).unwrap();
    killed
}

/// Takes a spare as the engine does before the first record of a segment: the process dies right behind it.
fn take_spare(machine: &Machine, owner: u64, segment: u32) {
    let mut spares = fs::read_dir(machine.dir.path().join("disk/spares")).unwrap();
    let spare = spares.next().unwrap().unwrap().path();
    let path = machine.segment(owner, segment);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::rename(spare, path).unwrap();
}

#[tokio::test]
async fn old_bytes_of_a_recycled_segment_are_no_damage() {
    let machine = Machine::small_segments(10_000);
    let (_space, log) = with_spares(&machine).await;
    append(&log, entries(2, 30..31, 3000)).await;
    let live = directory(&machine).log("log-1", None).await.unwrap();
    assert!(!live.is_damaged(), "{live:?}");
    let killed = killed(&machine);
    let report = look(&killed).await;
    assert!(!report.is_damaged(), "{report:?}");
    for report in [&live, &report] {
        let summary = &report.owners[0].segments.last().unwrap().summary;
        let told = summary.to_string();
        assert!(told.contains("old bytes of a recycled file") && told.ends_with("whole"), "{told}");
        assert!(report.owners[0].problems.is_empty() && summary.damage.is_empty(), "{report:?}");
    }
    // The file alone, also a copy under any name, though most of its records are old ones.
    let path = killed.segment(1000, 10);
    let bytes = fs::read(&path).unwrap();
    for named in [None, Some(name(1000, 10))] {
        let (scan, items) = scan_bytes(&bytes, named).await;
        assert_eq!((scan.found, indexes(&items)), (Some(name(1000, 10)), vec![30]));
        let found = damage(&items);
        assert!(found.len() == 1 && found[0].is_old_bytes(), "{found:?}");
        assert!(matches!(found[0].clues[..], [Clue::Recycled { count: 1, .. }]), "{:?}", found[0].clues);
        assert!(found[0].to_string().contains("records of owner 00000000000003e8 segment"), "{}", found[0]);
    }
    // Only the rest of a body is left of them: the file alone does not say so, what recovery makes of it
    // does.
    append(&log, entries(2, 31..32, 3000)).await;
    let rest = self::killed(&machine);
    let (_, items) = scan_bytes(&fs::read(rest.segment(1000, 10)).unwrap(), None).await;
    let found = damage(&items);
    assert!(matches!(found[0].fault, Fault::Zeros { .. }) && !found[0].is_old_bytes(), "{found:?}");
    let report = look(&rest).await;
    let summary = &report.owners[0].segments.last().unwrap().summary;
    assert!(!report.is_damaged() && summary.damage.is_empty() && summary.old_bytes.is_some(), "{report:?}");
}

#[tokio::test]
async fn a_record_that_was_durable_is_missed_also_before_old_bytes() {
    let machine = Machine::small_segments(10_000);
    let (_space, log) = with_spares(&machine).await;
    append(&log, entries(2, 30..32, 3000)).await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let file = read_hard_state(disk::open_read_only(&machine.hard_state(1)).unwrap()).await.unwrap();
        if file.newest().unwrap().durable == Some(id(2, 31)) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    let killed = killed(&machine);
    assert!(!look(&killed).await.is_damaged());
    let path = killed.segment(1000, 10);
    let mut bytes = fs::read(&path).unwrap();
    let (_, items) = scan_bytes(&bytes, None).await;
    let Item::Record(last) = &items[1] else { panic!("{items:?}") };
    bytes[last.offset as usize..last.offset as usize + 72].fill(0);
    fs::write(&path, bytes).unwrap();
    let report = look(&killed).await;
    assert!(report.is_damaged() && matches!(report.opening, Opening::Refused(_)), "{report:?}");
    let segment = report.owners[0].segments.last().unwrap();
    assert!(matches!(segment.verdicts[..], [Verdict::Refused { .. }]), "{segment:?}");
}

#[tokio::test]
async fn a_recycled_file_that_is_not_used_yet_is_told_and_no_damage() {
    let machine = Machine::small_segments(10_000);
    let (space, _log) = with_spares(&machine).await;
    let other = space.open(spec(2)).await.unwrap();
    let roll = raftlog::Entry { roll_to: Some(OwnerId(2500)), ..entry(1, 3, 10) };
    append(&other, [entries(1, 0..3, 60), vec![roll]].concat()).await;

    let check = async |killed: &Machine, group: &str, owner: u64, segment: u32| {
        let report = directory(killed).log(group, None).await.unwrap();
        assert!(!report.is_damaged(), "{report:?}");
        let found = report.owners.iter().find(|it| it.owner == OwnerId(owner)).unwrap();
        let found = found.segments.iter().find(|it| it.segment == segment).unwrap();
        assert!(found.recycled.is_some_and(|was| was.owner == OwnerId(1000)), "{found:?}");
        assert_eq!((found.renamed, found.summary.records), (None, 0));
        let scan = SegmentScan::new(
            disk::open_read_only(&killed.segment(owner, segment)).unwrap(),
            Some(name(owner, segment)),
        );
        let around = directory(killed).around("containers", &scan.await.unwrap()).await.unwrap().unwrap();
        assert!(around.group == group && around.is_unused_spare(), "{around:?}");
        assert!(directory(killed).orphans().await.unwrap().is_empty());
    };
    // The next segment of the log itself.
    let next = killed(&machine);
    take_spare(&next, 1000, 10);
    check(&next, "log-1", 1000, 10).await;
    // The first one of another log's next owner: nobody but that log is told of it.
    let rolled = killed(&machine);
    take_spare(&rolled, 2500, 0);
    check(&rolled, "log-2", 2500, 0).await;
    let report = look(&rolled).await;
    assert!(!report.is_damaged(), "{report:?}");
    assert_eq!(report.owners.iter().map(|it| it.owner.0).collect::<Vec<_>>(), [1000]);
    // Also when the log whose records they are is gone.
    fs::remove_dir_all(rolled.dir.path().join("disk/groups/log-1")).unwrap();
    fs::remove_dir_all(rolled.segment(1000, 0).parent().unwrap()).unwrap();
    check(&rolled, "log-2", 2500, 0).await;
    let opened = rolled.start().open(spec(2)).await.unwrap();
    assert_eq!(opened.state().last, Some(id(1, 3)));
    // Where no start would remove it, such a file is one that somebody renamed.
    let early = killed(&machine);
    take_spare(&early, 3000, 0);
    let report = look(&early).await;
    let owner = report.owners.iter().find(|it| it.owner == OwnerId(3000)).unwrap();
    assert!(report.is_damaged() && owner.segments[0].renamed.is_some(), "{owner:?}");
}
