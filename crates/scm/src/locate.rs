//! Where to read a container.

use crate::nodes::Nodes;
use crate::quality::quality;
use crate::tables::{Tables, container_state};
use crate::view;
use proto::scm::{ContainerLocation, ContainerRecord, ContainerState, NodeState, PipelineRecord};
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// `None` for containers that hold nothing.
pub(crate) fn locate(
    tables: &Tables,
    nodes: &Nodes,
    container: ContainerId,
    now: Instant,
) -> Option<ContainerLocation> {
    let record = tables.container(container)?;
    let pipeline = tables.pipeline(PipelineId(record.pipeline))?;
    let candidates = candidates(record, pipeline, nodes)?;
    // Silent nodes only when there is no other: each costs its reader a time-out.
    let with_state = |state: NodeState| -> Vec<NodeId> {
        candidates.iter().copied().filter(|node| nodes.state(*node, now) == state).collect()
    };
    let states = [NodeState::NodeHealthy, NodeState::NodeStale, NodeState::NodeDead];
    let found = states.into_iter().map(with_state).find(|found| !found.is_empty())?;
    let replicas = view::node_addresses(tables, found);
    Some(ContainerLocation { container: container.0, pipeline: record.pipeline, replicas })
}

fn candidates(record: &ContainerRecord, pipeline: &PipelineRecord, nodes: &Nodes) -> Option<Vec<NodeId>> {
    let container = ContainerId(record.container);
    let members = || leader_first(pipeline, nodes);
    let found: Vec<NodeId> = match container_state(record) {
        ContainerState::ContainerDeleted => return None,
        ContainerState::ContainerClosed => {
            let good =
                nodes.replicas().of(container).filter(|(_, replica)| quality(record, replica).is_good());
            good.map(|(node, _)| node).collect()
        }
        ContainerState::ContainerQuasiClosed => {
            nodes.replicas().of(container).map(|(node, _)| node).collect()
        }
        ContainerState::ContainerOpen | ContainerState::Unspecified => members(),
    };
    // A new leader of SCM has not heard of replicas yet, or there are none: who had it first may have something.
    Some(if found.is_empty() { members() } else { found })
}

fn leader_first(pipeline: &PipelineRecord, nodes: &Nodes) -> Vec<NodeId> {
    let leader = nodes.pipeline_seen(pipeline).leader;
    let mut members: Vec<NodeId> = pipeline.members.iter().map(|member| NodeId(member.node)).collect();
    members.sort_by_key(|member| Some(*member) != leader);
    members
}
