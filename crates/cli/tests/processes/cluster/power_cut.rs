use super::harness::{DATANODES, Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::drills::{assert_all_come_back, assert_all_there};
use crate::small_disk::SmallDisk;
use proto::scm::NodeState;
use std::time::Instant;

/// The size of the file system with all disks of the datanodes.
const DISK_BYTES: u64 = 8 << 30;

/// kill -9 of everything at once, in the middle of writes, and the disks of all datanodes lose what was not
/// synced, where this machine lets us have a file system of our own: all that was acknowledged is there, and
/// the cluster goes on.
pub(super) async fn run() -> Shown {
    let disk = SmallDisk::mount(DISK_BYTES);
    let setup = Setup { disks_at: disk.as_ref().map(SmallDisk::root), ..Setup::default() };
    let mut drill = Drill::start(setup).await;
    let writers = drill.load().await;
    let before = writers.written().acknowledged;
    let dark = disk.as_ref().and_then(SmallDisk::cut_power);
    let lost_power = dark.is_some();
    drill.cluster.kill9_all();
    let cut = writers.stop().await;
    // A machine without power acknowledges nothing. Here its processes go on for a moment, and a sync that
    // waits while the file system stops is told that its transaction has ended, which was thrown away.
    let acknowledged = if lost_power { before } else { cut.acknowledged };
    if let Some(dark) = dark {
        dark.power_on();
    }
    let started = Instant::now();
    drill.cluster.start_all_again();
    assert_all_come_back(&drill.s3, &acknowledged).await;
    let all_healthy = async || {
        let healthy = drill.datanodes().await;
        let healthy = healthy.iter().filter(|info| info.state() == NodeState::NodeHealthy).count();
        (healthy == DATANODES).then_some(()).ok_or(format!("{healthy} nodes are healthy"))
    };
    drill.until("healthy nodes", REPAIRED_WITHIN, all_healthy).await;
    let writers = drill.writers(cut.next);
    writers.progress(20).await;
    let back = started.elapsed();
    let written = drill.settle(writers).await;
    assert_all_there(&drill.s3, &acknowledged).await;
    Shown {
        objects: acknowledged.len() + written.acknowledged.len(),
        figures: vec![("back_s", back.as_secs_f64()), ("lost_power", f64::from(u8::from(lost_power)))],
    }
}
