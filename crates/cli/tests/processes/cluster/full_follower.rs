use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use crate::commands::admin_once;
use crate::drills::{assert_all_come_back, assert_all_there, assert_none_wrong};
use crate::small_disk::SmallDisk;
use proto::scm::{NodeState, PipelineState};
use std::time::Instant;

const DISK_BYTES: u64 = 1 << 30;
/// The datanode with the small disk, and the one that is lost.
const FULL: usize = 0;
const LOST: usize = 1;

/// Three datanodes with all pipelines, of which the first leads none, and an empty fourth one.
async fn start(disk: &SmallDisk) -> Drill {
    let mut drill = Drill::start(Setup {
        datanodes: 3,
        first_disk: Some(disk.root().join("disk1")),
        datanode_args: "--reserve-bytes 33554432",
        ..Setup::default()
    })
    .await;
    drill.until("open pipelines", REPAIRED_WITHIN, async || two_are_open(&drill).await).await;
    drill.cluster.add_datanode();
    drill.until("a fourth datanode", REPAIRED_WITHIN, async || drill.healthy(4).await).await;
    drill
}

async fn two_are_open(drill: &Drill) -> Result<(), String> {
    let open = drill.in_state(PipelineState::PipelineOpen).await.len();
    (open == 2).then_some(()).ok_or(format!("{open} are open"))
}

/// Pipelines that the node leads are led by somebody else in the end.
async fn follows_only(drill: &Drill, node: u64) {
    let scm = &drill.cluster.scm_address;
    drill
        .until("pipelines that others lead", REPAIRED_WITHIN, async || {
            let open = drill.in_state(PipelineState::PipelineOpen).await;
            let led = open.iter().find(|pipeline| pipeline.leader_node == node || pipeline.leader_node == 0);
            let Some(led) = led else { return Ok(()) };
            let to = led.members.iter().find(|member| member.node != node).expect("it has three").node;
            let words = ["pipeline", "transfer-leader", &led.pipeline.to_string(), "--to", &to.to_string()];
            let moved = admin_once(scm, &words);
            Err(format!("{led:?}: {moved:?}"))
        })
        .await;
}

/// Replicas on the full disk count, and those that it lacks are elsewhere.
async fn three_of_each(drill: &Drill) -> Result<(), String> {
    drill.whole_or_in_trouble().await?;
    let status = drill.status().await;
    (status.under_replicated + status.missing == 0).then_some(()).ok_or_else(|| format!("{status:?}"))
}

/// The disk of a follower runs full, for good: it is called at fault, its pipelines close and others take
/// their place, its containers have three copies. Then another node is lost: what lacks something says so,
/// and the two nodes that are left take writes.
pub(super) async fn run() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let mut drill = start(&disk).await;
    let full = drill.node_at(FULL).await;
    let writers = drill.load().await;
    follows_only(&drill, full).await;
    disk.fill_but(0);
    let filled = Instant::now();
    let without = async || drill.replaced_without(full, None).await;
    drill.until("pipelines without the full disk", REPAIRED_WITHIN, without).await;
    let replaced = filled.elapsed();
    writers.progress(20).await;
    let still = stood_still(&writers, filled);
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
    let mut over = drill.pipelines().await;
    over.retain(|pipeline| {
        pipeline.state().is_closing() || pipeline.state() == PipelineState::PipelineClosed
    });
    let why = format!("it has been behind on node {full}");
    let reasons: Vec<&String> = over.iter().map(|over| &over.close_reason).collect();
    assert!(reasons.iter().any(|reason| reason.contains(&why)), "{reasons:?}");
    drill.until("repair", REPAIRED_WITHIN, async || three_of_each(&drill).await).await;
    let repaired = filled.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;

    drill.cluster.datanodes[LOST].kill9();
    let killed = Instant::now();
    let lost = drill.node_at(LOST).await;
    let over = async || match drill.state_of(lost).await {
        NodeState::NodeDead => drill.whole_or_in_trouble().await,
        state => Err(format!("node {lost} is {state:?}")),
    };
    drill.until("copies, or trouble", REPAIRED_WITHIN, over).await;
    let said = killed.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;
    // Two nodes with room are left, and no place for another pipeline: those that are there go on.
    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let on_two = writers.stop().await;
    assert_eq!(on_two.errors, Vec::<String>::new(), "two members are enough");

    drill.cluster.datanodes[LOST].start_again();
    disk.make_room();
    let writers = drill.writers(on_two.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    let acknowledged = [written.acknowledged, on_two.acknowledged].concat();
    assert_all_there(&drill.s3, &acknowledged).await;
    drop(drill);
    Some(Shown {
        objects: acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("stood_still_s", still),
            ("replaced_s", replaced.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
            ("lost_another_s", said.as_secs_f64()),
        ],
    })
}

/// The disk of a follower runs full, and before anybody acts another member is lost: the leader that is left
/// can commit nothing, not even the end. Nothing closes for ever, what lacks something says so, and nothing
/// wrong is read; when both are back everything is there.
pub(super) async fn and_lost() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let mut drill = start(&disk).await;
    let full = drill.node_at(FULL).await;
    let writers = drill.load().await;
    follows_only(&drill, full).await;
    disk.fill_but(0);
    writers.progress(20).await;
    drill.cluster.datanodes[LOST].kill9();
    let killed = Instant::now();
    // A writer whose write nobody can acknowledge hears so in half a minute.
    let written = writers.stop().await;
    let lost = drill.node_at(LOST).await;
    let over = async || match drill.state_of(lost).await {
        NodeState::NodeDead => drill.whole_or_in_trouble().await,
        state => Err(format!("node {lost} is {state:?}")),
    };
    drill.until("ends, and trouble", REPAIRED_WITHIN, over).await;
    let said = killed.elapsed();
    let refused = assert_none_wrong(&drill.s3, &written.acknowledged).await;

    drill.cluster.datanodes[LOST].start_again();
    disk.make_room();
    assert_all_come_back(&drill.s3, &written.acknowledged).await;
    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    assert_all_there(&drill.s3, &written.acknowledged).await;
    drop(drill);
    Some(Shown {
        objects: written.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("ended_s", said.as_secs_f64()),
            ("refused_objects", refused as f64),
            ("errors", written.errors.len() as f64),
        ],
    })
}
