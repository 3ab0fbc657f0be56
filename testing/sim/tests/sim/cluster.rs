//! Whole clusters: a slice of what `./dev sim cluster` runs, and the bugs that it must find.

use flotilla_sim::cluster::{Campaign, Planted, Report};

/// A seed takes about five seconds of one core.
const SEEDS: u64 = 6;
/// From here on they have something of most.
const FIRST_SEED: u64 = 19;
/// Tried before a bug counts as not found. Half of the seeds or more show each.
const SEEDS_MAX: u64 = 12;

fn campaign(first_seed: u64, seeds: u64, planted: Option<Planted>) -> Report {
    let program = env!("CARGO_BIN_EXE_flotilla-sim").into();
    let (threads, is_printed, keeps_going) = (2, false, false);
    Campaign { program, first_seed, seeds, threads, is_printed, planted, keeps_going }.run()
}

#[test]
fn a_slice_of_clusters_keeps_what_it_was_given() {
    let report = campaign(FIRST_SEED, SEEDS, None);
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    // A slice in which nothing happens proves nothing.
    let counts = report.counts;
    for (what, count) in [
        ("blocks", counts.blocks),
        ("reads", counts.reads),
        ("replicas compared", counts.replicas_compared),
        ("copies", counts.copies),
        ("deletions", counts.deletions),
        ("crashes", counts.crashes),
        ("crashes of SCM", counts.scm_crashes),
        ("partitions", counts.partitions),
        ("losses", counts.disks_lost + counts.nodes_lost),
        ("harmed logs", counts.logs_harmed),
        ("leaders that diverge", counts.leaders_diverged),
        ("disks full for good", counts.disks_full_for_good),
        ("nodes that leave", counts.decommissions),
    ] {
        assert!(count > 0, "no {what} in {report}");
    }
}

/// A seed that is divisible by 16 runs twice, each time in a process of its own.
#[test]
fn the_same_seed_takes_the_same_steps_in_every_process() {
    let report = campaign(16, 1, None);
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    assert_eq!(report.repeated, 1);
}

/// Each shows in one of these ways.
fn check(planted: Planted, first_seed: u64, expected: &[&str]) {
    let report = campaign(first_seed, SEEDS_MAX, Some(planted));
    let found =
        report.violations.first().unwrap_or_else(|| panic!("no seed of {SEEDS_MAX} shows {planted:?}"));
    let is_expected = expected.iter().any(|what| found.contains(what));
    assert!(is_expected, "{planted:?} shows otherwise than as one of {expected:?}:\n{found}");
}

#[test]
fn a_copy_that_counts_before_it_is_there() {
    check(Planted::CopiesCountEarly, 9, &["was deleted, and only"]);
}

#[test]
fn what_ended_alone_and_is_taken_for_the_truth() {
    check(Planted::QuasiClosedIsClosed, 1, &["as its last record"]);
}

/// Indexing finds some of the damage, after the copy has its place: then it is in the way of every other one.
#[test]
fn copies_that_nobody_looks_at() {
    check(Planted::ImportsUnverified, 8, &["is bad, and nobody damaged it", "are under-replicated"]);
}
