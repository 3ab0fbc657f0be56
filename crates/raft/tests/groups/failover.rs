use crate::cluster::{Cluster, DEADLINE, PATIENT, body, eventually, pipeline};
use crate::ledger::HANGS;
use flotilla_raft::{Command, ProposeError, Role};
use std::time::Duration;
use tokio::time::Instant;
use types::Payload;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_leader_goes_another_takes_over_with_all_acknowledged_commands() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    for n in 0..50 {
        cluster.apply(group, format!("before {n}"), body(n, 3000)).await;
    }
    let old = cluster.leader(group).await;
    cluster.stop_node(old).await;
    let mut last = None;
    for n in 0..50 {
        last = Some(cluster.apply(group, format!("after {n}"), body(n, 3000)).await);
    }
    let new = cluster.leader(group).await;
    assert_ne!(new, old);
    let last = last.expect("applied some");
    cluster.assert_same(group, last.id.index).await;
    assert!(cluster.ledger(new, group).count() >= 100);

    cluster.start_node(old).await;
    cluster.open_on(old, group).await;
    cluster.assert_same(group, last.id.index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_only_the_group_of_the_leader_moves_leadership_too() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "one".into(), Payload::default()).await;
    let old = cluster.leader(group).await;
    let handle = cluster.group(old, group);
    cluster.running(old).host.close(group).await;
    assert_eq!(handle.status().role, Role::Stopped);
    match handle.apply(Command::default()).await {
        Err(ProposeError::Stopped { .. }) => {}
        other => panic!("a closed group takes nothing, got {other:?}"),
    }
    let done = cluster.apply(group, "two".into(), Payload::default()).await;
    assert_ne!(cluster.leader(group).await, old);
    cluster.assert_same(group, done.id.index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_where_it_is_told_to() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "one".into(), body(1, 100)).await;
    let old = cluster.leader(group).await;
    let new = (old + 1) % 3;
    let to = cluster.group(new, group).replica();
    cluster.group(old, group).transfer_leader(to).await.expect("the target takes over");
    // It was waited for on another of openraft's channels, which has the news a moment earlier than `status`.
    let leads = |n: usize| cluster.group(n, group).status().role == Role::Leader;
    eventually("one leads and the other does not", || (leads(new) && !leads(old)).then_some(())).await;
    match cluster.group(old, group).apply(Command::default()).await {
        Err(ProposeError::NotLeader { leader }) => assert_eq!(leader.map(|leader| leader.replica), Some(to)),
        other => panic!("the old leader redirects, got {other:?}"),
    }
    let done = cluster.apply(group, "two".into(), body(2, 100)).await;
    cluster.assert_same(group, done.id.index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_hands_leadership_over() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "one".into(), Payload::default()).await;
    let old = cluster.leader(group).await;
    let term = cluster.group(old, group).status().term;
    cluster.running(old).host.shutdown().await;
    assert!(cluster.running(old).host.groups().is_empty());
    let new = cluster.leader(group).await;
    assert!(cluster.group(new, group).status().term > term);
    cluster.apply(group, "two".into(), Payload::default()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_a_command_is_not_acknowledged_and_later_outcomes_are_told_apart() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "one".into(), Payload::default()).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    for n in (0..3).filter(|&n| n != leader) {
        cluster.stop_node(n).await;
    }
    let alone =
        leading.propose(Command { meta: "alone".into(), ..Command::default() }).await.expect("it is queued");
    cluster.running(leader).host.close(group).await;
    match alone.done().await {
        Err(ProposeError::OutcomeUnknown) => {}
        other => panic!("nobody can know, got {other:?}"),
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_machine_that_fails_stops_its_replica_with_the_reason() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "fine".into(), Payload::default()).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    let outcome = leading.apply(Command { meta: "fail".into(), ..Command::default() }).await;
    assert!(matches!(outcome, Err(ProposeError::OutcomeUnknown)), "got {outcome:?}");
    let mut watch = leading.watch();
    let status =
        watch.wait_for(|status| status.role == Role::Stopped).await.expect("the last status stays").clone();
    let failure = status.failure.expect("a reason");
    assert!(failure.contains("told to fail"), "{failure}");
    eventually("status() says so too", || (leading.status().role == Role::Stopped).then_some(())).await;
    cluster.stop().await;
}

/// A follower that is down is asked again after a pause: whoever asks in a loop burns a core for each dead
/// node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_down_is_not_asked_in_a_loop() {
    let group = pipeline(1);
    let mut cluster = Cluster::start().await;
    cluster.open(group).await;
    let leader = cluster.leader(group).await;
    let follower = (leader + 1) % 3;
    cluster.stop_node(follower).await;

    // In its place: a port that counts who comes, and turns everybody away.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    cluster.addresses.set(cluster.nodes[follower].id, listener.local_addr().unwrap().to_string());
    cluster.apply(group, "while it is down".to_owned(), Payload::default()).await;
    let first = tokio::time::timeout(DEADLINE, listener.accept()).await;
    drop(first.expect("somebody looks for the follower").unwrap());
    let (mut connections, until) = (1, Instant::now() + Duration::from_secs(2));
    while let Ok(connection) = tokio::time::timeout_at(until, listener.accept()).await {
        drop(connection.unwrap());
        connections += 1;
    }
    assert!(connections < 200, "{connections} connections in 2 s");
    cluster.stop().await;
}

/// Who asks a follower goes to the leader, however full the follower's disk is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_on_a_full_disk_names_the_leader() {
    let group = pipeline(1);
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    cluster.open(group).await;
    cluster.apply(group, "before".into(), Payload::default()).await;
    let follower = (cluster.leader(group).await + 1) % 3;
    cluster.stop_node(follower).await;
    cluster.start_full(follower).await;
    let full = cluster.open_on(follower, group).await;
    assert!(cluster.running(follower).space.check_space(1).is_err());
    let knows_who_leads = || full.status().leader.filter(|_| full.status().role != Role::Leader);
    eventually("it hears of a leader", knows_who_leads).await;
    let refused = full.propose(Command { meta: "here".into(), ..Command::default() }).await.err();
    assert!(matches!(refused, Some(ProposeError::NotLeader { leader: Some(_) })), "got {refused:?}");
    assert_eq!(full.metrics().tally.disk_full, 0);
    cluster.stop().await;
}

/// The leader's disk hangs under what is committed, and its heartbeats go on.
#[allow(clippy::disallowed_methods)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_applies_nothing_lets_another_one_lead() {
    let group = pipeline(1);
    let mut cluster = Cluster::start().await;
    cluster.open(group).await;
    cluster.apply(group, "before".into(), Payload::default()).await;
    let old = cluster.leader(group).await;
    let hangs = cluster.nodes[old].dir.join(HANGS);
    std::fs::write(&hangs, "").unwrap();
    let leading = cluster.group(old, group);
    let asked = tokio::spawn(async move {
        leading.apply(Command { meta: "hang".into(), ..Command::default() }).await.map(|done| done.id)
    });
    let leads = |n: &usize| *n != old && cluster.group(*n, group).status().role == Role::Leader;
    let command = Command { meta: "after".into(), ..Command::default() };
    let deadline = Instant::now() + DEADLINE;
    let last = loop {
        let new = eventually("another one leads", || (0..3).find(leads)).await;
        match cluster.group(new, group).apply(command.clone()).await {
            Ok(done) => break done.id.index,
            Err(error) if Instant::now() > deadline => panic!("two are a majority: {error}"),
            // On a machine that stalls the others elect again.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    std::fs::remove_file(&hangs).unwrap();
    cluster.assert_same(group, last).await;
    drop(asked.await);
    cluster.stop().await;
}
