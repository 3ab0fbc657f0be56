//! Orders of SCM for the pipelines that this node carries, or should.

use crate::ending::Ender;
use crate::opening::Opener;
use crate::pipeline::PipelineOrder;
use crate::workers::Workers;
use proto::scm::{Pipeline, PipelineState};
use std::collections::HashMap;
use tracing::error;
use types::{ContainerId, NodeId, PipelineId};

/// Carries out orders for pipelines. Each is said again with every heartbeat until reports show that it is
/// done.
pub(crate) struct PipelineOrders {
    opener: Opener,
    ender: Ender,
    workers: Workers,
    /// The failures that a person was told of already.
    complained: HashMap<PipelineId, String>,
}

impl PipelineOrders {
    pub(crate) fn new(opener: Opener, ender: Ender, workers: Workers) -> PipelineOrders {
        PipelineOrders { opener, ender, workers, complained: HashMap::new() }
    }

    pub(crate) async fn carry_out(&mut self, node: NodeId, pipelines: &[Pipeline]) {
        for pipeline in pipelines {
            let id = PipelineId(pipeline.pipeline);
            match self.carry_out_one(node, pipeline).await {
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

    async fn carry_out_one(&self, node: NodeId, pipeline: &Pipeline) -> Result<(), String> {
        let id = PipelineId(pipeline.pipeline);
        match pipeline.state() {
            PipelineState::PipelineAllocated | PipelineState::PipelineOpen => {
                let order = PipelineOrder::for_node(pipeline, node).map_err(|failure| failure.to_string())?;
                let Some(order) = order else { return Ok(()) };
                // Before the next heartbeat, however long it takes: SCM takes one that does not speak of the
                // pipeline as proof that nothing of it is here.
                let created = self.opener.create_pipeline(&order).await;
                created.map(drop).map_err(|failure| failure.to_string())
            }
            PipelineState::PipelineClosing => {
                self.ender.end_pipeline(id, ContainerId(pipeline.end_container));
                if pipeline.quasi_close {
                    let ender = self.ender.clone();
                    self.spawn(async move { ender.quasi_close_pipeline(id).await });
                }
                Ok(())
            }
            PipelineState::PipelineClosed => {
                let order = PipelineOrder::for_node(pipeline, node).map_err(|failure| failure.to_string())?;
                if let Some(order) = order {
                    let ender = self.ender.clone();
                    self.spawn(async move { ender.let_go_ordered(order).await });
                }
                Ok(())
            }
            PipelineState::Unspecified => Err("SCM names no state of it that is known here".to_owned()),
        }
    }

    /// Carries out what may take longer than a heartbeat may wait. Whether it failed is told there, and SCM
    /// says it again.
    fn spawn(&self, ending: impl Future<Output = Result<(), String>> + Send + 'static) {
        self.workers.spawn(async move { drop(ending.await) });
    }
}
