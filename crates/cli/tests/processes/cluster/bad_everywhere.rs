use super::corruption::{bad, bodies, damageable, flip, info};
use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::drills::{Written, assert_all_there, assert_none_wrong};
use proto::scm::ClosePipelineRequest;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// The time after which SCM knows that a node is silent.
const SILENT: Duration = Duration::from_secs(4);

/// Each of three replicas has one bad bit, one of them in another block than the others, and nobody knows of
/// any. That one is found first: in its place, the only one for a good replica, a copy of the others would be
/// made, which lack what it has. Nothing is deleted, and each block is read where it is whole, also while a
/// node is away.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup { datanodes: NODES, pipelines_per_disk: 1, ..Setup::default() }).await;
    let writers = drill.load().await;
    let node = drill.node_at(0).await;
    let written = writers.stop().await;
    let there = async || damageable(&drill, node).await.map(drop);
    drill.until("a container to damage", REPAIRED_WITHIN, there).await;
    let before = damageable(&drill, node).await.expect("there was one");
    // Only what no log reads is ever deleted.
    let pipeline = before.pipeline;
    drill.scm(async |mut scm| scm.close_pipeline(ClosePipelineRequest { pipeline }).await).await;
    let released = async || {
        let info = info(&drill, before.container).await;
        let replicas = info.replicas.iter().filter_map(|info| info.replica.as_ref());
        match replicas.filter(|replica| replica.released).count() {
            NODES => Ok(()),
            released => Err(format!("{released} replicas are released")),
        }
    };
    drill.until("a container that no log reads", REPAIRED_WITHIN, released).await;

    for other in [1, 2] {
        drill.cluster.datanodes[other].kill9();
    }
    let dir = |node: usize| drill.cluster.disk(node, 0).join(format!("containers/{:016x}", before.container));
    flip(&bodies(&dir(0))[0]);
    for other in [1, 2] {
        flip(bodies(&dir(other)).last().unwrap());
    }
    let found_at = |node: usize| drill.cluster.datanodes[node].log().contains("is UNHEALTHY");
    let begun = Instant::now();
    while !found_at(0) {
        assert!(begun.elapsed() < REPAIRED_WITHIN, "nobody finds the bad bit");
        assert_none_wrong(&drill.s3, &written.acknowledged).await;
    }
    // The others are silent, and known as good: what node 0 has is read there.
    tokio::time::sleep(SILENT).await;
    assert_one_refused(&drill, &written).await;
    let (again, mut read) = (Instant::now(), Vec::new());
    for other in [1, 2] {
        drill.cluster.datanodes[other].start_again();
    }
    let found_at = |node: usize| drill.cluster.datanodes[node].log().contains("is UNHEALTHY");
    let found = async || match [1, 2].map(found_at) {
        [true, true] => Ok(()),
        found => Err(format!("the others were read and found bad: {found:?}")),
    };
    drill.until("all bad bits found", REPAIRED_WITHIN, found).await;
    let found = again.elapsed();
    let told = async || {
        let bad = bad(&info(&drill, before.container).await);
        match (bad, drill.status().await.missing) {
            (NODES, 1..) => Ok(()),
            (bad, missing) => Err(format!("{bad} bad replicas are known, {missing} containers are missing")),
        }
    };
    drill.until("three bad replicas, and a light", REPAIRED_WITHIN, told).await;
    assert_all_there(&drill.s3, &written.acknowledged).await;
    for other in [2, 1] {
        drill.cluster.datanodes[other].kill9();
        tokio::time::sleep(SILENT).await;
        let alone = Instant::now();
        match other {
            2 => assert_all_there(&drill.s3, &written.acknowledged).await,
            _ => assert_one_refused(&drill, &written).await,
        }
        read.push(alone.elapsed());
    }
    let read = read[0].as_secs_f64();
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![("found_s", found.as_secs_f64()), ("read_s", read)],
    }
}

/// What is whole on the one node that is left is read; one object has its bad bit.
async fn assert_one_refused(drill: &Drill, written: &Written) {
    assert_eq!(assert_none_wrong(&drill.s3, &written.acknowledged).await, 1);
}
