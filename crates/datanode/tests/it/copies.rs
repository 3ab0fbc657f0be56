use crate::cluster::{Acked, Cluster, DEADLINE, FIRST_CONTAINER, PIPELINE, open_offline};
use crate::inventory::{closed, hashed, options_of_small_containers, write_until_closed};
use crate::scm::{PlayedScm, Said};
use flotilla_datanode::{CopyStats, DatanodeOptions};
use proto::Code;
use proto::scm::{ContainerReplica, CopyContainer, DeleteReplica, NodeAddress, Task, TaskKind, task};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const CONTAINER: u64 = FIRST_CONTAINER.0;
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

fn copy_task(cluster: &Cluster, sources: &[usize], hash: &str) -> Task {
    let source =
        |node: &usize| NodeAddress { node: *node as u64 + 1, address: cluster.nodes[*node].address.clone() };
    let copy = CopyContainer {
        container: CONTAINER,
        pipeline: PIPELINE.0,
        sources: sources.iter().map(source).collect(),
        hash: hash.to_owned(),
    };
    Task { task: Some(task::Task::Copy(copy)) }
}

fn delete_task(replica: &ContainerReplica) -> Task {
    Task { task: Some(task::Task::Delete(DeleteReplica::of(replica))) }
}

/// Waits until the three nodes of the pipeline have said the hash of the first container.
async fn wait_hashed(scm: &PlayedScm) -> ContainerReplica {
    let mut replica = ContainerReplica::default();
    for node in 1..=3 {
        let said = scm.wait(node, "a hash", |said| hashed(said, CONTAINER).is_some()).await;
        replica = said.replicas[&CONTAINER].clone();
    }
    replica
}

/// The container's directory on a node.
fn dir_of(cluster: &Cluster, node: usize) -> PathBuf {
    let owner = format!("containers/{CONTAINER:016x}");
    let dirs = cluster.disk_paths(node).into_iter().map(|disk| disk.join(&owner));
    dirs.into_iter().find(|dir| dir.is_dir()).expect("the container is on one of its disks")
}

/// Flips a bit in the middle of a block's bytes in the segments of a node.
#[allow(clippy::disallowed_methods)] // the test plays the failing disk
fn damage(cluster: &Cluster, node: usize, data: &[u8]) {
    let needle = &data[70_000..70_032];
    for entry in std::fs::read_dir(dir_of(cluster, node)).unwrap() {
        let path = entry.unwrap().path();
        let mut contents = std::fs::read(&path).unwrap();
        if let Some(at) = contents.windows(needle.len()).position(|window| window == needle) {
            contents[at] ^= 1;
            return std::fs::write(path, contents).unwrap();
        }
    }
    panic!("no segment holds the block");
}

fn of_first(written: &[(Acked, Vec<u8>)]) -> Vec<&(Acked, Vec<u8>)> {
    written.iter().filter(|(acked, _)| acked.block.container == FIRST_CONTAINER).collect()
}

async fn check_readable(cluster: &Cluster, node: usize, written: &[(Acked, Vec<u8>)]) {
    for (acked, data) in of_first(written) {
        let length = data.len() as u64;
        let read = cluster.nodes[node].read_acknowledged(acked.block, 0, length, acked.commit_index).await;
        assert!(read.unwrap() == *data, "block {} on node {node} differs", acked.block);
    }
}

/// A node counts what it has done a little after SCM hears of it.
async fn wait_counted(cluster: &Cluster, node: usize, is_so: impl Fn(&CopyStats) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let stats = cluster.nodes[node].datanode.copy_stats();
        if is_so(&stats) {
            return;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_never_had_the_pipeline_gets_a_replica_and_loses_it_again() {
    // No log is forgotten while this runs, however long that takes: one container is to be read by a log to
    // the end.
    let options = DatanodeOptions { forget_interval: FOR_EVER, ..options_of_small_containers() };
    let (mut cluster, scm) = Cluster::start_with_scm(options, 4).await;
    let written = write_until_closed(&cluster, 2).await;
    let replica = wait_hashed(&scm).await;
    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[0, 1, 2], &replica.hash)]);
    let said = scm.wait(4, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    let copied = said.replicas[&CONTAINER].clone();
    assert!(copied.released, "no log here reads it");
    let as_source =
        ContainerReplica { disk: copied.disk.clone(), released: true, copied: true, ..replica.clone() };
    assert_eq!(copied, ContainerReplica { disk_bytes: copied.disk_bytes, ..as_source });
    // The file that says where it came from takes a little, and so do indexes of segments, which are not
    // copied. The source may have told its size before its last segment was cut to its length.
    scm.tell(3, |told| told.report_all = true);
    let is_as_large = |said: &Said| {
        closed(said, CONTAINER).is_some_and(|source| source.disk_bytes.abs_diff(copied.disk_bytes) < 8192)
    };
    scm.wait(3, &format!("a size as of {copied:?}"), is_as_large).await;
    check_readable(&cluster, 3, &written).await;
    wait_counted(&cluster, 3, |stats| stats.received == 1).await;

    // The disk by itself says the same, and the next process finds all as it was; the task is not done again.
    let disk = dir_of(&cluster, 3).parent().unwrap().parent().unwrap().to_owned();
    cluster.stop_nodes().await;
    let offline = open_offline(&disk).await;
    let report = offline.verify(None).await.unwrap();
    assert!(report.is_whole(), "{report:#?}");
    assert_eq!(report.containers[&FIRST_CONTAINER].hash.as_ref(), Some(&replica.hash));
    assert!(offline.rebuild(Default::default()).await.unwrap().is_whole());
    assert!(offline.verify(None).await.unwrap().is_whole());
    drop(offline);
    cluster.start_nodes().await;
    cluster.wait_for_leader().await;
    scm.wait(4, "its replica again", |said| said.full_reports == 2 && hashed(said, CONTAINER).is_some())
        .await;
    check_readable(&cluster, 3, &written).await;
    assert_eq!(cluster.nodes[3].datanode.copy_stats().received, 0);

    // A replica of which it is a source.
    let told_of = scm.wait(4, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    scm.tell(4, |told| told.tasks = vec![delete_task(&told_of.replicas[&CONTAINER])]);
    scm.wait(4, "that it is gone", |said| said.is_complete && !said.replicas.contains_key(&CONTAINER)).await;
    let (acked, _) = of_first(&written)[0];
    let failure = cluster.nodes[3].read(acked.block, 0, 1, 0).await.map(|_| ()).unwrap_err();
    assert_eq!(failure.code, Code::NotFound, "{failure}");
    wait_counted(&cluster, 3, |stats| stats.deleted == 1).await;

    // One that a log still reads is never deleted.
    let told_of = scm.wait(1, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    scm.tell(1, |told| told.tasks = vec![delete_task(&told_of.replicas[&CONTAINER])]);
    let refused = scm.wait(1, "why it refuses", |said| said.tasks.iter().any(|task| !task.failed.is_empty()));
    let task = refused.await.tasks.remove(0);
    assert_eq!((task.kind(), task.container), (TaskKind::TaskDelete, CONTAINER));
    assert!(task.failed.contains("not released"), "{task:?}");
    check_readable(&cluster, 0, &written).await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_source_sends_nothing_bad_and_says_so_itself() {
    let (cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 4).await;
    let written = write_until_closed(&cluster, 1).await;
    let replica = wait_hashed(&scm).await;
    damage(&cluster, 0, &of_first(&written).last().unwrap().1);
    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[0], &replica.hash)]);
    scm.wait(1, "that it is bad", |said| closed(said, CONTAINER).is_some_and(|it| !it.unhealthy.is_empty()))
        .await;
    let failed = scm.wait(4, "that it failed", |said| said.tasks.iter().any(|task| !task.failed.is_empty()));
    assert!(!failed.await.replicas.contains_key(&CONTAINER));

    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[0, 1], &replica.hash)]);
    scm.wait(4, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    check_readable(&cluster, 3, &written).await;
    cluster.shut_down().await;
}

/// A source may have other bytes than the container, whole and with the checksums that belong to them.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_another_hash_than_scm_says_is_not_copied() {
    let (cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 4).await;
    let written = write_until_closed(&cluster, 1).await;
    let replica = wait_hashed(&scm).await;
    let another = "0".repeat(64);
    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[0, 1, 2], &another)]);
    let has_failed = |said: &Said| said.tasks.iter().any(|task| !task.failed.is_empty());
    let said =
        scm.wait(4, "how it ended", |said| has_failed(said) || said.replicas.contains_key(&CONTAINER)).await;
    assert!(!said.replicas.contains_key(&CONTAINER), "{said:#?}");
    let refused = format!("its replica has the hash {}, not {another}", replica.hash);
    assert_eq!(said.tasks[0].failed.matches(&refused).count(), 3, "{:?}", said.tasks);

    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[0, 1, 2], &replica.hash)]);
    scm.wait(4, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    check_readable(&cluster, 3, &written).await;
    cluster.shut_down().await;
}

/// A disk is out of use for a while, its replica is copied to the other one, and then it is back.
#[allow(clippy::disallowed_methods)] // the test plays the operator who pulls a disk
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_on_two_disks_of_a_node_is_deleted_from_both() {
    let (mut cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 4).await;
    write_until_closed(&cluster, 1).await;
    let replica = wait_hashed(&scm).await;
    let copy = copy_task(&cluster, &[0, 1, 2], &replica.hash);
    scm.tell(4, |told| told.tasks = vec![copy]);
    scm.wait(4, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    let disk = dir_of(&cluster, 3).parent().unwrap().parent().unwrap().to_owned();
    let away = disk.with_extension("away");
    cluster.stop_node(3).await;
    std::fs::rename(&disk, &away).unwrap();
    std::fs::write(&disk, b"not a directory").unwrap();
    cluster.start_node(3).await;
    scm.wait(4, "another replica", |said| said.full_reports == 2 && hashed(said, CONTAINER).is_some()).await;
    scm.tell(4, |told| told.tasks = vec![]);
    cluster.stop_node(3).await;
    std::fs::remove_file(&disk).unwrap();
    std::fs::rename(&away, &disk).unwrap();
    cluster.start_node(3).await;
    scm.wait(4, "one of both", |said| said.full_reports == 3 && hashed(said, CONTAINER).is_some()).await;
    let holders = || {
        let disks = cluster.disk_paths(3).into_iter();
        disks.filter(|disk| disk.join(format!("containers/{CONTAINER:016x}")).is_dir()).count()
    };
    // A machine that stands still for a minute may have seen the node take the second one away by itself.
    assert!(holders() >= 1);
    // Each goes by an order of its own.
    loop {
        let is_known = |said: &Said| said.replicas.contains_key(&CONTAINER) || holders() == 0;
        let told_of = scm.wait(4, "what is left", is_known).await;
        let Some(replica) = told_of.replicas.get(&CONTAINER) else { break };
        scm.tell(4, |told| told.tasks = vec![delete_task(replica)]);
        let is_gone = |said: &Said| said.replicas.get(&CONTAINER).is_none_or(|now| now.disk != replica.disk);
        scm.wait(4, "that it is gone", is_gone).await;
    }
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_source_restarts_goes_on_where_it_was() {
    // After the first part the copy waits for many seconds, in which all this happens.
    let options = DatanodeOptions { copy_bytes_per_second: 50_000, ..options_of_small_containers() };
    let (mut cluster, scm) = Cluster::start_with_scm(options, 4).await;
    let written = write_until_closed(&cluster, 1).await;
    let replica = wait_hashed(&scm).await;
    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[0], &replica.hash)]);
    let begun =
        scm.wait(4, "some bytes", |said| said.tasks.iter().any(|task| task.bytes_done > 100_000)).await;
    assert!(begun.tasks[0].bytes_done < begun.tasks[0].bytes_total, "{begun:?}");
    // All processes go: source and target. What is left need not be slow.
    cluster.options.copy_bytes_per_second = DatanodeOptions::default().copy_bytes_per_second;
    cluster.restart().await;
    scm.tell(4, |told| told.tasks = vec![copy_task(&cluster, &[1], &replica.hash)]);
    scm.wait(4, "its replica", |said| hashed(said, CONTAINER).is_some()).await;
    let received = cluster.nodes[3].datanode.copy_stats().received_bytes;
    assert!(received < replica.disk_bytes - 100_000, "{received} of {} bytes again", replica.disk_bytes);
    check_readable(&cluster, 3, &written).await;
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_is_found_by_a_read_and_by_the_scrubber_and_scm_hears_at_once() {
    let options = DatanodeOptions {
        scrub_bytes_per_second: 1 << 30,
        scrub_interval: Duration::from_millis(200),
        ..options_of_small_containers()
    };
    let (cluster, scm) = Cluster::start_with_scm(options, 3).await;
    let written = write_until_closed(&cluster, 1).await;
    wait_hashed(&scm).await;
    let (acked, data) = of_first(&written)[1];
    let is_bad = |said: &crate::scm::Said| closed(said, CONTAINER).is_some_and(|it| !it.unhealthy.is_empty());
    // Nobody reads it: the scrubber finds it.
    damage(&cluster, 0, data);
    scm.wait(1, "that the scrubber found it", is_bad).await;
    // A reader on another node.
    damage(&cluster, 1, data);
    let failure = cluster.nodes[1].read(acked.block, 0, data.len() as u64, acked.commit_index).await;
    assert_eq!(failure.map(|_| ()).unwrap_err().code, Code::Corrupt);
    scm.wait(2, "that a read found it", is_bad).await;
    assert!(!is_bad(&scm.said(3)));
    check_readable(&cluster, 2, &written).await;
    cluster.shut_down().await;
}
