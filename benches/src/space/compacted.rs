//! The rate at which containers are written anew, and what others notice of it.

use super::cluster::SpaceCluster;
use super::plan::{CONTAINER_BYTES_MAX, KIB, MIB, Plan, objects};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One object in so many stays.
const STAYS: u64 = 3;
/// The clients that read while as many write.
const CLIENTS: u64 = 16;
/// The bytes of what they read and write, each.
const OTHER_BYTES: u64 = 64 * KIB;
/// The default of `--compact-bytes-per-second`.
const RATE: u64 = 32 * MIB;
/// The words of a datanode that writes nothing anew, and of one that does so as fast as it can.
const NOTHING: &str = "--compact-bytes-per-second 0";
const UNTHROTTLED: &str = "--compact-bytes-per-second 1099511627776";
/// The time after which datanodes that were started again write anew what is half dead, and a second.
const SETTLED: Duration = Duration::from_secs(11);
/// The time in which all blocks are gone.
const GONE_WITHIN: Duration = Duration::from_secs(300);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The time in which the first container is written anew.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// The time after which nothing more is worth being written anew.
const STILL_FOR: Duration = Duration::from_secs(15);

pub(super) fn run(plan: &Plan) -> anyhow::Result<Value> {
    let mut cluster = SpaceCluster::start_with(plan.reclaim_after, CONTAINER_BYTES_MAX, NOTHING);
    // Twice as many: one half for when others work, one for when nobody does.
    let small = 2 * plan.small;
    let dying = objects(small, 4 * KIB);
    cluster.load(&format!("objects {dying} --clients 64"))?;
    cluster.load(&format!("objects {} --clients 32", objects(plan.large, OTHER_BYTES)))?;
    cluster.load(&format!("deletes {dying} --stays {STAYS} --clients 64"))?;
    let deleted_at = Instant::now();
    while cluster.waiting()? > 0 {
        ensure!(deleted_at.elapsed() < plan.reclaim_after + GONE_WITHIN, "blocks are not gone");
        std::thread::sleep(LOOK_INTERVAL);
    }
    // The time in which a disk reads half of it at the default rate.
    let window = Duration::from_secs_f64(((small / 2 * 4 * KIB) as f64 / RATE as f64).max(2.0));
    let mut windows = Vec::new();
    for words in [NOTHING, "", NOTHING] {
        cluster.restart_datanodes(words);
        std::thread::sleep(SETTLED);
        let (before, begun) = (Written::so_far(&cluster)?, Instant::now());
        let (writes, reads) = others(&cluster, plan, window, windows.len() as u64)?;
        let written = Written::so_far(&cluster)?.since(&before);
        ensure!((written.containers > 0.0) == words.is_empty(), "{words}: {written:?} in a window");
        windows.push((writes, reads, written.of_disk(begun.elapsed())));
    }
    let [(writes, reads, _), (writes_beside, reads_beside, beside), (writes_again, reads_again, _)] =
        &windows[..]
    else {
        unreachable!("three windows");
    };
    let alone = alone(&mut cluster)?;
    let stayed = cluster.load(&format!("check {dying} --stays {STAYS} --clients 16"))?;
    let kept = |beside: &f64, before: &f64, after: &f64| beside / ((before + after) / 2.0);
    Ok(json!({
        "objects": small, "window_seconds": window.as_secs_f64(), "checked": stayed["operations"],
        "writes_per_second": [writes, writes_beside, writes_again], "reads_per_second": [reads, reads_beside, reads_again],
        "writes_kept": kept(writes_beside, writes, writes_again), "reads_kept": kept(reads_beside, reads, reads_again),
        "beside": beside, "alone": alone,
    }))
}

/// The rates of writes and reads of other objects, side by side.
fn others(cluster: &SpaceCluster, plan: &Plan, during: Duration, round: u64) -> anyhow::Result<(f64, f64)> {
    let seconds = during.as_secs();
    let common = format!("--clients {CLIENTS} --object-bytes {OTHER_BYTES} --during {seconds}s");
    let writes = format!("objects {common} --seed {}", 1_000_000 + round);
    let reads = format!("read {common} --seed {OTHER_BYTES} --written {}", plan.large);
    let [writes, reads] = std::thread::scope(|scope| {
        let loads = [&writes, &reads].map(|line| scope.spawn(move || cluster.load(line)));
        loads.map(|load| load.join().expect("it does not panic"))
    });
    let rate = |line: Value| line["per_second"].as_f64().context("a load says no rate");
    Ok((rate(writes?)?, rate(reads?)?))
}

/// The pace of all disks that write anew what is left, as fast as they can, while nobody else does anything.
fn alone(cluster: &mut SpaceCluster) -> anyhow::Result<Value> {
    // Counters begin with the process.
    cluster.restart_datanodes(UNTHROTTLED);
    let begun = Instant::now();
    let mut first = Written::so_far(cluster)?;
    while first.containers == 0.0 {
        ensure!(begun.elapsed() < BEGINS_WITHIN, "nothing is written anew");
        std::thread::sleep(LOOK_INTERVAL);
        first = Written::so_far(cluster)?;
    }
    let from = Instant::now();
    let mut last = (first, from);
    while last.1.elapsed() < STILL_FOR {
        let now = Written::so_far(cluster)?;
        if now.containers > last.0.containers {
            last = (now, Instant::now());
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    let written = last.0.since(&first);
    ensure!(written.containers > 0.0, "one container alone has no rate");
    Ok(written.of_disk(last.1 - from))
}

/// The counters of all compactions, of all disks together.
#[derive(Clone, Copy, Debug)]
struct Written {
    containers: f64,
    written_bytes: f64,
    removed_bytes: f64,
}

impl Written {
    fn so_far(cluster: &SpaceCluster) -> anyhow::Result<Written> {
        Ok(Written {
            containers: cluster.metric("flotilla_disk_compacted_containers_total")?,
            written_bytes: cluster.metric("flotilla_disk_compaction_written_bytes_total")?,
            removed_bytes: cluster.metric("flotilla_disk_compaction_removed_bytes_total")?,
        })
    }

    fn since(&self, before: &Written) -> Written {
        Written {
            containers: self.containers - before.containers,
            written_bytes: self.written_bytes - before.written_bytes,
            removed_bytes: self.removed_bytes - before.removed_bytes,
        }
    }

    /// What one disk did on the average, of those that worked at the same time.
    fn of_disk(&self, during: Duration) -> Value {
        let rate = |bytes: f64| bytes / MIB as f64 / during.as_secs_f64() / SpaceCluster::DISKS as f64;
        json!({
            "containers": self.containers, "seconds": during.as_secs_f64(),
            "written_mib_per_second_and_disk": rate(self.written_bytes), "removed_mib_per_second_and_disk": rate(self.removed_bytes),
        })
    }
}
