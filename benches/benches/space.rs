//! How soon and at what cost deleted bytes come back on a whole cluster of processes. Ends with one line of
//! JSON. `./dev bench space [--quick] [--small=N] [--large=N] [--reclaim-after=SECONDS]`

// A bench measures wall-clock time.
#![allow(clippy::disallowed_methods)]

use anyhow::{Context, ensure};
use flotilla_benches::space::SpaceCluster;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const REPLICAS: u64 = 3;
const CONTAINER_BYTES_MAX: u64 = 64 * MIB;
/// One object in so many stays.
const STAYS: u64 = 10;
const OVERWRITES: u64 = 10;
/// The time in which the bytes are back, from `--reclaim-after` on.
const BACK_WITHIN: Duration = Duration::from_secs(300);
/// The time after which directories that have not changed are at their end.
const STILL_FOR: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

struct Plan {
    /// The numbers of objects of 4 KiB, and of 64 KiB.
    small: u64,
    large: u64,
    reclaim_after: Duration,
}

impl Plan {
    fn of(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan { small: 200_000, large: 20_000, reclaim_after: Duration::from_secs(10) };
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
        for argument in arguments {
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            match (name, value) {
                ("--quick", "") => (plan.small, plan.large) = (20_000, 2_000),
                ("--small", value) => plan.small = number(value)?,
                ("--large", value) => plan.large = number(value)?,
                ("--reclaim-after", value) => plan.reclaim_after = Duration::from_secs(number(value)?),
                _ => return Err(format!("unknown argument {argument}")),
            }
        }
        Ok(plan)
    }

    fn sizes(&self) -> [(u64, u64); 2] {
        [(self.small, 4 * KIB), (self.large, 64 * KIB)]
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let plan = Plan::of(&arguments).unwrap_or_else(|wrong| {
        eprintln!("{wrong}");
        std::process::exit(2);
    });
    let deleted = deleted(&plan)?;
    let overwritten = overwritten(&plan)?;
    println!(
        "{}",
        json!({"bench": "space", "arguments": arguments, "deleted": deleted, "overwritten": overwritten})
    );
    Ok(())
}

/// Deletes nine tenths of small and larger objects, which lie side by side in their containers.
fn deleted(plan: &Plan) -> anyhow::Result<Value> {
    let cluster = SpaceCluster::start(plan.reclaim_after, CONTAINER_BYTES_MAX);
    write(&cluster, plan)?;
    let (written_bytes, blocks) = (cluster.disks().bytes(), 9 * (plan.small + plan.large) / STAYS);
    let before = cluster.seconds();
    for (count, bytes) in plan.sizes() {
        cluster.load(&format!("deletes {} --stays {STAYS} --clients 64", objects(count, bytes)))?;
    }
    let (deleting, deleted_at) = (since(&cluster, before), Instant::now());
    let (before, from) = (cluster.seconds(), plan.reclaim_after);
    let live_bytes = plan.sizes().iter().map(|(count, bytes)| count / STAYS * bytes * REPLICAS).sum::<u64>();
    let of_live = |bytes: u64| bytes as f64 / live_bytes as f64;
    let mut end = End::default();
    let mut gone_after = None;
    loop {
        let elapsed = deleted_at.elapsed();
        if gone_after.is_none() && cluster.waiting()? == 0 {
            gone_after = Some(elapsed.saturating_sub(from));
        }
        let is_still = end.is_still(cluster.disks().bytes());
        if (gone_after.is_some() && is_still) || elapsed > from + BACK_WITHIN {
            break;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    let reclaiming = since(&cluster, before);
    for (count, bytes) in plan.sizes() {
        let line = format!("check {} --stays {STAYS} --clients 16", objects(count, bytes));
        cluster.load(&line).context("what is left is not what it should be")?;
    }
    let (disks, containers) = (cluster.disks().bytes(), cluster.containers().bytes());
    let seconds = gone_after.map(|after| after.as_secs_f64());
    let cpu_ms = |spent: &[(&str, f64)]| spent.iter().map(|(_, seconds)| seconds).sum::<f64>() * 1e3;
    let figures = json!({
        "blocks": blocks, "written_bytes": written_bytes, "live_bytes": live_bytes, "disk_bytes": disks, "container_bytes": containers,
        "of_live": of_live(disks), "containers_of_live": of_live(containers), "least_after_seconds": end.since(deleted_at, from),
        "gone_after_seconds": seconds, "blocks_per_second": seconds.map(|seconds| blocks as f64 / seconds),
        "cpu_ms_per_block": cpu_ms(&reclaiming) / blocks as f64, "cpu_ms_per_delete": cpu_ms(&deleting) / blocks as f64,
        "cpu_seconds": by_name(&reclaiming), "resident_mib": by_name(&cluster.resident_bytes().map(|(name, bytes)| (name, (bytes / MIB) as f64))),
    });
    println!("nine of ten deleted: {figures:#}");
    Ok(figures)
}

/// Writes the same objects again and again.
fn overwritten(plan: &Plan) -> anyhow::Result<Value> {
    let cluster = SpaceCluster::start(plan.reclaim_after, CONTAINER_BYTES_MAX);
    let small = objects(plan.small, 4 * KIB);
    let again = format!("objects {small} --clients 64");
    cluster.load(&again)?;
    let (first, peak) = (cluster.disks().bytes(), cluster.disks().peak());
    let begun = Instant::now();
    for _ in 0..OVERWRITES {
        cluster.load(&again)?;
    }
    let took = begun.elapsed();
    let live_bytes = plan.small * 4 * KIB * REPLICAS;
    let check = cluster.load(&format!("check {small} --stays 1 --clients 16"));
    check.context("what was overwritten is not what it should be")?;
    let most = peak.bytes();
    ensure!(most > 0, "nobody looked");
    let figures = json!({
        "objects": plan.small, "times": OVERWRITES, "seconds": took.as_secs_f64(), "live_bytes": live_bytes,
        "first_of_live": first as f64 / live_bytes as f64, "most_of_live": most as f64 / live_bytes as f64,
    });
    println!("overwritten {OVERWRITES} times: {figures:#}");
    Ok(figures)
}

/// The words for objects of one size, with names of their own.
fn objects(count: u64, bytes: u64) -> String {
    format!("--count {count} --object-bytes {bytes} --seed {bytes}")
}

fn write(cluster: &SpaceCluster, plan: &Plan) -> anyhow::Result<()> {
    // The loads run side by side, so that containers have both.
    std::thread::scope(|scope| {
        let loads = plan.sizes().map(|(count, bytes)| {
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
