use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use proto::scm::{ClosePipelineRequest, ContainerState};
use std::time::{Duration, Instant};

/// The size of a container: of two of these for each pipeline (the open one may grow to twice its size) the
/// writers fill nothing like all while SCM is away.
const CONTAINER_BYTES_MAX: u64 = 512 << 20;
/// The time for which SCM is away: less than it gives a silent node.
const AWAY: Duration = Duration::from_secs(5);

/// kill -9 of SCM in the middle of writes, and of a datanode while it is away; then they come back, and SCM
/// does what it is told.
pub(super) async fn run() -> Shown {
    let setup = Setup { container_bytes_max: CONTAINER_BYTES_MAX, ..Setup::default() };
    let mut drill = Drill::start(setup).await;
    let writers = drill.writers(0);
    writers.progress(30).await;
    let pipelines = drill.pipelines().await;
    drill.cluster.scms[0].kill9();
    let killed = Instant::now();
    writers.progress(10).await;
    drill.cluster.datanodes[0].kill9();
    tokio::time::sleep(AWAY).await;
    writers.progress(10).await;
    drill.cluster.scms[0].start_again();
    let started = Instant::now();
    drill.cluster.datanodes[0].start_again();
    writers.progress(30).await;
    let still = stood_still(&writers, killed);

    // It knows its pipelines, and closes and replaces them.
    for pipeline in pipelines.iter().map(|pipeline| pipeline.pipeline) {
        drill.scm(async |mut scm| scm.close_pipeline(ClosePipelineRequest { pipeline }).await).await;
    }
    let closed = async || match drill.containers(ContainerState::ContainerClosed).await.len() {
        closed if closed >= pipelines.len() => Ok(()),
        closed => Err(format!("{closed} containers of {} pipelines are closed", pipelines.len())),
    };
    drill.until("closed containers", REPAIRED_WITHIN, closed).await;
    writers.progress(20).await;
    let written = drill.settle(writers).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![("stood_still_s", still), ("whole_after_start_s", started.elapsed().as_secs_f64())],
    }
}
