//! Orders to discard blocks, and to take what another replica has discarded.

use crate::cluster::{Acked, Cluster, FIRST_CONTAINER, PIPELINE};
use crate::inventory::{hashed, options_of_small_containers, write_until_closed};
use crate::scm::{PlayedScm, Said};
use flotilla_datanode::DatanodeOptions;
use proto::Code;
use proto::scm::{
    ContainerReplica, CopyContainer, DiscardPortion, NodeAddress, TakeDiscards, Task, TaskKind, task,
};
use std::time::Duration;
use types::{BlockName, Nonce};

const CONTAINER: u64 = FIRST_CONTAINER.0;

fn discard_task(portion: u64, blocks: &[BlockName]) -> Task {
    let blocks = blocks.iter().map(|name| (*name).into()).collect();
    Task { task: Some(task::Task::Discard(DiscardPortion { container: CONTAINER, portion, blocks })) }
}

fn address(cluster: &Cluster, node: usize) -> NodeAddress {
    NodeAddress { node: node as u64 + 1, address: cluster.nodes[node].address.clone() }
}

fn take_task(cluster: &Cluster, from: usize) -> Task {
    let from = Some(address(cluster, from));
    Task { task: Some(task::Task::TakeDiscards(TakeDiscards { container: CONTAINER, from })) }
}

fn tell(scm: &PlayedScm, node: u64, task: Task) {
    scm.tell(node, |told| told.tasks = vec![task]);
}

/// The blocks that were discarded in the first container, as a node has said: their number and digest.
fn discarded(said: &Said) -> (u64, u64) {
    let replica = said.replicas.get(&CONTAINER).cloned().unwrap_or_default();
    (replica.discarded_blocks, replica.discards_digest)
}

async fn wait_hashed(scm: &PlayedScm, node: u64) -> ContainerReplica {
    let said = scm.wait(node, "a hash", |said| hashed(said, CONTAINER).is_some()).await;
    said.replicas[&CONTAINER].clone()
}

async fn check(cluster: &Cluster, nodes: usize, written: &[(Acked, Vec<u8>)], gone: &[BlockName]) {
    for node in &cluster.nodes[..nodes] {
        for (acked, data) in written.iter().filter(|(acked, _)| acked.block.container == FIRST_CONTAINER) {
            let read = node.read_acknowledged(acked.block, 0, data.len() as u64, acked.commit_index).await;
            match gone.contains(&acked.block) {
                false => assert!(read.unwrap() == *data, "{}", acked.block),
                true => assert_eq!(read.unwrap_err().code, Code::NotFound, "{}", acked.block),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_replica_has_discarded_others_take_and_a_copy_brings_nothing_back() {
    let forget_interval = Duration::from_millis(20);
    let options = DatanodeOptions { forget_interval, ..options_of_small_containers() };
    let (mut cluster, scm) = Cluster::start_with_scm(options, 4).await;
    let written = write_until_closed(&cluster, 2).await;
    let is_released = |said: &Said| said.replicas.get(&CONTAINER).is_some_and(|replica| replica.released);
    for node in 1..=3 {
        scm.wait(node, "that no log reads the container", is_released).await;
    }
    let of_first =
        written.iter().map(|(acked, _)| acked.block).filter(|block| block.container == FIRST_CONTAINER);
    let names: Vec<BlockName> = of_first.collect();
    assert!(names.len() >= 4, "{names:?}");
    let (first, second) = (&names[..2], &names[1..3]);

    // One of the blocks is named as another one: that one stays.
    let other = BlockName { nonce: Nonce(7), ..names[3] };
    tell(&scm, 1, discard_task(77, &[first, &[other]].concat()));
    let is_done = |said: &Said| said.tasks.iter().any(|task| task.done_portion == 77);
    let said = scm.wait(1, "that it has done so", is_done).await;
    assert_eq!(discarded(&said).0, 2, "told with the same heartbeat: {said:?}");
    tell(&scm, 2, discard_task(78, second));
    scm.wait(2, "that it has discarded two", |said| discarded(said).0 == 2).await;
    check(&cluster, 1, &written, first).await;

    // Each node comes to have discarded what any has.
    tell(&scm, 1, take_task(&cluster, 1));
    let union = scm.wait(1, "three", |said| discarded(said).0 == 3).await;
    for node in [2, 3] {
        tell(&scm, node, take_task(&cluster, 0));
        scm.wait(node, "the same", |said| discarded(said) == discarded(&union)).await;
    }
    let gone = &names[..3];
    check(&cluster, 3, &written, gone).await;
    let hashes = [wait_hashed(&scm, 1).await, wait_hashed(&scm, 2).await, wait_hashed(&scm, 3).await];
    assert!(hashes.iter().all(|replica| replica.hash == hashes[0].hash), "{hashes:?}");
    let blocks = names.len() as u64 - 3;
    assert!(hashes.iter().all(|replica| replica.blocks == blocks && replica.hole_bytes > 0), "{hashes:?}");

    let copy = CopyContainer {
        container: CONTAINER,
        pipeline: PIPELINE.0,
        sources: vec![address(&cluster, 0)],
        hash: hashes[0].hash.clone(),
    };
    tell(&scm, 4, Task { task: Some(task::Task::Copy(copy)) });
    scm.wait(4, "a copy that has discarded the same", |said| discarded(said) == discarded(&union)).await;
    check(&cluster, 4, &written, gone).await;

    // As it stands on the disks.
    (1..=4).for_each(|node| scm.tell(node, |told| told.tasks = vec![]));
    cluster.restart().await;
    for node in 1..=4 {
        let is_same = |said: &Said| said.full_reports == 2 && discarded(said) == discarded(&union);
        scm.wait(node, "the same after a restart", is_same).await;
    }
    check(&cluster, 4, &written, gone).await;
    cluster.stop_nodes().await;
    crate::ending::check_whole(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_log_still_reads_is_not_discarded() {
    let forget_interval = Duration::from_secs(3600);
    let options = DatanodeOptions { forget_interval, ..options_of_small_containers() };
    let (cluster, scm) = Cluster::start_with_scm(options, 3).await;
    let written = write_until_closed(&cluster, 1).await;
    let refused = async |node: u64, task: Task, kind: TaskKind, why: &str| {
        tell(&scm, node, task);
        let has_failed =
            |said: &Said| said.tasks.iter().any(|it| it.kind() == kind && it.failed.contains(why));
        let said = scm.wait(node, why, has_failed).await;
        assert!(said.tasks.iter().all(|task| task.done_portion == 0), "{said:?}");
    };
    let name = written[0].0.block;
    refused(1, discard_task(7, &[name]), TaskKind::TaskDiscard, "a log still has the blocks").await;
    refused(2, discard_task(7, &vec![name; 4097]), TaskKind::TaskDiscard, "are more than 4096").await;
    let unknown = TakeDiscards { container: 7, from: Some(address(&cluster, 0)) };
    let unknown = Task { task: Some(task::Task::TakeDiscards(unknown)) };
    refused(3, unknown, TaskKind::TaskTakeDiscards, "container 7 is not on this node").await;
    cluster.shut_down().await;
}
