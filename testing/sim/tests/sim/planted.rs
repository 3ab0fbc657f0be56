//! A checker must first catch a planted bug.

use flotilla_sim::scenario::{Options, Planted, run};

/// The most seeds that are tried before a bug counts as not found.
const SEEDS_MAX: u64 = 60;

/// Checks that a seed shows the bug as expected. What others before it see of the same bug is printed.
fn check(planted: Planted, expected: &str) {
    for seed in 1..=SEEDS_MAX {
        let Err(violation) = run(Options { seed, planted: Some(planted), ..Options::default() }) else {
            continue;
        };
        let what = &violation.what;
        println!("{planted:?}: {what}\n{}", violation.to_string().lines().last().unwrap_or_default());
        if what.contains(expected) {
            return;
        }
    }
    panic!("no seed of {SEEDS_MAX} shows {planted:?} as `{expected}`");
}

#[test]
fn entries_that_are_synced_late() {
    check(Planted::EntriesSyncedLate, "zeros where a record should begin; but entry");
}

#[test]
fn votes_that_are_not_synced() {
    check(Planted::VotesNotSynced, "neither slot holds a whole hard state");
}

#[test]
fn votes_that_are_silently_lost() {
    check(Planted::VotesLost, "has two leaders in term");
}

#[test]
fn commands_applied_twice() {
    check(Planted::AppliedTwice, ": the tables of ");
}

#[test]
fn a_batch_that_is_lost() {
    check(Planted::BatchLost, ": the tables of ");
}

#[test]
fn reads_that_no_quorum_confirmed() {
    check(Planted::ReadsNotConfirmed, " was read as ");
}

#[test]
fn leaders_that_are_not_elected_again() {
    check(Planted::LeadersRestored, " was read as ");
}

#[test]
fn followers_that_answer_reads_alone() {
    check(Planted::FollowersReadAlone, " was read as ");
}

#[test]
fn leases_that_outlive_their_promise() {
    check(Planted::LeasesTooLong, " was read as ");
}

#[test]
fn snapshots_without_their_last_entries() {
    check(Planted::SnapshotsShort, ": the tables of ");
}

#[test]
fn a_write_that_is_refused_and_takes_effect() {
    check(Planted::UnknownRefused, "a command that was refused");
}

#[test]
fn a_panic_in_a_task_that_nobody_awaits() {
    check(Planted::TaskPanics, " panicked at testing/sim/src/scenario/planted.rs:");
}

#[test]
fn a_group_that_stops_by_itself() {
    check(Planted::TablesFail, "stopped by itself");
}

#[test]
fn a_connection_that_is_never_made_again() {
    check(Planted::CutStays, "no fault for ");
}
