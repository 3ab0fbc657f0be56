//! Seeds that found bugs.

use crate::campaign::run_seed;
use crate::liar::Lie;

/// A crash tore the first record of a new segment behind its head. Recovery kept the empty segment, and the next record
/// went there although it fitted into the one before: its place was no longer that of the other replicas.
#[test]
fn the_place_after_a_torn_first_record_is_that_of_other_replicas() {
    run_seed(28, Lie::Honest).unwrap();
}

/// A process was killed between writing a roll record that filled its file exactly and its sync. Recovery found the record
/// in the page cache, reported it, and synced nothing, as the owner it rolls to had no file; then the power failed.
#[test]
fn a_roll_record_that_recovery_found_is_durable() {
    run_seed(2070, Lie::Honest).unwrap();
}
