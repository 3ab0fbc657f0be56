//! The pipelines of this node, each in one state at a time: what is asked of one is answered from one moment.

use crate::ending::StoppedPipeline;
use crate::pipeline::Pipeline;
use proto::scm::PipelineReport;
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use types::PipelineId;

/// What is known of a pipeline here.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // a node has some dozens of them
pub(crate) enum Hosted {
    /// Its log is being opened, and nothing was known of it before.
    Opening,
    Open(Arc<Pipeline>),
    /// A disk remembers it, and no group runs for it.
    Stopped(StoppedPipeline),
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

    /// What SCM hears of them.
    pub(crate) fn reports(&self) -> Vec<PipelineReport> {
        let hosted: Vec<_> = self.read().values().cloned().collect();
        let report = |hosted: Hosted| match hosted {
            Hosted::Opening => None,
            Hosted::Open(open) => Some(open.report()),
            Hosted::Stopped(stopped) => Some(stopped.report),
        };
        hosted.into_iter().filter_map(report).collect()
    }

    /// From here on until it is open, or the answer is dropped, it is here. One that stands still goes on doing so meanwhile.
    pub(crate) fn begin_opening(&self, pipeline: PipelineId) -> Opening<'_> {
        self.write().entry(pipeline).or_insert(Hosted::Opening);
        Opening { pipelines: self, pipeline }
    }

    pub(crate) fn stop(&self, stopped: StoppedPipeline) {
        self.write().insert(stopped.order.pipeline, Hosted::Stopped(stopped));
    }

    /// As [`Pipelines::stop`], where nothing is known of it.
    pub(crate) fn stop_unknown(&self, stopped: StoppedPipeline) {
        self.write().entry(stopped.order.pipeline).or_insert(Hosted::Stopped(stopped));
    }

    /// The pipeline as one that stands still: what it was when it ran is in the answer of `stop`.
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

    /// Only one that stands still is forgotten: its log is gone.
    pub(crate) fn forget(&self, pipeline: PipelineId) {
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
