//! A checker must first catch a planted bug.

use flotilla_sim::scenario::{Options, Planted, run};

/// Seeds tried before a bug counts as not found.
const SEEDS_MAX: u64 = 60;

fn check(planted: Planted, expected: &[&str]) {
    for seed in 1..=SEEDS_MAX {
        let Err(violation) = run(Options { seed, planted: Some(planted), ..Options::default() }) else {
            continue;
        };
        let what = &violation.what;
        println!("{planted:?}: {what}\n{}", violation.to_string().lines().last().unwrap_or_default());
        assert!(expected.iter().any(|part| what.contains(part)), "{planted:?} shows as: {violation}");
        return;
    }
    panic!("{planted:?} is not found in {SEEDS_MAX} seeds");
}

#[test]
fn entries_that_are_synced_late() {
    check(
        Planted::EntriesSyncedLate,
        &["damaged record", "the log was lost", "leads in term", "committed", "acknowledged", "applied"],
    );
}

#[test]
fn votes_that_are_not_synced() {
    check(Planted::VotesNotSynced, &["two leaders", "another entry", "hard state", "leads in term"]);
}

#[test]
fn commands_applied_twice() {
    check(Planted::AppliedTwice, &["outcomes", "tables"]);
}

#[test]
fn a_batch_that_is_lost() {
    check(Planted::BatchLost, &["outcomes", "tables", "read as", "found"]);
}

#[test]
fn reads_that_no_quorum_confirmed() {
    check(Planted::ReadsNotConfirmed, &["was read as"]);
}

#[test]
fn leaders_that_are_not_elected_again() {
    check(
        Planted::LeadersRestored,
        &["was read as", "another entry", "outcomes", "committed", "acknowledged", "tables"],
    );
}

#[test]
fn followers_that_answer_reads_alone() {
    check(Planted::FollowersReadAlone, &["was read as"]);
}

#[test]
fn snapshots_without_their_last_entries() {
    check(Planted::SnapshotsShort, &["tables"]);
}
