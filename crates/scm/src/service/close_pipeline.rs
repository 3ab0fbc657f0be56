//! An operator closes a pipeline.

use crate::leader::Leader;
use proto::scm::{ClosePipelineCommand, ClosePipelineRequest, scm_command::Command};
use proto::{Code, Failure};
use tracing::info;

pub(super) async fn close_pipeline(leader: &Leader, request: ClosePipelineRequest) -> Result<(), Failure> {
    let pipeline = request.pipeline;
    let reason = "an operator closed it".to_owned();
    let at_ms = leader.clock.now_ms();
    let command = Command::ClosePipeline(ClosePipelineCommand { pipeline, reason, at_ms });
    let reply = leader.propose(command).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::new(Code::NotFound, reply.refused));
    }
    info!(pipeline, "an operator closes the pipeline");
    leader.places_changed.notify_one();
    Ok(())
}
