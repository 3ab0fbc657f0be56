use super::OmCluster;
use crate::flotilla_binary;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::process::{Command, Stdio};

/// What `flotilla load` is to do.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    pub kind: &'a str,
    pub clients: u32,
    pub connections: u32,
    pub count: u64,
    /// The number with which names begin.
    pub first: u64,
    /// Names that were written before.
    pub written: u64,
}

/// What the clients saw, and what the OMs spent on it, all together.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The last line that `flotilla load --json` printed.
    pub total: Value,
    /// The lines before: one for each ten seconds.
    pub windows: Vec<Value>,
    pub cpu_seconds: f64,
    pub device_bytes: u64,
}

impl Measured {
    pub fn operations(&self) -> f64 {
        self.total["operations"].as_f64().unwrap_or_default()
    }

    pub fn cpu_ms(&self) -> f64 {
        self.cpu_seconds * 1e3 / self.operations()
    }

    /// The rate of the slowest of the windows, of the first one's.
    pub fn slowest_window(&self) -> Option<f64> {
        let mut rates = self.windows.iter().filter_map(|line| line["per_second"].as_f64());
        let first = rates.next()?;
        rates.map(|rate| rate / first).reduce(f64::min)
    }
}

/// Names of 256 bytes with a KiB of metadata.
pub fn load(cluster: &OmCluster, load: Load<'_>) -> anyhow::Result<Measured> {
    let (cpu_seconds, device_bytes) = (cluster.cpu_seconds(), cluster.device_bytes());
    let numbers = [
        ("--clients", u64::from(load.clients)),
        ("--connections", load.connections.into()),
        ("--count", load.count),
        ("--first", load.first),
        ("--written", load.written),
        ("--name-bytes", 256),
        ("--metadata-bytes", 1024),
    ];
    let words = numbers.map(|(name, value)| [name.to_owned(), value.to_string()]);
    let said = Command::new(flotilla_binary())
        .args(["load", load.kind, "--scm", &cluster.scm, "--json"])
        .args(words.as_flattened())
        .stderr(Stdio::inherit())
        .output()
        .context("run flotilla load")?;
    ensure!(said.status.success(), "flotilla load: {}", said.status);
    let text = String::from_utf8(said.stdout)?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let (total, windows) = lines.split_last().context("flotilla load says what it did")?;
    Ok(Measured {
        total: total.clone(),
        windows: windows.to_vec(),
        cpu_seconds: cluster.cpu_seconds() - cpu_seconds,
        device_bytes: cluster.device_bytes() - device_bytes,
    })
}
