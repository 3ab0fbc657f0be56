//! An index that takes no more writes: its disk says so, and goes on where it can.

use crate::cluster::{Acked, Cluster, DEADLINE, PIPELINE, bytes, chunk, options};
use crate::scm::{PlayedScm, Said};
use flotilla_datanode::{DatanodeOptions, PipelineError, PipelineOrder};
use metrics::Exposition;
use proto::scm::DiskState;
use raft::Role;
use statedb::DbOptions;
use std::path::{Path, PathBuf};
use testkit::FullTables;
use tokio::time::Instant;
use types::{ContainerId, GroupId, PipelineId};

/// Options with the least memory that RocksDB takes, which some hundred blocks fill.
fn small_memory() -> DatanodeOptions {
    let db = DbOptions { write_buffer_bytes: 64 << 10, ..options().db };
    DatanodeOptions { db, ..options() }
}

/// The index of a follower, in the directory of the disk that carries the pipeline.
async fn follower(cluster: &Cluster) -> (usize, PathBuf) {
    let leader = cluster.wait_for_leader().await;
    let follower = (leader + 1) % 3;
    (follower, cluster.disk_paths(follower)[follower % 2].join("db"))
}

/// Writes small blocks until somebody is in trouble; what was acknowledged.
async fn write_until(cluster: &Cluster, is_there: impl Fn() -> bool) -> Vec<(Acked, Vec<u8>)> {
    let mut stream = cluster.leader().await.write_stream().await;
    let deadline = Instant::now() + DEADLINE;
    let mut written = Vec::new();
    for number in 1u64.. {
        if is_there() {
            return written;
        }
        assert!(Instant::now() < deadline, "{number} blocks were written, and nothing happened");
        let data = bytes(number, 100);
        let acked = stream.write(chunk(u128::from(number), 0, 0, &data, true)).await.unwrap();
        written.push((acked, data));
    }
    unreachable!("numbers do not end")
}

fn metric(cluster: &Cluster, node: usize, name: &str, disk: &Path) -> String {
    let mut exposition = Exposition::default();
    cluster.nodes[node].datanode.expose(&mut exposition);
    let text = exposition.finish();
    let of_disk = format!("disk=\"{}\"", disk.display());
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(&of_disk));
    line.unwrap_or_else(|| panic!("{name} of {of_disk} is not in {text}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_whose_index_has_no_room_is_full_until_it_has_and_its_pipelines_go_on() {
    let (cluster, scm) = Cluster::start_with_scm(small_memory(), 3).await;
    let (node, db) = follower(&cluster).await;
    let disk = db.parent().unwrap().canonicalize().unwrap();
    let tables = FullTables::of(&db);
    let is_full =
        |scm: &PlayedScm| scm.said(node as u64 + 1).disks.iter().any(|disk| disk.state() == DiskState::Full);
    let written = write_until(&cluster, || is_full(&scm)).await;
    assert!(scm.said(node as u64 + 1).disks.iter().all(|disk| disk.state() != DiskState::Failed));
    assert_eq!(metric(&cluster, node, "flotilla_disk_full{", &disk), "1");
    assert_ne!(metric(&cluster, node, "flotilla_disk_index_errors_total{", &disk), "0");
    let group = cluster.nodes[node].host.group(GroupId::pipeline(PIPELINE)).unwrap();
    assert_eq!(group.status().role, Role::Follower, "{:?}", group.status());
    drop(tables);
    scm.wait(node as u64 + 1, "that it has room", |said| {
        said.disks.iter().all(|disk| disk.state() != DiskState::Full)
    })
    .await;
    assert_eq!(metric(&cluster, node, "flotilla_disk_full{", &disk), "0");
    for (acked, data) in &written {
        let read = cluster.nodes[node].read_acknowledged(acked.block, 0, 100, acked.commit_index).await;
        assert!(read.unwrap() == *data, "{acked:?}");
    }
    cluster.shut_down().await;
}

/// What runs may acknowledge, and nobody would know of it after a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_its_disk_cannot_remember_does_not_run_and_what_is_noted_of_it_is_told() {
    let (cluster, scm) = Cluster::start_with_scm(small_memory(), 3).await;
    let (node, db) = follower(&cluster).await;
    let (pipeline, first_container) = (PipelineId(PIPELINE.0 + 1), ContainerId(1000));
    let order = PipelineOrder { pipeline, first_container, ..cluster.order(node) };
    let tables = FullTables::of(&db);
    let datanode = &cluster.nodes[node].datanode;
    let failed = datanode.create_pipeline(&order).await.unwrap_err();
    assert!(matches!(failed, PipelineError::Index(_)), "{failed}");
    assert!(cluster.nodes[node].host.group(GroupId::pipeline(pipeline)).is_none());
    let speaks_of_it = |said: &Said| said.replicas.contains_key(&first_container.0);
    scm.wait(node as u64 + 1, "that it has it", speaks_of_it).await;
    drop(tables);
    let deadline = Instant::now() + DEADLINE;
    while let Err(failure) = datanode.create_pipeline(&order).await {
        assert!(Instant::now() < deadline, "there is room: {failure}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(cluster.nodes[node].host.group(GroupId::pipeline(pipeline)).is_some());
    cluster.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods)] // the test plays the failing disk
async fn a_disk_whose_index_is_read_only_is_failed() {
    let (cluster, scm) = Cluster::start_with_scm(small_memory(), 3).await;
    let (node, db) = follower(&cluster).await;
    let disk = db.parent().unwrap().canonicalize().unwrap();
    let away = db.with_file_name("away");
    std::fs::rename(&db, &away).unwrap();
    let failed = |scm: &PlayedScm| {
        scm.said(node as u64 + 1).disks.iter().filter(|disk| disk.state() == DiskState::Failed).count()
    };
    let written = write_until(&cluster, || failed(&scm) > 0).await;
    assert_eq!(failed(&scm), 1, "the other disk is well");
    let whys: Vec<String> = scm.said(node as u64 + 1).disks.into_iter().map(|disk| disk.why).collect();
    let told = |why: &&String| why.starts_with("its index takes no more writes: ");
    assert_eq!(whys.iter().filter(told).count(), 1, "{whys:?}");
    assert_eq!(metric(&cluster, node, "flotilla_disk_failed{", &disk), "1");
    std::fs::rename(&away, &db).unwrap();
    let beats = scm.said(node as u64 + 1).beats;
    scm.wait(node as u64 + 1, "more", |said| said.beats > beats + 5).await;
    assert_eq!(failed(&scm), 1, "until the node is started again");
    // The others have a majority.
    let (acked, data) = written.last().unwrap();
    let other = (node + 1) % 3;
    let read = cluster.nodes[other].read_acknowledged(acked.block, 0, 100, acked.commit_index).await;
    assert!(read.unwrap() == *data);
    cluster.shut_down().await;
}
