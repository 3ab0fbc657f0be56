//! Logs that went two ways.

use crate::cluster::{Acked, Cluster, DEADLINE, LOOK, Node, PIPELINE, bytes, chunk, in_cluster, options};
use crate::ending::report;
use proto::Retry;
use proto::datanode::{HeadRequest, WriteChunk};
use tokio::time::{Instant, timeout};
use types::{BlockName, Nonce};

const BLOCKS: u128 = 20;
const BLOCK_BYTES: usize = 3000;

/// A leader takes blocks that nobody else hears of, and stops. The others elect one of them and acknowledge
/// other blocks, at the same indexes of the log. Then the first one is back alone and ends by itself, with a
/// tail that never was.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_leader_took_alone_is_never_read_in_place_of_what_was_acknowledged() {
    let mut cluster = Cluster::start(options()).await;
    let before = cluster.write(chunk(1, 0, 0, b"before", true)).await;
    cluster.check_block(before.block, before.commit_index, b"before").await;
    let leader = cluster.wait_for_leader().await;
    let others: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    let stream = cluster.nodes[leader].write_stream().await;
    // The nodes after one that stops move up: the leader is the first in the end.
    for node in others.iter().rev() {
        cluster.stop_node(*node).await;
    }
    for block in 0..BLOCKS {
        stream.send(chunk(100 + block, 0, 0, &bytes(block as u64 + 1, BLOCK_BYTES), true)).await;
    }
    let appended = |cluster: &Cluster| report(cluster, 0).unwrap().last_index;
    let deadline = Instant::now() + DEADLINE;
    while appended(&cluster) < before.commit_index + BLOCKS as u64 {
        assert!(Instant::now() < deadline, "only {} entries are appended", appended(&cluster));
        tokio::time::sleep(LOOK).await;
    }
    drop(stream);
    cluster.stop_node(0).await;

    let others = [cluster.start_apart(others[0]).await, cluster.start_apart(others[1]).await];
    let mut acknowledged: Vec<Acked> = Vec::new();
    for block in 0..BLOCKS {
        let data = bytes(block as u64 + 1000, BLOCK_BYTES);
        let acked = write_to_either(&others, chunk(200 + block, 0, 0, &data, true)).await;
        acknowledged.push(acked);
    }
    for node in others {
        node.shut_down().await;
    }

    let alone = cluster.start_apart(leader).await;
    alone.datanode.quasi_close_pipeline(PIPELINE).await.unwrap();
    let is_refused = async |acked: &Acked| {
        for commit_index in [0, acked.commit_index] {
            let read = alone.read(acked.block, 0, BLOCK_BYTES as u64, commit_index).await;
            assert!(read.is_err(), "block {} of another log is read here", acked.block);
        }
    };
    for acked in &acknowledged {
        is_refused(acked).await;
    }
    // What it knows to be committed it serves, and nothing past it, whosever it is.
    assert_eq!(alone.read(before.block, 0, 6, before.commit_index).await.unwrap(), b"before");
    let head = async |block: BlockName| {
        alone.client().await.head(in_cluster(HeadRequest { block: Some(block.into()) })).await.is_ok()
    };
    assert!(!head(BlockName { nonce: Nonce(100), ..acknowledged[0].block }).await);

    // Somebody decides wrongly, and makes this replica what the container is: it still gives nobody another's
    // bytes.
    let datanode = &alone.datanode;
    let [container] = &datanode.container_reports().await.unwrap()[..] else { panic!("one container") };
    datanode.close_replica(container.container, container.last).await.unwrap();
    let mut mean_two = 0;
    for acked in &acknowledged {
        is_refused(acked).await;
        for nonce in (100..100 + BLOCKS).map(Nonce) {
            mean_two += u128::from(head(BlockName { nonce, ..acked.block }).await);
        }
    }
    assert!(mean_two > BLOCKS / 2, "only {mean_two} numbers mean two blocks: this shows nothing");
    alone.shut_down().await;
}

async fn write_to_either(nodes: &[Node], chunk: WriteChunk) -> Acked {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for node in nodes {
            match timeout(DEADLINE, node.write_stream().await.write_once(chunk.clone()))
                .await
                .expect("an answer")
            {
                Ok(acked) => return acked,
                Err(failure) => assert!(failure.retry != Retry::No && Instant::now() < deadline, "{failure}"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
