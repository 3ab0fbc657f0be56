//! The suite finds what it is there to find.

use crate::campaign::run_seed;
use crate::liar::Lie;

/// Some seed reports a violation.
fn finds(lie: Lie, seeds_max: u64) {
    let found = (1..=seeds_max).find_map(|seed| run_seed(seed, lie).err());
    let why = found.unwrap_or_else(|| panic!("no violation in {seeds_max} seeds of {lie:?}"));
    println!("{lie:?}: {}", why.lines().next().unwrap_or_default());
}

#[test]
fn acknowledging_before_the_sync_is_found() {
    finds(Lie::SegmentsNotSynced, 40);
}

#[test]
fn a_skipped_directory_sync_is_found() {
    finds(Lie::DirectoriesNotSynced, 40);
}

#[test]
fn an_entry_before_its_vote_is_found() {
    finds(Lie::HardStateNotSynced, 40);
}

#[test]
fn a_sync_that_recovery_or_truncation_forgets_is_found() {
    finds(Lie::SyncDataDoesNothing, 200);
}

/// A sync fails, the process is restarted, and then power is lost.
#[test]
fn a_recovery_that_trusts_memory_is_found() {
    finds(Lie::MemoryTrusted, 400);
}

#[test]
fn a_tail_that_is_not_cut_is_found() {
    finds(Lie::CutsNotMade, 40);
}

#[test]
fn ignoring_checksums_is_found() {
    finds(Lie::ChecksumsIgnored, 200);
}

#[test]
fn recycling_a_truncated_segment_is_found() {
    finds(Lie::CarelessSpares, 400);
}

#[test]
fn an_honest_disk_gives_no_violation() {
    for seed in 1..=40 {
        assert!(run_seed(seed, Lie::Honest).unwrap().crashes > 0);
    }
}
