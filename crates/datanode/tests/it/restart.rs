use crate::cluster::{Acked, Cluster, PIPELINE, bytes, chunk, options};
use types::GroupId;

#[tokio::test(flavor = "multi_thread")]
async fn everything_acknowledged_is_there_after_all_nodes_restarted() {
    let mut cluster = Cluster::start(options()).await;
    let mut written: Vec<(Acked, Vec<u8>)> = Vec::new();
    for round in 0..3u64 {
        let mut stream = cluster.leader().await.write_stream().await;
        for number in 0..20 {
            let data = bytes(round * 100 + number, 1 + 40_000 * number as usize);
            let nonce = u128::from(round * 100 + number);
            written.push((stream.write(chunk(nonce, 0, 0, &data, true)).await.unwrap(), data));
        }
        cluster.restart().await;
        // The disks alone brought the pipeline back: nobody ordered it.
        let leader = cluster.leader().await;
        assert!(leader.host.group(GroupId::pipeline(PIPELINE)).is_some());
        for (acked, data) in &written {
            cluster.check_block(acked.block, acked.commit_index, data).await;
        }
        // A writer that did not hear of it in time asks again, in the next life.
        let (acked, data) = written.last().unwrap();
        let nonce = u128::from(round * 100 + 19);
        let again = leader.write_stream().await.write(chunk(nonce, 0, 0, data, true)).await.unwrap();
        assert_eq!((again.block, again.length), (acked.block, acked.length));
    }
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipeline_is_still_read() {
    let cluster = Cluster::start(options()).await;
    let acked =
        cluster.leader().await.write_stream().await.write(chunk(1, 0, 0, b"still here", true)).await.unwrap();
    cluster.check_block(acked.block, acked.commit_index, b"still here").await;
    for node in &cluster.nodes {
        node.host.close(GroupId::pipeline(PIPELINE)).await;
    }
    cluster.check_block(acked.block, 0, b"still here").await;
    cluster.shut_down().await;
}
