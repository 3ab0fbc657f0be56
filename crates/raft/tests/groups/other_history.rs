//! Members whose disks came back as they were before, and the one that knows better.

use crate::cluster::{Cluster, body, eventually, pipeline};
use flotilla_raft::Role;
use types::LogIndex;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_what_a_majority_has_lost_stops_and_says_why() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    let mut last = cluster.apply(group, "0".to_owned(), body(0, 100)).await.id.index;
    for n in 1..10 {
        last = cluster.apply(group, n.to_string(), body(n, 100)).await.id.index;
    }
    cluster.assert_same(group, last).await;
    for n in 0..3 {
        cluster.stop_node(n).await;
    }
    for n in 0..2 {
        cluster.lose_tail(n, group, LogIndex(last.0 - 5)).await;
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    cluster.apply(group, "other".to_owned(), body(11, 100)).await;

    cluster.start_node(2).await;
    let better = cluster.open_on(2, group).await;
    let failure = eventually("it stops", || {
        let status = better.status();
        (status.role == Role::Stopped).then_some(status.failure)
    })
    .await;
    assert!(failure.as_ref().is_some_and(|why| why.contains("is committed here")), "{failure:?}");
    let done = cluster.apply(group, "the others go on".to_owned(), body(12, 100)).await;
    for n in 0..2 {
        let status = cluster.group(n, group).status();
        assert_eq!((status.role == Role::Stopped, &status.failure), (false, &None), "node {n}: {done:?}");
    }
    cluster.stop().await;
}
