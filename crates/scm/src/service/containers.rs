//! Containers, as operators see them.

use crate::leader::Leader;
use crate::nodes::Nodes;
use crate::quality::quality;
use crate::replication::Replication;
use crate::tables::{Tables, container_state, duty};
use crate::view;
use crate::world::World;
use proto::scm::{
    ContainerInfo, ContainerRecord, ContainerReplica, ContainerState, ContainerTrouble,
    ListContainersRequest, ListContainersResponse, NodeAddress, ReplicaInfo,
};
use std::ops::Bound;
use tokio::time::Instant;
use types::{ContainerId, NodeId};

/// Containers of one answer; ten megabytes at most.
const LIST_MAX: usize = 10_000;

pub(super) fn list_containers(leader: &Leader, request: &ListContainersRequest) -> ListContainersResponse {
    let limit = match request.limit as usize {
        0 => LIST_MAX,
        limit => limit.min(LIST_MAX),
    };
    leader.plan(|world, replication| {
        let World { tables, nodes, now, .. } = *world;
        let matching = candidates(tables, nodes, replication, request)
            .filter_map(|container| tables.container(container))
            .filter(|record| matches(record, nodes, replication, request));
        let mut found: Vec<&ContainerRecord> = matching.take(limit + 1).collect();
        let more = found.len() > limit;
        found.truncate(limit);
        let containers =
            found.into_iter().map(|record| info(record, tables, nodes, replication, now)).collect();
        ListContainersResponse { containers, more }
    })
}

/// The containers above `after`, from the shortest list that has all that may match.
fn candidates<'a>(
    tables: &'a Tables,
    nodes: &'a Nodes,
    replication: &'a Replication,
    request: &ListContainersRequest,
) -> Box<dyn Iterator<Item = ContainerId> + 'a> {
    let after = ContainerId(request.after);
    if request.container != 0 {
        return Box::new(
            Some(ContainerId(request.container)).into_iter().filter(move |found| *found > after),
        );
    }
    let above = (Bound::Excluded(after), Bound::Unbounded);
    if request.trouble() != ContainerTrouble::Unspecified {
        return Box::new(replication.troubles.range(above).map(|(container, _)| *container));
    }
    if request.node != 0 {
        return Box::new(nodes.replicas().on_after(NodeId(request.node), after));
    }
    Box::new(tables.containers().range(above).map(|(container, _)| *container))
}

fn matches(
    record: &ContainerRecord,
    nodes: &Nodes,
    replication: &Replication,
    request: &ListContainersRequest,
) -> bool {
    let container = ContainerId(record.container);
    let trouble =
        || replication.troubles.get(&container).is_some_and(|troubles| troubles.contains(&request.trouble()));
    (request.pipeline == 0 || record.pipeline == request.pipeline)
        && (request.state() == ContainerState::Unspecified || container_state(record) == request.state())
        && (!request.adopted || record.adopted)
        && (request.node == 0 || nodes.replicas().get(container, NodeId(request.node)).is_some())
        && (request.trouble() == ContainerTrouble::Unspecified || trouble())
}

fn info(
    record: &ContainerRecord,
    tables: &Tables,
    nodes: &Nodes,
    replication: &Replication,
    now: Instant,
) -> ContainerInfo {
    let container = ContainerId(record.container);
    let replicas: Vec<(NodeId, &ContainerReplica)> = nodes.replicas().of(container).collect();
    let good =
        || replicas.iter().map(|(_, replica)| replica).filter(|replica| quality(record, replica).is_good());
    let state = container_state(record);
    // Of an open one none is good yet, and all say something.
    let telling: Vec<_> = match state {
        ContainerState::ContainerClosed => good().collect(),
        _ => replicas.iter().map(|(_, replica)| replica).collect(),
    };
    let troubles = replication.troubles.get(&container).into_iter().flatten();
    ContainerInfo {
        container: record.container,
        pipeline: record.pipeline,
        state: state as i32,
        adopted: record.adopted,
        troubles: troubles.map(|trouble| *trouble as i32).collect(),
        blocks: telling.iter().map(|replica| replica.blocks).max().unwrap_or(0),
        payload_bytes: telling.iter().map(|replica| replica.payload_bytes).max().unwrap_or(0),
        hash: telling.iter().map(|replica| replica.hash.clone()).max().unwrap_or_default(),
        replicas: replicas
            .iter()
            .map(|(node, replica)| replica_info(*node, replica, tables, nodes, now))
            .collect(),
    }
}

fn replica_info(
    node: NodeId,
    replica: &ContainerReplica,
    tables: &Tables,
    nodes: &Nodes,
    now: Instant,
) -> ReplicaInfo {
    ReplicaInfo {
        node: Some(NodeAddress { node: node.0, address: view::address(tables, node) }),
        node_state: nodes.state(node, now) as i32,
        duty: tables.node(node).map_or(0, |record| duty(record) as i32),
        replica: Some(replica.clone()),
        disk_lost: nodes.disk_is_lost(node, &replica.disk, now),
    }
}
