use crate::cluster::{Acked, Cluster, DEADLINE, FIRST_CONTAINER, bytes, chunk, open_offline, options};
use crate::scm::{PlayedScm, Said};
use flotilla_datanode::DatanodeOptions;
use proto::Code;
use proto::scm::{ContainerReplica, ReplicaState};
use std::path::Path;
use tokio::time::Instant;
use types::ContainerId;

pub(crate) fn options_of_small_containers() -> DatanodeOptions {
    // What is in memory would be answered from there.
    let log = raftlog::LogSpaceOptions { cache_bytes_per_log_max: 1 << 16, ..options().log };
    DatanodeOptions { container_bytes_max: 1 << 20, log, ..options() }
}

/// Writes blocks until `closed` containers are closed.
pub(crate) async fn write_until_closed(cluster: &Cluster, closed: u64) -> Vec<(Acked, Vec<u8>)> {
    let mut stream = cluster.leader().await.write_stream().await;
    let mut written: Vec<(Acked, Vec<u8>)> = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    let enough = ContainerId(FIRST_CONTAINER.0 + closed);
    while written.last().is_none_or(|(acked, _)| acked.block.container < enough) {
        assert!(Instant::now() < deadline, "the rolls never came");
        let number = written.len() as u64 + 1;
        let data = bytes(number, 150_000);
        match stream.write(chunk(u128::from(number), 0, 0, &data, true)).await {
            Ok(acked) => written.push((acked, data)),
            Err(failure) => {
                assert_eq!(failure.code, Code::Closed, "{failure}");
                tokio::task::yield_now().await;
            }
        }
    }
    written
}

pub(crate) fn closed(said: &Said, container: u64) -> Option<&ContainerReplica> {
    said.replicas.get(&container).filter(|it| it.state() == ReplicaState::ReplicaClosed)
}

pub(crate) fn hashed(said: &Said, container: u64) -> Option<&ContainerReplica> {
    closed(said, container).filter(|replica| !replica.hash.is_empty())
}

/// A replica without what differs between nodes: the disk, and the size, which may have been told before the
/// last segment was cut to its length.
fn anywhere(replica: ContainerReplica) -> ContainerReplica {
    ContainerReplica { disk: Default::default(), disk_bytes: 0, ..replica }
}

async fn wait_hashed(scm: &PlayedScm, node: u64) -> ContainerReplica {
    let number = FIRST_CONTAINER.0;
    let said = scm.wait(node, "the hash of the first container", |said| hashed(said, number).is_some()).await;
    said.replicas[&number].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn scm_hears_of_every_container_its_end_and_its_hash() {
    let (mut cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 3).await;
    let written = write_until_closed(&cluster, 2).await;
    let of_first = written.iter().filter(|(acked, _)| acked.block.container == FIRST_CONTAINER);
    let payload_bytes: usize = of_first.clone().map(|(_, data)| data.len()).sum();
    let (second, open) = (FIRST_CONTAINER.0 + 1, FIRST_CONTAINER.0 + 2);
    let mut replicas = Vec::new();
    for node in 1..=3 {
        let replica = wait_hashed(&scm, node).await;
        assert_eq!(
            (replica.blocks, replica.payload_bytes),
            (of_first.clone().count() as u64, payload_bytes as u64)
        );
        assert!(replica.last_index > replica.blocks && replica.last_term > 0, "{replica:?}");
        assert!(!replica.released, "its log still has it");
        let said = scm
            .wait(node, "all three containers", |said| {
                closed(said, second).is_some() && said.replicas.contains_key(&open)
            })
            .await;
        assert!(said.is_complete && said.full_reports == 1, "{said:?}");
        assert!(said.replicas[&second].last_index > replica.last_index);
        assert_eq!(said.replicas[&open].state(), ReplicaState::ReplicaOpen);
        replicas.push(anywhere(replica));
    }
    assert!(replicas.iter().all(|replica| *replica == replicas[0]), "{replicas:#?}");

    // The hash is the one that is printed offline, and a restarted node tells the same without computing it
    // again.
    let disks: Vec<_> = cluster.disk_paths(0);
    cluster.stop_nodes().await;
    let mut verdicts = Vec::new();
    for disk in &disks {
        let report = open_offline(disk).await.verify(None).await.unwrap();
        verdicts.extend(report.containers.get(&FIRST_CONTAINER).map(|verdict| verdict.hash.clone()));
    }
    assert_eq!(verdicts, [Some(replicas[0].hash.clone())]);
    cluster.start_nodes().await;
    let said = scm.wait(1, "a second full report", |said| said.full_reports == 2 && said.is_complete).await;
    assert_eq!(anywhere(said.replicas[&FIRST_CONTAINER.0].clone()), replicas[0]);
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_that_fail_lose_nothing_and_scm_may_ask_for_everything() {
    let (cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 3).await;
    scm.tell(1, |told| told.deaf = true);
    write_until_closed(&cluster, 3).await;
    let before = scm.said(1);
    assert!(!before.replicas.contains_key(&(FIRST_CONTAINER.0 + 3)), "{before:?}");
    scm.tell(1, |told| told.deaf = false);
    let all_there = |said: &Said| {
        (0..3).all(|n| closed(said, FIRST_CONTAINER.0 + n).is_some())
            && said.replicas.contains_key(&(FIRST_CONTAINER.0 + 3))
    };
    let said = scm.wait(1, "what it could not say", all_there).await;
    assert_eq!(said.full_reports, before.full_reports);

    scm.tell(1, |told| told.report_all = true);
    let again = scm.wait(1, "everything again", |said| said.full_reports == 2 && said.is_complete).await;
    assert!(all_there(&again));
    scm.tell(1, |told| told.unknown = true);
    let again = scm.wait(1, "everything again", |said| said.full_reports == 3 && said.is_complete).await;
    assert!(all_there(&again));
    cluster.shut_down().await;
}

/// The space that a directory takes, as `du` says.
#[allow(clippy::disallowed_methods)]
pub(crate) fn du(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let below = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => du(&entry.path()),
        false => entry.metadata().unwrap().blocks() * 512,
    });
    below.sum::<u64>() + dir.metadata().unwrap().blocks() * 512
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_on_disk_are_those_of_du() {
    let (cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 3).await;
    write_until_closed(&cluster, 4).await;
    for node in 1..=3u64 {
        let last = FIRST_CONTAINER.0 + 4;
        scm.wait(node, "its closed containers", |said| closed(said, last - 1).is_some()).await;
        // All of the pipeline is on one disk of each node.
        let agrees = |said: &Said| {
            let told: u64 = said.replicas.values().map(|replica| replica.disk_bytes).sum();
            let disks = cluster.disk_paths(node as usize - 1).into_iter().map(|disk| disk.join("containers"));
            let on_disk: u64 = disks.filter(|dir| dir.is_dir()).map(|dir| du(&dir)).sum();
            told.abs_diff(on_disk) * 100 <= on_disk * 3
        };
        // The open one's may be told before its segment is allocated.
        scm.tell(node, |told| told.report_all = true);
        scm.wait(node, "sizes within 3 percent of du", agrees).await;
    }
    cluster.shut_down().await;
}
