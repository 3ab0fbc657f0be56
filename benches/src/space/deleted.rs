//! How soon the bytes of what is deleted come back, and what that costs.

use super::cluster::SpaceCluster;
use super::plan::{CONTAINER_BYTES_MAX, KIB, MIB, Plan, REPLICAS, objects};
use anyhow::Context;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One object in so many stays.
const STAYS: u64 = 10;
/// The time in which the bytes are back, from `--reclaim-after` on.
const BACK_WITHIN: Duration = Duration::from_secs(300);
/// The time after which directories that have not changed are at their end: more than the minute after which
/// a container of which less than half is dead is written anew.
const STILL_FOR: Duration = Duration::from_secs(90);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn run(plan: &Plan) -> anyhow::Result<Value> {
    let cluster = SpaceCluster::start(plan.reclaim_after, CONTAINER_BYTES_MAX);
    write(&cluster, plan)?;
    let (written_bytes, blocks) = (cluster.disks().bytes(), 9 * (plan.small + plan.large) / STAYS);
    let before = cluster.seconds();
    for (count, bytes) in sizes(plan) {
        cluster.load(&format!("deletes {} --stays {STAYS} --clients 64", objects(count, bytes)))?;
    }
    let (deleting, deleted_at) = (since(&cluster, before), Instant::now());
    let (before, from) = (cluster.seconds(), plan.reclaim_after);
    let live_bytes = sizes(plan).iter().map(|(count, bytes)| count / STAYS * bytes * REPLICAS).sum::<u64>();
    let of_live = |bytes: u64| bytes as f64 / live_bytes as f64;
    let mut end = End::default();
    let (mut gone_after, mut until_gone) = (None, None);
    loop {
        let elapsed = deleted_at.elapsed();
        if gone_after.is_none() && cluster.waiting()? == 0 {
            gone_after = Some(elapsed.saturating_sub(from));
            until_gone = Some(since(&cluster, before));
        }
        let is_still = end.is_still(cluster.disks().bytes());
        if (gone_after.is_some() && is_still) || elapsed > from + BACK_WITHIN {
            break;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    let reclaiming = since(&cluster, before);
    for (count, bytes) in sizes(plan) {
        let line = format!("check {} --stays {STAYS} --clients 16", objects(count, bytes));
        cluster.load(&line).context("what is left is not what it should be")?;
    }
    let (disks, containers) = (cluster.disks().bytes(), cluster.containers().bytes());
    let seconds = gone_after.map(|after| after.as_secs_f64());
    let cpu_ms = |spent: &[(&str, f64)]| spent.iter().map(|(_, seconds)| seconds).sum::<f64>() * 1e3;
    // With what is compacted and hashed meanwhile.
    let replicas = until_gone.as_ref().map(|chain: &Spent| {
        let spent = chain.iter().filter(|(name, _)| *name != "om").copied().collect::<Spent>();
        cpu_ms(&spent) / blocks as f64
    });
    let figures = json!({
        "blocks": blocks, "written_bytes": written_bytes, "live_bytes": live_bytes, "disk_bytes": disks, "container_bytes": containers,
        "of_live": of_live(disks), "containers_of_live": of_live(containers), "least_after_seconds": end.since(deleted_at, from),
        "gone_after_seconds": seconds, "blocks_per_second": seconds.map(|seconds| blocks as f64 / seconds),
        "replicas_and_scm_cpu_ms_per_block": replicas, "cpu_seconds_until_gone": until_gone.as_deref().map(by_name),
        "cpu_ms_per_block": cpu_ms(&reclaiming) / blocks as f64, "cpu_ms_per_delete": cpu_ms(&deleting) / blocks as f64,
        "cpu_seconds": by_name(&reclaiming), "resident_mib": by_name(&cluster.resident_bytes().map(|(name, bytes)| (name, (bytes / MIB) as f64))),
    });
    Ok(figures)
}

fn sizes(plan: &Plan) -> [(u64, u64); 2] {
    [(plan.small, 4 * KIB), (plan.large, 64 * KIB)]
}

fn write(cluster: &SpaceCluster, plan: &Plan) -> anyhow::Result<()> {
    // The loads run side by side, so that containers have both.
    std::thread::scope(|scope| {
        let loads = sizes(plan).map(|(count, bytes)| {
            let line = format!("objects {} --clients 32", objects(count, bytes));
            scope.spawn(move || cluster.load(&line))
        });
        loads.into_iter().try_for_each(|load| load.join().expect("it does not panic").map(drop))
    })
}

type Spent = Vec<(&'static str, f64)>;

fn since(cluster: &SpaceCluster, before: [(&'static str, f64); 3]) -> Spent {
    let after = cluster.seconds();
    after.iter().zip(before).map(|((name, after), (_, before))| (*name, after - before)).collect()
}

fn by_name(figures: &[(&'static str, f64)]) -> Value {
    figures
        .iter()
        .map(|(name, figure)| ((*name).to_owned(), json!(figure)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// A watch for the end, when directories have stopped to shrink.
#[derive(Default)]
struct End {
    least: Option<(u64, Instant)>,
}

impl End {
    fn is_still(&mut self, bytes: u64) -> bool {
        match self.least {
            // The directories grow and shrink a little all the time.
            Some((least, since)) if bytes + MIB >= least => since.elapsed() >= STILL_FOR,
            _ => {
                self.least = Some((bytes, Instant::now()));
                false
            }
        }
    }

    fn since(&self, deleted_at: Instant, from: Duration) -> Option<f64> {
        self.least.map(|(_, at)| (at - deleted_at).saturating_sub(from).as_secs_f64())
    }
}
