//! A disk that fails.

use crate::support::*;
use disk::RealDisk;
use diskhooks::{Act, HookedDisk, Operation};
use raftlog::{AppendError, HardState, LogSpace};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use types::LogIndex;

/// A disk whose writes with a sync succeed so often; each later one fails after the write and before the sync.
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
