use crate::cluster::{Cluster, PATIENT, body, pipeline};
use flotilla_raft::{COMMAND_BYTES_MAX, Command, HostOptions, ProposeError};
use raftlog::LogSpaceOptions;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_past_the_byte_limit_are_busy_at_once_and_their_share_comes_back() {
    let limit = 100_000;
    let options = HostOptions { proposal_bytes_per_group_max: limit, ..HostOptions::default() };
    let mut cluster = Cluster::start_with(options, LogSpaceOptions::default()).await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "ready".into(), body(0, 10)).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    // Without followers nothing is applied, so proposals stay in flight; they are taken as long as the lease
    // lasts.
    for n in (0..3).filter(|&n| n != leader) {
        cluster.stop_node(n).await;
    }
    let command = |n| Command { meta: format!("{n}").into(), body: body(n, 30_000), roll_to: None };
    let mut proposals = Vec::new();
    for n in 0..3 {
        proposals.push(leading.propose(command(n)).await.expect("below the limit"));
    }
    match leading.propose(command(3)).await {
        Err(ProposeError::Busy { in_flight, limit: named }) => {
            assert_eq!(named, limit);
            assert!((90_000..=limit).contains(&in_flight), "{in_flight}");
        }
        other => panic!("expected Busy, got {:?}", other.map(|_| "a proposal")),
    }
    // Nobody waiting does not free anything: the bytes are still in memory.
    drop(proposals.pop());
    assert!(matches!(leading.propose(command(4)).await, Err(ProposeError::Busy { .. })));

    for n in (0..3).filter(|&n| n != leader) {
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    // Whatever became of them, their share is free again in the end.
    for n in 10..20 {
        let done = cluster.apply(group, format!("later {n}"), body(n, 60_000)).await;
        cluster.assert_same(group, done.id.index).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_above_the_message_size_is_refused_and_the_largest_is_not() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "ready".into(), body(0, 10)).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    let too_large = Command { body: body(1, COMMAND_BYTES_MAX + 1), ..Command::default() };
    match leading.apply(too_large).await {
        Err(ProposeError::TooLarge { bytes, limit }) => {
            assert_eq!((bytes, limit), (COMMAND_BYTES_MAX + 1, COMMAND_BYTES_MAX))
        }
        other => panic!("expected TooLarge, got {other:?}"),
    }
    let done = cluster.apply(group, String::new(), body(2, 4 << 20)).await;
    let largest = cluster.apply(group, String::new(), body(3, COMMAND_BYTES_MAX)).await;
    assert!(done.id < largest.id);
    cluster.assert_same(group, largest.id.index).await;
    cluster.stop().await;
}
