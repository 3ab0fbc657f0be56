use crate::cluster::{Cluster, body, pipeline};
use flotilla_raft::{HostOptions, OpenGroupError};
use raftlog::LogSpaceOptions;
use types::{LogIndex, Payload};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_of_all_three_keeps_everything() {
    let mut cluster = Cluster::start().await;
    let groups = [pipeline(1), pipeline(2)];
    let mut before = Vec::new();
    for group in groups {
        cluster.open(group).await;
        for n in 0..40 {
            cluster.apply(group, format!("{group} {n}"), body(n, 10_000)).await;
        }
        let done = cluster.apply(group, "last".into(), Payload::default()).await;
        cluster.assert_same(group, done.id.index).await;
        before.push((cluster.ledger(0, group).count(), cluster.ledger(0, group).digest(), done.id.index));
    }
    for round in 0..2 {
        for n in 0..3 {
            cluster.stop_node(n).await;
        }
        for n in 0..3 {
            cluster.start_node(n).await;
        }
        for (&group, &(count, digest, index)) in groups.iter().zip(&before) {
            cluster.open(group).await;
            cluster.leader(group).await;
            cluster.assert_same(group, index).await;
            let ledger = cluster.ledger(2, group);
            assert_eq!((ledger.count(), ledger.digest()), (count, digest), "{group} after restart {round}");
        }
    }
    for group in groups {
        let done = cluster.apply(group, "after".into(), body(1, 100)).await;
        cluster.assert_same(group, done.id.index).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_for_longer_than_the_cache_holds_catches_up() {
    let cache = LogSpaceOptions {
        cache_bytes_per_log_max: 256 << 10,
        cache_bytes_max: 1 << 20,
        ..Default::default()
    };
    let window = HostOptions { window_bytes: 300_000, append_bytes_max: 100_000, ..HostOptions::default() };
    let mut cluster = Cluster::start_with(window, cache).await;
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "first".into(), body(0, 5000)).await;
    let away = (cluster.leader(group).await + 1) % 3;
    cluster.stop_node(away).await;
    let mut last = None;
    for n in 0..120 {
        last = Some(cluster.apply(group, format!("missed {n}"), body(n, 50_000)).await);
    }
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    let last = last.expect("applied some");
    cluster.assert_same(group, last.id.index).await;
    let index = last.id.index;
    let entries = cluster.group(away, group).log().read(index..index.next(), 1).await.expect("read an entry");
    assert_eq!(entries[0].body, body(119, 50_000));
    cluster.stop().await;
}

/// A torn tail: the leader leads on while the follower is away and returns with less than it had
/// acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lost_what_it_acknowledged_is_sent_it_again() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    for n in 0..20 {
        cluster.apply(group, format!("kept {n}"), body(n, 1000)).await;
    }
    let last = cluster.apply(group, "lost".into(), body(7, 1000)).await.id.index;
    cluster.assert_same(group, last).await;
    let leader = cluster.leader(group).await;
    let term = cluster.group(leader, group).status().term;
    let short = (leader + 1) % 3;
    cluster.stop_node(short).await;
    cluster.lose_tail(short, group, LogIndex(last.0 - 5)).await;
    cluster.start_node(short).await;
    cluster.open_on(short, group).await;

    let after = cluster.apply(group, "after".into(), body(8, 1000)).await.id.index;
    cluster.assert_same(group, after).await;
    assert_eq!(cluster.group(leader, group).status().term, term, "the leader led on");
    let reverted = cluster.running(leader).host.metrics().groups[0].tally.logs_reverted;
    assert!(reverted >= 1, "it is told of");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_open_once_and_may_be_opened_again_when_closed() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    let done = cluster.apply(group, "one".into(), body(1, 100)).await;
    cluster.assert_same(group, done.id.index).await;

    let running = cluster.running(2);
    let spec = flotilla_raft::GroupSpec {
        cluster: crate::cluster::CLUSTER.to_owned(),
        group,
        replica: cluster.members(group)[2].replica,
        timing: crate::cluster::TIMING,
        start: flotilla_raft::GroupStart::First(cluster.members(group)),
        campaign: false,
        snapshots: None,
        lease_reads: false,
    };
    let log = raftlog::LogSpec {
        log: 99,
        dir: "groups/another".to_owned(),
        owners_dir: "containers".to_owned(),
        first_owner: types::OwnerId(99),
    };
    let ledger = crate::ledger::Ledger::open(&running.disk, "db-another", false).await;
    match running.host.open(spec, &running.space, log, ledger).await {
        Err(OpenGroupError::AlreadyOpen { group: named }) => assert_eq!(named, group),
        Ok(_) => panic!("one group is open twice"),
        Err(other) => panic!("expected AlreadyOpen, got {other}"),
    }

    cluster.running(2).host.close(group).await;
    cluster.open_on(2, group).await;
    let done = cluster.apply(group, "two".into(), body(2, 100)).await;
    cluster.assert_same(group, done.id.index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_not_opened_for_another_replica_or_without_its_state() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    let alone = cluster.members(group)[..1].to_vec();
    cluster.open_with(0, group, alone.clone()).await.expect("open a group");
    cluster.apply(group, "one".into(), body(1, 100)).await;
    cluster.running(0).host.close(group).await;

    let mut renamed = alone.clone();
    renamed[0].replica = types::ReplicaId(4711);
    // `members()` names the replica that is opened, so the log is asked for as 4711's.
    match cluster.open_with(0, group, renamed).await {
        Err(OpenGroupError::Failed { why, .. }) => assert!(why.contains("another group or replica"), "{why}"),
        Ok(_) => panic!("opened under another name"),
        Err(other) => panic!("expected Failed, got {other}"),
    }
    cluster.open_with(0, group, alone.clone()).await.expect("under its own name it opens");
    cluster.running(0).host.close(group).await;

    // The state machine has applied what a log at another place does not have.
    match cluster.open_at(0, group, alone, "groups/elsewhere", "elsewhere").await {
        Err(OpenGroupError::Failed { why, .. }) => assert!(why.contains("the log was lost"), "{why}"),
        Ok(_) => panic!("opened without its log"),
        Err(other) => panic!("expected Failed, got {other}"),
    }
    cluster.stop().await;
}

/// A command may be committed by the followers' disks before the leader's own has it. When all stop at that
/// moment, the leader comes back without it, and must not lead on in its old term: it would give the
/// command's log id to another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_unsynced_tail_does_not_reuse_its_log_ids() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    for n in 0..5 {
        cluster.apply(group, format!("kept {n}"), body(n, 1000)).await;
    }
    let acknowledged = cluster.apply(group, "acknowledged".into(), body(9, 1000)).await;
    cluster.assert_same(group, acknowledged.id.index).await;
    let leader = cluster.leader(group).await;
    for n in 0..3 {
        cluster.stop_node(n).await;
    }
    cluster.lose_tail(leader, group, acknowledged.id.index).await;

    // The leader first and, for a moment, alone with its memory of having led.
    for n in [leader, (leader + 1) % 3, (leader + 2) % 3] {
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    let mut last = None;
    for n in 0..5 {
        last = Some(cluster.apply(group, format!("later {n}"), body(n, 1000)).await);
    }
    let last = last.expect("applied some").id.index;
    cluster.assert_same(group, last).await;
    for n in 0..3 {
        let at = acknowledged.id.index;
        let entries = cluster.group(n, group).log().read(at..at.next(), 1).await.expect("read an entry");
        assert_eq!(entries[0].body, body(9, 1000), "node {n} has another command at {at}");
    }
    cluster.stop().await;
}
