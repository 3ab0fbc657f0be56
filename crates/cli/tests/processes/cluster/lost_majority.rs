use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::commands::admin_once;
use crate::drills::assert_all_there;
use proto::scm::{ContainerInfo, ContainerState, Pipeline, PipelineState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use testkit::prometheus::Scrape;

/// Two datanodes are gone for good, and with them the majority of some pipelines. What all members had is
/// readable throughout; an operator says that the others never come back, and the containers have three good
/// copies again.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup::default()).await;
    let writers = drill.load().await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new());
    // What a majority has is acknowledged; the third member of each pipeline gets it a moment later.
    let caught_up = async || all_have_everything(&drill).await;
    drill.until("members that have everything", REPAIRED_WITHIN, caught_up).await;
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
        // Some time after a pipeline those of its containers are told apart of which too few have said what
        // they have.
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
        // A member that was asked to end may have said so, and not yet all that it has; and one that is
        // silent for a moment has said nothing.
        let accepted = async || {
            let offered = admin_once(&drill.cluster.scm_address, &command)?;
            let keep = offered["node"].as_u64().expect("the member that has the most").to_string();
            admin_once(&drill.cluster.scm_address, &[&command[..], &["--keep", &keep]].concat()).map(drop)
        };
        drill.until("use of what is left", REPAIRED_WITHIN, accepted).await;
    }
    drill.until("three good replicas of everything", REPAIRED_WITHIN, async || drill.whole().await).await;
    let repaired = killed.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;

    // It goes on with the three nodes that are left.
    let writers = drill.writers(written.next);
    writers.progress(20).await;
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

/// Each member of an open pipeline has applied all that any of them has in its log.
pub(super) async fn all_have_everything(drill: &Drill) -> Result<(), String> {
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for base in &drill.cluster.datanode_http {
        let answer = reqwest::get(format!("{base}/metrics")).await.map_err(|error| error.to_string())?;
        let text = answer.text().await.map_err(|error| error.to_string())?;
        let page = Scrape::parse(&text)?;
        for name in ["flotilla_raft_group_last_index", "flotilla_raft_group_applied_index"] {
            for sample in page.with(name, &[]) {
                groups.entry(sample.labels["group"].clone()).or_default().push(sample.value);
            }
        }
    }
    let pipelines = drill.pipelines().await;
    for pipeline in pipelines.iter().filter(|pipeline| pipeline.state() == PipelineState::PipelineOpen) {
        let group = format!("pipeline-{}", pipeline.pipeline);
        let indexes = groups.remove(&group).unwrap_or_default();
        if indexes.len() != 2 * pipeline.members.len() || indexes.iter().any(|index| *index != indexes[0]) {
            return Err(format!("last and applied entries of {group}'s members: {indexes:?}"));
        }
    }
    Ok(())
}
