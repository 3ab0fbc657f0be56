use crate::cluster::{Cluster, DEADLINE, PATIENT, body, eventually, pipeline};
use flotilla_raft::{HostOptions, WaitAllError, WaitError};
use raftlog::LogSpaceOptions;
use std::time::Duration;
use tokio::time::Instant;
use types::LogIndex;

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_the_limit_whoever_wants_to_wait_is_told_at_once() {
    let options = HostOptions { waits_max: 2, ..HostOptions::default() };
    let mut cluster = Cluster::start_with(options, LogSpaceOptions::default()).await;
    let (group, other) = (pipeline(1), pipeline(2));
    cluster.open(group).await;
    cluster.open(other).await;
    let done = cluster.apply(group, "one".into(), body(1, 100)).await;
    let replica = cluster.group(0, group);
    assert_eq!(replica.wait_applied(done.id.index, DEADLINE).await, Ok(()));
    let never = LogIndex(1 << 40);
    let wait = |group| {
        let replica = cluster.group(0, group);
        // The third one, which only tries, may be in the lot for a moment.
        tokio::spawn(async move {
            loop {
                match replica.wait_applied(never, DEADLINE).await {
                    Err(WaitError::Busy { .. }) => tokio::task::yield_now().await,
                    ended => return ended,
                }
            }
        })
    };
    let waiting = [wait(group), wait(other)];
    let began = Instant::now();
    // The two are in the lot, whatever group they wait for, as soon as a third finds no room.
    loop {
        match replica.wait_applied(never, Duration::from_millis(5)).await {
            Err(WaitError::Busy { limit: 2 }) => break,
            Err(WaitError::Expired) => assert!(began.elapsed() < DEADLINE, "there is always room"),
            other => panic!("nothing was applied, got {other:?}"),
        }
    }
    assert_eq!(replica.wait_applied(done.id.index, DEADLINE).await, Ok(()), "what is reached needs no room");
    // Who waits for a group that is closed is told.
    drop(replica);
    cluster.running(0).host.close(group).await;
    cluster.running(0).host.close(other).await;
    for waiting in waiting {
        assert_eq!(waiting.await.expect("the task ends"), Err(WaitError::Stopped));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_on_all_members_or_those_without_it_are_named() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    let done = cluster.apply(group, "one".into(), body(1, 100)).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    assert_eq!(leading.wait_all(done.id.index, soon()).await, Ok(()));
    for n in 0..3 {
        let last = cluster.group(n, group).log().state().last;
        assert!(last >= Some(done.id), "node {n} ends at {last:?}");
    }
    let follower = (leader + 1) % 3;
    let refused = cluster.group(follower, group).wait_all(done.id.index, soon()).await;
    assert_eq!(refused, Err(WaitAllError::NotLeader));

    let away = cluster.group(follower, group).replica();
    cluster.stop_node(follower).await;
    let later = cluster.apply(group, "two".into(), body(2, 100)).await;
    match leading.wait_all(later.id.index, Instant::now() + Duration::from_millis(200)).await {
        Err(WaitAllError::Missing { missing }) => {
            let named: Vec<_> = missing.iter().map(|lag| lag.replica).collect();
            assert_eq!(named, [away]);
        }
        other => panic!("a member is away, got {other:?}"),
    }
    // Many wait, and all are told when it is back.
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let (leading, index) = (leading.clone(), later.id.index);
            tokio::spawn(async move { leading.wait_all(index, soon()).await })
        })
        .collect();
    cluster.start_node(follower).await;
    cluster.open_on(follower, group).await;
    for waiting in waiting {
        assert_eq!(waiting.await.expect("the task ends"), Ok(()));
    }
    let last = || (cluster.group(follower, group).log().state().last >= Some(later.id)).then_some(());
    eventually("the follower has it", last).await;
    drop(leading);
    cluster.stop().await;
}
