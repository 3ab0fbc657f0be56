use super::detour::Way;
use super::harness::{DATANODES, Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::drills::assert_all_there;
use proto::scm::{NodeState, PipelineState};
use std::time::{Duration, Instant};

/// Silence alone changes nothing in this drill, and a place where members stood still is a bad one for as
/// long.
const DEAD_AFTER: Duration = Duration::from_secs(600);
/// The time for which nothing may close any more: several times what a pipeline has to come on (10 s), and
/// what a fault is let be (5 s).
const WATCHED_FOR: Duration = Duration::from_secs(60);

/// A datanode hears SCM and the gateway, and not the other datanodes: its members stand still. Pipelines
/// elsewhere take the place of theirs, once, though SCM hears it as before; then none closes any more.
pub(super) async fn run() -> Shown {
    let mut ways = Vec::new();
    for _ in 0..DATANODES {
        ways.push(Way::open().await);
    }
    let detours = ways.iter().map(Way::detour).collect();
    let drill = Drill::start(Setup { detours, dead_after: DEAD_AFTER, ..Setup::default() }).await;
    let writers = drill.load().await;
    let node = drill.node_at(0).await;
    let before = newest(&drill).await;
    let processes: Vec<u32> = drill.cluster.datanodes.iter().map(|datanode| datanode.pid()).collect();
    let live = drill.in_state(PipelineState::PipelineOpen).await.len() as u64;
    ways[0].break_for(processes[1..].iter().copied());
    ways[1..].iter().for_each(|way| way.break_for([processes[0]]));
    let cut = Instant::now();
    let without = async || drill.replaced_without(node, None).await;
    drill.until("replaced pipelines", REPAIRED_WITHIN, without).await;
    let replaced = cut.elapsed();
    // Who only answers another node does not call it.
    let held: Vec<usize> = ways.iter().map(Way::held).collect();
    let went = held[0] > 0 && held[1..].iter().any(|held| *held > 0);
    assert!(went, "nobody went the broken paths: this shows nothing ({held:?})");

    let replaced_by = newest(&drill).await;
    let made = replaced_by - before;
    assert!(made <= live, "{made} pipelines were made in place of some of {live}");
    tokio::time::sleep(WATCHED_FOR).await;
    let made = newest(&drill).await - replaced_by;
    assert_eq!(made, 0, "pipelines close and are made anew: {:?}", drill.pipelines().await);
    assert_eq!(without().await, Ok(()));
    assert_eq!(drill.state_of(node).await, NodeState::NodeHealthy, "SCM hears it as before");
    writers.progress(30).await;
    ways.iter().for_each(Way::mend);
    let written = drill.settle(writers).await;
    assert_all_there(&drill.s3, &written.acknowledged).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![("replaced_s", replaced.as_secs_f64()), ("made_afterwards", made as f64)],
    }
}

/// The number of the pipeline that was made last.
async fn newest(drill: &Drill) -> u64 {
    let pipelines = drill.pipelines().await;
    pipelines.iter().map(|pipeline| pipeline.pipeline).max().expect("there are some")
}
