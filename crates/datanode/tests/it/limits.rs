//! Tests of what a write stream refuses, and what it does with the rest of the block.

use crate::cluster::{Cluster, bytes, chunk, options};
use flotilla_datanode::DatanodeOptions;
use proto::{Code, Retry};

#[tokio::test(flavor = "multi_thread")]
async fn bad_chunks_are_refused_one_by_one_and_the_stream_goes_on() {
    let cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;

    let mut damaged = chunk(1, 0, 0, b"what the writer sent", true);
    damaged.data = bytes::Bytes::from_static(b"what arrived instead");
    let failure = stream.write(damaged).await.unwrap_err();
    assert_eq!((failure.code, failure.retry), (Code::Corrupt, Retry::Here), "{failure}");

    let mut unnamed = chunk(2, 0, 0, b"x", true);
    unnamed.nonce = bytes::Bytes::from_static(b"short");
    assert_eq!(stream.write(unnamed).await.unwrap_err().code, Code::Invalid);

    let mut stray = chunk(3, 0, 0, b"x", true);
    stray.pipeline = 99;
    let failure = stream.write(stray).await.unwrap_err();
    assert_eq!((failure.code, failure.retry), (Code::NotFound, Retry::Elsewhere), "{failure}");

    let too_large = chunk(4, 0, 0, &bytes(4, (4 << 20) + 1), true);
    assert_eq!(stream.write(too_large).await.unwrap_err().code, Code::TooLarge);
    assert_eq!(stream.write(chunk(5, 0, 256 << 20, b"x", true)).await.unwrap_err().code, Code::TooLarge);
    assert_eq!(stream.write(chunk(6, 0, 0, b"", false)).await.unwrap_err().code, Code::Invalid);

    // The same block, undamaged now; and an empty one, and the largest chunk there may be.
    let acked = stream.write(chunk(1, 0, 0, b"what the writer sent", true)).await.unwrap();
    cluster.check_block(acked.block, acked.commit_index, b"what the writer sent").await;
    let empty = stream.write(chunk(7, 0, 0, b"", true)).await.unwrap();
    cluster.check_block(empty.block, empty.commit_index, b"").await;
    let data = bytes(8, 4 << 20);
    let largest = stream.write(chunk(8, 0, 0, &data, true)).await.unwrap();
    cluster.check_block(largest.block, largest.commit_index, &data).await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_chunk_passes_one_that_was_refused() {
    let cluster = Cluster::start(options()).await;
    let mut stream = cluster.leader().await.write_stream().await;
    let first = stream.write(chunk(1, 0, 0, b"one", false)).await.unwrap();
    let mut damaged = chunk(1, 1, 3, b"two", false);
    damaged.data_crcs[0] ^= 1;
    for sent in [damaged, chunk(1, 2, 6, b"three", true), chunk(2, 0, 0, b"another block", true)] {
        stream.send(sent).await;
    }
    assert_eq!(stream.acked().await.unwrap_err().code, Code::Corrupt);
    assert_eq!(stream.acked().await.unwrap_err().code, Code::Corrupt, "for the same reason");
    assert!(stream.acked().await.is_ok(), "other blocks are not concerned");
    // From the refused one on, again.
    stream.send(chunk(1, 1, 3, b"two", false)).await;
    stream.send(chunk(1, 2, 6, b"three", true)).await;
    assert_eq!(stream.acked().await.unwrap().block, first.block);
    let last = stream.acked().await.unwrap();
    cluster.check_block(first.block, last.commit_index, b"onetwothree").await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_too_much_under_way_says_busy() {
    let limited = DatanodeOptions { memory_bytes_max: 16 << 20, ..options() };
    let cluster = Cluster::start(limited).await;
    let leader = cluster.leader().await;
    // Followers are gone: nothing is committed, so the budget of the node stays taken.
    let position = cluster.wait_for_leader().await;
    for (n, node) in cluster.nodes.iter().enumerate() {
        if n != position {
            node.host.close(types::GroupId::pipeline(crate::cluster::PIPELINE)).await;
        }
    }
    let first = leader.write_stream().await;
    first.send(chunk(1, 0, 0, &bytes(1, 4 << 20), true)).await;
    let mut second = leader.write_stream().await;
    let deadline = tokio::time::Instant::now() + crate::cluster::DEADLINE;
    // The first stream's chunk takes a moment to arrive. Until it did, ours may be taken instead and not be
    // answered. An answer takes longer where others compute.
    let mut patience = std::time::Duration::from_millis(100);
    let failure = loop {
        assert!(tokio::time::Instant::now() < deadline, "the node never said busy");
        second.send(chunk(2, 0, 0, &bytes(2, 4 << 20), true)).await;
        match tokio::time::timeout(patience, second.acked()).await {
            Ok(answer) => break answer.unwrap_err(),
            Err(_) => (second, patience) = (leader.write_stream().await, 2 * patience),
        }
    };
    assert_eq!((failure.code, failure.retry), (Code::Busy, Retry::Here), "{failure}");
    cluster.shut_down().await;
}

/// Bytes that the leader's log took, of which every member's log has as many.
fn appended_bytes(node: &crate::cluster::Node) -> u64 {
    let group = node.host.group(types::GroupId::pipeline(crate::cluster::PIPELINE)).unwrap();
    group.metrics().tally.append_bytes
}

/// A writer whose connection breaks sends everything again that was not acknowledged. Some of it is applied
/// by then, some under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_comes_again_is_answered_and_not_appended_again() {
    const BLOCKS: u128 = 40;
    const CHUNK_BYTES: usize = 100_000;
    let cluster = Cluster::start(options()).await;
    let leader = cluster.leader().await;
    let before = appended_bytes(leader);
    let again = |chunk: proto::datanode::WriteChunk| proto::datanode::WriteChunk { again: true, ..chunk };
    for nonce in 1..=BLOCKS {
        let (first, second) = (bytes(nonce as u64, CHUNK_BYTES), bytes(nonce as u64 + 1000, CHUNK_BYTES));
        let whole = [first.clone(), second.clone()].concat();
        let chunks = [chunk(nonce, 0, 0, &first, false), chunk(nonce, 1, CHUNK_BYTES, &second, true)];
        let mut broken = leader.write_stream().await;
        broken.send(chunks[0].clone()).await;
        if nonce % 2 == 0 {
            broken.acked().await.unwrap();
        }
        broken.send(chunks[1].clone()).await;
        // Taken in, and under way or applied by now.
        let deadline = tokio::time::Instant::now() + crate::cluster::DEADLINE;
        while appended_bytes(leader) < before + nonce as u64 * 2 * CHUNK_BYTES as u64 {
            assert!(tokio::time::Instant::now() < deadline, "the chunks of block {nonce} are not appended");
            tokio::time::sleep(std::time::Duration::from_micros(200)).await;
        }
        drop(broken);
        let mut stream = leader.write_stream().await;
        stream.send(again(chunks[0].clone())).await;
        stream.send(again(chunks[1].clone())).await;
        let (one, two) = (stream.acked().await.unwrap(), stream.acked().await.unwrap());
        assert_eq!((one.block, one.length, two.length), (two.block, CHUNK_BYTES as u64, whole.len() as u64));
        cluster.check_block(two.block, two.commit_index, &whole).await;
    }
    let payload = BLOCKS as u64 * 2 * CHUNK_BYTES as u64;
    let appended = appended_bytes(leader) - before;
    let one_more = payload + CHUNK_BYTES as u64;
    assert!((payload..one_more).contains(&appended), "{appended} bytes appended for {payload}");
    let disks = leader.datanode.disk_stats();
    let repeated: u64 = disks.iter().map(|disk| disk.repeated_chunks).sum();
    assert_eq!(repeated, 2 * BLOCKS as u64);
    // One that only looks like it is none.
    let mut stream = leader.write_stream().await;
    let other = again(chunk(1, 0, 0, b"another one", false));
    assert_eq!(stream.write(other).await.unwrap_err().code, Code::Invalid);
    cluster.shut_down().await;
}
