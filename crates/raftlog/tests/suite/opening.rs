//! The index beside a segment saves reading, and nothing that is in it, or is not, changes what a log holds.

use crate::support::*;
use raftlog::{Entry, Log};
use std::fs;
use std::path::{Path, PathBuf};
use types::LogIndex;

/// Entries of three terms over several segments, of which the first few are purged.
async fn several_segments(machine: &Machine) -> Vec<Entry> {
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let all: Vec<_> = (0..60).map(|index| entry(1 + index / 25, index, 100 + index as usize)).collect();
    for batch in all.chunks(7) {
        append(&log, batch.to_vec()).await;
    }
    log.purge(id(1, 9)).await.unwrap();
    log.close().await;
    all[10..].to_vec()
}

fn indexes(machine: &Machine) -> Vec<PathBuf> {
    let files = fs::read_dir(machine.segment(1000, 0).parent().unwrap()).unwrap();
    let mut found: Vec<_> =
        files.map(|file| file.unwrap().path()).filter(|path| path.extension().unwrap() == "idx").collect();
    found.sort();
    found
}

async fn check(machine: &Machine, expected: &[Entry], what: &str) {
    let space = machine.start_again().await;
    let log: Log = space.open(spec(1)).await.unwrap();
    assert_eq!(log.state().last, expected.last().map(|entry| entry.id), "{what}");
    assert_eq!(read_all(&log).await, expected, "{what}");
    log.close().await;
}

#[tokio::test]
async fn every_segment_of_a_closed_log_has_its_index() {
    let machine = Machine::small_segments(2000);
    several_segments(&machine).await;
    let segments = |extension: &str| {
        let path = machine.segment(1000, 0);
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        names.filter(|name| name.as_ref().unwrap().path().extension().unwrap() == extension).count()
    };
    assert!(segments("seg") > 4);
    assert_eq!(segments("idx"), segments("seg"));
}

#[tokio::test]
async fn a_log_is_the_same_with_and_without_indexes_and_with_damaged_ones() {
    let machine = Machine::small_segments(2000);
    let expected = several_segments(&machine).await;
    check(&machine, &expected, "as it was closed").await;
    let whole: Vec<_> = indexes(&machine).into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    type Damage = fn(&[u8]) -> Vec<u8>;
    let damages: [(&str, Damage); 6] = [
        ("empty", |_| Vec::new()),
        ("cut", |whole| whole[..whole.len() - 3].to_vec()),
        ("garbage", |whole| vec![0xa5; whole.len() + 1000]),
        ("a flipped bit in its middle", |whole| {
            let mut damaged = whole.to_vec();
            damaged[whole.len() / 2] ^= 4;
            damaged
        }),
        ("garbage behind it", |whole| [whole, &[7; 500]].concat()),
        ("twice the same", |whole| [whole, whole].concat()),
    ];
    for (what, damage) in damages {
        for (bytes, path) in &whole {
            fs::write(path, damage(bytes)).unwrap();
        }
        check(&machine, &expected, what).await;
    }
    for (_, path) in &whole {
        fs::write(path, &whole[0].0).unwrap();
    }
    check(&machine, &expected, "all of them the first segment's").await;
    for (_, path) in &whole {
        let _ = fs::remove_file(path);
    }
    check(&machine, &expected, "removed").await;
}

#[tokio::test]
async fn an_index_from_before_a_truncation_is_not_believed() {
    for same_lengths in [true, false] {
        let machine = Machine::new();
        let space = machine.start();
        let log = space.open(spec(1)).await.unwrap();
        append(&log, entries(1, 0..20, 60)).await;
        log.close().await;
        drop(log);
        let stale = fs::read(machine.segment_index(1000, 0)).unwrap();
        let log = space.open(spec(1)).await.unwrap();
        log.truncate_after(Some(LogIndex(9))).await.unwrap();
        let later = entries(2, 10..30, if same_lengths { 60 } else { 90 });
        append(&log, later.clone()).await;
        log.close().await;
        drop((log, space));
        fs::write(machine.segment_index(1000, 0), stale).unwrap();
        let expected = [entries(1, 0..10, 60), later].concat();
        check(&machine, &expected, "the index came back as it was before the truncation").await;
    }
}

/// Loss of power may keep one block from before a truncation between two from after it.
#[tokio::test]
async fn an_index_of_two_histories_is_not_believed() {
    const BLOCK_BYTES: usize = 64 + 10 * 8;
    let machine = Machine::new();
    let in_new_life = async || machine.start_again().await.open(spec(1)).await.unwrap();
    for first in [0, 10] {
        let log = in_new_life().await;
        append(&log, entries(1, first..first + 10, 60)).await;
        log.close().await;
    }
    let old = fs::read(machine.segment_index(1000, 0)).unwrap();
    let log = in_new_life().await;
    log.truncate_after(Some(LogIndex(9))).await.unwrap();
    append(&log, entries(2, 10..20, 60)).await;
    log.close().await;
    drop(log);
    let log = in_new_life().await;
    append(&log, entries(2, 20..30, 60)).await;
    log.close().await;
    drop(log);
    let new = fs::read(machine.segment_index(1000, 0)).unwrap();
    assert_eq!((old.len(), new.len()), (2 * BLOCK_BYTES, 3 * BLOCK_BYTES));
    let mixed = [&new[..BLOCK_BYTES], &old[BLOCK_BYTES..], &new[2 * BLOCK_BYTES..]].concat();
    fs::write(machine.segment_index(1000, 0), mixed).unwrap();
    let expected = [entries(1, 0..10, 60), entries(2, 10..30, 60)].concat();
    check(&machine, &expected, "the second block is of the first history").await;
}

#[tokio::test]
async fn an_index_never_makes_more_of_a_log_than_was_durable() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..7, 60)).await;
    log.close().await;
    drop(log);
    let mark = fs::read(machine.hard_state(1)).unwrap();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 7..20, 60)).await;
    let torn = log.read_meta(LogIndex(0)..LogIndex(20), 20).await.unwrap()[12].place.offset as usize;
    log.close().await;
    drop((log, space));
    // The index of all twenty entries reached the disk, the last of the records and the mark did not.
    let path = machine.segment(1000, 0);
    let cut = &fs::read(&path).unwrap()[..torn + 50];
    fs::write(&path, cut).unwrap();
    fs::write(machine.hard_state(1), mark).unwrap();
    check(&machine, &entries(1, 0..12, 60), "the rest was a torn tail").await;
}

#[tokio::test]
async fn an_index_goes_on_where_the_process_before_left_it() {
    let machine = Machine::new();
    let mut expected = Vec::new();
    let mut bytes_before = 0;
    for life in 0..4 {
        let space = machine.start_again().await;
        let log = space.open(spec(1)).await.unwrap();
        let more = entries(life + 1, life * 10..(life + 1) * 10, 30);
        append(&log, more.clone()).await;
        log.close().await;
        expected.extend(more);
        let index: &Path = &machine.segment_index(1000, 0);
        let bytes = fs::metadata(index).unwrap().len();
        assert_eq!(bytes - bytes_before, 64 + 10 * 8, "one block more");
        bytes_before = bytes;
    }
    check(&machine, &expected, "four lives").await;
    assert_eq!(fs::metadata(machine.segment_index(1000, 0)).unwrap().len(), bytes_before, "nothing to add");
}
