//! Members that need entries which are purged, in groups that have no snapshots.

use crate::cluster::{Cluster, DEADLINE, STEADY, body, eventually, pipeline};
use flotilla_raft::Role;
use metrics::Exposition;
use testkit::prometheus::Scrape;
use tokio::time::Instant;
use types::{GroupId, LogIndex, Payload, ReplicaId};

/// A group of which node 2 lacks what the logs of `purged` have forgotten; it is stopped.
async fn left_behind(cluster: &mut Cluster, group: GroupId, purged: &[usize]) -> LogIndex {
    cluster.open(group).await;
    let first = cluster.apply(group, "first".into(), Payload::default()).await.id.index;
    cluster.assert_same(group, first).await;
    cluster.stop_node(2).await;
    let mut last = first;
    for n in 0..20 {
        last = cluster.apply(group, format!("missed {n}"), body(n, 1000)).await.id.index;
    }
    cluster.assert_same(group, last).await;
    for &n in purged {
        let log = cluster.group(n, group).log().clone();
        let upto = log.id_at(LogIndex(last.0 - 5)).await.expect("an entry");
        drop(log);
        cluster.stop_node(n).await;
        cluster.purge_stopped(n, group, upto).await;
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    last
}

/// Makes a node lead.
async fn lead(cluster: &Cluster, group: GroupId, n: usize) {
    let replica = cluster.members(group)[n].replica;
    let deadline = Instant::now() + DEADLINE;
    while cluster.leader(group).await != n {
        let leader = cluster.leader(group).await;
        let _ = cluster.group(leader, group).transfer_leader(replica).await;
        assert!(Instant::now() < deadline, "node {n} does not lead");
    }
}

async fn reported(cluster: &Cluster, group: GroupId, n: usize, lost: ReplicaId) {
    eventually(&format!("{lost} is reported"), || {
        cluster.group(n, group).status().unserved.contains(&lost).then_some(())
    })
    .await;
    let mut exposition = Exposition::default();
    cluster.running(n).host.metrics().expose(&mut exposition);
    let page = Scrape::parse(&exposition.finish()).expect("a page");
    let labels = [("group", &*group.to_string())];
    assert_eq!(page.value("flotilla_raft_group_members_unserved", &labels), Some(1.0));
}

async fn all_well(cluster: &Cluster, group: GroupId, nodes: &[usize]) {
    for &n in nodes {
        let status = cluster.group(n, group).status();
        assert!(status.failure.is_none() && status.role != Role::Stopped, "node {n}: {status:?}");
        assert!(status.unserved.is_empty(), "node {n}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_is_reported_until_a_leader_with_a_longer_log_has_served_it() {
    let mut cluster = Cluster::start().await.with_timing(STEADY);
    let group = pipeline(1);
    left_behind(&mut cluster, group, &[0]).await;
    lead(&cluster, group, 0).await;
    cluster.start_node(2).await;
    cluster.open_on(2, group).await;
    let lost = cluster.members(group)[2].replica;
    reported(&cluster, group, 0, lost).await;
    // The others go on.
    let last = cluster.apply(group, "without it".into(), Payload::default()).await.id.index;
    lead(&cluster, group, 1).await;
    cluster.assert_same(group, last).await;
    all_well(&cluster, group, &[0, 1, 2]).await;
    lead(&cluster, group, 0).await;
    let last = cluster.apply(group, "after".into(), Payload::default()).await.id.index;
    cluster.assert_same(group, last).await;
    all_well(&cluster, group, &[0, 1, 2]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_member_is_reported_until_it_is_removed() {
    let mut cluster = Cluster::start().await.with_timing(STEADY);
    // SCM's group changes its members; the test's state machine has snapshots in groups of OMs only.
    let group = GroupId::SCM;
    left_behind(&mut cluster, group, &[0, 1]).await;
    cluster.start_node(2).await;
    cluster.open_on(2, group).await;
    let members = cluster.members(group);
    let leader = cluster.leader(group).await;
    reported(&cluster, group, leader, members[2].replica).await;
    cluster.apply(group, "without it".into(), Payload::default()).await;

    let leading = cluster.group(leader, group);
    leading.set_members(&members[..2], Instant::now() + DEADLINE).await.expect("it is removed");
    all_well(&cluster, group, &[0, 1]).await;
    let last = cluster.apply(group, "after".into(), Payload::default()).await.id.index;
    for n in [0, 1] {
        cluster.group(n, group).wait_applied(last, DEADLINE).await.expect("it is applied");
    }
    all_well(&cluster, group, &[0, 1]).await;
    drop(leading);
    cluster.stop().await;
}
