//! Whole clusters: a slice of what `./dev sim cluster` runs, and the bugs that it must find.

use clap::ValueEnum;
use flotilla_sim::cluster::Planted;
use flotilla_sim::seeds::{Campaign, Report, Simulated};

/// Seeds that are over soon.
const SLICE: [u64; 9] = [131, 120, 1502, 84, 71, 82, 412, 124, 93];
/// Events that must happen in one of them: a slice in which nothing happens proves nothing. Machines that
/// stand still for minutes are left to the campaign: seeds that have one take too long.
const REACHED: [&str; 46] = [
    "blocks",
    "blocks_gone",
    "gone_checked",
    "reads",
    "reads_elsewhere",
    "replicas_compared",
    "replicas_compacted",
    "copies",
    "deletions",
    "crashes",
    "scm_crashes",
    "partitions",
    "disks_lost",
    "disks_full_for_good",
    "nodes_lost",
    "decommissions",
    "indexes_harmed",
    "indexes_rebuilt",
    "logs_harmed",
    "logs_lost_beside_away",
    "disks_emptied",
    "leaders_diverged",
    "without_log_probed",
    "quasi_closed_probed",
    "containers_waiting",
    "containers_adopted",
    "scm_resets",
    "machines_paused",
    "failed_disks_restarted",
    "bits_flipped",
    "ends_damaged",
    "objects_put",
    "objects_read",
    "objects_deleted",
    "objects_refused",
    "object_answers_lost",
    "gateway_changes",
    "gateway_reads",
    "om_crashes",
    "om_emptied",
    "buckets_moved",
    "names_given",
    "names_deleted",
    "objects_given_up",
    "containers_swept",
    "orphans",
];
/// The most seeds that are tried before a bug counts as not found. The first one shows it, unless what is
/// simulated has changed.
const SEEDS_MAX: u64 = 12;

fn campaign(first_seed: u64, seeds: u64, planted: Option<Planted>) -> Report {
    let program = env!("CARGO_BIN_EXE_flotilla-sim").into();
    // The seeds run one after the other: beside a seed that shows a bug the next one would be waited for.
    let (simulated, threads, is_printed, keeps_going) = (Simulated::Clusters, 1, false, false);
    let planted = planted.and_then(|planted| planted.to_possible_value());
    let planted = planted.map(|name| name.get_name().to_owned());
    Campaign { program, simulated, first_seed, seeds, threads, is_printed, planted, keeps_going }.run()
}

#[test]
fn a_slice_of_clusters_keeps_what_it_was_given() {
    let run = |seeds: &[u64]| -> Vec<(String, u64)> {
        let checked = |seed: &u64| {
            let report = campaign(*seed, 1, None);
            assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
            report.counts
        };
        seeds.iter().flat_map(checked).collect()
    };
    let counts: Vec<_> = std::thread::scope(|scope| {
        let halves = SLICE.chunks(SLICE.len().div_ceil(2)).map(|seeds| scope.spawn(move || run(seeds)));
        let halves: Vec<_> = halves.collect();
        halves.into_iter().flat_map(|half| half.join().expect("no seed shows a violation")).collect()
    });
    let lacking =
        REACHED.iter().filter(|what| !counts.iter().any(|(name, count)| name == *what && *count > 0));
    let lacking: Vec<_> = lacking.collect();
    assert!(
        lacking.is_empty(),
        "no seed of {SLICE:?} has any {lacking:?}: choose others (`./dev sim cluster`)"
    );
}

/// The last one of 16 seeds runs twice, each time in a process of its own; it has an OM and clients by the
/// client crate.
#[test]
fn the_same_seed_takes_the_same_steps_in_every_process() {
    let report = campaign(79, 1, None);
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    assert_eq!(report.repeated, 1);
}

/// Checks that a planted bug shows in one of these ways.
fn check(planted: Planted, first_seed: u64, expected: &[&str]) {
    let report = campaign(first_seed, SEEDS_MAX, Some(planted));
    let found =
        report.violations.first().unwrap_or_else(|| panic!("no seed of {SEEDS_MAX} shows {planted:?}"));
    let is_expected = expected.iter().any(|what| found.contains(what));
    assert!(is_expected, "{planted:?} shows otherwise than as one of {expected:?}:\n{found}");
}

#[test]
fn a_copy_that_counts_before_it_is_there() {
    check(Planted::CopiesCountEarly, 30, &["was deleted, and only"]);
}

#[test]
fn what_ended_alone_and_is_taken_for_the_truth() {
    check(Planted::QuasiClosedIsClosed, 3, &["as its last record"]);
}

/// Indexing finds some of the damage, after the copy has its place: then it is in the way of every other one.
#[test]
fn copies_that_nobody_looks_at() {
    let in_the_way = ["are under-replicated", "containers are in trouble"];
    let bad = ["is bad, and nobody damaged it", "checksum mismatch in the", "cannot be read from"];
    check(Planted::ImportsUnverified, 24, &[&bad[..], &in_the_way[..]].concat());
}

/// A reader gets the bytes of another block, from a member that was cut off with a long tail and is alone
/// now.
#[test]
fn a_tail_that_nobody_acknowledged_and_somebody_reads() {
    check(Planted::TailsAreRead, 12, &["of which 0 are right"]);
}

/// A member on a disk that is full for good never has the container, and another one is lost.
#[test]
#[ignore = "three minutes; the tests of scm's nodes find it at once"]
fn a_member_that_stands_still_and_is_waited_for() {
    check(Planted::ComingForEver, 50, &["no fault for"]);
}

/// Acknowledged data is beyond the end that was decided, or nobody has that end.
#[test]
fn a_log_that_is_lost_and_votes() {
    check(Planted::LogsNeedNoProof, 2, &["as its last record, and block", "containers are in trouble"]);
}

/// A disk that was emptied, and has its name still, is given the replica that it had anew: with a vote.
#[test]
fn a_member_that_is_made_anew() {
    check(Planted::BegunIsForgotten, 1, &["as its last record, on", "as its last record, and block"]);
}

/// One replica has discarded a block, and another still answers with it.
#[test]
fn blocks_that_are_called_gone_before_all_replicas_have_discarded_them() {
    check(Planted::GoneEarly, 118, &["was called gone, and"]);
}

/// A node was away while the others discarded blocks.
#[test]
#[ignore = "a minute and a half; the tests of scm's discards find it at once"]
fn a_replica_that_brings_back_what_the_others_have_discarded() {
    check(Planted::DiscardsNotTaken, 1, &["have discarded different blocks"]);
}

/// A container's number is given to another one, which ends before what was acknowledged in the first.
#[test]
fn numbers_that_are_drawn_again() {
    check(Planted::NumbersDrawnAgain, 12, &["as its last record, and block", "as its last record, on"]);
}

/// A write that was overwritten or deleted comes back when its client, who lost the answer, asks again.
#[test]
#[ignore = "a minute and a half; om's tests of lost answers find it in seconds"]
fn requests_to_om_that_take_effect_again() {
    check(Planted::RequestIdsIgnored, 1, &["has a history that cannot be"]);
}

/// A write that was acknowledged after the last rows of its bucket had been read is in neither group.
#[test]
fn a_bucket_that_changes_while_its_last_rows_move() {
    check(Planted::FreezeLeftOut, 91, &["has a history that cannot be"]);
}

/// A change whose answer was lost is asked again where its bucket is by then, and takes effect again.
#[test]
#[ignore = "two minutes; om's model of buckets that move finds it in seconds"]
fn requests_that_a_moved_bucket_leaves_behind() {
    check(Planted::RequestsLeftBehind, 9, &["has a history that cannot be"]);
}

/// A block is named after its container was swept.
#[test]
fn a_sweep_without_its_fence() {
    check(Planted::FencesIgnored, 1, &["which a key names", "is DELETED, and a key names"]);
}

/// A bucket goes from a group that is yet to be asked to one that was.
#[test]
#[ignore = "a minute and a half; om's model of sweeps finds it in seconds"]
fn a_sweep_that_overlooks_a_move() {
    check(Planted::MovesOverlooked, 43, &["which a key names", "is DELETED, and a key names"]);
}

/// One of the two keys that name a block is deleted.
#[test]
fn filed_blocks_that_go_though_a_key_names_them() {
    check(Planted::NamedBlocksGo, 1, &["which a key names", "is DELETED, and a key names"]);
}

/// The only OM runs on an old copy of its directory for a while.
#[test]
#[ignore = "two minutes and a half; om's model of sweeps finds it in seconds"]
fn names_that_are_missing_for_a_while_and_taken_for_all_that_there_are() {
    check(Planted::LessIsOverlooked, 1, &["which a key names", "is DELETED, and a key names"]);
}

#[test]
fn a_compaction_that_loses_records() {
    check(Planted::CompactionLosesRecords, 1, &["is bad, and nobody damaged it"]);
}
