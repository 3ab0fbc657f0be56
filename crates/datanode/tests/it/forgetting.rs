//! Logs are forgotten up to what all three members have, and no further.

use crate::cluster::{Acked, Cluster, DEADLINE, FIRST_CONTAINER, PIPELINE, bytes, chunk, options};
use crate::ending::report;
use flotilla_datanode::DatanodeOptions;
use proto::Code;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use types::GroupId;

const LOOK: Duration = Duration::from_millis(20);

fn quick() -> DatanodeOptions {
    DatanodeOptions {
        container_bytes_max: 2 << 20,
        log_tail_bytes: 256 << 10,
        forget_interval: LOOK,
        ..options()
    }
}

struct Writer {
    number: u64,
    written: Vec<(Acked, Vec<u8>)>,
}

impl Writer {
    /// Writes blocks of 100 KB through whoever leads.
    async fn write(&mut self, cluster: &Cluster, leader: usize, count: u64) {
        let mut stream = cluster.nodes[leader].write_stream().await;
        let deadline = Instant::now() + DEADLINE;
        for _ in 0..count {
            self.number += 1;
            let data = bytes(self.number, 100_000);
            loop {
                assert!(Instant::now() < deadline, "writing takes too long");
                match stream.write(chunk(u128::from(self.number), 0, 0, &data, true)).await {
                    Ok(acked) => break self.written.push((acked, data)),
                    // The container is full: the next one comes.
                    Err(failure) => assert_eq!(failure.code, Code::Closed, "{failure}"),
                }
                tokio::task::yield_now().await;
            }
        }
    }

    async fn check(&self, cluster: &Cluster) {
        let last = self.written.last().unwrap().0.commit_index;
        for (acked, data) in &self.written {
            cluster.check_block(acked.block, last, data).await;
        }
    }
}

async fn wait_purged(cluster: &Cluster, past: u64) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let purged: Vec<u64> =
            (0..cluster.nodes.len()).map(|node| report(cluster, node).unwrap().forgotten_index).collect();
        if purged.iter().all(|purged| *purged > past) {
            return;
        }
        assert!(Instant::now() < deadline, "the logs are forgotten up to {purged:?}, not past {past}");
        sleep(LOOK).await;
    }
}

async fn wait_applied(cluster: &Cluster, index: u64) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let applied: Vec<u64> =
            (0..cluster.nodes.len()).map(|node| report(cluster, node).unwrap().applied_index).collect();
        if applied.iter().all(|applied| *applied >= index) {
            return;
        }
        assert!(Instant::now() < deadline, "applied is {applied:?}, not {index}");
        sleep(LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_forgotten_up_to_what_all_members_have() {
    let mut cluster = Cluster::start(quick()).await;
    let mut writer = Writer { number: 0, written: Vec::new() };
    let leader = cluster.wait_for_leader().await;
    writer.write(&cluster, leader, 30).await;
    wait_purged(&cluster, 10).await;
    writer.check(&cluster).await;

    // The last node that does not lead goes away.
    let leader = cluster.wait_for_leader().await;
    let away = if leader == 2 { 1 } else { 2 };
    let has = report(&cluster, away).unwrap().last_index;
    cluster.stop_node(away).await;
    let leader = if away < leader { leader - 1 } else { leader };
    writer.write(&cluster, leader, 40).await;
    wait_applied(&cluster, has + 40).await;
    // Long enough for many looks, which could forget all of it now.
    sleep(30 * LOOK).await;
    for node in 0..2 {
        let report = report(&cluster, node).unwrap();
        assert!(
            report.forgotten_index <= has,
            "forgotten up to {}, one has {has}: {report:?}",
            report.forgotten_index
        );
    }
    cluster.start_node(away).await;
    cluster.wait_for_leader().await;
    wait_purged(&cluster, has).await;
    writer.check(&cluster).await;

    // All of it again, from what the disks say.
    let purged: Vec<u64> = (0..3).map(|node| report(&cluster, node).unwrap().forgotten_index).collect();
    cluster.restart().await;
    let leader = cluster.wait_for_leader().await;
    for (node, purged) in purged.iter().enumerate() {
        assert!(report(&cluster, node).unwrap().forgotten_index >= *purged, "node {node}");
    }
    writer.write(&cluster, leader, 5).await;
    writer.check(&cluster).await;

    // The first container's records are all forgotten: its blocks can be deleted though the pipeline goes on.
    let (gone, _) = &writer.written[0];
    assert_eq!(gone.block.container, FIRST_CONTAINER);
    for node in &cluster.nodes {
        assert!(node.host.group(GroupId::pipeline(PIPELINE)).is_some());
        assert_eq!(node.datanode.delete_blocks(FIRST_CONTAINER, vec![gone.block]).await, Ok(1));
        let open = writer.written.last().unwrap().0.block;
        let refused = node.datanode.delete_blocks(open.container, vec![open]).await.unwrap_err();
        assert_eq!(refused.code, Code::NotYet, "{refused}");
    }
    cluster.stop_nodes().await;
    crate::ending::check_whole(&cluster).await;
}

/// A pipeline that nobody writes to any more holds no closed container back, be the tail that it may keep
/// however long.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_closed_is_released_though_nothing_follows() {
    let mut cluster = Cluster::start(DatanodeOptions { log_tail_bytes: 64 << 20, ..quick() }).await;
    let mut writer = Writer { number: 0, written: Vec::new() };
    let leader = cluster.wait_for_leader().await;
    while writer.written.last().is_none_or(|(acked, _)| acked.block.container == FIRST_CONTAINER) {
        writer.write(&cluster, leader, 1).await;
    }
    let of_first = writer.written.iter().filter(|(acked, _)| acked.block.container == FIRST_CONTAINER);
    wait_purged(&cluster, of_first.map(|(acked, _)| acked.commit_index).max().unwrap()).await;
    writer.check(&cluster).await;
    cluster.restart().await;
    let leader = cluster.wait_for_leader().await;
    writer.write(&cluster, leader, 1).await;
    writer.check(&cluster).await;
    cluster.stop_nodes().await;
}
