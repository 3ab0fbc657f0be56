use crate::flotilla_binary;
use crate::scrape::scrape;
use crate::usage::Usage;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::prometheus::Scrape;
use testkit::{Process, free_addresses};

/// The time for the start: a busy machine is slow, and SCM moves one leader at a time.
const WHOLE_WITHIN: Duration = Duration::from_secs(180);

/// The thread of an io_uring, or those that take its place, and the kernel's workers for it.
const DISK_THREADS: &[&str] = &["(disk-", "(iou-wrk-"];

/// SCM and OMs, each a process, with nothing to store bytes.
pub struct OmCluster {
    pub scm: String,
    pub groups: u64,
    pub(super) oms: Vec<OmProcess>,
    scm_process: Process,
    // Last, so that the processes end before their directories go.
    _dir: TempDir,
}

pub(super) struct OmProcess {
    process: Process,
    /// The address of the OM's metrics, "http://host:port".
    http: String,
}

/// What the OMs have spent so far, all together.
#[derive(Clone, Copy)]
pub(super) struct Spent {
    pub(super) cpu_seconds: f64,
    /// The processor time of the threads that do nothing but write and sync.
    pub(super) disk_cpu_seconds: f64,
    pub(super) device_bytes: u64,
    /// Writes of the groups' logs, each of which is followed by one fdatasync.
    pub(super) syncs: f64,
}

impl OmCluster {
    /// Starts a cluster with all groups on all OMs, their leaders spread, and a bucket in each group.
    pub fn start(binary: &Path, oms: usize, groups: u64) -> anyhow::Result<OmCluster> {
        OmCluster::start_with(binary, oms, groups, "")
    }

    /// Starts a cluster whose OMs have these arguments besides.
    pub(super) fn start_with(
        binary: &Path,
        oms: usize,
        groups: u64,
        om_args: &str,
    ) -> anyhow::Result<OmCluster> {
        let dir = tempfile::tempdir()?;
        let mut addresses = free_addresses(1 + oms);
        let scm = addresses.remove(0);
        let start = |name: &str, roles: &str, rpc: &str, more: &str| {
            let (meta, count) = (dir.path().join(name).display().to_string(), groups.to_string());
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
                "--om-groups",
                &count,
            ];
            let words = words.into_iter().chain(more.split_whitespace()).map(str::to_owned).collect();
            let (process, ready) = Process::start(binary, dir.path(), name, words);
            OmProcess { process, http: ready["HTTP"].clone() }
        };
        let scm_process = start("scm", "scm", &scm, "").process;
        let oms = (0..).zip(&addresses);
        let oms = oms.map(|(at, rpc)| start(&format!("om{at}"), "om", rpc, om_args)).collect();
        let cluster = OmCluster { scm: scm.clone(), groups, oms, scm_process, _dir: dir };
        cluster.until_whole()?;
        for group in 0..groups {
            cluster.admin(&["bucket", "create", &OmCluster::bucket(group), "--group", &group.to_string()])?;
        }
        Ok(cluster)
    }

    /// The bucket that is in a group.
    pub(super) fn bucket(group: u64) -> String {
        format!("load{group}")
    }

    pub(super) fn admin(&self, words: &[&str]) -> anyhow::Result<String> {
        let said =
            Command::new(flotilla_binary()).args(["admin", "--scm", &self.scm]).args(words).output()?;
        let why = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "flotilla admin {words:?}: {}: {why}", said.status);
        Ok(String::from_utf8(said.stdout)?)
    }

    pub(super) fn until_whole(&self) -> anyhow::Result<()> {
        let give_up = Instant::now() + WHOLE_WITHIN;
        loop {
            let said = self.admin(&["om", "groups", "--json"]);
            let told = said.as_deref().ok().and_then(|said| serde_json::from_str(said).ok());
            let groups: Vec<Value> = told.unwrap_or_default();
            let are_whole = groups.len() as u64 == self.groups && groups.iter().all(|it| self.is_whole(it));
            if are_whole && self.are_leaders_spread(&groups) {
                return Ok(());
            }
            ensure!(Instant::now() < give_up, "the names are not on {} OMs: {said:?}", self.oms.len());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_whole(&self, group: &Value) -> bool {
        let replicas = group["replicas"].as_array().cloned().unwrap_or_default();
        let votes = |it: &&Value| it["role"] == "leader" || it["role"] == "follower";
        replicas.iter().filter(votes).count() == self.oms.len() && group["problem"] == ""
    }

    fn are_leaders_spread(&self, groups: &[Value]) -> bool {
        let mut led = BTreeMap::<u64, usize>::new();
        for om in groups.iter().filter_map(|group| group["leader_om"].as_u64()) {
            *led.entry(om).or_default() += 1;
        }
        let least = if led.len() < self.oms.len() { Some(0) } else { led.values().min().copied() };
        led.values().max().copied().unwrap_or_default() <= least.unwrap_or_default() + 1
    }

    pub(super) fn spent(&self) -> anyhow::Result<Spent> {
        let mut syncs = 0.0;
        for om in &self.oms {
            let page = scrape(&om.http).with_context(|| format!("scrape {}", om.http))?;
            let page = Scrape::parse(&page).map_err(anyhow::Error::msg)?;
            let of_logs = page.with("flotilla_disk_log_write_seconds_count", &[]);
            syncs += of_logs.map(|sample| sample.value).sum::<f64>();
        }
        let pids = || self.oms.iter().map(|om| om.process.pid());
        let cpu_seconds = pids().map(|pid| Usage::of(pid).cpu_seconds).sum();
        let disk_cpu_seconds = pids().map(|pid| Usage::cpu_seconds_of_threads(pid, DISK_THREADS)).sum();
        let device_bytes = self.oms.iter().map(|om| om.process.device_bytes_written()).sum();
        Ok(Spent { cpu_seconds, disk_cpu_seconds, device_bytes, syncs })
    }

    /// The memory of the OM that has the most.
    pub fn resident_bytes(&self) -> u64 {
        self.oms.iter().map(|om| Usage::resident_bytes_of(om.process.pid())).max().unwrap_or_default()
    }

    pub fn resident_bytes_of_scm(&self) -> u64 {
        Usage::resident_bytes_of(self.scm_process.pid())
    }

    /// Kills all OMs at once, starts them again, and returns when all say that they are ready.
    pub(super) fn kill_and_start_again(&mut self) {
        self.oms.iter_mut().for_each(|om| om.process.kill9());
        self.oms.iter_mut().for_each(|om| om.process.spawn_again());
        for om in &mut self.oms {
            om.http = om.process.wait_ready()["HTTP"].clone();
        }
    }

    /// The processor time of all OMs, in percent of a core, and how often a thread of theirs wakes in a
    /// second, while nobody uses them.
    pub fn idle(&self, measured: Duration) -> (f64, f64) {
        /// The time after which what follows on elections is over, and the groups doze.
        const SETTLE: Duration = Duration::from_secs(20);
        std::thread::sleep(SETTLE);
        let usages = || self.oms.iter().map(|om| Usage::of(om.process.pid())).collect::<Vec<_>>();
        let before = usages();
        std::thread::sleep(measured);
        let after = usages();
        let rates = after.iter().zip(&before).map(|(after, before)| after.since(before));
        rates.fold((0.0, 0.0), |(cpu, wakeups), it| (cpu + it.cpu_percent, wakeups + it.wakeups_per_second))
    }
}
