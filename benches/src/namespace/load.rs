use super::OmCluster;
use crate::flotilla_binary;
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// What `flotilla load` is to do.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    pub kind: &'a str,
    pub clients: u32,
    pub connections: u32,
    pub count: u64,
    /// The number with which names begin.
    pub first: u64,
    /// The number of names that were written before.
    pub written: u64,
    /// The directories over which names are spread; 0: there are none.
    pub directories: u64,
}

/// The measurements of a load: what the clients saw, and what the OMs spent on it, all together.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The last line that `flotilla load --json` printed; of several groups: rates add up, and the worst
    /// latencies count.
    pub total: Value,
    /// The lines before: one for each ten seconds. Of several groups: none.
    pub windows: Vec<Value>,
    pub cpu_seconds: f64,
    /// The part of `cpu_seconds` that is of threads which do nothing but write and sync.
    pub disk_cpu_seconds: f64,
    pub device_bytes: u64,
    pub syncs: f64,
}

impl Measured {
    pub fn operations(&self) -> f64 {
        self.total["operations"].as_f64().unwrap_or_default()
    }

    pub fn cpu_ms(&self) -> f64 {
        self.cpu_seconds * 1e3 / self.operations()
    }

    /// The rate of the slowest window as a share of the first one's.
    pub fn slowest_window(&self) -> Option<f64> {
        let mut rates = self.windows.iter().filter_map(|line| line["per_second"].as_f64());
        let first = rates.next()?;
        rates.map(|rate| rate / first).reduce(f64::min)
    }
}

/// Loads all groups alike, with names of 256 bytes and a KiB of metadata.
pub fn load(cluster: &OmCluster, load: Load<'_>) -> anyhow::Result<Measured> {
    load_groups(cluster, load, cluster.groups)
}

/// Loads so many groups alike.
pub(super) fn load_groups(cluster: &OmCluster, load: Load<'_>, groups: u64) -> anyhow::Result<Measured> {
    let before = cluster.spent()?;
    let each = (0..groups).map(|group| load_begin(cluster, load, group, groups));
    let each = each.collect::<anyhow::Result<Vec<Child>>>()?;
    let said = each.into_iter().map(load_end).collect::<anyhow::Result<Vec<Vec<Value>>>>()?;
    let after = cluster.spent()?;
    let totals: Vec<&Value> = said.iter().filter_map(|lines| lines.last()).collect();
    let (total, windows) = match (&totals[..], &said[..]) {
        ([total], [lines]) => ((*total).clone(), lines[..lines.len() - 1].to_vec()),
        _ => (joined(&totals), Vec::new()),
    };
    Ok(Measured {
        total,
        windows,
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        disk_cpu_seconds: after.disk_cpu_seconds - before.disk_cpu_seconds,
        device_bytes: after.device_bytes - before.device_bytes,
        syncs: after.syncs - before.syncs,
    })
}

fn joined(totals: &[&Value]) -> Value {
    let of_each = |name: &str| totals.iter().filter_map(|total| total[name].as_f64()).collect::<Vec<f64>>();
    let sum = |name: &str| of_each(name).iter().sum::<f64>();
    let most = |name: &str| of_each(name).into_iter().fold(0.0, f64::max);
    json!({
        "operations": sum("operations"), "per_second": sum("per_second"),
        "p50_ms": most("p50_ms"), "p99_ms": most("p99_ms"), "p999_ms": most("p999_ms"), "max_ms": most("max_ms"),
    })
}

pub(super) fn load_begin(
    cluster: &OmCluster,
    load: Load<'_>,
    group: u64,
    groups: u64,
) -> anyhow::Result<Child> {
    let share = |all: u64| (all / groups).max(1);
    let numbers = [
        ("--clients", share(load.clients.into())),
        ("--connections", share(load.connections.into())),
        ("--count", share(load.count)),
        ("--first", load.first),
        ("--written", share(load.written)),
        ("--directories", load.directories),
        ("--name-bytes", 256),
        ("--metadata-bytes", 1024),
    ];
    let words = numbers.map(|(name, value)| [name.to_owned(), value.to_string()]);
    Command::new(flotilla_binary())
        .args(["load", load.kind, "--scm", &cluster.scm, "--bucket", &OmCluster::bucket(group), "--json"])
        .args(words.as_flattened())
        .stdout(Stdio::piped())
        .spawn()
        .context("run flotilla load")
}

/// The lines that `flotilla load` printed, of which the last one is the total.
pub(super) fn load_end(load: Child) -> anyhow::Result<Vec<Value>> {
    let said = load.wait_with_output()?;
    ensure!(said.status.success(), "flotilla load: {}", said.status);
    let text = String::from_utf8(said.stdout)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    ensure!(!lines.is_empty(), "flotilla load does not say what it did");
    Ok(lines)
}
