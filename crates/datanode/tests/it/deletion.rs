use crate::cluster::{
    Acked, Cluster, DEADLINE, FIRST_CONTAINER, PIPELINE, bytes, chunk, open_offline, options,
};
use crate::ending::end;
use flotilla_datanode::offline::RebuildOptions;
use flotilla_datanode::{ContainerReport, DatanodeOptions};
use proto::{Code, Failure};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;
use types::{BlockName, ContainerId, Nonce};

const BLOCK_BYTES: usize = 150_000;

/// The bytes that a file system takes to know where the parts of one file are, once holes have cut it into
/// many.
const EXTENTS_BYTES_MAX: u64 = 4096;

/// Writes blocks until two containers are closed on all nodes.
async fn written(cluster: &Cluster) -> Vec<(Acked, Vec<u8>)> {
    let mut stream = cluster.leader().await.write_stream().await;
    let mut written: Vec<(Acked, Vec<u8>)> = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while written.last().is_none_or(|(acked, _)| acked.block.container < ContainerId(FIRST_CONTAINER.0 + 2)) {
        assert!(Instant::now() < deadline, "the rolls never came");
        let number = written.len() as u64 + 1;
        let data = bytes(number, BLOCK_BYTES);
        match stream.write(chunk(u128::from(number), 0, 0, &data, true)).await {
            Ok(acked) => written.push((acked, data)),
            Err(failure) => {
                assert_eq!(failure.code, Code::Closed, "{failure}");
                tokio::task::yield_now().await;
            }
        }
    }
    let (last, data) = written.last().unwrap();
    cluster.check_block(last.block, last.commit_index, data).await;
    written
}

async fn delete(
    cluster: &Cluster,
    node: usize,
    container: ContainerId,
    blocks: &[BlockName],
) -> Result<u64, Failure> {
    cluster.nodes[node].datanode.delete_blocks(container, blocks.to_vec()).await
}

async fn report(cluster: &Cluster, node: usize) -> ContainerReport {
    let reports = cluster.nodes[node].datanode.container_reports().await.unwrap();
    reports.into_iter().find(|report| report.container == FIRST_CONTAINER).unwrap()
}

/// The data directory of a node that has the first container.
fn disk_of(cluster: &Cluster, node: usize) -> PathBuf {
    let owner = format!("containers/{:016x}", FIRST_CONTAINER.0);
    cluster.disk_paths(node).into_iter().find(|disk| disk.join(&owner).is_dir()).unwrap()
}

/// The space that the container's segments take, as `du` says.
#[allow(clippy::disallowed_methods)]
fn du(disk: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let dir = disk.join(format!("containers/{:016x}", FIRST_CONTAINER.0));
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.map(|path| path.metadata().unwrap().blocks() * 512).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_blocks_give_their_space_back_and_stay_deleted() {
    // What is in memory would be answered from there.
    let log = raftlog::LogSpaceOptions { cache_bytes_per_log_max: 1 << 16, ..options().log };
    let forget_interval = Duration::from_secs(3600);
    let options = DatanodeOptions { container_bytes_max: 1 << 20, log, forget_interval, ..options() };
    let mut cluster = Cluster::start(options).await;
    let written = written(&cluster).await;
    let last = written.last().unwrap().0.commit_index;
    let first = written.iter().filter(|(acked, _)| acked.block.container == FIRST_CONTAINER);
    let (gone, kept): (Vec<_>, Vec<_>) = first.partition(|(acked, _)| acked.block.local % 2 == 0);
    assert!(gone.len() >= 2 && kept.len() >= 2, "{} and {}", gone.len(), kept.len());
    let names: Vec<BlockName> = gone.iter().map(|(acked, _)| acked.block).collect();

    let open = written.last().unwrap().0.block;
    let refused = delete(&cluster, 0, open.container, &[open]).await.unwrap_err();
    assert_eq!(refused.code, Code::NotYet, "{refused}");
    let refused = delete(&cluster, 0, ContainerId(7), &names).await.unwrap_err();
    assert_eq!(refused.code, Code::NotFound, "{refused}");
    // Closed, but the pipeline's log is open and could be read by whoever is elected.
    let refused = delete(&cluster, 0, FIRST_CONTAINER, &names).await.unwrap_err();
    assert_eq!(refused.code, Code::NotYet, "{refused}");
    end(&cluster).await;
    for node in &cluster.nodes {
        node.datanode.let_go_pipeline(PIPELINE).await.unwrap();
    }

    for node in 0..3 {
        let (disk, before) = (disk_of(&cluster, node), report(&cluster, node).await);
        let before_du = du(&disk);
        let others: Vec<_> =
            kept.iter().map(|(acked, _)| BlockName { nonce: Nonce(7), ..acked.block }).collect();
        let delete =
            async |blocks: &[BlockName]| delete(&cluster, node, FIRST_CONTAINER, blocks).await.unwrap();
        assert_eq!(delete(&others).await, 0, "they have other nonces here");
        assert_eq!(delete(&names).await, names.len() as u64);
        assert_eq!(delete(&names).await, 0, "a second time");
        let after = report(&cluster, node).await;
        assert_eq!(before.blocks - after.blocks, names.len() as u64);
        assert_eq!(before.payload_bytes - after.payload_bytes, (names.len() * BLOCK_BYTES) as u64);
        assert_eq!(after.unhealthy, None);
        let stats = cluster.nodes[node].datanode.disk_stats();
        let hole_bytes: u64 = stats.iter().map(|stats| stats.hole_bytes).sum();
        let freed = before_du - du(&disk);
        assert!((hole_bytes - EXTENTS_BYTES_MAX..=hole_bytes).contains(&freed), "{freed} of {hole_bytes}");
        let others_seen: u64 = stats.iter().map(|stats| stats.other_blocks).sum();
        assert_eq!(others_seen, kept.len() as u64);
        assert!(hole_bytes >= (names.len() * (BLOCK_BYTES - 8192)) as u64, "{hole_bytes}");
    }
    let check = async |cluster: &Cluster| {
        for (acked, data) in &kept {
            cluster.check_block(acked.block, last, data).await;
        }
        for (acked, _) in &gone {
            for node in &cluster.nodes {
                let failure = node.read(acked.block, 0, 10, last).await.map(|data| data.len()).unwrap_err();
                assert_eq!(failure.code, Code::NotFound, "{failure}");
            }
        }
    };
    check(&cluster).await;

    // Replicas are still the same, and segments and lists alone say what is gone.
    let disks: Vec<_> = (0..3).map(|node| disk_of(&cluster, node)).collect();
    cluster.stop_nodes().await;
    let mut hashes = Vec::new();
    for disk in &disks {
        let offline = open_offline(disk).await;
        let report = offline.verify(None).await.unwrap();
        assert!(report.is_whole(), "{report:#?}");
        let verdict = &report.containers[&FIRST_CONTAINER];
        assert_eq!(verdict.discarded, names.len() as u64);
        hashes.push(verdict.hash.clone().unwrap());
        let listed = offline.list().await.unwrap();
        let listed = listed.iter().find(|listed| listed.container == FIRST_CONTAINER).unwrap();
        let said = listed.segment_bytes - listed.hole_bytes;
        let rounding = (4096 + EXTENTS_BYTES_MAX) * listed.segments;
        assert!((said..=said + rounding).contains(&du(disk)), "du says {}, list {said}", du(disk));
        offline.rebuild(RebuildOptions::default()).await.unwrap();
        assert!(offline.verify(None).await.unwrap().is_whole());
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}
