use crate::cluster::{NextNumber, Node, options};
use flotilla_datanode::DatanodeOptions;
use raft::AddressBook;
use std::path::Path;
use std::sync::Arc;

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
    let first = node.datanode.manager().disk_ids();
    node.shut_down().await;
    let node = start(&[&a, &b]).await.unwrap();
    let both = node.datanode.manager().disk_ids();
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
    assert_eq!(node.datanode.manager().disk_ids().len(), 1);
    node.shut_down().await;
    let message = refused(&[&broken]).await;
    assert!(message.contains("none of the 1 data directories"), "{message}");
}
