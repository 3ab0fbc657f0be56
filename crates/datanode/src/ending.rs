//! Ending this node's replicas of pipelines. Doing so again changes nothing; **for each pipeline only one
//! does it at a time**: the start of the node, then the executor of SCM's orders.

use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::pipeline::PipelineOrder;
use crate::pipelines::{Pipelines, StoppedPipeline};
use crate::retired::{EndFailure, Retired};
use anyhow::Context;
use proto::scm::{LogEnd, MemberState, PipelineReport};
use raft::RaftHost;
use std::sync::Arc;
use tracing::error;
use types::{ContainerId, PipelineId};

/// Ends this node's replicas of pipelines. A cheap handle.
#[derive(Clone)]
pub(crate) struct Ender {
    pub disks: Arc<Disks>,
    pub pipelines: Arc<Pipelines>,
    pub host: RaftHost,
}

impl Ender {
    /// Makes the leader of a pipeline, if that is here, end it with this container. A pipeline that is not
    /// here is not created for that.
    pub(crate) fn end_pipeline(&self, pipeline: PipelineId, end: ContainerId) {
        if let Some(pipeline) = self.pipelines.open(pipeline) {
            pipeline.end_with(end);
        }
    }

    /// Ends this node's replica of a pipeline that nobody can lead.
    pub(crate) async fn quasi_close_pipeline(&self, pipeline: PipelineId) -> anyhow::Result<()> {
        if self.pipelines.open(pipeline).is_some_and(|open| open.open_container().ended.is_some()) {
            return Ok(());
        }
        let Some(stopped) = self.take_down(pipeline, "it is being quasi-closed") else { return Ok(()) };
        if self.pipelines.stopped_report(pipeline).is_none_or(|report| report.has_ended()) {
            return Ok(());
        }
        let done = retired(&stopped).quasi_close(&self.host).await;
        self.note_end(&stopped, done).await
    }

    /// Lets go of a pipeline that is over. Of one of which only an open container is here nobody has said how
    /// it ended: it ends first, which SCM notes before it orders this again. SCM names it for as long as it
    /// hears of that container, and then of the end.
    pub(crate) async fn let_go_ordered(&self, order: PipelineOrder) -> anyhow::Result<()> {
        match self.take_up_leftover(&order).await? {
            true => self.quasi_close_pipeline(order.pipeline).await,
            false => self.let_go_pipeline(order.pipeline).await,
        }
    }

    async fn take_up_leftover(&self, order: &PipelineOrder) -> anyhow::Result<bool> {
        let pipeline = order.pipeline;
        if self.pipelines.get(pipeline).is_some() {
            return Ok(false);
        }
        let Some(disk) = self.disks.get(order.disk) else { return Ok(false) };
        if disk.index.with(move |index| index.left_open(pipeline)).await?.is_empty() {
            return Ok(false);
        }
        // A restart goes on with it: SCM hears of no open container any more then.
        let spec = order.to_spec();
        disk.index.with(move |index| index.save_pipeline_spec(&spec)).await?;
        let left =
            StoppedPipeline::new(order.clone(), disk.clone(), "an open container is left of it".to_owned());
        Ok(self.pipelines.stop_unknown(left))
    }

    /// Lets go of a pipeline that is over; its containers stay.
    pub(crate) async fn let_go_pipeline(&self, pipeline: PipelineId) -> anyhow::Result<()> {
        let Some(stopped) = self.take_down(pipeline, "it is being let go") else { return Ok(()) };
        let done = match retired(&stopped).let_go(&self.host).await {
            // Whoever no longer speaks of the pipeline has told of all its containers.
            Ok(()) => self.survey(&stopped).await.map_err(EndFailure::from),
            failed => failed,
        };
        if let Err(failure) = done {
            return self.note_end(&stopped, Err(failure)).await;
        }
        self.pipelines.remove(pipeline);
        // The pipeline's containers are released now.
        self.disks.inventory.look_again_at_pipeline(pipeline);
        self.disks.inventory.wake().notify_one();
        Ok(())
    }

    /// Goes on with what a crash interrupted: the pipeline was retired, or more.
    pub(crate) async fn finish_ending(&self, order: PipelineOrder, disk: Arc<DatanodeDisk>) {
        let pipeline = order.pipeline;
        let stopped = StoppedPipeline::new(order, disk, "it was quasi-closed, or let go".to_owned());
        let retired = retired(&stopped);
        self.pipelines.stop(stopped);
        let failed = match retired.is_being_removed().await {
            Ok(true) => self.let_go_pipeline(pipeline).await,
            Ok(false) => self.quasi_close_pipeline(pipeline).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = failed {
            error!(%pipeline, error = format!("{failure:#}"), "cannot go on with ending a pipeline");
        }
    }

    /// Takes an open pipeline out of use; what it was stays known, so that SCM goes on hearing of it.
    fn take_down(&self, pipeline: PipelineId, why: &str) -> Option<StoppedPipeline> {
        self.pipelines.take_down(pipeline, |open| {
            let mut report = PipelineReport { leader_replica: 0, why: why.to_owned(), ..open.report() };
            if !report.has_ended() {
                report.set_state(MemberState::Stopped);
            }
            let (order, disk) = (open.order.clone(), open.disk.clone());
            StoppedPipeline { order, disk, report, loss_is_told: false }
        })
    }

    /// Notes for reports what became of a pipeline that was to end. Its containers come first: SCM takes a
    /// member that has ended for one that has told of them.
    async fn note_end(
        &self,
        ended: &StoppedPipeline,
        done: Result<LogEnd, EndFailure>,
    ) -> anyhow::Result<()> {
        let pipeline = ended.order.pipeline;
        let surveyed = self.survey(ended).await;
        let done = done.and_then(|end| Ok(surveyed.map(|()| end)?));
        self.pipelines.update_stopped(pipeline, |stopped| match &done {
            Ok(end) => {
                stopped.report.end = Some(*end);
                stopped.report.set_state(MemberState::QuasiClosed);
                stopped.report.why.clear();
            }
            // The state that was reported before stays true: the pipeline is only not let go of yet.
            Err(failure) => {
                stopped.report.why = failure.to_string();
                if matches!(failure, EndFailure::LogLost(_)) {
                    stopped.report.set_state(MemberState::LogLost);
                }
            }
        });
        self.disks.inventory.wake().notify_one();
        Ok(done.map(drop)?)
    }

    /// Has all containers of a pipeline read again, also those that nobody has heard of: the rest of its log
    /// may have rolled. On return the next report tells of them.
    async fn survey(&self, ended: &StoppedPipeline) -> anyhow::Result<()> {
        let (disk, pipeline) = (&ended.disk, ended.order.pipeline);
        let containers =
            disk.index.with(move |index| index.containers()).await.context("list its containers")?;
        for (container, _) in containers.into_iter().filter(|(_, record)| record.pipeline == pipeline) {
            disk.inventory.look_again(disk.id, container);
        }
        // Replicas that are gone from the index are in the inventory still.
        disk.inventory.look_again_at_pipeline(pipeline);
        disk.inventory.looked().await;
        Ok(())
    }
}

fn retired(stopped: &StoppedPipeline) -> Retired {
    Retired { disk: stopped.disk.clone(), order: stopped.order.clone(), loss_is_told: stopped.loss_is_told }
}
