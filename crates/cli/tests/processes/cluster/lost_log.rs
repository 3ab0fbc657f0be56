use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_majority::all_have_everything;
use crate::drills::{assert_all_come_back, assert_all_there, assert_none_wrong};
use proto::scm::{ContainerInfo, ContainerState, NodeState, PipelineState, ReplicaState};
use std::path::Path;
use std::time::{Duration, Instant};

/// Nothing closes while SCM, which would have to name the next container, is away.
const CONTAINER_BYTES_MAX: u64 = 512 << 20;
/// The datanodes by what becomes of them: this one's logs lose their votes, ...
const WITHOUT_LOG: usize = 0;
/// ... this one is down while the others take writes, ...
const BEHIND: usize = 1;
/// ... and this one is away for longer than SCM waits, and has everything.
const AWAY: usize = 2;

/// Two members acknowledge what the third one never hears of. One of the two loses a file of 8 KiB, the other
/// is away for longer than SCM waits, and comes back intact. Until then the containers wait, for all to see,
/// and nobody reads anything else in place of what is missing.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup {
        datanodes: 3,
        container_bytes_max: CONTAINER_BYTES_MAX,
        dead_after: Duration::from_secs(6),
        quasi_close_after: Duration::from_secs(4),
        ..Setup::default()
    })
    .await;
    let writers = drill.writers(0);
    writers.progress(20).await;
    let before = writers.stop().await;
    drill
        .until("members that have everything", REPAIRED_WITHIN, async || all_have_everything(&drill).await)
        .await;
    let away = drill.node_at(AWAY).await;
    let without_log = drill.node_at(WITHOUT_LOG).await;

    // SCM is away meanwhile, so that however long that takes it gives up nobody.
    drill.cluster.scms[0].kill9();
    drill.cluster.datanodes[BEHIND].kill9();
    let writers = drill.writers(before.next);
    writers.progress(25).await;
    let written = writers.stop().await;
    assert_eq!(
        [before.errors, written.errors],
        [const { Vec::<String>::new() }; 2],
        "writers notice nothing"
    );
    drill.cluster.datanodes[WITHOUT_LOG].kill9();
    drill.cluster.datanodes[AWAY].kill9();
    lose_hard_states(&drill.cluster.disk(WITHOUT_LOG, 0));
    drill.cluster.scms[0].start_again();
    drill.cluster.datanodes[BEHIND].start_again();
    drill.cluster.datanodes[WITHOUT_LOG].start_again();
    let started = Instant::now();

    let waits = async || {
        let containers = drill.containers(ContainerState::ContainerQuasiClosed).await;
        // Two nodes are there, so that there are new pipelines as soon as the others close.
        let mut live = drill.in_state(PipelineState::PipelineOpen).await;
        live.extend(drill.in_state(PipelineState::PipelineAllocated).await);
        let mut undecided = drill.containers(ContainerState::ContainerOpen).await;
        undecided.retain(|info| live.iter().all(|live| live.pipeline != info.pipeline));
        let undecided = undecided.len();
        let says = |info: &&ContainerInfo| {
            let replicas = info.replicas.iter().filter(|info| {
                info.node.as_ref().is_some_and(|on| on.node == without_log)
                    && info.replica.as_ref().map(|replica| replica.state())
                        == Some(ReplicaState::ReplicaWithoutLog)
            });
            replicas.count() == 1
        };
        let saying = containers.iter().filter(says).count();
        let is_dead = drill.state_of(away).await == NodeState::NodeDead;
        match is_dead && saying > 0 && saying == containers.len() && undecided == 0 {
            true => Ok(()),
            false => Err(format!("{undecided} are open, {saying} say that a log is lost: {containers:?}")),
        }
    };
    drill.until("containers that wait for the member that is away", REPAIRED_WITHIN, waits).await;
    let waiting = started.elapsed();
    let status = drill.status().await;
    assert!(status.quasi_closed > 0, "no light: {status:?}");
    assert_none_wrong(&drill.s3, &before.acknowledged).await;
    let refused = assert_none_wrong(&drill.s3, &written.acknowledged).await;
    assert!(refused > 0, "nothing was where only the member that is away has it: this shows nothing");

    drill.cluster.datanodes[AWAY].start_again();
    let back = Instant::now();
    assert_all_come_back(&drill.s3, &[before.acknowledged.clone(), written.acknowledged.clone()].concat())
        .await;
    let readable = back.elapsed();
    drill.until("three good replicas of everything", REPAIRED_WITHIN, async || drill.whole().await).await;
    let repaired = back.elapsed();
    assert_all_there(&drill.s3, &before.acknowledged).await;
    assert_all_there(&drill.s3, &written.acknowledged).await;

    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    Shown {
        objects: before.acknowledged.len() + written.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("waiting_s", waiting.as_secs_f64()),
            ("refused_objects", refused as f64),
            ("readable_s", readable.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
        ],
    }
}

/// Deletes the votes of all logs there; their segments stay whole.
fn lose_hard_states(disk: &Path) {
    let groups = std::fs::read_dir(disk.join("groups")).unwrap();
    let lost = groups.map(|group| std::fs::remove_file(group.unwrap().path().join("hard-state")).unwrap());
    assert!(lost.count() > 0, "no log is in {}", disk.display());
}
