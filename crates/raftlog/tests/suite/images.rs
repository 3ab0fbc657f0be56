//! Images of what a process leaves when it is killed at any moment: the directory is copied while the log is
//! written.

use crate::support::*;
use raftlog::{Entry, HardState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use types::OwnerId;

fn nth(index: u64) -> Entry {
    let bytes = [10, 3000, 50, 20_000, 0][index as usize % 5];
    let roll_to = (index % 97 == 96).then(|| OwnerId(1000 + index));
    Entry { roll_to, ..entry(1 + index / 10, index, bytes) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_entry_is_in_every_image_of_the_directory() {
    const IMAGES: usize = 15;
    let machine = Machine::small_segments(100_000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let (acknowledged, voted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    // The writer stays a little ahead of the images, so that they stay small.
    let allowed = Arc::new(AtomicU64::new(100));
    let writing = tokio::spawn({
        let (acknowledged, voted) = (acknowledged.clone(), voted.clone());
        let (stop, allowed) = (stop.clone(), allowed.clone());
        async move {
            let mut next = 0;
            while !stop.load(Ordering::SeqCst) {
                if next >= allowed.load(Ordering::SeqCst) {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    continue;
                }
                if next % 50 == 0 {
                    let vote = HardState { vote_term: 1 + next / 10, ..HardState::default() };
                    log.save_hard_state(vote).await.unwrap();
                    voted.store(vote.vote_term, Ordering::SeqCst);
                }
                let token = log.append((next..next + 5).map(nth).collect()).unwrap();
                next += 5;
                let acknowledged = acknowledged.clone();
                token.on_durable(move |result| {
                    result.unwrap();
                    acknowledged.store(next, Ordering::SeqCst);
                });
                if next % 25 == 0 {
                    append(&log, vec![]).await;
                }
            }
        }
    });
    let mut seen = 0;
    for image in 0..IMAGES {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
        while acknowledged.load(Ordering::SeqCst) < seen + 20 {
            assert!(tokio::time::Instant::now() < deadline, "the writer makes no progress");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let (entries_min, vote_min) = (acknowledged.load(Ordering::SeqCst), voted.load(Ordering::SeqCst));
        seen = entries_min;
        allowed.store(seen + 100, Ordering::SeqCst);
        let copy = Machine::small_segments(100_000);
        let (from, to) = (machine.dir.path().join("disk"), copy.dir.path().join("disk"));
        // The hard state first: its mark must not be newer than the segments.
        for part in ["groups", "containers"] {
            copy_tree(&from.join(part), &to.join(part));
        }
        std::fs::copy(from.join("VERSION"), to.join("VERSION")).unwrap();
        let log = copy.start().open(spec(1)).await.unwrap();
        let found = read_all(&log).await;
        assert!(found.len() as u64 >= entries_min, "image {image}: {} of {entries_min} entries", found.len());
        found.iter().enumerate().for_each(|(index, entry)| assert_eq!(*entry, nth(index as u64)));
        assert!(log.state().hard_state.unwrap().vote_term >= vote_min);
        log.close().await;
    }
    stop.store(true, Ordering::SeqCst);
    writing.await.unwrap();
}
