use crate::cluster::{Cluster, body, pipeline};
use flotilla_raft::Command;
use futures::future::join_all;
use tokio::time::Instant;

/// Not a check: prints what this machine does. `cargo test -p flotilla-raft -- --ignored --nocapture throughput`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; run alone"]
async fn throughput() {
    for (clients, bytes, count) in [(1, 4096, 300), (64, 4096, 20_000), (16, 1 << 20, 400)] {
        let mut cluster = Cluster::start().await;
        let group = pipeline(1);
        cluster.open(group).await;
        let leader = cluster.leader(group).await;
        let leading = cluster.group(leader, group);
        cluster.apply(group, "warm".into(), body(0, bytes)).await;
        let payload = body(1, bytes);
        let start = Instant::now();
        let each = count / clients;
        join_all((0..clients).map(|_| async {
            for _ in 0..each {
                let command = Command { meta: "m".into(), body: payload.clone(), roll_to: None };
                leading.apply(command).await.expect("applied");
            }
        }))
        .await;
        let took = start.elapsed().as_secs_f64();
        let rate = f64::from(each * clients) / took;
        let mib = rate * bytes as f64 / f64::from(1 << 20);
        println!("{clients} clients x {bytes} bytes: {rate:.0} proposals/s, {mib:.1} MiB/s");
        cluster.stop().await;
    }
}
