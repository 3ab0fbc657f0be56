//! A disk that others have filled up, below the reserve that admission keeps.

use crate::driver::observe;
use crate::world::{block_on, sim, spec};
use bytes::Bytes;
use disk::sim::SimDisk;
use raftlog::{AppendError, Entry, FlushToken, HardState, Log, LogSpace, LogSpaceOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use types::{LogIndex, Payload};

const PLENTY: u64 = 1 << 30;

fn options() -> LogSpaceOptions {
    LogSpaceOptions {
        segment_bytes_max: 100_000,
        cache_bytes_per_log_max: 0,
        cache_bytes_max: 0,
        reserve_bytes: 1000,
        ..LogSpaceOptions::default()
    }
}

fn entries(indexes: std::ops::Range<u64>, body_bytes: usize) -> Vec<Entry> {
    let entry = |index: u64| Entry {
        id: crate::model::log_id(1, index),
        kind: 0,
        meta: Bytes::new(),
        body: Payload::checksummed(vec![index as u8 | 1; body_bytes].into()),
        roll_to: None,
    };
    indexes.map(entry).collect()
}

async fn open(disk: &SimDisk, options: LogSpaceOptions) -> (Arc<LogSpace>, Log) {
    let space = LogSpace::new(Arc::new(disk.clone()), options);
    let log = space.open(spec(0)).await.unwrap();
    (space, log)
}

fn outcome(token: FlushToken) -> oneshot::Receiver<Result<(), AppendError>> {
    let (sender, outcome) = oneshot::channel();
    token.on_durable(move |result| drop(sender.send(result)));
    outcome
}

#[test]
fn what_was_accepted_waits_for_space_and_is_written_then() {
    block_on(async {
        let disk = SimDisk::new(sim(1, 2));
        let (space, log) = open(&disk, options()).await;
        log.append(entries(0..3, 30_000)).unwrap().durable().await.unwrap();
        let other = space.open(spec(1)).await.unwrap();
        disk.set_free_bytes(0);
        let mut waiting = outcome(log.append(entries(3..6, 30_000)).unwrap());
        let behind = outcome(log.append(entries(6..7, 10)).unwrap());
        timeout(Duration::from_secs(60), &mut waiting).await.expect_err("there is no space");

        // The log is readable, others are as they were, and nothing new is let in.
        let read = log.read(LogIndex(0)..LogIndex(7), usize::MAX).await.unwrap();
        assert_eq!(read, [entries(0..6, 30_000), entries(6..7, 10)].concat());
        other.save_hard_state(HardState::default()).await.unwrap();
        assert!(matches!(space.check_space(1), Err(AppendError::DiskFull { .. })));

        disk.set_free_bytes(PLENTY);
        let began = Instant::now();
        waiting.await.unwrap().unwrap();
        behind.await.unwrap().unwrap();
        assert!(began.elapsed() <= Duration::from_secs(1), "it asks once in a second");
        log.close().await;
        let (_, log) = open(&disk, options()).await;
        assert_eq!(observe(&log).await.unwrap().entries, read);
    });
}

#[test]
fn a_log_that_waits_for_space_can_be_closed() {
    block_on(async {
        let disk = SimDisk::new(sim(2, 2));
        let (space, log) = open(&disk, options()).await;
        log.append(entries(0..3, 30_000)).unwrap().durable().await.unwrap();
        disk.set_free_bytes(0);
        let mut waiting = outcome(log.append(entries(3..6, 30_000)).unwrap());
        let behind = outcome(log.append(entries(6..7, 10)).unwrap());
        timeout(Duration::from_secs(5), &mut waiting).await.expect_err("there is no space");
        let began = Instant::now();
        log.close().await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        for lost in [waiting, behind] {
            let lost = lost.await.unwrap();
            assert!(matches!(lost, Err(AppendError::DiskFull { .. })), "{lost:?}");
        }
        drop((log, space));
        disk.set_free_bytes(PLENTY);
        let (_, log) = open(&disk, options()).await;
        let found = observe(&log).await.unwrap().entries;
        assert_eq!(found, entries(0..found.len() as u64, 30_000));
        assert!(found.len() >= 3);
    });
}

#[test]
fn what_is_needed_is_enough_when_the_next_step_of_allocation_does_not_fit() {
    block_on(async {
        let disk = SimDisk::new(sim(3, 2));
        let options = LogSpaceOptions { segment_bytes_max: 1 << 20, ..options() };
        let (_, log) = open(&disk, options).await;
        disk.set_free_bytes(80_000);
        let began = Instant::now();
        log.append(entries(0..1, 60_000)).unwrap().durable().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    });
}

#[test]
fn spares_are_free_space_and_go_before_anything_waits() {
    block_on(async {
        let disk = SimDisk::new(sim(4, 2));
        let options = LogSpaceOptions { spare_bytes_max: 250_000, ..options() };
        let (space, log) = open(&disk, options).await;
        log.append(entries(0..9, 60_000)).unwrap().durable().await.unwrap();
        log.purge(crate::model::log_id(1, 7)).await.unwrap();
        log.delete_purged_segments().await.unwrap();
        let spares = || -> u64 {
            let files = disk.files();
            files.iter().filter(|(path, _)| path.starts_with("spares/")).map(|(_, bytes)| bytes).sum()
        };
        // Segments of one record each; the rest of the seven that went was removed.
        assert!((180_000..250_000).contains(&spares()), "{}", spares());
        let other = space.open(spec(1)).await.unwrap();
        disk.set_free_bytes(0);
        drop((log, other));
        let (log, other) = (space.open(spec(0)).await.unwrap(), space.open(spec(1)).await.unwrap());
        space.check_space(100_000).unwrap();
        let began = Instant::now();
        other.append(entries(0..1, 60_000)).unwrap().durable().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO, "nothing waited");
        assert_eq!(spares(), 0);
        log.append(entries(9..10, 60_000)).unwrap().durable().await.unwrap();
    });
}

#[test]
fn a_deletion_that_was_given_up_leaves_no_spares_that_nobody_has() {
    let mut left_some = false;
    for polls in 0..80 {
        block_on(async {
            let disk = SimDisk::new(sim(6, 1));
            let (space, log) = open(&disk, LogSpaceOptions { spare_bytes_max: 400_000, ..options() }).await;
            log.append(entries(0..12, 30_000)).unwrap().durable().await.unwrap();
            space.remove(&spec(0)).await.unwrap();
            let owner = spec(0).first_owner;
            let mut given_up = Box::pin(space.delete_owner("containers", owner));
            for _ in 0..polls {
                if futures::poll!(&mut given_up).is_ready() {
                    break;
                }
            }
            drop(given_up);
            let spares = || disk.files().iter().filter(|(path, _)| path.starts_with("spares/")).count();
            left_some |= spares() > 0;
            space.delete_owner("containers", owner).await.unwrap();
            let other = space.open(spec(1)).await.unwrap();
            other.append(entries(0..24, 30_000)).unwrap().durable().await.unwrap();
            assert_eq!(spares(), 0, "{polls} polls: each was taken or removed");
        });
    }
    assert!(left_some, "some deletion was given up after its first rename");
}
