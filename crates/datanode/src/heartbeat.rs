//! Telling SCM what is here, and doing what it answers.

use crate::blocking::blocking;
use crate::disks::Identity;
use crate::manager::ContainerManager;
use crate::pipeline::PipelineOrder;
use crate::scm::ScmLink;
use anyhow::{Context, ensure};
use proto::scm::{HeartbeatRequest, HeartbeatResponse, PipelineState, RegisterRequest};
use proto::uuid_bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};
use types::{Backoff, Clock, ContainerId, NodeId, PipelineId};

/// At its longest as often as it reports anyway.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// Changes that come together (a leader's death moves many pipelines) are told together.
const GATHER: Duration = Duration::from_millis(20);

pub(crate) struct Heartbeat {
    manager: ContainerManager,
    scm: ScmLink,
    clock: Arc<dyn Clock>,
    /// Set once SCM has said in this process's life who we are.
    registered: Option<Identity>,
    /// Pipelines that SCM has lost in a forced reset, and asks about.
    to_describe: Vec<PipelineId>,
    /// What could not be done and was said already.
    complained: HashMap<PipelineId, String>,
}

impl Heartbeat {
    pub(crate) fn new(manager: ContainerManager, scm: ScmLink, clock: Arc<dyn Clock>) -> Heartbeat {
        let (to_describe, complained) = Default::default();
        Heartbeat { manager, scm, clock, registered: None, to_describe, complained }
    }

    pub(crate) async fn run(self) {
        let stop = self.manager.stop().clone();
        // Every step may be dropped: SCM's requests can be repeated, pipelines are opened in steps that a crash may
        // divide too.
        stop.run_until_cancelled(self.run_forever()).await;
    }

    async fn run_forever(mut self) {
        let interval = self.manager.options().heartbeat;
        let mut retry = RETRY;
        let mut reachable = true;
        loop {
            let done = self.step().await;
            self.manager.set_reported(done.is_ok());
            match done {
                Ok(()) => {
                    if !reachable {
                        info!(scm = %self.manager.options().scm, "SCM answers again");
                    }
                    reachable = true;
                    retry.reset();
                    let changed = self.manager.changed().notified();
                    // A change is kept for the next round when the timer wins.
                    tokio::select! {
                        () = sleep(interval) => {}
                        () = changed => sleep(GATHER).await,
                    }
                }
                Err(failure) => {
                    let (scm, failure) = (&self.manager.options().scm, format!("{failure:#}"));
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
        let identity = match &self.registered {
            Some(identity) => identity.clone(),
            None => self.register().await?,
        };
        let asked_at = Instant::now();
        let response = self.beat(&identity).await?;
        if response.register_again {
            info!("SCM asks this node to register again");
            self.registered = None;
            self.register().await?;
            self.manager.disks().inventory.report_all();
            return Ok(());
        }
        self.take_addresses(&response);
        self.manager.board().told(&self.manager, response.tasks.clone(), asked_at);
        self.carry_pipelines(identity.node, &response).await;
        Ok(())
    }

    async fn register(&mut self) -> anyhow::Result<Identity> {
        let disks = self.manager.disks();
        let known = disks.identity();
        let request = RegisterRequest {
            uuid: uuid_bytes(disks.node_uuid),
            cluster: known.as_ref().map_or(String::new(), |known| known.cluster.clone()),
            address: self.manager.options().address.clone(),
            disks: disks.report(),
            node: known.as_ref().map_or(0, |known| known.node.0),
        };
        let response = self.scm.register(request).await.context("register at SCM")?;
        let identity = Identity { node: NodeId(response.node), cluster: response.cluster };
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
        let (manager, joined) = (self.manager.clone(), identity.clone());
        blocking(move || manager.disks().join(&joined)).await?;
        self.manager.addresses().set(identity.node, self.manager.options().address.clone());
        info!(node = %identity.node, cluster = %identity.cluster, "registered");
        self.registered = Some(identity.clone());
        Ok(identity)
    }

    async fn beat(&mut self, identity: &Identity) -> anyhow::Result<HeartbeatResponse> {
        let inventory = &self.manager.disks().inventory;
        let mut request = HeartbeatRequest {
            node: identity.node.0,
            cluster: identity.cluster.clone(),
            address: self.manager.options().address.clone(),
            disks: self.manager.disks().report(),
            pipelines: self.manager.pipeline_reports(),
            tasks: self.manager.board().reports(),
            clock_ms: self.clock.now_ms(),
            described: self.manager.describe(&self.to_describe),
            ..HeartbeatRequest::default()
        };
        let report = inventory.report(&mut request);
        let lost_logs = request.pipelines.iter().filter(|told| told.log_lost);
        let lost_logs: Vec<PipelineId> = lost_logs.map(|told| PipelineId(told.pipeline)).collect();
        let response = self.scm.heartbeat(request).await.context("send a heartbeat to SCM")?;
        if response.register_again {
            return Ok(response);
        }
        inventory.taken(&report);
        let asked: Vec<PipelineId> = response.describe.iter().copied().map(PipelineId).collect();
        // Of a pipeline that it does not know, SCM has noted nothing.
        let noted: Vec<PipelineId> = lost_logs.into_iter().filter(|lost| !asked.contains(lost)).collect();
        self.manager.loss_was_told(&noted);
        if asked != self.to_describe {
            self.to_describe = asked;
            self.manager.changed().notify_one();
        }
        // SCM may not have had the beginning of what this was a part of: it restarted, or has another leader.
        if response.report_all && !report.begins {
            inventory.report_all();
        } else if report.has_more {
            self.manager.changed().notify_one();
        }
        Ok(response)
    }

    fn take_addresses(&self, response: &HeartbeatResponse) {
        for node in &response.addresses {
            if node.node != 0 && !node.address.is_empty() {
                self.manager.addresses().set(NodeId(node.node), node.address.clone());
            }
        }
    }

    async fn carry_pipelines(&mut self, node: NodeId, response: &HeartbeatResponse) {
        for pipeline in &response.pipelines {
            let id = PipelineId(pipeline.pipeline);
            match self.carry_pipeline(node, pipeline).await {
                Ok(()) => {
                    self.complained.remove(&id);
                }
                Err(failure) if self.complained.get(&id) == Some(&failure) => {}
                Err(failure) => {
                    error!(pipeline = %id, error = failure, "cannot carry a pipeline");
                    self.complained.insert(id, failure);
                }
            }
        }
    }

    /// What may take longer than a heartbeat may wait. Whether it failed is told there, and SCM says it again.
    fn spawn(&self, ending: impl Future<Output = Result<(), String>> + Send + 'static) {
        self.manager.tasks().spawn(async move { drop(ending.await) });
    }

    async fn carry_pipeline(&self, node: NodeId, pipeline: &proto::scm::Pipeline) -> Result<(), String> {
        let id = PipelineId(pipeline.pipeline);
        match pipeline.state() {
            PipelineState::PipelineAllocated | PipelineState::PipelineOpen => {
                let order = PipelineOrder::for_node(pipeline, node).map_err(|failure| failure.to_string())?;
                let Some(order) = order else { return Ok(()) };
                // Before the next heartbeat, however long it takes: SCM takes one that does not speak of the pipeline as proof that
                // nothing of it is here.
                let created = self.manager.create_pipeline(&order).await;
                created.map(drop).map_err(|failure| failure.to_string())
            }
            PipelineState::PipelineClosing => {
                self.manager.end_pipeline(id, ContainerId(pipeline.end_container));
                if pipeline.quasi_close {
                    let manager = self.manager.clone();
                    self.spawn(async move { manager.quasi_close_pipeline(id).await });
                }
                Ok(())
            }
            PipelineState::PipelineClosed => {
                let order = PipelineOrder::for_node(pipeline, node).map_err(|failure| failure.to_string())?;
                if let Some(order) = order {
                    let manager = self.manager.clone();
                    self.spawn(async move { manager.let_go_ordered(order).await });
                }
                Ok(())
            }
            PipelineState::Unspecified => Err("SCM names no state of it that is known here".to_owned()),
        }
    }
}
