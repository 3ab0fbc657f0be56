//! A disk that fails.

use crate::support::*;
use disk::sim::{SimDisk, SimOptions};
use disk::{Disk, RealDisk};
use diskhooks::{Act, HookedDisk, Operation};
use raftlog::{AppendError, Entry, HardState, LogSpace};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use types::LogIndex;

/// A disk whose writes with a sync succeed so often; each later one fails after the write and before the
/// sync.
fn failing_disk(disk: RealDisk, syncs: i64) -> HookedDisk {
    let syncs_left = AtomicI64::new(syncs);
    HookedDisk::new(Arc::new(disk), move |call| match call.operation {
        Operation::WriteAndSync if syncs_left.fetch_sub(1, Ordering::SeqCst) <= 0 => {
            Act::WeakenAndFail(io::Error::from_raw_os_error(5)) // EIO
        }
        _ => Act::Pass,
    })
}

#[tokio::test]
async fn a_failed_sync_fails_everything_after_it_and_nothing_before_it() {
    for syncs in 1..12 {
        let machine = Machine::small_segments(5000);
        let disk = RealDisk::open(&machine.dir.path().join("disk"), 1).unwrap();
        let space = LogSpace::new(Arc::new(failing_disk(disk, syncs)), machine.options.clone());
        let Ok(log) = space.open(spec(1)).await else { continue }; // it failed when it was created
        let mut acknowledged = 0;
        let mut failed = false;
        for index in 0..20 {
            match log.append(vec![entry(1, index, 900)]) {
                Ok(token) => match token.durable().await {
                    Ok(()) => {
                        assert!(!failed, "nothing is acknowledged after a failure");
                        acknowledged = index + 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, AppendError::Poisoned { .. }), "{error}");
                        failed = true;
                    }
                },
                Err(error) => {
                    assert!(failed && matches!(error, AppendError::Poisoned { .. }), "{error}");
                }
            }
        }
        assert!(failed);
        assert!(log.save_hard_state(HardState::default()).await.is_err());
        assert!(log.truncate_after(Some(LogIndex(0))).await.is_err());
        assert!(log.purge(id(1, 0)).await.is_err());
        drop((log, space));
        let log = machine.start_again().await.open(spec(1)).await.unwrap();
        let found = read_all(&log).await;
        assert!(
            found.len() as u64 >= acknowledged,
            "{} of {acknowledged} entries, {syncs} syncs",
            found.len()
        );
        assert_eq!(found, entries(1, 0..found.len() as u64, 900));
    }
}

/// A disk of a process that has no file left about each second time that it opens one, while `lacks` says so.
fn disk_without_files(seed: u64, lacks: Arc<AtomicBool>, refused: Arc<AtomicU64>) -> HookedDisk {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    // The pattern of refusals: the bits of a number, over and over.
    let (pattern, opened) = ((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), AtomicU64::new(0));
    let is_refused =
        move || pattern.rotate_left((opened.fetch_add(7, Ordering::SeqCst) % 64) as u32) & 1 == 1;
    HookedDisk::new(Arc::new(disk), move |call| match call.operation {
        Operation::Open { .. } | Operation::List | Operation::SyncDir | Operation::RemoveDirAll
            if lacks.load(Ordering::SeqCst) && is_refused() =>
        {
            refused.fetch_add(1, Ordering::SeqCst);
            Act::Fail(io::Error::from_raw_os_error(24)) // EMFILE
        }
        _ => Act::Pass,
    })
}

/// Segments end, are taken up again from deleted ones, are cut off and deleted.
#[tokio::test(start_paused = true)]
async fn a_log_waits_for_files_and_loses_nothing() {
    for seed in 0..30 {
        let (lacks, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let disk: Arc<dyn Disk> = Arc::new(disk_without_files(seed, lacks.clone(), refused.clone()));
        let options = Machine::small_segments(5000).options;
        let space = LogSpace::new(disk.clone(), options.clone());
        let log = space.open(spec(1)).await.unwrap();
        lacks.store(true, Ordering::SeqCst);
        append(&log, entries(1, 0..30, 900)).await;
        log.purge(id(1, 9)).await.unwrap();
        log.delete_purged_segments().await.unwrap();
        append(&log, entries(1, 30..50, 900)).await;
        log.truncate_after(Some(LogIndex(33))).await.unwrap();
        append(&log, entries(2, 34..60, 900)).await;
        lacks.store(false, Ordering::SeqCst);
        let expected = [entries(1, 10..34, 900), entries(2, 34..60, 900)].concat();
        let kept =
            |found: Vec<Entry>| found.into_iter().filter(|entry| entry.id.index.0 >= 10).collect::<Vec<_>>();
        assert_eq!(kept(read_all(&log).await), expected, "seed {seed}");
        log.close().await;
        drop(space);
        let log = LogSpace::new(disk, options).open(spec(1)).await.unwrap();
        assert_eq!(kept(read_all(&log).await), expected, "seed {seed}, opened again");
        assert!(refused.load(Ordering::SeqCst) > 3, "seed {seed}: something must be refused");
    }
}
