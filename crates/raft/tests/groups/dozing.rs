use crate::cluster::{Cluster, DEADLINE, PATIENT, STEADY, TIMING, body, eventually, pipeline};
use flotilla_raft::{Command, Done, HostOptions, ProposeError, Role, Timing};
use raftlog::LogSpaceOptions;
use std::time::Duration;
use tokio::time::Instant;
use types::{GroupId, Payload, Term};

/// A leader that vanished is replaced by then: its lease, the longest election timeout, the interval at which
/// sleepers look around, and as much again for a busy machine.
const FAILOVER_MAX: Duration = Duration::from_millis(2 * (800 + 800 + 800 / 6));

/// A cluster whose groups doze after a moment, with one group that does.
async fn dozing_cluster(timing: Timing) -> (Cluster, GroupId, usize) {
    let options = HostOptions { doze_after: Some(Duration::from_millis(300)), ..HostOptions::default() };
    let mut cluster = Cluster::start_with(options, LogSpaceOptions::default()).await.with_timing(timing);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "first".into(), body(1, 1000)).await;
    let leader = all_doze(&cluster, group).await;
    (cluster, group, leader)
}

/// Waits until every open replica dozes; its leader.
async fn all_doze(cluster: &Cluster, group: GroupId) -> usize {
    let up = cluster.up(group);
    let dozes = || up.iter().all(|&n| cluster.group(n, group).status().is_dozing);
    eventually("all replicas doze", || dozes().then_some(())).await;
    cluster.leader(group).await
}

fn term(cluster: &Cluster, n: usize, group: GroupId) -> Term {
    cluster.group(n, group).status().term
}

/// A command is applied by all, and they doze again.
async fn assert_works(cluster: &Cluster, group: GroupId) {
    let done = cluster.apply(group, "works".into(), body(7, 2000)).await;
    cluster.assert_same(group, done.id.index).await;
    all_doze(cluster, group).await;
}

/// Waits until one of `nodes` leads.
async fn failover(cluster: &Cluster, group: GroupId, nodes: &[usize]) -> usize {
    let leads = |n: usize| cluster.group(n, group).status().role == Role::Leader;
    eventually("another leader", || nodes.iter().copied().find(|&n| leads(n))).await
}

/// `replace` sees how long a failover takes: no longer than without dozing. A machine that stands still
/// meanwhile makes it late, and shows nothing; it is asked again, with another cluster.
async fn assert_in_time(replace: impl AsyncFn() -> Duration) {
    let mut took = Vec::new();
    while took.len() < 5 {
        took.push(replace().await);
        if took.last() < Some(&FAILOVER_MAX) {
            return;
        }
    }
    panic!("failovers took {took:?}");
}

/// Proposes to one node, which has just been elected, until it knows that a majority follows it.
async fn apply_on(cluster: &Cluster, n: usize, group: GroupId) -> Done {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let command = Command { meta: "new".into(), ..Command::default() };
        match cluster.group(n, group).apply(command).await {
            Ok(done) => return done,
            Err(ProposeError::NotLeader { leader: None }) if Instant::now() < deadline => {}
            Err(error) => panic!("the new leader takes no command: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn others(n: usize) -> [usize; 2] {
    [(n + 1) % 3, (n + 2) % 3]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_group_keeps_no_entries_in_memory_and_serves_them_still() {
    let (mut cluster, group, leader) = dozing_cluster(STEADY).await;
    let cached = |n: usize| cluster.running(n).space.metrics().cached_bytes;
    eventually("nothing is cached", || (0..3).all(|n| cached(n) == 0).then_some(())).await;
    // One that lost its state is sent all of it from the leader's disk.
    let behind = others(leader)[0];
    cluster.stop_node(behind).await;
    assert_works(&cluster, group).await;
    eventually("nothing is cached", || {
        (cluster.running(leader).space.metrics().cached_bytes == 0).then_some(())
    })
    .await;
    cluster.start_node(behind).await;
    cluster.open_on(behind, group).await;
    assert_works(&cluster, group).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_group_dozes_and_keeps_its_leader() {
    let (cluster, group, leader) = dozing_cluster(STEADY).await;
    let before = term(&cluster, leader, group);
    // Who hears no leader stands for election after two at the latest.
    let until = Instant::now() + 3 * STEADY.election_max;
    let mut awake = 0;
    eventually("three leases have passed", || {
        awake += usize::from((0..3).any(|n| !cluster.group(n, group).status().is_dozing));
        (Instant::now() > until).then_some(())
    })
    .await;
    assert_eq!(term(&cluster, leader, group), before, "an election took place while the group dozed");
    assert_eq!(cluster.leader(group).await, leader);
    // A machine that stands still for most of a lease wakes them, rightly.
    let looked = 3 * STEADY.election_max.as_millis() / 5;
    assert!((awake as u128) < looked / 2, "awake {awake} times of at most {looked}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_taken_by_a_dozing_leader_at_once_and_wakes_the_group() {
    let (cluster, group, leader) = dozing_cluster(STEADY).await;
    // Longer than the lease: heartbeats must have renewed it.
    let until = Instant::now() + STEADY.election_max * 3 / 2;
    eventually("a lease and a half have passed", || (Instant::now() > until).then_some(())).await;
    // Where the command takes long, it dozes again when that is done: what is counted stays.
    let dozes_ended = || cluster.group(leader, group).metrics().dozes_ended;
    let before = dozes_ended();
    assert_eq!(all_doze(&cluster, group).await, leader);
    let command = Command { meta: "second".into(), body: body(2, 5000), roll_to: None };
    let done = cluster.group(leader, group).apply(command).await.expect("a dozing leader takes commands");
    assert!(dozes_ended() > before, "a command woke it");
    cluster.assert_same(group, done.id.index).await;
    cluster.group(leader, group).read_index().await.expect("it serves reads");
    all_doze(&cluster, group).await;
    cluster.group(leader, group).read_index().await.expect("it serves reads while it dozes");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_while_all_doze_is_replaced_in_time() {
    assert_in_time(async || {
        let (mut cluster, group, old) = dozing_cluster(TIMING).await;
        let since = Instant::now();
        cluster.stop_node(old).await;
        failover(&cluster, group, &others(old)).await;
        let took = since.elapsed();
        assert_works(&cluster, group).await;
        cluster.start_node(old).await;
        cluster.open_on(old, group).await;
        assert_works(&cluster, group).await;
        cluster.stop().await;
        took
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_group_is_closed_while_all_doze_is_replaced_in_time() {
    assert_in_time(async || {
        let (cluster, group, old) = dozing_cluster(TIMING).await;
        let since = Instant::now();
        cluster.running(old).host.close(group).await;
        failover(&cluster, group, &others(old)).await;
        let took = since.elapsed();
        assert_works(&cluster, group).await;
        cluster.stop().await;
        took
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_closed_or_restarts_deposes_no_dozing_leader() {
    let (mut cluster, group, leader) = dozing_cluster(STEADY).await;
    let before = term(&cluster, leader, group);
    let [follower, other] = others(leader);
    cluster.stop_node(follower).await;
    cluster.running(other).host.close(group).await;
    cluster.open_on(other, group).await;
    assert_works(&cluster, group).await;
    cluster.start_node(follower).await;
    cluster.open_on(follower, group).await;
    assert_works(&cluster, group).await;
    assert_eq!(cluster.leader(group).await, leader);
    assert_eq!(term(&cluster, leader, group), before);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_restarted_out_of_a_doze_elect_a_leader() {
    let (mut cluster, group, _) = dozing_cluster(TIMING).await;
    for n in 0..3 {
        cluster.stop_node(n).await;
    }
    for n in 0..3 {
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    assert_works(&cluster, group).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dozing_leader_that_is_cut_off_is_replaced_and_acknowledges_nothing() {
    assert_in_time(async || {
        let (cluster, group, old) = dozing_cluster(TIMING).await;
        let since = Instant::now();
        cluster.links.isolate(cluster.nodes[old].id);
        let lost = Command { meta: "lost".into(), ..Command::default() };
        let lost = cluster.group(old, group).propose(lost).await;
        let new = failover(&cluster, group, &others(old)).await;
        let took = since.elapsed();
        let done = apply_on(&cluster, new, group).await;
        if let Ok(lost) = lost
            && let Ok(Ok(done)) = tokio::time::timeout(TIMING.election_max, lost.done()).await
        {
            panic!("a leader without a majority acknowledged {done:?}");
        }
        cluster.links.mend();
        cluster.assert_same(group, done.id.index).await;
        assert_works(&cluster, group).await;
        cluster.stop().await;
        took
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dozing_follower_that_is_cut_off_deposes_nobody_and_catches_up() {
    let (cluster, group, leader) = dozing_cluster(STEADY).await;
    let before = term(&cluster, leader, group);
    let [follower, _] = others(leader);
    cluster.links.isolate(cluster.nodes[follower].id);
    let awake = || !cluster.group(follower, group).status().is_dozing;
    eventually("the follower misses its leader", || awake().then_some(())).await;
    let done = cluster.apply(group, "meanwhile".into(), body(3, 3000)).await;
    let applied = cluster.group(leader, group).wait_applied(done.id.index, DEADLINE).await;
    applied.expect("the leader has applied what it acknowledged");
    cluster.links.mend();
    cluster.assert_same(group, done.id.index).await;
    assert_works(&cluster, group).await;
    assert_eq!(term(&cluster, leader, group), before, "the follower deposed a healthy leader");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_fails_one_way_while_all_doze_leaves_a_group_that_works() {
    let (cluster, group, leader) = dozing_cluster(STEADY).await;
    let before = term(&cluster, leader, group);
    let [follower, _] = others(leader);
    // The follower hears nothing of its leader, but can ask everybody.
    cluster.links.cut(cluster.nodes[leader].id, cluster.nodes[follower].id);
    let awake = || !cluster.group(follower, group).status().is_dozing;
    eventually("the follower misses its leader", || awake().then_some(())).await;
    cluster.apply(group, "meanwhile".into(), Payload::default()).await;
    assert_eq!(term(&cluster, leader, group), before, "the follower deposed a healthy leader");
    cluster.links.mend();
    assert_works(&cluster, group).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_that_are_late_change_nothing() {
    let (cluster, group, leader) = dozing_cluster(STEADY).await;
    let before = term(&cluster, leader, group);
    for _ in 0..3 {
        cluster.links.isolate(cluster.nodes[leader].id);
        let until = Instant::now() + STEADY.election_max / 3;
        eventually("a third of a lease has passed", || (Instant::now() > until).then_some(())).await;
        cluster.links.mend();
        let until = Instant::now() + STEADY.election_max / 3;
        eventually("a third of a lease has passed", || (Instant::now() > until).then_some(())).await;
    }
    assert_eq!(cluster.leader(group).await, leader);
    assert_eq!(term(&cluster, leader, group), before);
    assert_works(&cluster, group).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_while_all_doze_and_one_member_learns_of_it_late() {
    let (cluster, group, old) = dozing_cluster(PATIENT).await;
    let [new, late] = others(old);
    cluster.links.isolate(cluster.nodes[late].id);
    let to = cluster.group(new, group).replica();
    cluster.group(old, group).transfer_leader(to).await.expect("the target takes over");
    let index = apply_on(&cluster, new, group).await.id.index;
    cluster.links.mend();
    cluster.assert_same(group, index).await;
    eventually("the late one follows the new leader", || {
        let leader = cluster.group(late, group).status().leader?;
        (leader.replica == to).then_some(())
    })
    .await;
    assert_works(&cluster, group).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_dozing_is_off_nobody_dozes_and_where_it_is_on_that_does_not_matter() {
    let (mut cluster, group, _) = dozing_cluster(TIMING).await;
    cluster.stop_node(2).await;
    cluster.host_options.doze_after = None;
    cluster.start_node(2).await;
    cluster.open_on(2, group).await;
    let done = cluster.apply(group, "mixed".into(), Payload::default()).await;
    cluster.assert_same(group, done.id.index).await;
    let dozing = |n: usize| cluster.group(n, group).status().is_dozing;
    eventually("the other two doze", || (dozing(0) && dozing(1)).then_some(())).await;
    assert!(!dozing(2));
    cluster.stop().await;
}
