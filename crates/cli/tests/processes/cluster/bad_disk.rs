use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use crate::small_disk::SmallDisk;
use proto::scm::DiskState;
use std::time::{Duration, Instant};

/// The size of the small disk; two pipelines with segments of 128 MiB and what they recycle fit.
const DISK_BYTES: u64 = 1 << 30;
/// The room that somebody else leaves on the disk: half of the reserve, which is there for what cannot be
/// refused.
const LEFT_BYTES: u64 = 16 << 20;
/// Longer than a broken disk would be tolerated: a full one is no broken one.
const FULL_FOR: Duration = Duration::from_secs(10);

fn on(disk: &SmallDisk) -> Setup {
    let first_disk = Some(disk.root().join("disk1"));
    Setup { first_disk, datanode_args: "--reserve-bytes 33554432", ..Setup::default() }
}

/// The disk of a datanode runs full: writes go elsewhere, and come back when there is room again.
pub(super) async fn full() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let drill = Drill::start(on(&disk)).await;
    let writers = drill.load().await;
    disk.fill_but(LEFT_BYTES);
    let filled = Instant::now();
    tokio::time::sleep(FULL_FOR).await;
    writers.progress(30).await;
    let still = stood_still(&writers, filled);
    disk.make_room();
    let room = Instant::now();
    let node = drill.node_at(0).await;
    let used = async || {
        let datanodes = drill.datanodes().await;
        let info = datanodes.iter().find(|info| info.node == node).expect("it has registered");
        let works =
            info.disks.iter().all(|disk| disk.state() == DiskState::Works && disk.free_bytes > 256 << 20);
        (works && info.pipelines > 0).then_some(()).ok_or_else(|| format!("{info:?}"))
    };
    drill.until("pipelines on the disk again", REPAIRED_WITHIN, used).await;
    writers.progress(30).await;
    let written = drill.settle(writers).await;
    let back = room.elapsed();
    drop(drill);
    Some(Shown {
        objects: written.acknowledged.len(),
        figures: vec![("stood_still_s", still), ("whole_after_room_s", back.as_secs_f64())],
    })
}

/// The file system of a datanode's disk turns read-only, as ext4 does after an error: the disk counts as
/// lost.
pub(super) async fn read_only() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let drill = Drill::start(on(&disk)).await;
    let writers = drill.load().await;
    let node = drill.node_at(0).await;
    disk.turn_read_only();
    let turned = Instant::now();
    let without = async || drill.replaced_without(node, None).await;
    drill.until("replaced pipelines", REPAIRED_WITHIN, without).await;
    let replaced = turned.elapsed();
    writers.progress(30).await;
    let still = stood_still(&writers, turned);
    drill.until("three good replicas", REPAIRED_WITHIN, async || drill.whole().await).await;
    let repaired = turned.elapsed();
    let written = drill.settle(writers).await;
    drop(drill);
    Some(Shown {
        objects: written.acknowledged.len(),
        figures: vec![
            ("stood_still_s", still),
            ("replaced_s", replaced.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
        ],
    })
}
