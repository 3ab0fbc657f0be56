use super::room::Room;
use crate::flotilla_binary;
use crate::scrape;
use crate::usage::Usage;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use testkit::prometheus::Scrape;
use testkit::{Cluster, ClusterOptions, Process};

const DATANODES: usize = 3;
const DISKS_PER_DATANODE: usize = 1;

/// Three datanodes of one disk each, SCM, OM and a gateway.
pub(super) struct SpaceCluster {
    cluster: Cluster,
}

impl SpaceCluster {
    pub(super) const DISKS: usize = DATANODES * DISKS_PER_DATANODE;

    pub(super) fn start(reclaim_after: Duration, container_bytes_max: u64) -> SpaceCluster {
        SpaceCluster::start_with(reclaim_after, container_bytes_max, "")
    }

    /// As [`SpaceCluster::start`], with further words of the datanodes' command lines.
    pub(super) fn start_with(reclaim_after: Duration, container_bytes_max: u64, words: &str) -> SpaceCluster {
        let options = ClusterOptions {
            datanodes: DATANODES,
            disks_per_datanode: DISKS_PER_DATANODE,
            pipelines_per_disk: 2,
            container_bytes_max,
            om_args: format!("--reclaim-after {}s --any-reclaim-after", reclaim_after.as_secs()),
            datanode_args: words.to_owned(),
            ..ClusterOptions::default()
        };
        SpaceCluster { cluster: Cluster::start(&flotilla_binary(), &options) }
    }

    pub(super) fn restart_datanodes(&mut self, words: &str) {
        self.cluster.restart_datanodes(words);
    }

    /// The data directories of all nodes.
    pub(super) fn disks(&self) -> Room {
        Room::of((0..DATANODES).map(|node| self.cluster.disk(node, 0)).collect())
    }

    /// The directories of containers in them.
    pub(super) fn containers(&self) -> Room {
        Room::of((0..DATANODES).map(|node| self.cluster.disk(node, 0).join("containers")).collect())
    }

    /// Runs `flotilla load`, and returns the last line that it printed. A load that failed or found something
    /// wrong is an error.
    pub(super) fn load(&self, words: &str) -> anyhow::Result<Value> {
        let line = format!("load {words} --scm {} --json", self.cluster.scm_address);
        let said = flotilla(&line)?;
        ensure!(said.status.success(), "flotilla {line}: {}", said.status);
        let text = String::from_utf8(said.stdout)?;
        let last = text.lines().last().with_context(|| format!("flotilla {line} says nothing"))?;
        Ok(serde_json::from_str(last)?)
    }

    /// The number of pieces and blocks of which the groups of names have not heard yet that they are gone.
    pub(super) fn waiting(&self) -> anyhow::Result<u64> {
        let said = flotilla(&format!("admin --scm {} --json om unused", self.cluster.scm_address))?;
        let groups: Vec<Value> = serde_json::from_slice(&said.stdout).context("admin om unused")?;
        let sum = |name: &str| groups.iter().map(|group| group[name].as_u64()).sum::<Option<u64>>();
        let (pieces, blocks) = (sum("deleted_pieces"), sum("unused_blocks"));
        Ok(pieces.context("a group does not say what waits")? + blocks.context("nor which blocks")?)
    }

    /// The processor time so far, by role.
    pub(super) fn seconds(&self) -> [(&'static str, f64); 3] {
        let of = |processes: &[Process]| {
            processes.iter().map(|process| Usage::of(process.pid()).cpu_seconds).sum::<f64>()
        };
        [
            ("om", of(&self.cluster.oms)),
            ("scm", of(&self.cluster.scms)),
            ("datanodes", of(&self.cluster.datanodes)),
        ]
    }

    /// The memory of the process of each role that has the most.
    pub(super) fn resident_bytes(&self) -> [(&'static str, u64); 3] {
        let of = |processes: &[Process]| {
            processes.iter().map(|process| Usage::resident_bytes_of(process.pid())).max().unwrap_or_default()
        };
        [
            ("om", of(&self.cluster.oms)),
            ("scm", of(&self.cluster.scms)),
            ("datanode", of(&self.cluster.datanodes)),
        ]
    }

    /// The sum of a metric over all datanodes and disks.
    pub(super) fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let of_one = |http: &String| {
            let page = Scrape::parse(&scrape(http)?).map_err(anyhow::Error::msg)?;
            anyhow::Ok(page.with(name, &[]).map(|sample| sample.value).sum::<f64>())
        };
        self.cluster.datanode_http.iter().map(of_one).sum()
    }
}

fn flotilla(line: &str) -> anyhow::Result<Output> {
    let words = line.split_whitespace();
    let said = Command::new(flotilla_binary()).args(words).stderr(Stdio::inherit()).output();
    said.with_context(|| format!("run flotilla {line}"))
}
