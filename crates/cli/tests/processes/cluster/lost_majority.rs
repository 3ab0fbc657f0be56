use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::commands::{admin_json, flotilla};
use crate::drills::assert_all_there;
use proto::scm::{ContainerInfo, ContainerState, Pipeline, PipelineState};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Two datanodes are gone for good, and with them the majority of some pipelines. What all members had is readable throughout; an
/// operator says that the others never come back, and the containers have three good copies again.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup::default()).await;
    let writers = drill.load().await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new());
    // What a majority has is acknowledged; the third member of each pipeline gets it a moment later, on a machine that does other things too.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let lost = BTreeSet::from([drill.node_at(0).await, drill.node_at(1).await]);
    drill.cluster.datanodes[0].kill9();
    drill.cluster.datanodes[1].kill9();
    let killed = Instant::now();

    let ended = async || {
        let pipelines = drill.pipelines().await;
        let is_there =
            |pipeline: &&Pipeline| pipeline.members.iter().any(|member| lost.contains(&member.node));
        let broken: Vec<&Pipeline> = pipelines.iter().filter(is_there).collect();
        let unended = broken.iter().filter(|pipeline| pipeline.state() != PipelineState::PipelineClosed);
        // Some time after a pipeline those of its containers are told apart of which too few have said what they have.
        let open = drill.containers(ContainerState::ContainerOpen).await;
        let is_of_broken = |open: &&ContainerInfo| broken.iter().any(|it| it.pipeline == open.pipeline);
        match (unended.count(), open.iter().filter(is_of_broken).count()) {
            (0, 0) => Ok(()),
            (unended, open) => Err(format!("{unended} pipelines are not over, {open} containers are open")),
        }
    };
    drill.until("end of the pipelines with lost members", REPAIRED_WITHIN, ended).await;
    let ended = killed.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;

    let undecided = drill.containers(ContainerState::ContainerQuasiClosed).await;
    let undecided: BTreeSet<u64> = undecided.iter().map(|container| container.pipeline).collect();
    assert!(!undecided.is_empty(), "no pipeline had two of its members on nodes {lost:?}");
    for pipeline in &undecided {
        let pipeline = pipeline.to_string();
        let command = ["pipeline", "accept-loss", &pipeline];
        // A member that was asked to end may have said so, and not yet all that it has.
        let offer = async || {
            let words = [&["admin", "--scm", &drill.cluster.scm_address][..], &command].concat();
            let output = flotilla(&words, None);
            let said = || String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.success().then_some(()).ok_or_else(said)
        };
        drill.until("offer of what is left", REPAIRED_WITHIN, offer).await;
        let offered = admin_json(&drill.cluster.scm_address, &command);
        let keep = offered["node"].as_u64().expect("the member that has the most").to_string();
        admin_json(&drill.cluster.scm_address, &[&command[..], &["--keep", &keep]].concat());
    }
    drill.until("three good replicas of everything", REPAIRED_WITHIN, async || drill.whole().await).await;
    let repaired = killed.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;

    // It goes on with the three nodes that are left.
    let writers = drill.writers(written.next);
    writers.progress(40).await;
    let more = drill.settle(writers).await;
    Shown {
        objects: written.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("given_up_pipelines", undecided.len() as f64),
            ("ended_s", ended.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
        ],
    }
}
