//! Torn tails are cut, damage is reported with its place.

use crate::support::*;
use raftlog::{OpenError, ReadError};
use std::fs;
use types::LogIndex;

/// A log of ten entries and the hard state of when it had seven: the mark of how far it is durable is old.
async fn log_with_old_mark(machine: &Machine) -> (std::sync::Arc<raftlog::LogSpace>, Vec<u8>, Vec<u64>) {
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..7, 60)).await;
    log.close().await;
    let old_mark = fs::read(machine.hard_state(1)).unwrap();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 7..10, 60)).await;
    let metas = log.read_meta(LogIndex(0)..LogIndex(10), 10).await.unwrap();
    log.close().await;
    (space, old_mark, metas.iter().map(|meta| meta.place.offset).collect())
}

#[tokio::test]
async fn a_torn_tail_is_cut_at_every_byte_of_the_last_record() {
    let machine = Machine::new();
    let (space, old_mark, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let whole = fs::read(&path).unwrap();
    for cut in offsets[9] as usize..whole.len() {
        for rest in [vec![], vec![0; 5000], vec![0xff; 300]] {
            let mut torn = whole[..cut].to_vec();
            let is_record = rest.first() == Some(&0) && whole[cut..].iter().all(|byte| *byte == 0);
            torn.extend(rest);
            fs::write(&path, torn).unwrap();
            fs::write(machine.hard_state(1), &old_mark).unwrap();
            let log = space.open(spec(1)).await.unwrap();
            let expected = if is_record { 10 } else { 9 };
            assert_eq!(read_all(&log).await, entries(1, 0..expected, 60), "cut at {cut}");
            log.close().await;
            assert_eq!(
                fs::metadata(&path).unwrap().len(),
                if is_record { whole.len() as u64 } else { offsets[9] }
            );
        }
    }
    // What comes after a cut stands where the cut record stood.
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(2, 9..11, 60)).await;
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await[9..], entries(2, 9..11, 60));
}

#[tokio::test]
async fn records_behind_a_torn_one_never_come_back() {
    let machine = Machine::new();
    let (space, old_mark, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let mut torn = fs::read(&path).unwrap();
    // Of the last three, written together, the disk kept the second and the third.
    torn[offsets[7] as usize..offsets[8] as usize].fill(0);
    fs::write(&path, torn).unwrap();
    fs::write(machine.hard_state(1), &old_mark).unwrap();
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await, entries(1, 0..7, 60));
    append(&log, entries(2, 7..8, 60)).await; // as long as the torn one was
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(log.state().last, Some(id(2, 7)));
}

#[tokio::test]
async fn a_flipped_bit_in_a_head_is_damage_with_its_place() {
    let machine = Machine::new();
    let (space, old_mark, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let whole = fs::read(&path).unwrap();
    fs::remove_file(machine.segment_index(1000, 0)).unwrap();
    for mark in [fs::read(machine.hard_state(1)).unwrap(), old_mark] {
        for at in [0, 5, 9, 17, 25, 33, 49, 57, 61, 65, 69, 73, 80] {
            fs::write(machine.hard_state(1), &mark).unwrap();
            let mut damaged = whole.clone();
            damaged[offsets[4] as usize + at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let error = space.open(spec(1)).await.err().unwrap();
            let OpenError::Damaged { log: 1, file, offset, .. } = &error else {
                panic!("byte {at}: {error}")
            };
            assert_eq!((file.as_str(), *offset), ("containers/00000000000003e8/00000000.seg", offsets[4]));
            assert!(fs::read(&path).unwrap() == damaged, "a refused opening changes nothing");
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_head_that_opening_does_not_read_is_found_by_its_reader() {
    let machine = Machine::new().without_cache();
    let (space, _, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let whole = fs::read(&path).unwrap();
    for at in [0, 5, 9, 17, 25, 33, 49, 57, 61, 65, 69, 73, 80] {
        let mut damaged = whole.clone();
        damaged[offsets[4] as usize + at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let log = space.open(spec(1)).await.unwrap();
        let error = log.read(LogIndex(4)..LogIndex(5), 1000).await.unwrap_err();
        assert!(matches!(error, ReadError::Damaged { offset, .. } if offset == offsets[4]), "{at}: {error}");
        assert_eq!(log.read(LogIndex(5)..LogIndex(10), 10_000).await.unwrap(), entries(1, 5..10, 60));
        log.close().await;
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_body_is_found_by_its_reader_with_its_place() {
    let machine = Machine::new();
    let (space, _, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let mut damaged = fs::read(&path).unwrap();
    damaged[offsets[5] as usize - 10] ^= 1;
    fs::write(&path, damaged).unwrap();
    let log = space.open(spec(1)).await.unwrap();
    let error = log.read(LogIndex(4)..LogIndex(5), 1000).await.unwrap_err();
    assert!(matches!(error, ReadError::Damaged { offset, .. } if offset == offsets[4]), "{error}");
    assert_eq!(log.read(LogIndex(5)..LogIndex(6), 1000).await.unwrap(), entries(1, 5..6, 60));
}

#[tokio::test]
async fn a_file_that_ends_inside_a_durable_record_is_damage_though_its_body_is_not_read() {
    let machine = Machine::new();
    let (space, _, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    let error = space.open(spec(1)).await.err().unwrap();
    assert!(matches!(error, OpenError::Damaged { offset, .. } if offset == offsets[9]), "{error}");
}

#[tokio::test]
async fn lost_durable_records_are_damage_and_no_torn_tail() {
    let machine = Machine::new();
    let (space, _, offsets) = log_with_old_mark(&machine).await;
    let path = machine.segment(1000, 0);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..offsets[9] as usize]).unwrap();
    let error = space.open(spec(1)).await.err().unwrap();
    assert!(matches!(error, OpenError::Damaged { offset, .. } if offset == offsets[9]), "{error}");
    fs::remove_file(&path).unwrap();
    assert!(matches!(space.open(spec(1)).await.err().unwrap(), OpenError::Damaged { offset: 0, .. }));
    fs::write(&path, &whole).unwrap();
    space.open(spec(1)).await.unwrap();
}

#[tokio::test]
async fn a_bad_record_before_another_segment_is_damage_whatever_the_mark_says() {
    let machine = Machine::small_segments(1000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..1, 60)).await;
    log.close().await;
    let old_mark = fs::read(machine.hard_state(1)).unwrap();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 1..30, 60)).await;
    log.close().await;
    let path = machine.segment(1000, 1);
    let whole = fs::read(&path).unwrap();
    for keep in [whole.len() - 20, 0, 300] {
        fs::write(machine.hard_state(1), &old_mark).unwrap();
        fs::write(&path, &whole[..keep]).unwrap();
        let error = space.open(spec(1)).await.err().unwrap();
        // An empty segment is none: the log ends in the one before it.
        let expected = if keep == 0 { "00000000.seg" } else { "00000001.seg" };
        assert!(matches!(&error, OpenError::Damaged { file, .. } if file.ends_with(expected)), "{error}");
    }
}

#[tokio::test]
async fn hard_state_damaged_in_both_slots_is_refused_and_in_one_is_not() {
    let machine = Machine::new();
    let (space, _, _) = log_with_old_mark(&machine).await;
    let whole = fs::read(machine.hard_state(1)).unwrap();
    assert_eq!(whole.len(), 8192);
    let mut readable = 0;
    for slots in [vec![0], vec![4096], vec![0, 4096]] {
        let mut damaged = whole.clone();
        slots.iter().for_each(|slot| damaged[slot + 20] ^= 1);
        fs::write(machine.hard_state(1), damaged).unwrap();
        match space.open(spec(1)).await {
            Ok(log) => {
                log.close().await;
                readable += 1;
            }
            Err(error) => {
                assert_eq!(slots.len(), 2);
                assert!(
                    matches!(&error, OpenError::Damaged { file, .. } if file.ends_with("hard-state")),
                    "{error}"
                );
            }
        }
    }
    assert_eq!(readable, 2);
}

#[tokio::test]
async fn a_crash_at_any_step_of_creation_leaves_a_log_that_opens() {
    let machine = Machine::new();
    let space = machine.start();
    let dir = machine.dir.path().join("disk/groups/log-1");
    let leave: [fn(&std::path::Path); 4] = [
        |_| {},
        |dir| fs::create_dir_all(dir).unwrap(),
        |dir| fs::write(dir.join("hard-state.tmp"), b"").unwrap(),
        |dir| fs::write(dir.join("hard-state.tmp"), vec![7; 9000]).unwrap(),
    ];
    for step in leave {
        step(&dir);
        space.open(spec(1)).await.unwrap().close().await;
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir_all(&dir).unwrap();
    }
    // The first segment was created, or allocated, and nothing was written.
    for contents in [vec![], vec![0; 4096]] {
        let log = space.open(spec(1)).await.unwrap();
        log.close().await;
        fs::create_dir_all(machine.segment(1000, 0).parent().unwrap()).unwrap();
        fs::write(machine.segment(1000, 0), contents).unwrap();
        let log = space.open(spec(1)).await.unwrap();
        append(&log, entries(1, 0..3, 10)).await;
        log.close().await;
        assert_eq!(read_all(&space.open(spec(1)).await.unwrap()).await, entries(1, 0..3, 10));
        space.remove(&spec(1)).await.unwrap();
        space.delete_owner("containers", types::OwnerId(1000)).await.unwrap();
    }
}

/// Found by the fuzzer: one flipped bit in the newest slot of a log at rest took the last vote, or purge,
/// back without a word.
#[tokio::test]
async fn a_slot_that_rots_takes_back_no_vote_and_no_purge() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..7, 60)).await;
    for vote_term in 1..4 {
        let vote = raftlog::HardState { vote_term, vote_replica: 2, vote_committed: false };
        log.save_hard_state(vote).await.unwrap();
    }
    log.purge(id(1, 3)).await.unwrap();
    let promised = log.state();
    log.close().await;
    let whole = fs::read(machine.hard_state(1)).unwrap();
    for slot in [0, 4096] {
        let mut damaged = whole.clone();
        damaged[slot + 24] ^= 1;
        fs::write(machine.hard_state(1), damaged).unwrap();
        let log = space.open(spec(1)).await.unwrap();
        assert_eq!((log.state().hard_state, log.state().purged), (promised.hard_state, promised.purged));
        assert_eq!(log.state().last, promised.last);
        log.close().await;
    }
}
