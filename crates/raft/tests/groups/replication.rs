use crate::cluster::{Cluster, DEADLINE, PATIENT, TIMING, body, eventually, pipeline};
use flotilla_raft::{Command, Role};
use futures::future::join_all;
use std::time::Duration;
use tokio::time::Instant;
use types::{LogIndex, OwnerId, Payload};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_elects_its_campaigner_within_a_second() {
    // Whoever waits for a timer needs four seconds.
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let mut seen = Vec::new();
    // The second includes making the replicas. A machine that stands still meanwhile shows nothing; another
    // group is made.
    for number in 1..=5 {
        let start = Instant::now();
        let groups = cluster.open(pipeline(number)).await;
        let mut leaders = Vec::new();
        for group in &groups {
            let mut watch = group.watch();
            let known = watch.wait_for(|status| status.leader.is_some());
            let known = tokio::time::timeout(DEADLINE, known).await.expect("a leader is known in time");
            leaders.push(known.expect("the group runs").leader.as_ref().map(|leader| leader.replica));
        }
        let took = start.elapsed();
        let campaigner = Some(groups[0].replica());
        if took < Duration::from_secs(1) && leaders.iter().all(|leader| *leader == campaigner) {
            cluster.stop().await;
            return;
        }
        seen.push((took, leaders));
    }
    panic!("no campaigner led within a second: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_campaigner_that_comes_first_waits_for_the_others() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    let first = cluster.open_on(0, group).await;
    assert_eq!(first.status().leader, None, "one of three elects nobody");
    cluster.open_on(1, group).await;
    assert_eq!(cluster.leader(group).await, 0);
    let done = cluster.apply(group, "two of three".into(), Payload::default()).await;
    cluster.open_on(2, group).await;
    cluster.assert_same(group, done.id.index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_apply_a_thousand_commands_with_bodies_alike() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "ready".into(), body(0, 10)).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    let before = cluster.ledger(leader, group).count();

    let mut proposals = Vec::new();
    for n in 0..1000u64 {
        let bytes = [0, 1, 100, 5000, 70_000][n as usize % 5];
        let command = Command { meta: format!("command {n}").into(), body: body(n, bytes), roll_to: None };
        proposals.push(leading.propose(command).await.expect("the leader takes it"));
    }
    let done: Vec<_> = join_all(proposals.into_iter().map(|proposal| proposal.done())).await;
    let done: Vec<_> = done.into_iter().map(|done| done.expect("applied")).collect();
    for (n, pair) in done.windows(2).enumerate() {
        assert!(pair[0].id.index < pair[1].id.index, "proposals {n} and {} keep their order", n + 1);
    }
    assert_eq!(done[7].reply, "re: command 7");
    cluster.assert_same(group, done[999].id.index).await;
    assert_eq!(cluster.ledger(2, group).count(), before + 1000);

    // The bodies stand in every replica's log.
    for n in 0..3 {
        let log = cluster.group(n, group).log().clone();
        for index in [done[4].id.index, done[503].id.index] {
            let entries = log.read(index..index.next(), usize::MAX).await.expect("read an entry");
            let number = if index == done[4].id.index { 4 } else { 503 };
            assert_eq!(entries[0].body, body(number, [0, 1, 100, 5000, 70_000][number as usize % 5]));
            assert_eq!(entries[0].meta, format!("command {number}"));
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_moves_later_records_of_all_replicas_to_the_new_owner() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "before".into(), body(1, 100)).await;
    let leader = cluster.leader(group).await;
    let roll = Command { meta: "roll".into(), body: Payload::default(), roll_to: Some(OwnerId(7_000_000)) };
    cluster.group(leader, group).apply(roll).await.expect("applied");
    let done = cluster.apply(group, "after".into(), body(2, 100)).await;
    cluster.assert_same(group, done.id.index).await;
    for n in 0..3 {
        assert_eq!(cluster.group(n, group).log().state().owner, OwnerId(7_000_000), "on node {n}");
        let at = done.id.index;
        let metas = cluster.group(n, group).log().read_meta(at..at.next(), 1).await.expect("read a record");
        assert_eq!(metas[0].place.owner, OwnerId(7_000_000), "on node {n}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_groups_share_hosts_and_stay_apart() {
    let mut cluster = Cluster::start().await;
    let groups: Vec<_> = (1..=6).map(pipeline).collect();
    for &group in &groups {
        cluster.open(group).await;
    }
    let sharing = &cluster;
    let applied = join_all(groups.iter().map(|&group| async move {
        let mut last = LogIndex(0);
        for n in 0..20 {
            last = sharing.apply(group, format!("{group} {n}"), body(n, 2000)).await.id.index;
        }
        last
    }))
    .await;
    for (&group, &last) in groups.iter().zip(&applied) {
        cluster.assert_same(group, last).await;
        assert!(cluster.ledger(0, group).count() >= 20);
    }
    let digests: std::collections::HashSet<u64> =
        groups.iter().map(|&it| cluster.ledger(0, it).digest()).collect();
    assert_eq!(digests.len(), groups.len(), "every group has its own commands");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_index_covers_what_was_acknowledged_on_every_member() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    let done = cluster.apply(group, "seen".into(), Payload::default()).await;
    cluster.leader(group).await;
    for n in 0..3 {
        let member = cluster.group(n, group);
        eventually("a leader is known", || member.status().leader).await;
        let index = member.read_index().await.expect("every member reads");
        assert!(index >= done.id.index);
        assert!(cluster.ledger(n, group).count() >= 1, "node {n} has not applied it");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_one_leads_itself_at_once_and_after_a_restart() {
    // Whoever waits for a timer needs four seconds.
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    let alone = cluster.members(group)[..1].to_vec();
    for round in 0..3u64 {
        let opened = cluster.open_with(0, group, alone.clone()).await.expect("open a group");
        let start = Instant::now();
        let mut watch = opened.watch();
        let leads = watch.wait_for(|status| status.role == Role::Leader);
        tokio::time::timeout(DEADLINE, leads).await.expect("it leads in time").expect("the group runs");
        let done =
            opened.apply(Command { meta: "alone".into(), ..Command::default() }).await.expect("applied");
        assert!(opened.read_index().await.expect("it reads") >= done.id.index);
        assert!(start.elapsed() < Duration::from_secs(3), "took {:?}", start.elapsed());
        assert_eq!(cluster.ledger(0, group).count(), round + 1);
        drop((opened, watch));
        cluster.stop_node(0).await;
        cluster.start_node(0).await;
    }
    cluster.stop().await;
}

/// A process that takes connections and never says anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_hangs_does_not_slow_the_others() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind a free port");
    cluster.stop_node(2).await;
    let address = silent.local_addr().expect("a bound address").to_string();
    cluster.addresses.set(cluster.nodes[2].id, address);
    let connections = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            held.push(connection);
        }
    });

    cluster.open_on(0, group).await;
    cluster.open_on(1, group).await;
    cluster.apply(group, "warm".into(), body(0, 10)).await;
    // A machine that stands still for as long as an election takes shows nothing; it is asked again.
    let mut seen = Vec::new();
    let last = loop {
        assert!(seen.len() < 5, "the slowest command, terms before and after: {seen:?}");
        // Longer than an election: heartbeats must reach the other follower in time all the while.
        let (start, mut last) = (Instant::now(), LogIndex(0));
        let term = || cluster.group(0, group).status().term;
        let before = term();
        let mut slowest = Duration::ZERO;
        while start.elapsed() < 3 * TIMING.election_max {
            let one = Instant::now();
            last = cluster.apply(group, "while one hangs".into(), body(1, 10_000)).await.id.index;
            slowest = slowest.max(one.elapsed());
        }
        let after = term();
        if before == after && slowest < Duration::from_secs(1) {
            break last;
        }
        seen.push((slowest, before, after));
    };
    cluster.assert_same(group, last).await;
    connections.abort();
    cluster.stop().await;
}
