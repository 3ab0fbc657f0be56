use crate::cluster::{Cluster, DEADLINE, FIRST_CONTAINER, bytes, chunk, options};
use flotilla_datanode::DatanodeOptions;
use proto::Code;
use raftlog::LogSpaceOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use tokio::time::Instant;

/// The files of a container on one node.
#[allow(clippy::disallowed_methods)] // the test plays the failing disk
fn container_files(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let owner = format!("containers/{:016x}", FIRST_CONTAINER.0);
    let dirs = cluster.disk_paths(node).into_iter().map(|disk| disk.join(&owner)).filter(|dir| dir.is_dir());
    dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().path()).collect()
}

/// Flips a bit of the place where `needle` stands, and touches nothing else: the log goes on being written.
#[allow(clippy::disallowed_methods)]
fn damage(path: &PathBuf, needle: &[u8]) -> bool {
    let contents = std::fs::read(path).unwrap();
    let Some(at) = contents.windows(needle.len()).position(|window| window == needle) else { return false };
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[contents[at] ^ 1], at as u64).unwrap();
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_disk_lies_says_so_and_the_others_answer() {
    // What is in memory would be answered from there.
    let log = LogSpaceOptions { cache_bytes_per_log_max: 1 << 16, ..options().log };
    let cluster = Cluster::start(DatanodeOptions { log, ..options() }).await;
    let data = bytes(1, 200_000);
    let acked = cluster.leader().await.write_stream().await.write(chunk(1, 0, 0, &data, true)).await.unwrap();
    let write_next = async |local: u128| {
        let mut stream = cluster.leader().await.write_stream().await;
        stream.write(chunk(local, 0, 0, &bytes(2, 1 << 20), true)).await.unwrap().commit_index
    };
    cluster.check_block(acked.block, write_next(2).await, &data).await;

    let files = container_files(&cluster, 2);
    assert!(
        files.iter().any(|path| damage(path, &data[70_000..70_032])),
        "none of {files:?} holds the block"
    );
    let read = |node: usize, offset, length| {
        cluster.nodes[node].read(acked.block, offset, length, acked.commit_index)
    };
    // A replica that had not synced the block yet when the next one came has it in memory until another one
    // comes.
    let deadline = Instant::now() + DEADLINE;
    let mut local = 3;
    let failure = loop {
        match read(2, 0, 200_000).await {
            Err(failure) => break failure,
            Ok(found) => {
                assert!(found == data && Instant::now() < deadline, "it is read from the disk at last")
            }
        }
        write_next(local).await;
        local += 1;
    };
    assert_eq!(failure.code, Code::Corrupt, "{failure}");
    // What lies in whole pieces is still good.
    assert_eq!(read(2, 0, 65_536).await.unwrap(), data[..65_536]);
    for node in 0..2 {
        assert!(read(node, 0, 200_000).await.unwrap() == data);
    }
    cluster.shut_down().await;
}
