//! Bugs that the campaign found, as the small scripts that show them.

use crate::driver::Action;
use crate::exhaustive::{SEGMENT_BYTES_MAX, append, exhaust_deaths};
use crate::world::Death;
use disk::sim::Loss;

/// A crash tore the first record of a new segment behind its head. Recovery kept the empty segment, and the next record
/// went there although it fitted into the one before: its place was no longer that of the other replicas.
#[test]
fn the_place_after_a_torn_first_record_is_that_of_other_replicas() {
    let script = vec![(0, append(&[600])), (0, Action::Settle), (0, append(&[850]))];
    let deaths: Vec<_> = (0..12).map(|seed| Death::Power(Loss::Random(seed))).collect();
    exhaust_deaths(script, &deaths);
}

/// A process was killed between writing a roll record that filled its file exactly and its sync. Recovery found the record
/// in the page cache, reported it, and synced nothing, as the owner it rolls to had no file; then the power failed.
#[test]
fn a_roll_record_that_recovery_found_is_durable() {
    let body = SEGMENT_BYTES_MAX as usize;
    let script = vec![(0, append(&[100])), (0, Action::Settle), (0, Action::Roll { body })];
    exhaust_deaths(script, &[Death::Process]);
}

/// A process was killed when it had removed the only segment behind a roll, and not yet synced the directory. Recovery
/// reported a log without those entries, and synced nothing, as there was no file; then the power failed, and they were back.
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
