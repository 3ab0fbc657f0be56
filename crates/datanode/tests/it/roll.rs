use crate::cluster::{Acked, Cluster, DEADLINE, FIRST_CONTAINER, LOOK, bytes, chunk, options};
use flotilla_datanode::DatanodeOptions;
use proto::{Code, Retry};
use tokio::time::Instant;
use types::ContainerId;

const CONTAINER_BYTES: u64 = 1 << 20;

async fn cluster_of_small_containers() -> Cluster {
    Cluster::start(DatanodeOptions { container_bytes_max: CONTAINER_BYTES, ..options() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_container_is_followed_by_the_next_while_writing_goes_on() {
    let mut cluster = cluster_of_small_containers().await;
    let mut stream = cluster.leader().await.write_stream().await;
    let mut written: Vec<(Acked, Vec<u8>)> = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while written.last().is_none_or(|(acked, _)| acked.block.container < ContainerId(FIRST_CONTAINER.0 + 3)) {
        assert!(
            Instant::now() < deadline,
            "the third roll never came: {:?}",
            written.last().map(|last| last.0)
        );
        let number = written.len() as u64 + 1;
        let data = bytes(number, 100_000);
        let acked = match stream.write(chunk(u128::from(number), 0, 0, &data, true)).await {
            Ok(acked) => acked,
            // No roll for two containers' worth: on a busy machine the writer may be quicker than the roll.
            Err(failure) if failure.code == Code::Closed => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            // The machine stood still for longer than anybody waits for a leader.
            Err(failure) => {
                assert_ne!(failure.retry, Retry::No, "{failure}");
                stream = cluster.leader().await.write_stream().await;
                continue;
            }
        };
        written.push((acked, data));
    }
    let containers: Vec<_> = written.iter().map(|(acked, _)| acked.block.container.0).collect();
    assert!(containers.is_sorted());
    let last = written.last().unwrap().0.commit_index;
    for (acked, data) in &written {
        cluster.check_block(acked.block, last, data).await;
    }

    cluster.restart().await;
    cluster.wait_for_leader().await;
    for (acked, data) in &written {
        cluster.check_block(acked.block, last, data).await;
    }
    let acked = cluster.write(chunk(1 << 64, 0, 0, b"after", true)).await;
    assert!(acked.block.container >= written.last().unwrap().0.block.container);
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_was_open_at_the_roll_ends_there() {
    let cluster = cluster_of_small_containers().await;
    let mut stream = cluster.leader().await.write_stream().await;
    let begun = stream.write(chunk(1, 0, 0, b"begun before", false)).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    let mut filler = 10;
    // Others fill the container.
    let after = loop {
        assert!(Instant::now() < deadline, "the roll never came");
        filler += 1;
        let acked = stream.write(chunk(filler, 0, 0, &bytes(7, 300_000), true)).await;
        if let Ok(acked) = acked
            && acked.block.container > FIRST_CONTAINER
        {
            break acked;
        }
    };
    stream.send(chunk(1, 1, 12, b" the roll", true)).await;
    let failure = proto::Failure::from(stream.ack().await.error.unwrap());
    assert_eq!(failure.code, Code::Closed, "{failure}");
    let next = stream.write(chunk(2, 0, 0, b"next", true)).await.unwrap();
    assert_eq!(next.commit_index, after.commit_index + 1, "what was refused has no record");

    // A stream that does not know where the block began.
    let mut other = cluster.leader().await.write_stream().await;
    other.send(chunk(1, 1, 12, b" the roll", true)).await;
    let ack = other.ack().await;
    let failure = proto::Failure::from(ack.error.unwrap());
    assert_eq!(failure.code, Code::Closed, "{failure}");
    assert_eq!(
        (ack.block.unwrap(), ack.length),
        (begun.block.id().into(), 12),
        "the answer says where the block ends"
    );
    for node in &cluster.nodes {
        let read = node.read_acknowledged(begun.block, 0, 12, ack.commit_index).await.unwrap();
        assert_eq!(read, b"begun before");
        let head = proto::datanode::HeadRequest { block: Some(begun.block.into()) };
        assert!(node.client().await.head(head).await.unwrap().into_inner().sealed);
    }
    cluster.shut_down().await;
}
