use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_majority::all_have_everything;
use crate::commands::admin_once;
use crate::drills::{assert_all_come_back, assert_all_there, assert_none_wrong};
use proto::scm::{ContainerInfo, ContainerState, ContainerTrouble, ReplicaState};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The first container takes all that is written before the one node is down, and more.
const CONTAINER_BYTES_MAX: u64 = 8 << 20;
/// The datanode that is down while the others close containers, and the only one that comes back.
const BEHIND: usize = 2;

/// Two of three datanodes are gone for good after they closed containers that the third one has a part of, or
/// nothing. An operator says for each that no good replica will ever come: it becomes what is left, all
/// lights go out, and with two empty nodes it has three replicas again.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup {
        datanodes: 3,
        pipelines_per_disk: 1,
        container_bytes_max: CONTAINER_BYTES_MAX,
        dead_after: Duration::from_secs(6),
        quasi_close_after: Duration::from_secs(4),
        ..Setup::default()
    })
    .await;
    let writers = drill.writers(0);
    writers.progress(2).await;
    let before = writers.stop().await;
    let same = async || all_have_everything(&drill).await;
    drill.until("members that have everything", REPAIRED_WITHIN, same).await;

    let behind = drill.node_at(BEHIND).await;
    drill.cluster.datanodes[BEHIND].kill9();
    let writers = drill.writers(before.next);
    let has_part = |info: &ContainerInfo| {
        info.replicas.iter().any(|info| {
            info.node.as_ref().is_some_and(|on| on.node == behind)
                && info.replica.as_ref().is_some_and(|it| it.state() == ReplicaState::ReplicaOpen)
        })
    };
    let closed = async || {
        let closed = drill.containers(ContainerState::ContainerClosed).await;
        // One that it has a part of, and one that it never heard of.
        let parts = closed.iter().filter(|info| has_part(info)).count();
        match parts > 0 && closed.len() > parts {
            true => Ok(()),
            false => Err(format!("{} are closed, it has a part of {parts}", closed.len())),
        }
    };
    drill.until("containers that the others closed", REPAIRED_WITHIN, closed).await;
    let written = writers.stop().await;
    assert_eq!([before.errors, written.errors], [const { Vec::<String>::new() }; 2]);

    for lost in [0, 1] {
        drill.cluster.datanodes[lost].kill9();
        std::fs::remove_dir_all(drill.cluster.disk(lost, 0)).unwrap();
    }
    drill.cluster.datanodes[BEHIND].start_again();
    let lost = Instant::now();
    let (kept, given_up) = (Cell::new(0), Cell::new(0));
    let accepted = async || {
        let undecided = drill.containers(ContainerState::ContainerQuasiClosed).await;
        for info in &undecided {
            accept(&drill, ["pipeline", "accept-loss", &info.pipeline.to_string()])?;
        }
        let missing = drill.containers(ContainerState::ContainerClosed).await;
        let is_missing =
            |info: &&ContainerInfo| info.troubles.contains(&(ContainerTrouble::ContainerMissing as i32));
        for info in missing.iter().filter(is_missing) {
            let counted = match accept(&drill, ["container", "accept-loss", &info.container.to_string()])? {
                true => &kept,
                false => &given_up,
            };
            counted.set(counted.get() + 1);
        }
        let (kept, given_up) = (kept.get(), given_up.get());
        let status = drill.status().await;
        match status.missing + status.quasi_closed + status.undecided == 0 && kept > 0 && given_up > 0 {
            true => Ok(()),
            false => Err(format!("{kept} kept, {given_up} given up: {status:?}")),
        }
    };
    drill.until("use of what is left", REPAIRED_WITHIN, accepted).await;
    let decided = lost.elapsed();
    assert_all_come_back(&drill.s3, &before.acknowledged).await;
    let refused = assert_none_wrong(&drill.s3, &written.acknowledged).await;
    assert!(refused > 0, "what was lost is read: this shows nothing");

    drill.cluster.datanodes[0].start_again();
    drill.cluster.datanodes[1].start_again();
    drill.until("three good replicas of everything", REPAIRED_WITHIN, async || drill.whole().await).await;
    let repaired = lost.elapsed();
    assert_all_there(&drill.s3, &before.acknowledged).await;
    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    Shown {
        objects: before.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("kept_containers", f64::from(kept.get())),
            ("given_up_containers", f64::from(given_up.get())),
            ("lost_objects", refused as f64),
            ("decided_s", decided.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
        ],
    }
}

/// Accepts the loss that the command shows. True when something is kept.
fn accept(drill: &Drill, command: [&str; 3]) -> Result<bool, String> {
    let scm = &drill.cluster.scm_address;
    let offered = admin_once(scm, &command)?;
    let keep = offered["node"].as_u64().map(|node| node.to_string());
    let how = match &keep {
        Some(node) => vec!["--keep", node],
        None => vec!["--keep-nothing"],
    };
    admin_once(scm, &[&command[..], &how].concat())?;
    Ok(keep.is_some())
}
