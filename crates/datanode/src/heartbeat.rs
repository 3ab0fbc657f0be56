//! Telling SCM what is here, and doing what it answers.

use crate::blocking::blocking;
use crate::disks::{Disks, NodeIdentity};
use crate::options::DatanodeOptions;
use crate::orders::{Carrier, Executor, Means, Order};
use crate::pipelines::Pipelines;
use crate::scm::ScmLink;
use anyhow::{Context, ensure};
use proto::scm::{HeartbeatRequest, HeartbeatResponse, MemberState, RegisterRequest};
use proto::uuid_bytes;
use raft::AddressBook;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};
use types::{Backoff, Clock, NodeId, PipelineId};

/// The pauses after a heartbeat that failed: the longest is as long as that between reports.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// Changes that come together (a leader's death moves many pipelines) are told together.
const GATHER: Duration = Duration::from_millis(20);

/// The most tasks that are taken from one answer of SCM, which tells a few. More are left for when it says
/// them again.
const TASKS_MAX: usize = 1000;

/// Reports to SCM and takes its orders, for as long as the node runs.
pub(crate) struct Heartbeat {
    pub options: Arc<DatanodeOptions>,
    pub disks: Arc<Disks>,
    pub pipelines: Arc<Pipelines>,
    pub addresses: AddressBook,
    pub means: Means,
    pub carrier: Carrier,
    pub executor: Executor,
    pub scm: ScmLink,
    pub clock: Arc<dyn Clock>,
    /// Whether SCM took the last report.
    pub is_reported: Arc<AtomicBool>,
    pub talk: Talk,
}

/// The state of the talk with SCM in this process's life.
pub(crate) struct Talk {
    /// The time at which it began, by the node's clock.
    process: u64,
    /// The number of the last heartbeat.
    number: u64,
    /// The identity that SCM has given this node in this process's life.
    registered: Option<NodeIdentity>,
    /// Pipelines that SCM has lost in a forced reset, and asks about.
    to_describe: Vec<PipelineId>,
}

impl Talk {
    pub(crate) fn new(clock: &dyn Clock) -> Talk {
        Talk { process: clock.now_ms(), number: 0, registered: None, to_describe: Vec::new() }
    }
}

impl Heartbeat {
    /// Reports and takes orders, one heartbeat after the other. May be dropped anywhere: SCM's requests can
    /// be repeated, pipelines are opened in steps that a crash may divide too.
    pub(crate) async fn run(mut self) {
        let interval = self.options.heartbeat;
        let changed = self.disks.inventory.wake();
        let mut retry = RETRY;
        let mut reachable = true;
        loop {
            let done = self.step().await;
            self.is_reported.store(done.is_ok(), Ordering::Relaxed);
            match done {
                Ok(()) => {
                    if !reachable {
                        info!(scm = %self.options.scm, "SCM answers again");
                    }
                    reachable = true;
                    retry.reset();
                    let changed = changed.notified();
                    // A change is kept for the next round when the timer wins.
                    tokio::select! {
                        () = sleep(interval) => {}
                        () = changed => sleep(GATHER).await,
                    }
                }
                Err(failure) => {
                    let (scm, failure) = (&self.options.scm, format!("{failure:#}"));
                    match reachable {
                        true => {
                            warn!(%scm, error = failure, "SCM does not take this node's report; trying on")
                        }
                        false => {
                            debug!(%scm, error = failure, "SCM does not take this node's report; trying on")
                        }
                    }
                    reachable = false;
                    sleep(retry.pause()).await;
                }
            }
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        let identity = match &self.talk.registered {
            Some(identity) => identity.clone(),
            None => self.register().await?,
        };
        let asked_at = Instant::now();
        let response = self.beat(&identity).await?;
        if response.register_again {
            info!("SCM asks this node to register again");
            self.talk.registered = None;
            self.register().await?;
            self.disks.inventory.report_all();
            return Ok(());
        }
        self.take_addresses(&response);
        self.disks.may_reclaim.store(response.may_reclaim, Ordering::Relaxed);
        self.executor.told(self.orders(identity.node, response), asked_at);
        Ok(())
    }

    fn orders(&self, node: NodeId, told: HeartbeatResponse) -> Vec<Order> {
        let tasks = told.tasks.into_iter().take(TASKS_MAX).filter_map(|task| self.means.order(task));
        let pipelines = told.pipelines.iter().filter_map(|pipeline| self.carrier.order(node, pipeline));
        tasks.chain(pipelines).collect()
    }

    async fn register(&mut self) -> anyhow::Result<NodeIdentity> {
        let disks = &self.disks;
        let known = disks.identity();
        let request = RegisterRequest {
            process: self.talk.process,
            uuid: uuid_bytes(disks.node_uuid),
            cluster: known.as_ref().map_or(String::new(), |known| known.cluster.clone()),
            address: self.options.address.clone(),
            disks: disks.report(),
            node: known.as_ref().map_or(0, |known| known.node.0),
        };
        let response = self.scm.register(request).await.context("register at SCM")?;
        let identity = NodeIdentity { node: NodeId(response.node), cluster: response.cluster };
        ensure!(identity.node != NodeId(0), "SCM gave this node the number 0");
        if let Some(known) = known {
            ensure!(
                known == identity,
                "this node is {} of cluster {}, SCM calls it {} of cluster {}: is that the right SCM?",
                known.node,
                known.cluster,
                identity.node,
                identity.cluster
            );
        }
        // Durable before we act as that node.
        let (disks, joined) = (self.disks.clone(), identity.clone());
        blocking(move || disks.join(&joined)).await?;
        self.addresses.set(identity.node, self.options.address.clone());
        info!(node = %identity.node, cluster = %identity.cluster, "registered");
        self.talk.registered = Some(identity.clone());
        Ok(identity)
    }

    async fn beat(&mut self, identity: &NodeIdentity) -> anyhow::Result<HeartbeatResponse> {
        let inventory = &self.disks.inventory;
        let mut pipelines = self.executor.making();
        let there = self.pipelines.reports();
        pipelines.retain(|making| there.iter().all(|it| it.pipeline != making.pipeline));
        pipelines.extend(there);
        self.talk.number += 1;
        let mut request = HeartbeatRequest {
            process: self.talk.process,
            number: self.talk.number,
            node: identity.node.0,
            cluster: identity.cluster.clone(),
            address: self.options.address.clone(),
            disks: self.disks.report(),
            pipelines,
            tasks: self.executor.reports(),
            clock_ms: self.clock.now_ms(),
            described: self.pipelines.describe(&self.talk.to_describe),
            version: self.options.version.clone(),
            ..HeartbeatRequest::default()
        };
        let report = inventory.report(&mut request);
        let lost_logs = request.pipelines.iter().filter(|told| told.state() == MemberState::LogLost);
        let lost_logs: Vec<PipelineId> = lost_logs.map(|told| PipelineId(told.pipeline)).collect();
        let response = self.scm.heartbeat(request).await.context("send a heartbeat to SCM")?;
        if response.register_again {
            return Ok(response);
        }
        inventory.taken(&report);
        let asked: Vec<PipelineId> = response.describe.iter().copied().map(PipelineId).collect();
        // SCM does not know a pipeline that it asks about, and has noted nothing of it.
        let noted: Vec<PipelineId> = lost_logs.into_iter().filter(|lost| !asked.contains(lost)).collect();
        self.pipelines.loss_was_told(&noted);
        if asked != self.talk.to_describe {
            self.talk.to_describe = asked;
            inventory.wake().notify_one();
        }
        // SCM may not have had the beginning of what this was a part of: it restarted, or has another leader.
        if response.report_all && !report.begins {
            inventory.report_all();
        } else if report.has_more {
            inventory.wake().notify_one();
        }
        Ok(response)
    }

    fn take_addresses(&self, response: &HeartbeatResponse) {
        for node in &response.addresses {
            if node.node != 0 && !node.address.is_empty() {
                self.addresses.set(NodeId(node.node), node.address.clone());
            }
        }
    }
}
