use crate::scenario::counts;

counts!(
    events,
    blocks,
    chunks,
    chunks_repeated,
    reads,
    reads_failed,
    containers,
    replicas_compared,
    copies,
    deletions,
    crashes,
    all_crashed,
    crashed_copying,
    scm_crashes,
    partitions,
    bad_links,
    full_disks,
    slow_disks,
    disks_failed,
    disks_lost,
    nodes_lost,
    bits_flipped,
    decommissions
);
