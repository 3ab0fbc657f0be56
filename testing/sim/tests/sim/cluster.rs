//! Whole clusters: a slice of what `./dev sim cluster` runs, and the bugs that it must find.

use super::seeds::{check_planted, check_repeated, check_slice};
use flotilla_sim::cluster::Planted;
use flotilla_sim::seeds::Simulated;

/// Seeds that are over soon.
const SLICE: [u64; 5] = [120, 1502, 84, 82, 419];
/// Events that must happen in one of them. Others are left to the campaign: no slice of a minute has all.
const REACHED: [&str; 38] = [
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
    "leaders_diverged",
    "quasi_closed_probed",
    "containers_waiting",
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
    "names_given",
    "names_deleted",
    "objects_given_up",
    "containers_swept",
    "orphans",
];
#[test]
fn a_slice_of_clusters_keeps_what_it_was_given() {
    check_slice(Simulated::Clusters, &SLICE, &REACHED);
}

/// The seed has an OM, and clients by the client crate.
#[test]
fn the_same_seed_takes_the_same_steps_in_every_process() {
    check_repeated(Simulated::Clusters, 367);
}

fn check(planted: Planted, first_seed: u64, expected: &[&str]) {
    check_planted(Simulated::Clusters, planted, first_seed, expected);
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
#[ignore = "a minute; scm's model of resolution finds it at once"]
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
#[ignore = "half a minute; the simulation of names finds it in seconds"]
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
