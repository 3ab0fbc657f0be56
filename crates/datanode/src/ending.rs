//! Orders of SCM that end pipelines. It says them again and again, so one that is being carried out, or has been, changes nothing.

use crate::blocking::blocking;
use crate::container_end::ContainerEnd;
use crate::disks::DatanodeDisk;
use crate::index::records::{ContainerRecord, ContainerState};
use crate::manager::ContainerManager;
use crate::pipeline::PipelineOrder;
use crate::pipelines::Hosted;
use crate::retired::Retired;
use proto::scm::PipelineReport;
use proto::{Code, Failure, Retry};
use std::sync::Arc;
use tracing::error;
use types::{ContainerId, LogId, PipelineId};

/// A pipeline that a disk remembers and no group runs for.
#[derive(Clone)]
pub(crate) struct StoppedPipeline {
    pub order: PipelineOrder,
    pub disk: Arc<DatanodeDisk>,
    pub report: PipelineReport,
    /// SCM has heard that its log is lost.
    pub loss_is_told: bool,
    /// Held while it is being ended.
    pub busy: Arc<tokio::sync::Mutex<()>>,
}

impl StoppedPipeline {
    pub(crate) fn new(order: PipelineOrder, disk: Arc<DatanodeDisk>, why: String) -> StoppedPipeline {
        let report = PipelineReport {
            pipeline: order.pipeline.0,
            replica: order.replica.0,
            stopped: why,
            ..PipelineReport::default()
        };
        StoppedPipeline { order, disk, report, loss_is_told: false, busy: Arc::default() }
    }

    fn retired(&self) -> Retired {
        Retired { disk: self.disk.clone(), order: self.order.clone(), loss_is_told: self.loss_is_told }
    }
}

impl ContainerManager {
    /// Its leader, if that is here, ends a pipeline with this container. A pipeline that is not here is not created for that.
    pub fn end_pipeline(&self, pipeline: PipelineId, end: ContainerId) {
        if let Some(pipeline) = self.pipeline(pipeline) {
            pipeline.end_with(end);
        }
    }

    /// Ends this node's replica of a pipeline that nobody can lead.
    pub async fn quasi_close_pipeline(&self, pipeline: PipelineId) -> Result<(), String> {
        if self.pipeline(pipeline).is_some_and(|open| open.open_container().is_ended) {
            return Ok(());
        }
        let Some(stopped) = self.take_down(pipeline, "it is being quasi-closed") else { return Ok(()) };
        let Ok(_busy) = stopped.busy.try_lock() else { return Ok(()) };
        if self.stopped_report(pipeline).is_none_or(|report| report.ended) {
            return Ok(());
        }
        let done = stopped.retired().quasi_close(self.host()).await;
        self.note_end(&stopped, done).await
    }

    /// SCM has taken the reports in which these pipelines say that their logs are lost.
    pub(crate) fn loss_was_told(&self, pipelines: &[PipelineId]) {
        for pipeline in pipelines {
            self.pipelines().update_stopped(*pipeline, |stopped| stopped.loss_is_told = true);
        }
    }

    /// Forgets a pipeline that is over, also one of which only an open container is here: SCM names it for as long as it hears of that.
    pub async fn let_go_ordered(&self, order: PipelineOrder) -> Result<(), String> {
        self.take_up_leftover(&order).await.map_err(|failure| format!("{failure:#}"))?;
        self.let_go_pipeline(order.pipeline).await
    }

    async fn take_up_leftover(&self, order: &PipelineOrder) -> anyhow::Result<()> {
        let pipeline = order.pipeline;
        if self.pipelines().get(pipeline).is_some() {
            return Ok(());
        }
        let Some(disk) = self.disks().get(order.disk) else { return Ok(()) };
        let index = disk.index.clone();
        if blocking(move || index.left_open(pipeline)).await?.is_empty() {
            return Ok(());
        }
        let left =
            StoppedPipeline::new(order.clone(), disk.clone(), "an open container is left of it".to_owned());
        self.pipelines().stop_unknown(left);
        Ok(())
    }

    /// Forgets a pipeline that is over; its containers stay.
    pub async fn let_go_pipeline(&self, pipeline: PipelineId) -> Result<(), String> {
        let Some(stopped) = self.take_down(pipeline, "it is being let go") else { return Ok(()) };
        let Ok(_busy) = stopped.busy.try_lock() else { return Ok(()) };
        match stopped.retired().let_go(self.host()).await {
            Ok(()) => {
                self.pipelines().forget(pipeline);
                self.look_again_at(&stopped).await;
                Ok(())
            }
            Err(failure) => self.note_end(&stopped, Err(failure.context("let it go"))).await,
        }
    }

    /// Goes on with what a crash interrupted: the pipeline was retired, or more.
    pub(crate) async fn finish_ending(&self, order: PipelineOrder, disk: Arc<DatanodeDisk>) {
        let pipeline = order.pipeline;
        let stopped = StoppedPipeline::new(order, disk, "it was quasi-closed, or let go".to_owned());
        let retired = stopped.retired();
        self.pipelines().stop(stopped);
        let failed = match retired.is_being_removed().await {
            Ok(true) => self.let_go_pipeline(pipeline).await,
            Ok(false) => self.quasi_close_pipeline(pipeline).await,
            Err(failure) => Err(format!("{failure:#}")),
        };
        if let Err(failure) = failed {
            error!(%pipeline, failure, "cannot go on with ending a pipeline");
        }
    }

    /// Makes a quasi-closed replica CLOSED if its last record is what SCM says the container ends with.
    pub async fn close_replica(&self, container: ContainerId, last: Option<LogId>) -> Result<(), Failure> {
        let finder = self.clone();
        let found = blocking(move || {
            let Some((disk, _)) = finder.disks().holding(container)? else { return Ok(None) };
            Ok(disk.index.container(container)?.map(|record| (disk.clone(), record)))
        });
        let broken = |failure: anyhow::Error| Failure::internal(format!("{failure:#}"));
        let Some((disk, record)) = found.await.map_err(broken)? else {
            let message = format!("container {container} is not on this node");
            return Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) });
        };
        match record.state {
            ContainerState::Closed => return Ok(()),
            ContainerState::QuasiClosed | ContainerState::WithoutLog if record.last == last => {}
            ContainerState::QuasiClosed | ContainerState::WithoutLog => {
                let message =
                    format!("container {container} ends at {:?} here, not at {last:?}", record.last);
                return Err(Failure::invalid(message));
            }
            ContainerState::Open => {
                let message = format!("container {container} is open here");
                return Err(Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) });
            }
        }
        // The file first: the index may be lost, and is made after it.
        let end = ContainerEnd::closed(last);
        end.write(&**disk.space.disk(), container).await.map_err(broken)?;
        let closed = disk.clone();
        let marked = blocking(move || {
            closed.index.set_end(container, end)?;
            closed.index.flush()
        });
        marked.await.map_err(broken)?;
        disk.inventory.look_again(disk.id, container);
        Ok(())
    }

    /// Whether no log of this node reads a container's records any more.
    pub(crate) fn is_released(&self, record: &ContainerRecord) -> bool {
        if !record.state.is_over() {
            return false;
        }
        match self.pipelines().get(record.pipeline) {
            Some(Hosted::Open(open)) => {
                let purged = open.group.log().state().purged.map(|purged| purged.index);
                record.last.is_some_and(|last| Some(last.index) <= purged)
            }
            Some(Hosted::Opening | Hosted::Stopped(_)) => false,
            None => true,
        }
    }

    pub(crate) fn stopped_report(&self, pipeline: PipelineId) -> Option<PipelineReport> {
        self.pipelines().stopped_report(pipeline)
    }

    /// Takes an open pipeline out of use; what it was stays known, so that SCM goes on hearing of it.
    fn take_down(&self, pipeline: PipelineId, why: &str) -> Option<StoppedPipeline> {
        self.pipelines().take_down(pipeline, |open| {
            let report = PipelineReport { stopped: why.to_owned(), ..open.report() };
            let (order, disk) = (open.order.clone(), open.disk.clone());
            StoppedPipeline { order, disk, report, loss_is_told: false, busy: Arc::default() }
        })
    }

    /// What became of a pipeline that was to end: for reports, and for a person once.
    async fn note_end(&self, ended: &StoppedPipeline, done: anyhow::Result<()>) -> Result<(), String> {
        let pipeline = ended.order.pipeline;
        let has_lost_log = match &done {
            Ok(()) => false,
            Err(failure) => ended.retired().has_lost_log(failure).await,
        };
        let done = done.map_err(|failure| format!("{failure:#}"));
        self.pipelines().update_stopped(pipeline, |stopped| match &done {
            Ok(()) => {
                stopped.report.ended = true;
                stopped.report.stopped = "it ended by itself, without a leader".to_owned();
            }
            Err(failure) => {
                if stopped.report.stopped != *failure {
                    error!(%pipeline, failure, "cannot end a pipeline; SCM will say it again");
                }
                stopped.report.stopped.clone_from(failure);
                stopped.report.log_lost |= has_lost_log;
            }
        });
        self.look_again_at(ended).await;
        done
    }

    /// Has all containers of a pipeline read again, also those that nobody has heard of: the rest of its log may have rolled.
    async fn look_again_at(&self, ended: &StoppedPipeline) {
        let (disk, pipeline) = (&ended.disk, ended.order.pipeline);
        // Those that are gone are known.
        disk.inventory.look_again_at_pipeline(pipeline);
        let index = disk.index.clone();
        match blocking(move || index.containers()).await {
            Ok(containers) => {
                for (container, _) in containers.into_iter().filter(|(_, record)| record.pipeline == pipeline)
                {
                    disk.inventory.look_again(disk.id, container);
                }
            }
            Err(failure) => {
                let disk = disk.real.root().display();
                error!(%disk, error = format!("{failure:#}"), "cannot list the containers of a disk");
            }
        }
        self.changed().notify_one();
    }
}
