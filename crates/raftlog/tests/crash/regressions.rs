//! Bugs that the campaign found, as the small scripts that show them.

use crate::driver::Action;
use crate::exhaustive::{SEGMENT_BYTES_MAX, append, exhaust_deaths};
use crate::model::log_id;
use crate::world::{Death, block_on, sim, spec};
use bytes::Bytes;
use disk::sim::{Loss, SimDisk};
use raftlog::{Entry, LogSpace, LogSpaceOptions, OpenError};
use std::sync::Arc;
use types::Payload;

/// A crash tore the first record of a new segment behind its head. Recovery kept the empty segment, and the
/// next record went there although it fitted into the one before: its place was no longer that of the other
/// replicas.
#[test]
fn the_place_after_a_torn_first_record_is_that_of_other_replicas() {
    let script = vec![(0, append(&[600])), (0, Action::Settle), (0, append(&[850]))];
    let deaths: Vec<_> = (0..12).map(|seed| Death::Power(Loss::Random(seed))).collect();
    exhaust_deaths(script, &deaths);
}

/// A process was killed between writing a roll record that filled its file exactly and its sync. Recovery
/// found the record in the page cache, reported it, and synced nothing, as the owner it rolls to had no file;
/// then the power failed.
#[test]
fn a_roll_record_that_recovery_found_is_durable() {
    let body = SEGMENT_BYTES_MAX as usize;
    let script = vec![(0, append(&[100])), (0, Action::Settle), (0, Action::Roll { body })];
    exhaust_deaths(script, &[Death::Process]);
}

/// A process was killed when it had removed the only segment behind a roll, and not yet synced the directory.
/// Recovery reported a log without those entries, and synced nothing, as there was no file; then the power
/// failed, and they were back.
#[test]
fn entries_that_recovery_no_longer_found_do_not_come_back() {
    let script = vec![
        (0, append(&[100])),
        (0, Action::Roll { body: 10 }),
        (0, append(&[800])),
        (0, Action::Settle),
        (0, Action::Truncate { count: 2 }),
    ];
    exhaust_deaths(script, &[Death::Process]);
}

/// A log's last segment was lost together with the power, and with it the note of how far the log was
/// durable: what was left opened as a shorter log, whose replica voted.
#[test]
fn a_last_segment_that_is_lost_with_the_power_is_missed() {
    for records in 1..4 {
        let disk = SimDisk::new(sim(1, 0));
        let path = block_on(async {
            let options =
                LogSpaceOptions { segment_bytes_max: SEGMENT_BYTES_MAX, ..LogSpaceOptions::default() };
            let log = LogSpace::new(Arc::new(disk.clone()), options).open(spec(0)).await.unwrap();
            for index in 0..records {
                let body = Payload::checksummed(vec![1; SEGMENT_BYTES_MAX as usize - 200].into());
                let entry = Entry { id: log_id(1, index), kind: 0, meta: Bytes::new(), body, roll_to: None };
                log.append(vec![entry]).unwrap().durable().await.unwrap();
            }
            disk.files()
                .into_iter()
                .map(|(path, _)| path)
                .filter(|path| path.ends_with(".seg"))
                .max()
                .unwrap()
        });
        let disk = disk.lose_power(Loss::AllUnsynced, sim(2, 0));
        disk.lose_stored(&path).unwrap();
        let opened = block_on(async {
            LogSpace::new(Arc::new(disk), LogSpaceOptions::default()).open(spec(0)).await.err()
        });
        assert!(
            matches!(&opened, Some(OpenError::Damaged { file, .. }) if *file == path),
            "{path}: {opened:?}"
        );
    }
}
