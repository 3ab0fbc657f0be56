use super::detour::Way;
use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_majority::all_have_everything;
use crate::drills::{assert_all_come_back, assert_all_there, assert_none_wrong};
use proto::scm::{ContainerState, PipelineState, ReplicaState};
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;

/// Long enough for the others to lead and to acknowledge before SCM gives the first one up.
const DEAD_AFTER: Duration = Duration::from_secs(30);
/// The entries that the leader took alone, at least, and that nobody acknowledged.
const ALONE_MIN: u64 = 4;
/// Objects that the others acknowledge without it, at least.
const ELSEWHERE_MIN: usize = 40;
const LED_WITHIN: Duration = Duration::from_secs(60);

/// A leader is cut off with chunks under way that nobody acknowledges, and dies. The others acknowledge other
/// chunks under the same numbers, and stop. The first one comes back alone, and SCM has it end by itself:
/// nobody gets what it took alone for what was acknowledged. The others come back, and all is there.
pub(super) async fn run() -> Shown {
    let ways = [Way::open().await, Way::open().await, Way::open().await];
    let mut drill = Drill::start(Setup {
        datanodes: ways.len(),
        // Both histories are written to the same one, and nothing closes before the members disagree.
        pipelines_per_disk: 1,
        container_bytes_max: 512 << 20,
        detours: ways.iter().map(Way::detour).collect(),
        dead_after: DEAD_AFTER,
        fault_grace: Duration::from_secs(600),
        quasi_close_after: Duration::from_secs(4),
        ..Setup::default()
    })
    .await;
    let writers = drill.writers(0);
    writers.progress(20).await;
    let before = writers.stop().await;
    let same = async || all_have_everything(&drill).await;
    drill.until("members that have everything", REPAIRED_WITHIN, same).await;

    let pipeline = drill.in_state(PipelineState::PipelineOpen).await.remove(0).pipeline;
    let leader = leader_of(&drill).await;
    let others: Vec<usize> = (0..ways.len()).filter(|at| *at != leader).collect();
    let writers = drill.writers(before.next);
    writers.progress(10).await;
    let cut_off = drill.cluster.datanodes[leader].pid();
    for &other in &others {
        ways[other].break_for([cut_off]);
    }
    ways[leader].break_for(others.iter().map(|other| drill.cluster.datanodes[*other].pid()));
    let has_some_alone = async || {
        let tail = Tail::of(&drill, leader, pipeline).await?;
        (tail.last >= tail.applied + ALONE_MIN).then_some(()).ok_or(format!("{tail:?}"))
    };
    drill.until("entries that the leader has alone", LED_WITHIN, has_some_alone).await;
    let alone = Tail::of(&drill, leader, pipeline).await.expect("it is there");
    drill.cluster.datanodes[leader].kill9();
    let acknowledged_so_far = writers.written().acknowledged;
    writers.progress(ELSEWHERE_MIN).await;
    let are_past = async || {
        let tail = Tail::of(&drill, others[0], pipeline).await?;
        (tail.applied > alone.last).then_some(()).ok_or(format!("{tail:?}, the first one had {alone:?}"))
    };
    drill.until("other entries under the same numbers", DEAD_AFTER, are_past).await;
    for &other in &others {
        drill.cluster.datanodes[other].kill9();
    }
    let written = writers.stop().await;
    ways.iter().for_each(Way::mend);
    let elsewhere: Vec<u64> =
        written.acknowledged.iter().copied().filter(|n| !acknowledged_so_far.contains(n)).collect();
    assert!(!elsewhere.is_empty(), "nothing was acknowledged without the first one");

    let stopped = Instant::now();
    drill.cluster.datanodes[leader].spawn_again();
    let node = drill.node_at(leader).await;
    let ended_alone = async || {
        let containers = drill.containers(ContainerState::Unspecified).await;
        let replicas = containers.iter().flat_map(|info| &info.replicas);
        let mut its = replicas.filter(|info| info.node.as_ref().is_some_and(|of| of.node == node));
        let is_quasi_closed = its.any(|info| {
            info.replica.as_ref().is_some_and(|it| it.state() == ReplicaState::ReplicaQuasiClosed)
        });
        is_quasi_closed.then_some(()).ok_or_else(|| format!("{containers:?}"))
    };
    drill.until("a replica that ended by itself", REPAIRED_WITHIN, ended_alone).await;
    let ended = stopped.elapsed();
    let refused = assert_none_wrong(&drill.s3, &elsewhere).await;
    assert!(refused > 0, "nobody had to be refused: this shows nothing");
    assert_none_wrong(&drill.s3, &before.acknowledged).await;

    for &other in &others {
        drill.cluster.datanodes[other].start_again();
    }
    let all = [before.acknowledged, written.acknowledged].concat();
    drill.until("three good replicas of everything", REPAIRED_WITHIN, async || drill.whole().await).await;
    assert_all_come_back(&drill.s3, &all).await;
    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    assert_all_there(&drill.s3, &all).await;
    Shown {
        objects: all.len() + more.acknowledged.len(),
        figures: vec![
            ("entries_alone", (alone.last - alone.applied) as f64),
            ("objects_elsewhere", elsewhere.len() as f64),
            ("refused_objects", refused as f64),
            ("ended_s", ended.as_secs_f64()),
        ],
    }
}

/// The place in the cluster's list of the datanode that leads the pipeline.
async fn leader_of(drill: &Drill) -> usize {
    let open = drill.in_state(PipelineState::PipelineOpen).await;
    let node = open.first().expect("it is open").leader_node;
    for at in 0..drill.cluster.datanodes.len() {
        if drill.node_at(at).await == node {
            return at;
        }
    }
    panic!("node {node} leads, which is none of ours");
}

/// The end of a member's log.
#[derive(Debug)]
struct Tail {
    last: u64,
    applied: u64,
}

impl Tail {
    async fn of(drill: &Drill, at: usize, pipeline: u64) -> Result<Tail, String> {
        let base = &drill.cluster.datanode_http[at];
        let answer = reqwest::get(format!("{base}/metrics")).await.map_err(|error| error.to_string())?;
        let page = Scrape::parse(&answer.text().await.map_err(|error| error.to_string())?)?;
        let group = format!("pipeline-{pipeline}");
        let read = |name: &str| {
            let value = page.value(name, &[("group", &group)]);
            value.map(|value| value as u64).ok_or(format!("no {name} of {group}"))
        };
        Ok(Tail {
            last: read("flotilla_raft_group_last_index")?,
            applied: read("flotilla_raft_group_applied_index")?,
        })
    }
}
