use super::harness::{DATANODES, Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::drills::{assert_all_come_back, assert_all_there};
use proto::scm::NodeState;
use std::time::Instant;

/// kill -9 of everything at once, in the middle of writes: all that was acknowledged is there, and the
/// cluster goes on.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup::default()).await;
    let writers = drill.load().await;
    drill.cluster.kill9_all();
    let cut = writers.stop().await;
    let started = Instant::now();
    drill.cluster.start_all_again();
    assert_all_come_back(&drill.s3, &cut.acknowledged).await;
    let all_healthy = async || {
        let healthy = drill.datanodes().await;
        let healthy = healthy.iter().filter(|info| info.state() == NodeState::NodeHealthy).count();
        (healthy == DATANODES).then_some(()).ok_or(format!("{healthy} nodes are healthy"))
    };
    drill.until("healthy nodes", REPAIRED_WITHIN, all_healthy).await;
    let writers = drill.writers(cut.next);
    writers.progress(40).await;
    let back = started.elapsed();
    let written = drill.settle(writers).await;
    assert_all_there(&drill.s3, &cut.acknowledged).await;
    Shown {
        objects: cut.acknowledged.len() + written.acknowledged.len(),
        figures: vec![("back_s", back.as_secs_f64())],
    }
}
