//! One number for the memory of a node's data.

use crate::cluster::{Acked, Cluster, DEADLINE, LOOK, Node, bytes, chunk, in_cluster, options};
use crate::scm::CLUSTER;
use flotilla_datanode::DatanodeOptions;
use futures::future::join_all;
use proto::datanode::datanode_client::DatanodeClient;
use proto::datanode::{ReadChunk, ReadRequest};
use proto::messages;
use proto::{Code, Retry};
use rpc::{Connector, TcpConnector, Windows};
use std::cell::Cell;
use tokio::time::Instant;
use tonic::transport::Endpoint;

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

/// A block of some large messages.
async fn write_block(cluster: &Cluster, data: &[u8]) -> Acked {
    let mut block = None;
    let last = data.chunks(MIB).count() - 1;
    for (seq, part) in data.chunks(MIB).enumerate() {
        block = Some(cluster.write(chunk(1, seq as u32, seq * MIB, part, seq == last)).await);
    }
    let block = block.expect("it has chunks");
    cluster.check_block(block.block, block.commit_index, data).await;
    block
}

fn all_of(block: &Acked, length: usize) -> ReadRequest {
    ReadRequest {
        block: Some(block.block.into()),
        offset: 0,
        length: length as u64,
        commit_index: block.commit_index,
        message_bytes_max: 0,
    }
}

/// Waits until what is read and not taken takes so much memory of a node.
async fn until_reads(node: &Node, bytes: usize) {
    let deadline = Instant::now() + DEADLINE;
    while memory(node)[1] != bytes {
        assert!(Instant::now() < deadline, "{} bytes are read and not taken", memory(node)[1]);
        tokio::time::sleep(LOOK).await;
    }
}

/// One connection, with windows as small as they may be, of whose answers nothing is taken.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_of_a_thousand_reads_stops_none_from_other_addresses() {
    const READS: usize = 1000;
    let cluster = Cluster::start(DatanodeOptions { memory_bytes_max: MEMORY, ..options() }).await;
    let data = bytes(1, 3 * MIB);
    let block = write_block(&cluster, &data).await;
    let node = &cluster.nodes[0];
    let windows = Windows { stream_bytes: 64 << 10, connection_bytes: 64 << 10 };
    let still = TcpConnector { windows }.connect(&node.address).unwrap();
    let standing: Vec<_> = (0..READS)
        .map(|_| {
            let (channel, request) = (still.clone(), messages::one(all_of(&block, data.len())));
            tokio::spawn(messages::call::<_, _, ReadChunk>(channel, messages::READ, CLUSTER, request))
        })
        .collect();
    // Half of what readers have, which is a quarter.
    until_reads(node, MEMORY / 8).await;
    let near = node.read(block.block, 0, data.len() as u64, block.commit_index).await.unwrap_err();
    assert_eq!((near.code, near.retry), (Code::Busy, Retry::Elsewhere));
    let elsewhere = Endpoint::from_shared(format!("http://{}", node.address)).unwrap();
    let elsewhere = elsewhere.local_address(Some([127, 0, 0, 2].into())).connect().await.unwrap();
    let mut elsewhere = DatanodeClient::new(elsewhere).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
    for _ in 0..3 {
        let read = elsewhere.read(in_cluster(all_of(&block, data.len()))).await.unwrap();
        let (mut chunks, mut taken) = (read.into_inner(), 0);
        while let Some(message) = chunks.message().await.unwrap() {
            assert!(message.data == data[taken..taken + message.data.len()]);
            taken += message.data.len();
        }
        assert_eq!(taken, data.len());
    }
    assert!(node.metric("flotilla_datanode_reads_refused_total") > 0);
    drop((standing, still));
    until_reads(node, 0).await;
    cluster.shut_down().await;
}

/// A gateway has a thousand clients who take nothing, and one who does.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_reads_of_small_pieces_of_which_nothing_is_taken_leave_room_to_those_of_their_address() {
    const READS: usize = 1000;
    let cluster = Cluster::start(DatanodeOptions { memory_bytes_max: MEMORY, ..options() }).await;
    let data = bytes(1, 3 * MIB);
    let block = write_block(&cluster, &data).await;
    let node = &cluster.nodes[0];
    let small = ReadRequest { message_bytes_max: 64 << 10, ..all_of(&block, data.len()) };
    // As the client has them (`client/memory.rs`).
    let windows = Windows { stream_bytes: 68 << 10, connection_bytes: 1 << 30 };
    let still = TcpConnector { windows }.connect(&node.address).unwrap();
    let standing = (0..READS).map(|_| {
        let request = messages::one(small.clone());
        messages::call::<_, _, ReadChunk>(still.clone(), messages::READ, CLUSTER, request)
    });
    let standing: Vec<_> = join_all(standing).await.into_iter().map(Result::unwrap).collect();
    // Half of what an address may have is read ahead for some of them; the rest is on its way.
    let deadline = Instant::now() + DEADLINE;
    while memory(node)[1] > MEMORY / 16 + MIB {
        assert!(Instant::now() < deadline, "{} bytes are read and not taken", memory(node)[1]);
        tokio::time::sleep(LOOK).await;
    }
    let read = node.read(block.block, 0, data.len() as u64, block.commit_index).await.unwrap();
    assert!(read == data);
    drop(standing);
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_under_load_stays_within_its_memory_and_gives_it_back() {
    const WRITERS: u128 = 24;
    const CHUNKS: u128 = 5;
    const READERS: usize = 20;
    let cluster = Cluster::start(DatanodeOptions { memory_bytes_max: MEMORY, ..options() }).await;
    let data = bytes(1, 3 * MIB);
    let block = write_block(&cluster, &data).await;
    // Readers who take nothing, and more writers than there is room for: four times the memory in all.
    let mut clients = join_all(cluster.nodes.iter().map(Node::client)).await;
    let mut standing = Vec::new();
    for reader in 0..READERS {
        let request = all_of(&block, data.len());
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
