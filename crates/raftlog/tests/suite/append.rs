use crate::support::*;
use raftlog::{AppendError, HardState, LogSpaceOptions, ReadError};
use std::sync::{Arc, Mutex};
use types::{LogIndex, OwnerId};

#[tokio::test]
async fn entries_are_read_back_at_once_and_after_a_restart() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(log.state().last, None);
    let written: Vec<_> = [0, 1, 4095, 4096, 4097, 65536, 65537, 1 << 20, 0]
        .into_iter()
        .enumerate()
        .map(|(index, bytes)| entry(1, index as u64, bytes))
        .collect();
    let token = log.append(written.clone()).unwrap();
    assert_eq!(read_all(&log).await, written, "readable before they are durable");
    token.durable().await.unwrap();
    log.save_committed(Some(id(1, 7)));
    log.save_hard_state(HardState { vote_term: 3, vote_replica: 9, vote_committed: true }).await.unwrap();
    let state = log.state();
    drop((log, space));

    let log = machine.start_again().await.open(spec(1)).await.unwrap();
    assert_eq!(log.state(), state);
    assert_eq!(read_all(&log).await, written);
    append(&log, entries(2, 9..12, 100)).await;
    assert_eq!(log.state().last, Some(id(2, 11)));
}

#[tokio::test]
async fn entries_behind_the_cache_come_from_the_disk() {
    let machine = Machine::small_segments(100_000).without_cache();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let written = entries(1, 0..200, 3000);
    append(&log, written.clone()).await;
    // The next append makes the cache notice that those are durable.
    append(&log, vec![entry(1, 200, 10)]).await;
    assert_eq!(log.read(LogIndex(0)..LogIndex(200), usize::MAX).await.unwrap(), written);
    let metas = log.read_meta(LogIndex(10)..LogIndex(200), 50).await.unwrap();
    assert_eq!(metas.len(), 50);
    for (meta, entry) in metas.iter().zip(&written[10..]) {
        assert_eq!((meta.id, &meta.meta, meta.kind), (entry.id, &entry.meta, entry.kind));
    }
}

#[tokio::test]
async fn a_read_ends_when_it_passes_its_limit_but_has_one_entry() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..10, 1000)).await;
    assert_eq!(log.read(LogIndex(2)..LogIndex(9), 0).await.unwrap().len(), 1);
    assert_eq!(log.read(LogIndex(2)..LogIndex(9), 3500).await.unwrap().len(), 3);
    assert_eq!(log.read(LogIndex(2)..LogIndex(90), 1 << 20).await.unwrap().len(), 8);
    assert!(log.read(LogIndex(5)..LogIndex(5), 10).await.unwrap().is_empty());
    let error = log.read(LogIndex(10)..LogIndex(11), 10).await.unwrap_err();
    assert_eq!(error, ReadError::OutOfRange { index: LogIndex(10), first: LogIndex(0), end: LogIndex(10) });
}

#[tokio::test]
async fn tokens_resolve_in_the_order_of_their_appends() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut last = None;
    for n in 0..500 {
        let token = log.append(vec![entry(1, n, (n as usize * 37) % 9000)]).unwrap();
        let order = order.clone();
        if n == 499 {
            last = Some(token);
        } else {
            token.on_durable(move |result| {
                result.unwrap();
                order.lock().unwrap().push(n);
            });
        }
        if n % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    last.unwrap().durable().await.unwrap();
    assert_eq!(*order.lock().unwrap(), (0..499).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn logs_share_a_disk_and_append_at_the_same_time() {
    let machine = Machine::small_segments(1 << 20);
    let space = machine.start();
    let mut tasks = Vec::new();
    for log_id in 1..=8 {
        let log = space.open(spec(log_id)).await.unwrap();
        tasks.push(tokio::spawn(async move {
            for n in 0..100 {
                let token = log.append(vec![entry(log_id, n, 20_000)]).unwrap();
                if n % 3 == 0 {
                    token.durable().await.unwrap();
                }
            }
            append(&log, vec![]).await;
            log.close().await;
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for log_id in 1..=8 {
        let log = space.open(spec(log_id)).await.unwrap();
        assert_eq!(read_all(&log).await, entries(log_id, 0..100, 20_000));
    }
}

#[tokio::test]
async fn entries_must_follow_each_other() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 5..8, 10)).await; // the first of an empty log may be anywhere
    let refused = log.append(vec![entry(1, 9, 10)]).err().unwrap();
    assert_eq!(refused, AppendError::Gap { last: Some(id(1, 7)), got: id(1, 9) });
    assert!(log.append(vec![entry(1, 8, 10), entry(1, 8, 10)]).is_err());
    append(&log, vec![entry(1, 8, 10)]).await;
    assert_eq!(log.id_at(LogIndex(5)).await.unwrap(), id(1, 5));
    assert!(log.id_at(LogIndex(4)).await.is_err());
}

#[tokio::test]
async fn a_full_queue_refuses_before_anything_is_queued_and_a_full_disk_is_told() {
    let mut machine = Machine::new();
    machine.options.unflushed_bytes_max = 10_000;
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let first = log.append(vec![entry(1, 0, 20_000)]).unwrap();
    let refused = log.append(vec![entry(1, 1, 20_000)]).err().unwrap();
    assert!(matches!(refused, AppendError::Busy { limit: 10_000, .. }), "{refused}");
    first.durable().await.unwrap();
    append(&log, vec![entry(1, 1, 20_000)]).await;

    let mut machine = Machine::new();
    machine.options.reserve_bytes = 1 << 60;
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let refused = space.check_space(10).err().unwrap();
    assert!(
        matches!(refused, AppendError::DiskFull { reserve_bytes, .. } if reserve_bytes == 1 << 60),
        "{refused}"
    );
    // What cannot be refused draws on the reserve.
    append(&log, vec![entry(1, 0, 10)]).await;
    log.save_hard_state(HardState::default()).await.unwrap();
}

/// One number for what is queued and what is kept, of all logs of a disk.
#[tokio::test]
async fn what_logs_have_in_memory_stays_within_what_they_may() {
    const MEMORY_BYTES: usize = 1 << 20;
    const BODY_BYTES: usize = 10_000;
    let mut machine = Machine::new();
    machine.options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::within(MEMORY_BYTES) };
    let space = machine.start();
    let mut logs = Vec::new();
    for number in 1..=3 {
        logs.push(space.open(spec(number)).await.unwrap());
    }
    // What an entry takes beside its body is counted in the one way here and in the other there.
    let allowed = MEMORY_BYTES + MEMORY_BYTES / 20 + BODY_BYTES;
    let (mut nexts, mut full) = ([0u64; 3], 0);
    for _ in 0..5 {
        // Nobody writes before somebody waits: the queue fills up.
        let mut queued = Vec::new();
        'filling: loop {
            for (log, next) in logs.iter().zip(&mut nexts) {
                match log.append(vec![entry(1, *next, BODY_BYTES)]) {
                    Ok(token) => queued.push(token),
                    Err(AppendError::Busy { .. }) => break 'filling,
                    Err(error) => panic!("{error}"),
                }
                *next += 1;
                let cached = space.metrics().cached_bytes;
                assert!(
                    cached <= allowed,
                    "{cached} bytes are in memory, {} queued",
                    space.unflushed_bytes()
                );
            }
        }
        full += queued.len() * BODY_BYTES;
        for token in queued {
            token.durable().await.unwrap();
        }
    }
    assert!(full > 4 * MEMORY_BYTES, "{full} bytes were queued in all");
    assert!(space.metrics().cached_bytes > MEMORY_BYTES / 2, "what was written last is kept");
}

#[tokio::test]
async fn the_same_entries_make_the_same_bytes() {
    let machines = [Machine::small_segments(64 << 10), Machine::small_segments(64 << 10)];
    for (batch, machine) in [1usize, 7].into_iter().zip(&machines) {
        let space = machine.start();
        let log = space.open(spec(1)).await.unwrap();
        for chunk in entries(1, 0..60, 5000).chunks(batch) {
            append(&log, chunk.to_vec()).await;
        }
        if batch == 7 {
            // One of them had other entries at its end for a while.
            append(&log, entries(1, 60..90, 900)).await;
            log.truncate_after(Some(LogIndex(59))).await.unwrap();
        }
        append(&log, entries(2, 60..70, 5000)).await;
        log.close().await;
    }
    for segment in 0..6 {
        let bytes = machines.each_ref().map(|machine| std::fs::read(machine.segment(1000, segment)).unwrap());
        assert!(bytes[0] == bytes[1], "segment {segment}");
    }
}

#[tokio::test]
async fn a_log_is_open_once() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    assert!(space.open(spec(1)).await.is_err());
    drop(log);
    space.open(spec(1)).await.unwrap();
    let other = raftlog::LogSpec { log: 2, ..spec(1) };
    let error = space.open(other).await.err().unwrap().to_string();
    assert!(error.contains("belongs to log 1") || error.contains("open already"), "{error}");
}

#[tokio::test]
async fn appends_that_wait_when_a_log_is_removed_are_told() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..10, 1000)).await;
    let place = log.read_meta(LogIndex(3)..LogIndex(4), 1).await.unwrap()[0].place;
    space.remove(&spec(1)).await.unwrap();
    assert!(log.append(vec![entry(1, 10, 1)]).is_err());
    let pieces = space.read_body("containers", place, 0..1000).await.unwrap();
    assert_eq!(pieces.bytes, *entry(1, 3, 1000).body.bytes(), "places outlive the log");
    // The owner's segments are there, the log is not: a new one there would mix up with them.
    assert!(space.open(spec(1)).await.is_err());
    space.delete_owner("containers", OwnerId(1000)).await.unwrap();
    assert!(matches!(space.read_body("containers", place, 0..10).await, Err(ReadError::NotFound { .. })));
    assert_eq!(space.open(spec(1)).await.unwrap().state().last, None);
}
