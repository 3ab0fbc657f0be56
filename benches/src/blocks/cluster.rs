use crate::usage::Usage;
use crate::{flotilla_binary, open_pipelines, scrape};
use ::client::{Client, ClientOptions};
use anyhow::Context;
use bytes::Bytes;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;
use testkit::{Cluster, ClusterOptions};
use types::Payload;

/// The time for the start: more than pipelines need to be made and led on a busy machine.
const START_MAX: Duration = Duration::from_secs(60);
/// The pipelines per disk of `flotilla server` when nothing is said.
const PIPELINES_PER_DISK: usize = 2;
const CONTAINER_BYTES_MAX: u64 = 2 << 30;

/// Three datanodes, SCM, OM and a gateway, each a process, with this many pipelines on all three datanodes.
pub struct BlocksCluster {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    pub(super) pipelines: usize,
}

/// The use of the three datanodes so far, together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) cpu_seconds: f64,
    pub(super) syncs: u64,
    pub(super) device_bytes: u64,
    /// The memory at this moment, which is not a count.
    pub(super) resident_bytes: u64,
}

impl BlocksCluster {
    pub async fn start(pipelines: usize) -> anyhow::Result<BlocksCluster> {
        let options = ClusterOptions {
            disks_per_datanode: pipelines.div_ceil(PIPELINES_PER_DISK),
            pipelines_per_disk: pipelines.min(PIPELINES_PER_DISK) as u32,
            container_bytes_max: CONTAINER_BYTES_MAX,
            ..ClusterOptions::default()
        };
        let cluster = Cluster::start(&flotilla_binary(), &options);
        let client =
            Client::connect(ClientOptions { scm: cluster.scm_address.clone(), ..ClientOptions::default() });
        let mut views = client.watch_view();
        let all_led = views.wait_for(|view| {
            let usable = view.pipelines.iter().filter(|pipeline| pipeline.open && pipeline.leader.is_some());
            usable.count() >= pipelines
        });
        tokio::time::timeout(START_MAX, all_led).await.context("wait for pipelines with leaders")??;
        let cluster = BlocksCluster { cluster, client, pipelines };
        let give_up = Instant::now() + START_MAX;
        // Followers tell of a leader that is about to open its side of the pipeline.
        while let Err(failure) = cluster.write_one_each().await {
            anyhow::ensure!(Instant::now() < give_up, "pipelines take no blocks: {failure:#}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(cluster)
    }

    async fn write_one_each(&self) -> anyhow::Result<()> {
        let block = Payload::checksummed(Bytes::from_static(b"first"));
        for mut lane in open_pipelines(&self.cluster.scm_address, self.pipelines).await? {
            lane.write(&block, 1, 1).await?;
        }
        Ok(())
    }

    /// Where other measurements may put files: the disk that is measured.
    pub fn dir(&self) -> PathBuf {
        let disk = self.cluster.disk(0, 0);
        disk.ancestors().nth(2).expect("<root>/dn1/disk1").to_owned()
    }

    pub(super) fn counters(&self) -> anyhow::Result<Counters> {
        let mut counters = Counters::default();
        for (datanode, http) in self.cluster.datanodes.iter().zip(&self.cluster.datanode_http) {
            let usage = Usage::of(datanode.pid());
            counters.cpu_seconds += usage.cpu_seconds;
            counters.resident_bytes += usage.resident_bytes;
            counters.device_bytes += datanode.device_bytes_written();
            counters.syncs += syncs_of(http)?;
        }
        Ok(counters)
    }
}

/// The syncs of a datanode: each write of a log's queue is followed by one fdatasync.
fn syncs_of(http: &str) -> anyhow::Result<u64> {
    let page = scrape(http).with_context(|| format!("scrape {http}"))?;
    let page = Scrape::parse(&page).map_err(anyhow::Error::msg)?;
    Ok(page.with("flotilla_disk_log_write_seconds_count", &[]).map(|sample| sample.value as u64).sum())
}
