use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, NODES};
use crate::load::{Load, assert_kept};

/// All nodes are restarted one after the other, under load: no write fails, though some are tried more than once.
pub(crate) async fn rolling() -> Report {
    let mut cluster = Cluster::start().await;
    let load = Load::start(&cluster, DEADLINE);
    for n in 0..NODES {
        cluster.stop_node(n).await;
        cluster.start_node(n).await;
        cluster.wait_caught_up(n).await;
    }
    let written = load.stop().await;
    let failed: usize = written.iter().map(|writer| writer.history.refused.len()).sum();
    assert_eq!(failed, 0, "writes failed though they were tried for {DEADLINE:?}");
    let acknowledged = assert_kept(&cluster, &written).await;
    Report { drill: "rolling restart", failovers: Vec::new(), acknowledged }
}
