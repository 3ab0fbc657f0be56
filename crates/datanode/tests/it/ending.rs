//! The end of a pipeline that has a leader.

use crate::cluster::{Cluster, DEADLINE, FIRST_CONTAINER, PIPELINE, bytes, chunk, open_offline, options};
use proto::scm::{LogEnd, MemberState, PipelineReport};
use proto::{Code, Failure};
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, LogId, LogIndex, Term};

const END: ContainerId = ContainerId(900);

/// An end without the last record of all, which may be a later leader's.
fn told(end: Option<LogEnd>) -> Option<(ContainerId, LogId)> {
    let LogEnd { container, term, index, log_term, log_index } = end?;
    assert!((log_term, log_index) >= (term, index), "{end:?}");
    Some((ContainerId(container), LogId { term: Term(term), index: LogIndex(index) }))
}

/// The pipeline as a node reports it.
pub(crate) fn report(cluster: &Cluster, node: usize) -> Option<PipelineReport> {
    let reports = cluster.nodes[node].datanode.pipeline_reports();
    reports.into_iter().find(|report| report.pipeline == PIPELINE.0)
}

/// Tells all members that the pipeline closes, and waits until all say that it ended.
pub(crate) async fn end(cluster: &Cluster) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for node in &cluster.nodes {
            node.datanode.end_pipeline(PIPELINE, END);
        }
        let reports: Vec<_> = (0..3).map(|node| report(cluster, node)).collect();
        if reports.iter().all(|report| report.as_ref().is_some_and(|report| report.has_ended())) {
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
            assert!(report.state() == MemberState::Ended && report.container == END.0, "{report:?}");
            let containers = node.datanode.container_reports().await.unwrap();
            let containers: Vec<_> =
                containers.iter().map(|it| (it.container, it.is_closed, it.blocks)).collect();
            assert_eq!(containers, [(FIRST_CONTAINER, true, 2), (END, true, 0)], "node {n}");
            let rolled = node.datanode.container_reports().await.unwrap()[0].last.unwrap();
            assert_eq!(told(report.end), Some((FIRST_CONTAINER, rolled)), "node {n}, attempt {attempt}");
        }
        cluster.check_block(whole.block, whole.commit_index, &data).await;
        cluster.check_block(begun.block, begun.commit_index, b"begun").await;
        cluster.restart().await;
    }
    cluster.wait_for_leader().await;
    cluster.stop_nodes().await;
    check_whole(&cluster).await;
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

/// A node's reports on its containers.
async fn containers(cluster: &Cluster, node: usize) -> Vec<flotilla_datanode::ContainerReport> {
    cluster.nodes[node].datanode.container_reports().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_nobody_leads_end_by_themselves_and_are_let_go() {
    let mut cluster = Cluster::start(options()).await;
    let data = bytes(5, 400_000);
    let mut stream = cluster.leader().await.write_stream().await;
    let acked = stream.write(chunk(1, 0, 0, &data, true)).await.unwrap();
    cluster.check_block(acked.block, acked.commit_index, &data).await;
    for node in &cluster.nodes {
        node.datanode.quasi_close_pipeline(PIPELINE).await.unwrap();
    }

    let mut lasts = Vec::new();
    for attempt in 0..2 {
        for (n, node) in cluster.nodes.iter().enumerate() {
            let report = report(&cluster, n).unwrap();
            assert!(report.state() == MemberState::QuasiClosed, "attempt {attempt}, node {n}: {report:?}");
            assert!(node.host.groups().is_empty(), "attempt {attempt}, node {n}");
            let refused = node.datanode.create_pipeline(&cluster.order(n)).await.unwrap_err();
            assert!(matches!(refused, flotilla_datanode::PipelineError::Over { .. }), "{refused}");
            let [container] = &containers(&cluster, n).await[..] else { panic!("one container") };
            assert!(!container.is_closed && container.last.is_some(), "{container:?}");
            assert_eq!(told(report.end), container.last.map(|last| (container.container, last)), "node {n}");
            lasts.push(container.last);
        }
        cluster.check_block(acked.block, acked.commit_index, &data).await;
        let mut stream = cluster.nodes[0].write_stream().await;
        let failure = stream.write(chunk(2, 0, 0, b"late", true)).await.unwrap_err();
        assert_eq!(failure.code, Code::Closed, "{failure}");
        cluster.restart().await;
    }
    assert_eq!(lasts[..3], lasts[3..], "a restart changes nothing");

    // SCM has chosen: those that end where the highest does are the container.
    let last = *lasts.iter().max().unwrap();
    for (n, node) in cluster.nodes.iter().enumerate() {
        let closed = node.datanode.close_replica(FIRST_CONTAINER, last).await;
        assert_eq!(closed.is_ok(), lasts[n] == last, "node {n}: {closed:?}");
        node.datanode.let_go_pipeline(PIPELINE).await.unwrap();
    }
    for attempt in 0..2 {
        for (n, node) in cluster.nodes.iter().enumerate() {
            assert_eq!(report(&cluster, n), None, "attempt {attempt}, node {n}");
            let [container] = &containers(&cluster, n).await[..] else { panic!("one container") };
            assert_eq!((container.is_closed, container.last), (lasts[n] == last, lasts[n]), "node {n}");
            let refused = node.datanode.create_pipeline(&cluster.order(n)).await.unwrap_err();
            assert!(refused.to_string().contains("must not come back"), "{refused}");
        }
        cluster.check_block(acked.block, acked.commit_index, &data).await;
        cluster.restart().await;
    }
    cluster.stop_nodes().await;
    check_whole(&cluster).await;
}

pub(crate) async fn check_whole(cluster: &Cluster) {
    for node in 0..3 {
        for disk in cluster.disk_paths(node) {
            let report = open_offline(&disk).await.verify(None).await.unwrap();
            assert!(report.is_whole(), "{}: {report:#?}", disk.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_ended_is_let_go_and_its_blocks_can_be_deleted() {
    let mut cluster = Cluster::start(options()).await;
    let data = bytes(6, 200_000);
    let mut stream = cluster.leader().await.write_stream().await;
    let acked = stream.write(chunk(1, 0, 0, &data, true)).await.unwrap();
    let gone = stream.write(chunk(2, 0, 0, b"not for long", true)).await.unwrap();
    end(&cluster).await;
    for (n, node) in cluster.nodes.iter().enumerate() {
        let delete = async || node.datanode.delete_blocks(FIRST_CONTAINER, vec![gone.block]).await;
        assert_eq!(delete().await.unwrap_err().code, Code::NotYet, "a log has them");
        node.datanode.let_go_pipeline(PIPELINE).await.unwrap();
        assert_eq!(report(&cluster, n), None);
        let [container] = &containers(&cluster, n).await[..] else { panic!("the end container is gone") };
        assert!(container.is_closed && container.container == FIRST_CONTAINER, "{container:?}");
        assert_eq!(delete().await, Ok(1));
    }
    cluster.restart().await;
    cluster.check_block(acked.block, acked.commit_index, &data).await;
    assert!(cluster.nodes[0].read(gone.block, 0, 1, 0).await.is_err());
    cluster.stop_nodes().await;
    check_whole(&cluster).await;
}
