use crate::cluster::{Cluster, FIRST_CONTAINER, bytes, chunk, options};
use flotilla_datanode::DatanodeOptions;
use proto::Code;
use raftlog::LogSpaceOptions;
use std::path::PathBuf;

/// The files of a container on one node.
#[allow(clippy::disallowed_methods)] // the test plays the failing disk
fn container_files(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let owner = format!("containers/{:016x}", FIRST_CONTAINER.0);
    let dirs = cluster.disk_paths(node).into_iter().map(|disk| disk.join(&owner)).filter(|dir| dir.is_dir());
    dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().path()).collect()
}

/// Flips a bit of the place where `needle` stands.
#[allow(clippy::disallowed_methods)]
fn damage(path: &PathBuf, needle: &[u8]) -> bool {
    let mut contents = std::fs::read(path).unwrap();
    let Some(at) = contents.windows(needle.len()).position(|window| window == needle) else { return false };
    contents[at] ^= 1;
    std::fs::write(path, contents).unwrap();
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_disk_lies_says_so_and_the_others_answer() {
    // What is in memory would be answered from there.
    let log = LogSpaceOptions { cache_bytes_per_log_max: 1 << 16, ..options().log };
    let cluster = Cluster::start(DatanodeOptions { log, ..options() }).await;
    let data = bytes(1, 200_000);
    let acked = cluster.leader().await.write_stream().await.write(chunk(1, 0, 0, &data, true)).await.unwrap();
    let next =
        cluster.leader().await.write_stream().await.write(chunk(2, 0, 0, &bytes(2, 1 << 20), true)).await;
    cluster.check_block(acked.block, next.unwrap().commit_index, &data).await;

    let files = container_files(&cluster, 2);
    assert!(
        files.iter().any(|path| damage(path, &data[70_000..70_032])),
        "none of {files:?} holds the block"
    );
    let read = |node: usize, offset, length| {
        cluster.nodes[node].read(acked.block, offset, length, acked.commit_index)
    };
    let failure = read(2, 0, 200_000).await.map(|data| data.len()).unwrap_err();
    assert_eq!(failure.code, Code::Corrupt, "{failure}");
    // What lies in whole pieces is still good.
    assert_eq!(read(2, 0, 65_536).await.unwrap(), data[..65_536]);
    for node in 0..2 {
        assert!(read(node, 0, 200_000).await.unwrap() == data);
    }
    cluster.shut_down().await;
}
