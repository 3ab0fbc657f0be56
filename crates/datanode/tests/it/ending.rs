//! The end of a pipeline that has a leader.

use crate::cluster::{Cluster, DEADLINE, FIRST_CONTAINER, PIPELINE, bytes, chunk, options};
use proto::scm::PipelineReport;
use proto::{Code, Failure};
use std::time::Duration;
use tokio::time::Instant;
use types::ContainerId;

const END: ContainerId = ContainerId(900);

/// The pipeline as a node reports it.
pub(crate) fn report(cluster: &Cluster, node: usize) -> Option<PipelineReport> {
    let reports = cluster.nodes[node].datanode.manager().pipeline_reports();
    reports.into_iter().find(|report| report.pipeline == PIPELINE.0)
}

/// Tells all members that the pipeline closes, and waits until all say that it ended.
pub(crate) async fn end(cluster: &Cluster) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for node in &cluster.nodes {
            node.datanode.manager().end_pipeline(PIPELINE, END);
        }
        let reports: Vec<_> = (0..3).map(|node| report(cluster, node)).collect();
        if reports.iter().all(|report| report.as_ref().is_some_and(|report| report.ended)) {
            return;
        }
        assert!(Instant::now() < deadline, "the pipeline does not end: {reports:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_ends_on_all_members_and_takes_no_more() {
    let mut cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let begun = stream.write(chunk(1, 0, 0, b"begun", false)).await.unwrap();
    let data = bytes(7, 300_000);
    let whole = stream.write(chunk(2, 0, 0, &data, true)).await.unwrap();
    end(&cluster).await;

    for attempt in 0..2 {
        let leader = cluster.leader().await;
        let mut stream = leader.write_stream().await;
        stream.send(chunk(1, 1, 5, b" and never ended", true)).await;
        let failure = Failure::from(stream.ack().await.error.expect("it is refused"));
        assert_eq!(failure.code, Code::Closed, "{failure}");
        let failure = stream.write(chunk(3 + attempt, 0, 0, b"new", true)).await.unwrap_err();
        assert_eq!(failure.code, Code::Closed, "{failure}");
        for (n, node) in cluster.nodes.iter().enumerate() {
            let report = report(&cluster, n).unwrap();
            assert!(report.ended && report.stopped.is_empty() && report.container == END.0, "{report:?}");
            let containers = node.datanode.manager().container_reports().await.unwrap();
            let containers: Vec<_> =
                containers.iter().map(|it| (it.container, it.is_closed, it.blocks)).collect();
            assert_eq!(containers, [(FIRST_CONTAINER, true, 2), (END, true, 0)], "node {n}");
        }
        cluster.check_block(whole.block, whole.commit_index, &data).await;
        cluster.check_block(begun.block, begun.commit_index, b"begun").await;
        cluster.restart().await;
    }
    cluster.wait_for_leader().await;
    cluster.stop_nodes().await;
    for node in 0..3 {
        for disk in cluster.disk_paths(node) {
            let report =
                flotilla_datanode::offline::OfflineDisk::open(&disk).unwrap().verify(None).await.unwrap();
            assert!(report.is_whole(), "{}: {report:#?}", disk.display());
        }
    }
}

/// The leader has asked for the next container, and hears of the end before it has rolled to it.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_replaces_a_roll_that_gets_no_container() {
    let options = flotilla_datanode::DatanodeOptions { container_bytes_max: 1 << 20, ..options() };
    let cluster = Cluster::start_refusing_containers(options).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let data = bytes(9, 1_100_000);
    let acked = stream.write(chunk(1, 0, 0, &data, true)).await.unwrap();
    end(&cluster).await;
    cluster.check_block(acked.block, acked.commit_index, &data).await;
    for node in 0..3 {
        assert_eq!(report(&cluster, node).unwrap().container, END.0);
    }
    cluster.shut_down().await;
}
