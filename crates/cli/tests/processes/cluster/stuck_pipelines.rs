use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::commands::admin_once;
use crate::drills::{Writers, assert_all_there};
use futures::future::join_all;
use proto::scm::{Pipeline, PipelineState};
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;

/// Pipelines of the first three datanodes.
const STUCK: u32 = 4;
/// The datanode that leads all, and the others, which stand still.
const LEADER: usize = 0;
const STILL: [usize; 2] = [1, 2];
/// A quarter of a datanode's memory for data is for chunks on their way: little, since a leader that hears
/// nobody soon takes no more of them.
const DATA_MEMORY: &str = "--data-memory 67108864";
const BODIES_BYTES_MAX: f64 = (16 << 20) as f64;
/// Writers, so many times six, that have something under way when the others stand still.
const WRITERS: u64 = 32;
/// Nobody acts on what stands still.
const NEVER: Duration = Duration::from_secs(3600);

/// Four pipelines cannot commit: their leader is the only member that is there, and keeps what it took for
/// them. The node leads a fifth one, whose members all work, and that one takes what it is sent: the others
/// leave it a share of the memory.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup {
        datanodes: 3,
        pipelines_per_disk: STUCK,
        datanode_args: DATA_MEMORY,
        dead_after: NEVER,
        fault_grace: NEVER,
        quasi_close_after: NEVER,
        ..Setup::default()
    })
    .await;
    let leader = drill.node_at(LEADER).await;
    drill.until("four pipelines", REPAIRED_WITHIN, async || are_open(&drill, STUCK as usize).await).await;
    let stuck = drill.in_state(PipelineState::PipelineOpen).await;
    drill.cluster.add_datanode();
    drill.cluster.add_datanode();
    drill.until("two more datanodes", REPAIRED_WITHIN, async || drill.healthy(5).await).await;
    let before = drill.load().await.stop().await;
    drill.until("one that leads them all", REPAIRED_WITHIN, async || leads(&drill, leader, &stuck)).await;

    let writers: Vec<_> =
        (0..WRITERS).map(|of| Writers::paced(&drill.s3, before.next + of * 10_000, Duration::ZERO)).collect();
    writers[0].progress(5).await;
    STILL.iter().for_each(|still| drill.cluster.datanodes[*still].pause());
    let stopped = Instant::now();
    let are_full = async || match bodies_bytes(&drill).await? {
        bytes if bytes >= BODIES_BYTES_MAX * 0.75 => Ok(()),
        bytes => Err(format!("{bytes} bytes are on their way")),
    };
    drill.until("chunks that nobody can commit", REPAIRED_WITHIN, are_full).await;
    // A writer whose write nobody can acknowledge hears so in half a minute.
    let mut refused = 0;
    let mut acknowledged = before.acknowledged;
    for written in join_all(writers.into_iter().map(Writers::stop)).await {
        refused += written.errors.len();
        acknowledged.extend(written.acknowledged);
    }
    let held = bodies_bytes(&drill).await.expect("it answers");

    let scm = &drill.cluster.scm_address;
    admin_once(scm, &["pipeline", "create"]).expect("three nodes work");
    drill.until("a fifth", REPAIRED_WITHIN, async || are_open(&drill, STUCK as usize + 1).await).await;
    let mut fifth = drill.in_state(PipelineState::PipelineOpen).await;
    fifth.retain(|open| stuck.iter().all(|of| of.pipeline != open.pipeline));
    drill.until("the same leader", REPAIRED_WITHIN, async || leads(&drill, leader, &fifth)).await;
    let begun = Instant::now();
    let writers = drill.writers(before.next + WRITERS * 10_000);
    writers.progress(20).await;
    let slowest = writers.slowest_since(begun);
    leads(&drill, leader, &fifth).expect("it leads still");
    assert!(
        bodies_bytes(&drill).await.expect("it answers") >= held / 2.0,
        "the others hold nothing any more"
    );
    let stood_still = stopped.elapsed();
    STILL.iter().for_each(|still| drill.cluster.datanodes[*still].go_on());
    let more = drill.settle(writers).await;
    acknowledged.extend(more.acknowledged);
    assert_all_there(&drill.s3, &acknowledged).await;
    let given_back = async || match bodies_bytes(&drill).await? {
        0.0 => Ok(()),
        bytes => Err(format!("{bytes} bytes are on their way still")),
    };
    drill.until("all memory", REPAIRED_WITHIN, given_back).await;
    Shown {
        objects: acknowledged.len(),
        figures: vec![
            ("held_mib", held / f64::from(1 << 20)),
            ("stood_still_s", stood_still.as_secs_f64()),
            ("slowest_put_s", slowest.as_secs_f64()),
            ("refused_objects", refused as f64),
        ],
    }
}

async fn are_open(drill: &Drill, count: usize) -> Result<(), String> {
    let open = drill.in_state(PipelineState::PipelineOpen).await.len();
    (open == count).then_some(()).ok_or(format!("{open} are open"))
}

/// The node leads all of these, as SCM has it; those that it does not are told to move.
pub(super) fn leads(drill: &Drill, node: u64, pipelines: &[Pipeline]) -> Result<(), String> {
    let scm = &drill.cluster.scm_address;
    let listed = admin_once(scm, &["pipeline", "list"])?;
    let listed = listed.as_array().ok_or("no list")?;
    let led_by = |pipeline: u64| {
        let of = listed.iter().find(|of| of["pipeline"].as_u64() == Some(pipeline));
        of.and_then(|of| of["leader_node"].as_u64())
    };
    let others: Vec<u64> =
        pipelines.iter().map(|of| of.pipeline).filter(|of| led_by(*of) != Some(node)).collect();
    for pipeline in &others {
        admin_once(scm, &["pipeline", "transfer-leader", &pipeline.to_string(), "--to", &node.to_string()])?;
    }
    others.is_empty().then_some(()).ok_or_else(|| format!("others lead {others:?}"))
}

/// Memory that chunks hold on the leader until they are applied.
async fn bodies_bytes(drill: &Drill) -> Result<f64, String> {
    let base = &drill.cluster.datanode_http[LEADER];
    let answer = reqwest::get(format!("{base}/metrics")).await.map_err(|error| error.to_string())?;
    let page = Scrape::parse(&answer.text().await.map_err(|error| error.to_string())?)?;
    page.value("flotilla_datanode_memory_bytes", &[("owner", "bodies")]).ok_or("no such metric".to_owned())
}
