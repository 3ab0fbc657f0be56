use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use std::path::Path;
use std::time::{Duration, Instant};

/// The directory of a disk is removed: once while its datanode runs, once while it does not.
pub(super) async fn run() -> Shown {
    let setup = Setup { disks_per_datanode: 2, ..Setup::default() };
    let mut drill = Drill::start(setup).await;
    let writers = drill.load().await;

    let (running, disk) = disk_of(&drill, 1, 0).await;
    pull(&drill.cluster.disk(1, 0));
    let pulled = Instant::now();
    let without = async || drill.replaced_without(running, Some(&disk)).await;
    drill.until("pipelines off the pulled disk", REPAIRED_WITHIN, without).await;
    let replaced = pulled.elapsed();
    writers.progress(20).await;
    let still = stood_still(&writers, pulled);
    drill.until("three good replicas", REPAIRED_WITHIN, async || drill.whole().await).await;
    let repaired = pulled.elapsed();

    let (stopped, disk) = disk_of(&drill, 2, 1).await;
    drill.cluster.datanodes[2].kill9();
    pull(&drill.cluster.disk(2, 1));
    drill.cluster.datanodes[2].start_again();
    let started = Instant::now();
    let without = async || drill.replaced_without(stopped, Some(&disk)).await;
    drill.until("pipelines off the lost disk", REPAIRED_WITHIN, without).await;
    let replaced_stopped = started.elapsed();
    let written = drill.settle(writers).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![
            ("stood_still_s", still),
            ("replaced_s", replaced.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
            ("replaced_after_restart_s", replaced_stopped.as_secs_f64()),
            ("repaired_after_restart_s", started.elapsed().as_secs_f64()),
        ],
    }
}

/// Takes a disk away at one moment, as a disk goes: removing file by file under a running process is another
/// thing.
fn pull(disk: &Path) {
    let away = disk.with_extension("pulled");
    std::fs::rename(disk, &away).unwrap();
    std::fs::remove_dir_all(&away).unwrap();
}

/// A node's number, and the id of its disk in that directory: the stamp there names it.
async fn disk_of(drill: &Drill, datanode: usize, disk: usize) -> (u64, Vec<u8>) {
    let node = drill.node_at(datanode).await;
    let stamp = disk::RealDisk::peek(&drill.cluster.disk(datanode, disk)).unwrap().expect("it is stamped");
    drill
        .until("a node with its disks", Duration::from_secs(30), async || {
            let datanodes = drill.datanodes().await;
            let info = datanodes.iter().find(|info| info.node == node).expect("it has registered");
            let known = info.disks.iter().any(|known| known.disk == proto::uuid_bytes(stamp.disk.0));
            known.then_some(()).ok_or_else(|| format!("{info:?}"))
        })
        .await;
    (node, proto::uuid_bytes(stamp.disk.0).to_vec())
}
