//! Hops of reads: what is in memory is found and read by the task that is asked, and another thread has a
//! part only in what is not.

use crate::cluster::{Acked, Cluster, DEADLINE, Node, bytes, chunk, options};
use disk::{Disk, RealDisk};
use futures::FutureExt;
use tokio::time::Instant;

/// Messages that a node has read in place, and those for which it waited.
fn read_messages(node: &Node) -> (u64, u64) {
    let number = |how: &str| node.metric(&format!("flotilla_datanode_read_messages_total{{how=\"{how}\"}}"));
    (number("in_place"), number("waited"))
}

/// Reads it twice, and tells what each time took, in place and waited for.
async fn read_twice(node: &Node, block: &Acked, expect: &[u8]) -> [(u64, u64); 2] {
    let mut took = [(0, 0); 2];
    for took in &mut took {
        let before = read_messages(node);
        let read = node.read(block.block, 0, expect.len() as u64, block.commit_index).await.unwrap();
        assert!(read == expect);
        let after = read_messages(node);
        *took = (after.0 - before.0, after.1 - before.1);
    }
    took
}

/// Whether the file system of temporary directories says what its page cache has.
async fn can_read_in_place() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path(), 1).unwrap();
    let file = disk.open("a", true).await.unwrap();
    file.write_at(0, vec![bytes::Bytes::from_static(b"there")]).await.unwrap();
    file.read_at(0, 5).now_or_never().is_some()
}

/// Writes a block in chunks of 1 MiB, which all replicas have then.
async fn write(cluster: &Cluster, nonce: u128, data: &[u8]) -> Acked {
    let chunks = data.chunks(1 << 20);
    let last = chunks.len() - 1;
    let mut acked = None;
    for (seq, part) in chunks.enumerate() {
        acked = Some(cluster.write(chunk(nonce, seq as u32, seq << 20, part, seq == last)).await);
    }
    let acked = acked.expect("it has a chunk");
    cluster.check_block(acked.block, acked.commit_index, data).await;
    acked
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_memory_is_read_without_another_thread() {
    let mut cluster = Cluster::start(options()).await;
    let deadline = Instant::now() + DEADLINE;
    let mut nonce = 0;
    for (length, messages) in [(4096, 1), (1 << 20, 1), (3 << 20, 3)] {
        let data = bytes(length as u64, length);
        // Logs let go of what they have in memory once nobody has written for seconds, as on a machine that
        // stands still.
        loop {
            nonce += 1;
            let block = write(&cluster, nonce, &data).await;
            let mut took = Vec::new();
            for node in &cluster.nodes {
                took.extend(read_twice(node, &block, &data).await);
            }
            if took.iter().all(|took| *took == (messages, 0)) {
                break;
            }
            assert!(Instant::now() < deadline, "{length} bytes: (in place, waited) {took:?}");
        }
    }
    // The processes' memory is empty: the disk is asked, and next time the caches have it.
    let data = bytes(5, 4096);
    let block = write(&cluster, nonce + 1, &data).await;
    cluster.restart().await;
    cluster.leader().await;
    let can_read_in_place = can_read_in_place().await;
    for node in &cluster.nodes {
        node.read_acknowledged(block.block, 0, 4096, block.commit_index).await.unwrap();
        if can_read_in_place {
            assert_eq!(read_twice(node, &block, &data).await, [(1, 0); 2]);
        }
    }
    cluster.shut_down().await;
}
