use crate::flotilla_binary;
use crate::usage::Usage;
use anyhow::ensure;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::{Process, free_addresses};

/// A busy machine takes its time.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);

/// SCM and OMs, each a process, with nothing to store bytes.
pub struct OmCluster {
    pub scm: String,
    pub(super) oms: Vec<Process>,
    _scm: Process,
    // Last, so that the processes end before their directories go.
    _dir: TempDir,
}

impl OmCluster {
    /// With all names on all OMs.
    pub fn start(binary: &Path, oms: usize) -> anyhow::Result<OmCluster> {
        let dir = tempfile::tempdir()?;
        let scm = free_addresses(1).remove(0);
        let start = |name: &str, roles: &str, rpc: &str| {
            let meta = dir.path().join(name).display().to_string();
            let words = [
                "server",
                "--roles",
                roles,
                "--rpc",
                rpc,
                "--meta",
                &meta,
                "--scm",
                &scm,
                "--http",
                "127.0.0.1:0",
            ];
            Process::start(binary, dir.path(), name, words.map(str::to_owned).to_vec()).0
        };
        let scm_process = start("scm", "scm", &scm);
        let oms = (0..oms).map(|at| start(&format!("om{at}"), "om", "127.0.0.1:0")).collect();
        let cluster = OmCluster { scm: scm.clone(), oms, _scm: scm_process, _dir: dir };
        cluster.until_whole()?;
        Ok(cluster)
    }

    fn until_whole(&self) -> anyhow::Result<()> {
        let give_up = Instant::now() + WHOLE_WITHIN;
        loop {
            let asked = ["admin", "--scm", &self.scm, "om", "groups", "--json"];
            let said = Command::new(flotilla_binary()).args(asked).output()?;
            let groups: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
            let replicas = groups[0]["replicas"].as_array().cloned().unwrap_or_default();
            let votes = |it: &&Value| it["role"] == "leader" || it["role"] == "follower";
            if replicas.iter().filter(votes).count() == self.oms.len() && groups[0]["problem"] == "" {
                return Ok(());
            }
            ensure!(Instant::now() < give_up, "the names are not on {} OMs: {groups:#}", self.oms.len());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        self.oms.iter().map(|om| Usage::of(om.pid()).cpu_seconds).sum()
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.oms.iter().map(Process::device_bytes_written).sum()
    }

    /// Of the OM that has the most.
    pub fn resident_bytes(&self) -> u64 {
        self.oms.iter().map(|om| Usage::resident_bytes_of(om.pid())).max().unwrap_or_default()
    }
}
