//! The pipelines of this node, each in one state at a time: what is asked of one is answered from one moment.

use crate::datanode_disk::DatanodeDisk;
use crate::index::machine::OpenContainer;
use crate::index::records::ContainerRecord;
use crate::pipeline::{Pipeline, PipelineOrder};
use anyhow::Context;
use futures::future::select_all;
use proto::scm::{MemberState, PipelineDescription, PipelineReport};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::{Instant, timeout_at};
use types::{ContainerId, PipelineId};

/// The state of a pipeline on this node.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // a node has some dozens of them
pub(crate) enum Hosted {
    /// A pipeline whose log is being opened, and of which nothing was known before.
    Opening,
    Open(Arc<Pipeline>),
    /// A pipeline that a disk remembers, and no group runs for it.
    Stopped(StoppedPipeline),
}

/// A pipeline that a disk remembers and no group runs for.
#[derive(Clone)]
pub(crate) struct StoppedPipeline {
    pub order: PipelineOrder,
    pub disk: Arc<DatanodeDisk>,
    pub report: PipelineReport,
    /// Whether SCM has heard that the log is lost.
    pub loss_is_told: bool,
}

impl StoppedPipeline {
    pub(crate) fn new(order: PipelineOrder, disk: Arc<DatanodeDisk>, why: String) -> StoppedPipeline {
        let report = PipelineReport {
            pipeline: order.pipeline.0,
            replica: order.replica.0,
            state: MemberState::Stopped as i32,
            why,
            ..PipelineReport::default()
        };
        StoppedPipeline { order, disk, report, loss_is_told: false }
    }

    /// A pipeline of which this node had a log, and has none.
    pub(crate) fn without_log(order: PipelineOrder, disk: Arc<DatanodeDisk>, why: String) -> StoppedPipeline {
        let mut stopped = StoppedPipeline::new(order, disk, why);
        stopped.report.set_state(MemberState::LogLost);
        stopped
    }
}

#[derive(Default)]
pub(crate) struct Pipelines {
    by_id: RwLock<BTreeMap<PipelineId, Hosted>>,
}

/// The state of a pipeline that is being opened: unless it was opened, the pipeline is again what it was.
pub(crate) struct Opening<'a> {
    pipelines: &'a Pipelines,
    pipeline: PipelineId,
}

impl Pipelines {
    pub(crate) fn get(&self, pipeline: PipelineId) -> Option<Hosted> {
        self.read().get(&pipeline).cloned()
    }

    pub(crate) fn open(&self, pipeline: PipelineId) -> Option<Arc<Pipeline>> {
        match self.read().get(&pipeline) {
            Some(Hosted::Open(open)) => Some(open.clone()),
            Some(Hosted::Opening | Hosted::Stopped(_)) | None => None,
        }
    }

    pub(crate) fn all_open(&self) -> Vec<Arc<Pipeline>> {
        let open = |hosted: &Hosted| match hosted {
            Hosted::Open(open) => Some(open.clone()),
            Hosted::Opening | Hosted::Stopped(_) => None,
        };
        self.read().values().filter_map(open).collect()
    }

    pub(crate) fn stopped_report(&self, pipeline: PipelineId) -> Option<PipelineReport> {
        match self.read().get(&pipeline) {
            Some(Hosted::Stopped(stopped)) => Some(stopped.report.clone()),
            Some(Hosted::Opening | Hosted::Open(_)) | None => None,
        }
    }

    /// The reports that SCM gets.
    pub(crate) fn reports(&self) -> Vec<PipelineReport> {
        let hosted: Vec<_> = self.read().values().cloned().collect();
        let report = |hosted: Hosted| match hosted {
            Hosted::Opening => None,
            Hosted::Open(open) => Some(open.report()),
            Hosted::Stopped(stopped) => Some(stopped.report),
        };
        hosted.into_iter().filter_map(report).collect()
    }

    /// An open pipeline, for an order of SCM that needs one.
    pub(crate) fn running(&self, pipeline: PipelineId) -> anyhow::Result<Arc<Pipeline>> {
        self.open(pipeline).with_context(|| format!("pipeline {pipeline} does not run here"))
    }

    /// The pipelines to which this node would take a chunk.
    pub(crate) fn writable(&self, container_refuse_bytes: u64) -> Vec<PipelineId> {
        let mut open = self.all_open();
        open.retain(|open| open.leads() && open.takes_chunks(container_refuse_bytes).is_ok());
        open.into_iter().map(|open| open.id).collect()
    }

    /// The members of those of the pipelines that are here, running or not.
    pub(crate) fn describe(&self, pipelines: &[PipelineId]) -> Vec<PipelineDescription> {
        let describe = |id: &PipelineId| match self.get(*id)? {
            Hosted::Open(open) => Some(open.order.describe()),
            Hosted::Stopped(stopped) => Some(stopped.order.describe()),
            Hosted::Opening => None,
        };
        pipelines.iter().filter_map(describe).collect()
    }

    /// Whether the log of a member here may still write into a container: it has not come past it.
    pub(crate) fn may_write(&self, pipeline: PipelineId, container: ContainerId) -> bool {
        let may_write = |report: &PipelineReport| !report.has_ended() && report.container <= container.0;
        match self.get(pipeline) {
            None => false,
            Some(Hosted::Opening) => true,
            Some(Hosted::Open(open)) => may_write(&open.report()),
            Some(Hosted::Stopped(stopped)) => may_write(&stopped.report),
        }
    }

    /// Tells whether no log of this node reads a container's records any more.
    pub(crate) fn has_released(&self, record: &ContainerRecord) -> bool {
        if !record.state.is_over() {
            return false;
        }
        match self.get(record.pipeline) {
            Some(Hosted::Open(open)) => {
                let purged = open.group.log().state().purged.map(|purged| purged.index);
                record.last.is_some_and(|last| Some(last.index) <= purged)
            }
            Some(Hosted::Opening | Hosted::Stopped(_)) => false,
            None => true,
        }
    }

    /// Waits until a pipeline of this node has rolled to `container` or beyond it; false when `deadline`
    /// comes first, or none is on its way there. Containers are numbered upwards, so most unknown ones need
    /// no waiting.
    pub(crate) async fn container_arrives(&self, container: ContainerId, deadline: Instant) -> bool {
        let behind = |open: &OpenContainer| open.container < container;
        let open = self.all_open().into_iter().map(|pipeline| pipeline.open.clone());
        let arrivals: Vec<_> = open.filter(|open| behind(&open.borrow())).collect();
        let arrivals = arrivals
            .into_iter()
            .map(|mut open| Box::pin(async move { open.wait_for(|open| !behind(open)).await.is_ok() }));
        let arrivals: Vec<_> = arrivals.collect();
        if arrivals.is_empty() {
            return false;
        }
        timeout_at(deadline, select_all(arrivals)).await.is_ok_and(|(arrived, ..)| arrived)
    }

    /// Notes that SCM has taken the reports in which these pipelines say that their logs are lost.
    pub(crate) fn loss_was_told(&self, pipelines: &[PipelineId]) {
        for pipeline in pipelines {
            self.update_stopped(*pipeline, |stopped| stopped.loss_is_told = true);
        }
    }

    /// Begins to open the pipeline: from here on until it is open, or the answer is dropped, it is here. One
    /// that stands still goes on doing so meanwhile.
    pub(crate) fn begin_opening(&self, pipeline: PipelineId) -> Opening<'_> {
        self.write().entry(pipeline).or_insert(Hosted::Opening);
        Opening { pipelines: self, pipeline }
    }

    pub(crate) fn stop(&self, stopped: StoppedPipeline) {
        self.write().insert(stopped.order.pipeline, Hosted::Stopped(stopped));
    }

    /// [`Pipelines::stop`] for a pipeline of which nothing is known; true where that is so.
    pub(crate) fn stop_unknown(&self, stopped: StoppedPipeline) -> bool {
        match self.write().entry(stopped.order.pipeline) {
            Entry::Vacant(unknown) => {
                unknown.insert(Hosted::Stopped(stopped));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Makes a pipeline one that stands still, and returns that: what it was when it ran is in the answer of
    /// `stop`.
    pub(crate) fn take_down(
        &self,
        pipeline: PipelineId,
        stop: impl FnOnce(&Pipeline) -> StoppedPipeline,
    ) -> Option<StoppedPipeline> {
        let mut by_id = self.write();
        let hosted = by_id.get_mut(&pipeline)?;
        if let Hosted::Open(open) = hosted {
            *hosted = Hosted::Stopped(stop(open));
        }
        match hosted {
            Hosted::Stopped(stopped) => Some(stopped.clone()),
            Hosted::Opening | Hosted::Open(_) => None,
        }
    }

    pub(crate) fn update_stopped(&self, pipeline: PipelineId, update: impl FnOnce(&mut StoppedPipeline)) {
        if let Some(Hosted::Stopped(stopped)) = self.write().get_mut(&pipeline) {
            update(stopped);
        }
    }

    /// Takes out a pipeline that stands still: its log is gone. An open one stays.
    pub(crate) fn remove(&self, pipeline: PipelineId) {
        let mut by_id = self.write();
        if matches!(by_id.get(&pipeline), Some(Hosted::Stopped(_))) {
            by_id.remove(&pipeline);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<PipelineId, Hosted>> {
        self.by_id.read().expect("no holder panics")
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<PipelineId, Hosted>> {
        self.by_id.write().expect("no holder panics")
    }
}

impl Opening<'_> {
    pub(crate) fn opened(self, open: Arc<Pipeline>) {
        self.pipelines.write().insert(self.pipeline, Hosted::Open(open));
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut by_id = self.pipelines.write();
        if let Some(Hosted::Opening) = by_id.get(&self.pipeline) {
            by_id.remove(&self.pipeline);
        }
    }
}
