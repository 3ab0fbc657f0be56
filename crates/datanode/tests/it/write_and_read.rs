use crate::cluster::{Acked, Cluster, DEADLINE, FIRST_CONTAINER, PIPELINE, bytes, chunk, options};
use flotilla_datanode::DatanodeOptions;
use futures::FutureExt;
use proto::datanode::{Ack, HeadRequest, WriteChunk};
use proto::{Code, Retry};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use types::{BlockName, GroupId, Nonce};

#[tokio::test(flavor = "multi_thread")]
async fn what_the_leader_took_is_read_from_every_replica() {
    let cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;

    let small = bytes(1, 5000);
    let acked = stream.write(chunk(1, 0, 0, &small, true)).await.unwrap();
    assert_eq!((acked.block.container, acked.length), (FIRST_CONTAINER, 5000));
    assert_eq!(acked.commit_index, acked.block.local, "a block is named by the entry that begins it");
    cluster.check_block(acked.block, acked.commit_index, &small).await;

    // Chunks of odd lengths, sent without waiting.
    let large = bytes(2, (3 << 20) + 77_777);
    let cuts = [0, 1 << 20, (1 << 20) + 100_001, 3 << 20, large.len()];
    for (seq, cut) in cuts.windows(2).enumerate() {
        let last = cut[1] == large.len();
        stream.send(chunk(2, seq as u32, cut[0], &large[cut[0]..cut[1]], last)).await;
    }
    let mut acked = None::<Acked>;
    for (seq, cut) in cuts.windows(2).enumerate() {
        let ack = stream.acked().await.unwrap();
        assert_eq!((ack.seq, ack.length), (seq as u32, cut[1] as u64));
        assert!(acked.is_none_or(|before| before.block == ack.block));
        acked = Some(ack);
    }
    let Acked { block, commit_index, .. } = acked.unwrap();
    cluster.check_block(block, commit_index, &large).await;

    // Ranges that begin and end anywhere, on all replicas.
    for (n, node) in cluster.nodes.iter().enumerate() {
        for (offset, length) in
            [(0, 1), (65_535, 2), ((1 << 20) - 1, 100_003), (1 << 20, 65_536), (3_100_000, 100_000)]
        {
            let read = node.read(block, offset, length, commit_index).await.unwrap();
            let offset = offset as usize;
            assert!(
                read == large[offset..offset + length as usize],
                "{length} bytes from {offset} on node {n}"
            );
        }
        assert_eq!(node.read(block, large.len() as u64, 0, commit_index).await.unwrap(), b"");
        let head =
            node.client().await.head(HeadRequest { block: Some(block.into()) }).await.unwrap().into_inner();
        assert_eq!((head.length, head.sealed, head.chunks), (large.len() as u64, true, 4));
    }
    stream.finish().await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_blocks_share_a_stream() {
    const BLOCKS: u128 = 40;
    const CHUNKS: u32 = 5;
    let cluster = Cluster::start(options()).await;
    let leader = cluster.leader().await;
    let mut stream = leader.write_stream().await;
    let data: Vec<Vec<u8>> = (0..BLOCKS).map(|nonce| bytes(nonce as u64 + 1, 30_000)).collect();
    let (send, receive) = (stream.sender(), async {
        let mut blocks = BTreeMap::<BlockName, u32>::new();
        let mut last_commit = 0;
        for _ in 0..BLOCKS * u128::from(CHUNKS) {
            let ack = stream.acked().await.unwrap();
            let next = blocks.entry(ack.block).or_default();
            assert_eq!(ack.seq, *next, "acks of one block come in order");
            *next += 1;
            last_commit = last_commit.max(ack.commit_index);
        }
        (blocks, last_commit)
    });
    let send = async {
        for seq in 0..CHUNKS {
            for nonce in 0..BLOCKS {
                let at = seq as usize * 6000;
                let data = &data[nonce as usize][at..at + 6000];
                send.send(chunk(nonce, seq, at, data, seq + 1 == CHUNKS)).await.unwrap();
            }
        }
    };
    let ((), (blocks, commit_index)) = tokio::join!(send, receive);
    // Blocks begin in the order of their first chunks.
    assert_eq!(blocks.len(), BLOCKS as usize);
    for (block, data) in blocks.keys().zip(&data) {
        cluster.check_block(*block, commit_index, data).await;
    }
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_sent_again_is_acknowledged_again() {
    let cluster = Cluster::start(options()).await;
    let leader = cluster.leader().await;
    let data = bytes(3, 20_000);
    let mut stream = leader.write_stream().await;
    let first = stream.write(chunk(3, 0, 0, &data[..12_000], false)).await.unwrap();
    let last = stream.write(chunk(3, 1, 12_000, &data[12_000..], true)).await.unwrap();
    // The writer lost its connection and does not know what arrived.
    let mut stream = leader.write_stream().await;
    let first_again = stream.write(chunk(3, 0, 0, &data[..12_000], false)).await.unwrap();
    let last_again = stream.write(chunk(3, 1, 12_000, &data[12_000..], true)).await.unwrap();
    assert_eq!((first_again.block, first_again.length), (first.block, first.length));
    assert_eq!((last_again.block, last_again.length), (last.block, last.length));
    cluster.check_block(last.block, last_again.commit_index, &data).await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_names_the_leader() {
    let cluster = Cluster::start(options()).await;
    let leader = cluster.wait_for_leader().await;
    let follower = &cluster.nodes[(leader + 1) % 3];
    let failure = follower.write_stream().await.write(chunk(1, 0, 0, b"data", true)).await.unwrap_err();
    assert_eq!(failure.code, Code::NotLeader);
    assert_eq!(failure.leader_address.as_ref(), Some(&cluster.nodes[leader].address));
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_refused_precisely() {
    let cluster = Cluster::start(options()).await;
    let acked =
        cluster.leader().await.write_stream().await.write(chunk(1, 0, 0, b"0123456789", true)).await.unwrap();
    let Acked { block, commit_index, .. } = acked;
    // A replica that has yet to hear of it would refuse for that reason.
    cluster.check_block(block, commit_index, b"0123456789").await;
    for node in &cluster.nodes {
        let check = |read: Result<Vec<u8>, proto::Failure>, code: Code, retry: Retry, message: &str| {
            let failure = read.unwrap_err();
            assert_eq!((failure.code, failure.retry), (code, retry), "{failure}");
            assert!(failure.message.contains(message), "{failure}");
        };
        let past = node.read(block, 5, 6, commit_index).await;
        check(past, Code::Invalid, Retry::No, "6 bytes from 5");
        let overflow = node.read(block, u64::MAX, 2, commit_index).await;
        check(overflow, Code::Invalid, Retry::No, "more than its 10 bytes");
        let unknown = BlockName { local: block.local + 1000, ..block };
        check(node.read(unknown, 0, 1, commit_index).await, Code::NotFound, Retry::No, "no block");
        check(node.read(unknown, 0, 1, 0).await, Code::NotFound, Retry::Elsewhere, "no block");
        let elsewhere = BlockName { container: 4711.into(), ..block };
        check(node.read(elsewhere, 0, 1, 0).await, Code::NotFound, Retry::Elsewhere, "container 4711");
        // A number given out twice, or a log that went another way.
        let other = BlockName { nonce: Nonce(2), ..block };
        let read = node.read(other, 0, 1, commit_index).await;
        check(read, Code::NotFound, Retry::Elsewhere, "is another one here");
        check(
            node.read(block, 0, 1, commit_index + 1000).await,
            Code::NotYet,
            Retry::Elsewhere,
            "not applied",
        );
    }
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_ordered_twice_is_created_once() {
    let cluster = Cluster::start(options()).await;
    let datanode = &cluster.nodes[0].datanode;
    let order = cluster.order(0);
    assert!(!datanode.create_pipeline(&order).await.unwrap());
    let unknown_disk =
        flotilla_datanode::PipelineOrder { pipeline: 9.into(), disk: types::DiskId(1), ..order };
    let failure = datanode.create_pipeline(&unknown_disk).await.unwrap_err();
    assert!(matches!(failure, flotilla_datanode::PipelineError::NoDisk { .. }), "{failure}");
    cluster.shut_down().await;
}

/// `ack = all`: the answer says whether all replicas have the chunk, and which do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_asks_for_all_replicas_is_told_which_have_its_chunk() {
    let cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let on_all = |nonce, within_ms| {
        let ack_all_within_ms = within_ms;
        WriteChunk { ack: Ack::All.into(), ack_all_within_ms, ..chunk(nonce, 0, 0, b"everywhere", true) }
    };
    stream.write(chunk(1, 0, 0, b"a leader is there", true)).await.unwrap();
    stream.send(on_all(2, 20_000)).await;
    let ack = stream.ack().await;
    assert_eq!((ack.error.clone(), ack.reached(), ack.without.len()), (None, Ack::All, 0));

    let leader = cluster.wait_for_leader().await;
    let away = (leader + 1) % 3;
    cluster.nodes[away].host.close(GroupId::pipeline(PIPELINE)).await;
    stream.send(on_all(3, 300)).await;
    let ack = stream.ack().await;
    assert_eq!((ack.error.clone(), ack.reached(), ack.without.len()), (None, Ack::Majority, 1));
    // Who does not ask does not wait.
    stream.send(chunk(4, 0, 0, b"a majority", true)).await;
    let ack = stream.ack().await;
    assert_eq!((ack.error.clone(), ack.reached(), ack.without.len()), (None, Ack::Majority, 0));
    cluster.shut_down().await;
}

/// The budget is for what is not yet committed: chunks that wait for a replica that is gone take none of it.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_that_wait_for_all_replicas_hold_no_room() {
    const CHUNK_BYTES: usize = 1 << 20;
    const CHUNKS: u128 = 12;
    let limit = 4 * CHUNK_BYTES + 4096;
    let limited = DatanodeOptions { memory_bytes_max: 4 * limit, ..options() };
    let cluster = Cluster::start(limited).await;
    let mut waiting = cluster.leader().await.write_stream().await;
    waiting.write(chunk(1, 0, 0, b"a leader is there", true)).await.unwrap();
    let leader = cluster.wait_for_leader().await;
    cluster.nodes[(leader + 1) % 3].host.close(GroupId::pipeline(PIPELINE)).await;
    let committed = async || {
        let reports = cluster.nodes[leader].datanode.container_reports().await.unwrap();
        reports.iter().map(|report| report.payload_bytes).sum::<u64>()
    };
    // Longer than a datanode waits. One after the other is committed: what is not has room, which a pipeline
    // has for half of the limit alone.
    for nonce in 0..CHUNKS {
        let data = bytes(nonce as u64, CHUNK_BYTES);
        let asked = WriteChunk {
            ack: Ack::All.into(),
            ack_all_within_ms: u32::MAX,
            ..chunk(100 + nonce, 0, 0, &data, true)
        };
        waiting.send(asked).await;
        let deadline = Instant::now() + DEADLINE;
        while committed().await < (nonce as u64 + 1) * CHUNK_BYTES as u64 {
            assert!(Instant::now() < deadline, "chunk {nonce} is not committed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // Three times the limit is committed while the first of them still waits.
    assert!(waiting.ack().now_or_never().is_none(), "it is acknowledged without the replica that is gone");
    let mut other = cluster.nodes[leader].write_stream().await;
    other.write(chunk(2, 0, 0, &bytes(2, CHUNK_BYTES), true)).await.expect("the node has room for another");
    drop((waiting, other));
    cluster.shut_down().await;
}
