//! Raft groups: a slice of what `./dev sim` runs, and the bugs that it must find.

use super::seeds::{check_planted, check_repeated, check_slice};
use flotilla_sim::scenario::Planted;
use flotilla_sim::seeds::Simulated;

/// Seeds that are over soon.
const SLICE: [u64; 8] = [59, 60, 61, 62, 63, 64, 65, 66];
/// Events that must happen in one of them: all that are counted.
const REACHED: [&str; 21] = [
    "events",
    "elections",
    "crashes",
    "crashes_amid_member_changes",
    "crashes_amid_snapshot_writes",
    "crashes_amid_snapshot_receives",
    "crashes_amid_snapshot_installs",
    "partitions",
    "split_clients",
    "upset_elections",
    "transfers",
    "full_disks",
    "writes",
    "reads",
    "follower_reads",
    "lease_reads",
    "member_changes",
    "removals",
    "snapshots_written",
    "snapshots_installed",
    "dozes",
];

#[test]
fn a_slice_of_groups_passes() {
    check_slice(Simulated::Groups, &SLICE, &REACHED);
}

/// Seeds that found bugs: a replica that joined on a full disk stopped for good; a leader that took itself
/// out of its group answered reads by a lease that no longer bound anybody.
#[test]
fn seeds_that_found_something_once_find_nothing() {
    check_slice(Simulated::Groups, &[158, 246], &[]);
}

#[test]
fn the_same_seed_of_groups_takes_the_same_steps() {
    check_repeated(Simulated::Groups, 15);
}

fn check(planted: Planted, first_seed: u64, expected: &str) {
    check_planted(Simulated::Groups, planted, first_seed, &[expected]);
}

#[test]
fn entries_that_are_synced_late() {
    check(Planted::EntriesSyncedLate, 4, "zeros where a record should begin; but entry");
}

#[test]
fn votes_that_are_not_synced() {
    check(Planted::VotesNotSynced, 1, "neither slot holds a whole hard state");
}

#[test]
fn votes_that_are_silently_lost() {
    check(Planted::VotesLost, 1, "has two leaders in term");
}

#[test]
fn commands_applied_twice() {
    check(Planted::AppliedTwice, 1, ": the tables of ");
}

#[test]
fn a_batch_that_is_lost() {
    check(Planted::BatchLost, 2, ": the tables of ");
}

#[test]
fn reads_that_no_quorum_confirmed() {
    check(Planted::ReadsNotConfirmed, 1, " was read as ");
}

#[test]
fn leaders_that_are_not_elected_again() {
    check(Planted::LeadersRestored, 16, " was read as ");
}

#[test]
fn followers_that_answer_reads_alone() {
    check(Planted::FollowersReadAlone, 1, " was read as ");
}

#[test]
fn leases_that_outlive_their_promise() {
    check(Planted::LeasesTooLong, 1, " was read as ");
}

#[test]
fn snapshots_without_their_last_entries() {
    check(Planted::SnapshotsShort, 2, ": the tables of ");
}

#[test]
fn a_write_that_is_refused_and_takes_effect() {
    check(Planted::UnknownRefused, 11, "a command that was refused");
}

#[test]
fn a_panic_in_a_task_that_nobody_awaits() {
    check(Planted::TaskPanics, 1, " panicked at testing/sim/src/scenario/planted.rs:");
}

#[test]
fn a_group_that_stops_by_itself() {
    check(Planted::TablesFail, 1, "stopped by itself");
}

#[test]
fn a_connection_that_is_never_made_again() {
    check(Planted::CutStays, 1, "no fault for ");
}
