//! One number for the memory of a node's data.

use crate::cluster::{Cluster, DEADLINE, LOOK, Node, bytes, chunk, in_cluster, options};
use flotilla_datanode::DatanodeOptions;
use futures::future::join_all;
use proto::datanode::ReadRequest;
use std::cell::Cell;
use tokio::time::Instant;

const MIB: usize = 1 << 20;
const MEMORY: usize = 32 * MIB;
const OWNERS: [&str; 4] = ["bodies", "reads", "writing", "logs"];

fn memory(node: &Node) -> [usize; 4] {
    OWNERS.map(|owner| {
        let name = format!("flotilla_datanode_memory_bytes{{owner=\"{owner}\"}}");
        usize::try_from(node.metric(&name)).unwrap()
    })
}

/// Looks at all nodes until nothing is done any more, and answers the most that each owner had. The four
/// numbers of one look are not of one moment: more than there may be is too much where it stays so.
async fn watch(cluster: &Cluster, is_done: &Cell<bool>) -> [usize; 4] {
    let mut most = [0; 4];
    while !is_done.get() {
        for node in &cluster.nodes {
            let looks: Vec<_> = (0..5).map(|_| memory(node)).collect();
            let least = looks.iter().map(|look| look.iter().sum::<usize>()).min();
            assert!(least.is_some_and(|least| least <= MEMORY), "{OWNERS:?}: {looks:?}");
            for look in looks {
                for (most, bytes) in most.iter_mut().zip(look) {
                    *most = bytes.max(*most);
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_under_load_stays_within_its_memory_and_gives_it_back() {
    const WRITERS: u128 = 24;
    const CHUNKS: u128 = 5;
    const READERS: usize = 20;
    let cluster = Cluster::start(DatanodeOptions { memory_bytes_max: MEMORY, ..options() }).await;
    let data = bytes(1, 3 * MIB);
    let mut block = None;
    for (seq, part) in data.chunks(MIB).enumerate() {
        block = Some(cluster.write(chunk(1, seq as u32, seq * MIB, part, seq == 2)).await);
    }
    let block = block.expect("it has three chunks");
    cluster.check_block(block.block, block.commit_index, &data).await;
    // Readers who take nothing, and more writers than there is room for: four times the memory in all.
    let mut clients = join_all(cluster.nodes.iter().map(Node::client)).await;
    let mut standing = Vec::new();
    for reader in 0..READERS {
        let request = ReadRequest {
            block: Some(block.block.into()),
            offset: 0,
            length: data.len() as u64,
            commit_index: block.commit_index,
            message_bytes_max: 0,
        };
        standing.push(clients[reader % 3].read(in_cluster(request)).await.unwrap().into_inner());
    }
    let is_done = Cell::new(false);
    let writing = async {
        let writers = (0..WRITERS).map(async |writer| {
            for nth in 0..CHUNKS {
                let nonce = 100 + writer * CHUNKS + nth;
                cluster.write(chunk(nonce, 0, 0, &bytes(nonce as u64, MIB), true)).await;
            }
        });
        join_all(writers).await;
        is_done.set(true);
    };
    let ((), most) = tokio::join!(writing, watch(&cluster, &is_done));
    for ((owner, bytes), parts) in OWNERS.iter().zip(most).zip([1, 1, 1, 3]) {
        assert!(bytes > 0 && bytes <= parts * MEMORY / 4, "{owner} had up to {bytes}");
    }
    assert!(most[3] > MEMORY / 4, "logs keep what there is room for, and had only {}", most[3]);
    // Who takes what was read hears all of it.
    let mut taken = 0;
    while let Some(message) = standing[0].message().await.unwrap() {
        assert!(message.data == data[taken..taken + message.data.len()]);
        taken += message.data.len();
    }
    assert_eq!(taken, data.len());
    drop((standing, clients));
    let deadline = Instant::now() + DEADLINE;
    while cluster.nodes.iter().any(|node| memory(node) != [0; 4]) {
        let left: Vec<_> = cluster.nodes.iter().map(memory).collect();
        assert!(Instant::now() < deadline, "a node at rest has {OWNERS:?}: {left:?}");
        tokio::time::sleep(LOOK).await;
    }
    cluster.shut_down().await;
}
