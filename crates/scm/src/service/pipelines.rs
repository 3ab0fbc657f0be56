//! Calls by which operators deal with pipelines and with containers that are written to.

use crate::leader::Leader;
use crate::leader_moves;
use crate::member_view::MEMBERS;
use crate::pipelines;
use crate::resolution;
use crate::view;
use proto::scm::{
    AcceptLossRequest, AcceptLossResponse, ClosePipelineCommand, ClosePipelineRequest, CreatePipelineRequest,
    CreatePipelineResponse, ListPipelinesResponse, PipelineState, SettleContainersCommand,
    TransferLeaderRequest, scm_command::Command,
};
use proto::{Code, Failure};
use std::collections::BTreeSet;
use tokio::time::Instant;
use tracing::{info, warn};
use types::{NodeId, PipelineId};

pub(super) fn list(leader: &Leader) -> ListPipelinesResponse {
    let pipelines = leader.read(|world| {
        let pipeline = |record| view::pipeline_with_health(record, world);
        world.tables.pipelines().values().map(pipeline).collect()
    });
    ListPipelinesResponse { pipelines }
}

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
    leader.note_places_changed();
    Ok(())
}

pub(super) async fn accept_loss(
    leader: &Leader,
    request: AcceptLossRequest,
) -> Result<AcceptLossResponse, Failure> {
    let AcceptLossRequest { pipeline, keep_node } = request;
    leader.check_knows_all()?;
    let now = Instant::now();
    let since = now.checked_sub(leader.options.stale_after).unwrap_or(now);
    let decided = leader.read(|world| resolution::accept_loss(PipelineId(pipeline), world, since));
    let (node, containers) = decided.map_err(Failure::invalid)?;
    if keep_node != 0 {
        if keep_node != node.0 {
            return Err(Failure::invalid(format!(
                "node {node} has the most of what is left, not node {keep_node}"
            )));
        }
        warn!(pipeline, %node, ?containers, "an operator accepts what the pipeline lost");
        let command = Command::SettleContainers(SettleContainersCommand { containers: containers.clone() });
        let reply = leader.propose(command).await?;
        if !reply.refused.is_empty() {
            return Err(Failure::invalid(reply.refused));
        }
    }
    Ok(AcceptLossResponse { node: node.0, containers })
}

pub(super) async fn create_pipeline(
    leader: &Leader,
    request: CreatePipelineRequest,
) -> Result<CreatePipelineResponse, Failure> {
    let wanted: BTreeSet<NodeId> = request.nodes.iter().map(|node| NodeId(*node)).collect();
    if !request.nodes.is_empty() && (request.nodes.len() != MEMBERS || wanted.len() != MEMBERS) {
        return Err(Failure::invalid("name three different nodes, or none"));
    }
    let pipeline = pipelines::create_one(leader, &wanted).await?;
    Ok(CreatePipelineResponse { pipeline: pipeline.0 })
}

pub(super) fn transfer_leader(leader: &Leader, request: TransferLeaderRequest) -> Result<(), Failure> {
    let TransferLeaderRequest { pipeline, node } = request;
    let to = (node != 0).then_some(NodeId(node));
    leader.plan(|world, replication| {
        let record = world.tables.pipeline(PipelineId(pipeline));
        let record = record.ok_or_else(|| Failure::new(Code::NotFound, format!("no pipeline {pipeline}")))?;
        if record.state() != PipelineState::PipelineOpen {
            return Err(Failure::invalid(format!("pipeline {pipeline} is {}", record.state().as_str_name())));
        }
        if let Some(wished) = leader_moves::wished_move(record, to, world).map_err(Failure::invalid)? {
            info!(pipeline, from = %wished.from, to = %wished.to, "an operator moves the leader");
            replication.tasks.ask(wished.from, wished.order(), world.now);
        }
        Ok(())
    })
}
