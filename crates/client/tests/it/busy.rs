//! Nodes that have more under way than they take.

use crate::cluster::{Cluster, DEADLINE, bytes_of, frames};
use datanode::DatanodeOptions;
use flotilla_client::{Client, ClientOptions, S3_VOLUME};
use futures::future::join_all;
use types::GroupId;

const MIB: usize = 1 << 20;

/// The bytes that the logs of all nodes took, and the number of times that a node was busy.
fn appended_and_refused(cluster: &Cluster) -> (u64, u64) {
    let pipelines: Vec<_> = cluster.client.view().pipelines.iter().map(|pipeline| pipeline.id).collect();
    let (mut appended, mut refused) = (0, 0);
    for node in &cluster.nodes {
        let groups = pipelines.iter().filter_map(|pipeline| node.host.group(GroupId::pipeline(*pipeline)));
        appended += groups.map(|group| group.metrics().tally.append_bytes).sum::<u64>();
        refused += node.datanode.disk_stats().iter().map(|disk| disk.busy_chunks).sum::<u64>();
    }
    (appended, refused)
}

/// Three disks took the load several times over where each `Busy` had everything sent again: overload fed
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_busy_node_refuses_is_all_that_is_sent_again() {
    const CLIENTS: usize = 4;
    const BODIES: usize = 3;
    const BODY_BYTES: usize = 6 * MIB;
    // Each stream may fill its node alone, so that one keeps the other out.
    let limited = DatanodeOptions { memory_bytes_max: 4 * 5 * MIB, ..Default::default() };
    let cluster = Cluster::start_with(limited).await;
    cluster.all_pipelines_led().await;
    cluster.all_caught_up().await;
    // Nobody gives a pipeline up meanwhile: what is written elsewhere then is appended twice.
    let options = ClientOptions { stall: DEADLINE / 2, write_deadline: DEADLINE, ..cluster.client_options() };
    let clients: Vec<_> = (0..CLIENTS).map(|_| Client::connect(options.clone())).collect();
    join_all(clients.iter().map(async |client| client.ready(DEADLINE).await.unwrap())).await;
    let (before, _) = appended_and_refused(&cluster);
    let puts = (0..CLIENTS * BODIES).map(|number| {
        let (client, body) = (clients[number % CLIENTS].clone(), bytes_of(BODY_BYTES, number as u64));
        async move {
            let key = format!("busy-{number}");
            let body = frames(body);
            let bucket = crate::cluster::BUCKET;
            client.put(S3_VOLUME, bucket, key.as_bytes(), Default::default(), None, body).await.unwrap();
        }
    });
    join_all(puts).await;
    for number in 0..CLIENTS * BODIES {
        let read = cluster.get(&format!("busy-{number}")).await.unwrap();
        assert!(read == bytes_of(BODY_BYTES, number as u64), "body {number}");
    }
    cluster.all_caught_up().await;
    let (after, refused) = appended_and_refused(&cluster);
    assert!(refused > 0, "no node was busy: this test shows nothing");
    let acknowledged = 3 * (CLIENTS * BODIES * BODY_BYTES) as u64;
    let ratio = (after - before) as f64 / acknowledged as f64;
    println!("{refused} chunks were refused, {ratio:.3} bytes appended for each that was acknowledged");
    assert!((0.99..1.1).contains(&ratio), "{ratio:.3} bytes were appended for each that was acknowledged");
    cluster.stop().await;
}
