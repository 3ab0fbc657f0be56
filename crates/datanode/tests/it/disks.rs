use crate::cluster::{Cluster, DEADLINE, LOOK, NextNumber, Node, PIPELINE, chunk, open_offline, options};
use crate::ending::report;
use flotilla_datanode::{DatanodeOptions, PipelineError};
use proto::scm::MemberState;
use raft::AddressBook;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::time::Instant;

async fn start(disks: &[&Path]) -> anyhow::Result<Node> {
    let options = DatanodeOptions { disks: disks.iter().map(|&disk| disk.to_owned()).collect(), ..options() };
    Node::start(options, AddressBook::default(), Arc::new(NextNumber)).await
}

async fn refused(disks: &[&Path]) -> String {
    match start(disks).await {
        Ok(_) => panic!("{disks:?} were taken"),
        Err(failure) => format!("{failure:#}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_keep_their_ids_and_new_ones_join() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let node = start(&[&a]).await.unwrap();
    let first = node.datanode.disk_ids();
    node.shut_down().await;
    let node = start(&[&a, &b]).await.unwrap();
    let both = node.datanode.disk_ids();
    assert_eq!((both.len(), both[0]), (2, first[0]));
    assert_ne!(both[0], both[1]);
    assert_eq!(node.datanode.node(), None, "SCM has not spoken yet");
    node.shut_down().await;
    let stamps = [&a, &b].map(|path| disk::RealDisk::peek(path).unwrap().unwrap());
    assert_eq!(stamps[0].node_uuid, stamps[1].node_uuid);
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_two_nodes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    start(&[&a]).await.unwrap().shut_down().await;
    start(&[&b]).await.unwrap().shut_down().await;
    let message = refused(&[&a, &b]).await;
    assert!(message.contains("belongs to another datanode"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_two_clusters_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    for (path, cluster) in [(&a, "here"), (&b, "there")] {
        disk::RealDisk::open(path, 5).unwrap().join_cluster(cluster, 1).unwrap();
    }
    let message = refused(&[&a, &b]).await;
    assert!(message.contains("belongs to another cluster"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a");
    let node = start(&[&a]).await.unwrap();
    let message = refused(&[&a]).await;
    assert!(message.contains("in use"), "{message}");
    node.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_work_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (good, broken) = (dir.path().join("good"), dir.path().join("broken"));
    // A file where a directory should be.
    disk::write_file_durably(&broken, b"not a directory").unwrap();
    let node = start(&[&broken, &good]).await.unwrap();
    assert_eq!(node.datanode.disk_ids().len(), 1);
    node.shut_down().await;
    let message = refused(&[&broken]).await;
    assert!(message.contains("none of the 1 data directories"), "{message}");
}

/// The disk of a node that has the pipeline.
fn pipelines_disk(cluster: &Cluster, node: usize) -> PathBuf {
    let has_log = |disk: &PathBuf| disk.join("groups").join(format!("pipeline-{PIPELINE}")).is_dir();
    cluster.disk_paths(node).into_iter().find(has_log).expect("one of its disks has the log")
}

#[allow(clippy::disallowed_methods)] // the test plays the operator who pulls a disk
fn remove(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}

/// An empty directory where a disk was becomes a new disk, and nothing that was on the old one is made up on
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_disk_is_not_replaced_by_an_empty_one() {
    let mut cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let acked = stream.write(chunk(1, 0, 0, b"on two of three", true)).await.unwrap();
    cluster.check_block(acked.block, acked.commit_index, b"on two of three").await;
    let order = cluster.order(0);
    let lost = pipelines_disk(&cluster, 0);
    cluster.stop_nodes().await;
    // What its tasks began last may hold it, and write to it, a moment longer.
    drop(open_offline(&lost).await);
    remove(&lost);
    cluster.start_nodes().await;

    let ids = cluster.nodes[0].datanode.disk_ids();
    assert!(ids.len() == 2 && !ids.contains(&order.disk), "{ids:?}, the old one is {}", order.disk);
    assert_eq!(report(&cluster, 0), None);
    let refused = cluster.nodes[0].datanode.create_pipeline(&order).await.unwrap_err();
    assert!(matches!(refused, PipelineError::NoDisk { .. }), "{refused}");
    // On the new one it would be a replica that has forgotten its votes: SCM never asks for it.
    for node in 1..3 {
        let read = cluster.nodes[node].read(acked.block, 0, 15, acked.commit_index).await.unwrap();
        assert_eq!(read, b"on two of three");
    }
    assert!(cluster.nodes[0].read(acked.block, 0, 15, 0).await.is_err());
    cluster.shut_down().await;
}

/// A disk of which nothing but its name is left, as after half a restore: no file tells of the member that it
/// had, and SCM knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_which_nothing_is_left_is_not_made_anew() {
    let mut cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let acked = stream.write(chunk(1, 0, 0, b"on two of three", true)).await.unwrap();
    cluster.check_block(acked.block, acked.commit_index, b"on two of three").await;
    let order = cluster.order(0);
    let disk = pipelines_disk(&cluster, 0);
    cluster.stop_nodes().await;
    drop(open_offline(&disk).await);
    empty(&disk);
    cluster.start_nodes().await;

    assert_eq!(report(&cluster, 0), None);
    let refused = cluster.nodes[0].datanode.open_pipeline(&order).await.unwrap_err();
    assert!(matches!(refused, PipelineError::LogLost { .. }), "{refused}");
    let told = report(&cluster, 0).unwrap();
    assert!(told.state() == MemberState::LogLost && told.why.contains("votes are lost"), "{told:?}");
    cluster.shut_down().await;
}

/// Removes everything but what says whose disk it is.
#[allow(clippy::disallowed_methods)] // the test plays the operator who restores half a disk
fn empty(disk: &Path) {
    for entry in std::fs::read_dir(disk).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => std::fs::remove_dir_all(&path).unwrap(),
            false if path.ends_with("VERSION") => {}
            false => std::fs::remove_file(&path).unwrap(),
        }
    }
}

/// A disk that is there, without the log of its pipeline: the replica is out, and SCM hears why.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_missing_is_told_and_does_not_begin_anew() {
    let (mut cluster, _scm) = Cluster::start_with_scm(options(), 3).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let acked = stream.write(chunk(1, 0, 0, b"still here", true)).await.unwrap();
    cluster.check_block(acked.block, acked.commit_index, b"still here").await;
    let order = cluster.order(0);
    let disk = pipelines_disk(&cluster, 0);
    cluster.stop_nodes().await;
    drop(open_offline(&disk).await);
    remove(&disk.join("groups").join(format!("pipeline-{PIPELINE}")));
    cluster.start_nodes().await;
    let datanode = &cluster.nodes[0].datanode;
    let told = report(&cluster, 0).unwrap();
    assert!(told.why.contains("votes are lost") && told.state() == MemberState::Stopped, "{told:?}");
    let refused = datanode.create_pipeline(&order).await.unwrap_err();
    assert!(matches!(refused, PipelineError::LogLost { .. }), "{refused}");
    // Nobody can say what it had, so it does not say that it ended either.
    datanode.quasi_close_pipeline(PIPELINE).await.unwrap_err();
    let told = report(&cluster, 0).unwrap();
    assert!(told.why.contains("the log is missing") && told.state() == MemberState::LogLost, "{told:?}");
    // What was applied is read all the same.
    assert_eq!(cluster.nodes[0].read(acked.block, 0, 10, acked.commit_index).await.unwrap(), b"still here");
    // Once the pipeline is over, and SCM has heard of the loss, it is forgotten here too.
    let deadline = Instant::now() + DEADLINE;
    while let Err(failure) = datanode.let_go_pipeline(PIPELINE).await {
        assert!(Instant::now() < deadline, "{failure}");
        tokio::time::sleep(LOOK).await;
    }
    assert_eq!(report(&cluster, 0), None);
    cluster.shut_down().await;
}
