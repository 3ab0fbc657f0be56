use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, good_besides};
use crate::commands::flotilla;
use crate::drills::assert_all_there;
use proto::scm::{ClosePipelineRequest, ContainerInfo, ContainerState, ReplicaState};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Smaller bodies may lie among the heads of others.
const BODY_BYTES_MIN: u64 = 10_000;

/// A byte changes in a closed segment of a running datanode: it is found, never served, and a good replica
/// takes its place.
pub(super) async fn run() -> Shown {
    let setup =
        Setup { datanode_args: "--scrub-interval 5s --scrub-bytes-per-second 67108864", ..Setup::default() };
    let drill = Drill::start(setup).await;
    let writers = drill.load().await;
    let node = drill.node_at(2).await;
    drill
        .until("a container to damage", REPAIRED_WITHIN, async || damageable(&drill, node).await.map(drop))
        .await;
    let container = damageable(&drill, node).await.expect("there was one").container;
    let so_far = writers.written();
    flip(&bodies(&drill.cluster.disk(2, 0).join(format!("containers/{container:016x}")))[0]);
    let flipped = Instant::now();
    // What is wrong is never served, before it is found and after.
    assert_all_there(&drill.s3, &so_far.acknowledged).await;
    let marked = || drill.cluster.datanodes[2].log().contains("is UNHEALTHY");
    let found =
        async || marked().then_some(()).ok_or_else(|| format!("container {container} passes for whole"));
    drill.until("found damage", REPAIRED_WITHIN, found).await;
    let found = flipped.elapsed();
    let replaced = async || {
        let info = info(&drill, container).await;
        // Elsewhere: until SCM has heard of the bad one, that passes for good. Where its pipeline is over
        // already, it may be gone by now.
        match good_besides(&info, Some(node)) {
            3 => Ok(()),
            good => Err(format!("{good} are good: {info:?}")),
        }
    };
    drill.until("a good replica in place of the bad one", REPAIRED_WITHIN, replaced).await;
    let repaired = flipped.elapsed();
    // The bad one goes when no log reads it any more; with containers smaller than a log's tail that is when
    // the pipeline is over.
    let pipeline = info(&drill, container).await.pipeline;
    drill.scm(async |mut scm| scm.close_pipeline(ClosePipelineRequest { pipeline }).await).await;
    let gone = async || {
        let info = info(&drill, container).await;
        match bad(&info) {
            0 => Ok(()),
            bad => Err(format!("{bad} bad replicas are still there: {info:?}")),
        }
    };
    drill.until("end of the bad replica", REPAIRED_WITHIN, gone).await;
    let written = drill.settle(writers).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![("found_s", found.as_secs_f64()), ("repaired_s", repaired.as_secs_f64())],
    }
}

pub(super) async fn info(drill: &Drill, container: u64) -> ContainerInfo {
    let closed = drill.containers(ContainerState::ContainerClosed).await;
    closed.into_iter().find(|info| info.container == container).expect("it stays closed")
}

pub(super) fn bad(info: &ContainerInfo) -> usize {
    let replicas = info.replicas.iter().filter_map(|info| info.replica.as_ref());
    replicas.filter(|replica| !replica.unhealthy.is_empty()).count()
}

/// A closed container with much in it and a closed replica there.
pub(super) async fn damageable(drill: &Drill, node: u64) -> Result<ContainerInfo, String> {
    let closed = drill.containers(ContainerState::ContainerClosed).await;
    let count = closed.len();
    let is_there = |info: &ContainerInfo| {
        info.payload_bytes > 1 << 20
            && info.replicas.iter().any(|info| {
                let on = info.node.as_ref().map_or(0, |on| on.node);
                let replica = info.replica.as_ref();
                on == node && replica.is_some_and(|replica| replica.state() == ReplicaState::ReplicaClosed)
            })
    };
    closed.into_iter().find(is_there).ok_or(format!("none of {count} closed ones is on node {node}"))
}

/// The middles of the large bodies in a container's directory, in the order of its records.
pub(super) fn bodies(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut segments: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.sort();
    let mut found = Vec::new();
    for path in segments {
        let dump = flotilla(&["debug", "--json", "segment", "dump", path.to_str().unwrap()], None);
        assert!(dump.status.success());
        for record in String::from_utf8(dump.stdout).unwrap().lines() {
            let record: Value = serde_json::from_str(record).unwrap();
            let number = |name: &str| record[name].as_u64();
            if number("body_bytes").is_some_and(|body| body > BODY_BYTES_MIN) {
                let end = number("offset").unwrap() + number("bytes").unwrap();
                found.push((path.clone(), end - BODY_BYTES_MIN / 2));
            }
        }
    }
    assert!(!found.is_empty(), "no large body in {}", dir.display());
    found
}

/// Changes one bit.
pub(super) fn flip((path, at): &(PathBuf, u64)) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, *at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], *at).unwrap();
}
