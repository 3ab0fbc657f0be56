//! Calls about containers, of writers, readers and operators.

use crate::container_loss::{self, Left};
use crate::leader::Leader;
use crate::nodes::Nodes;
use crate::quality::{Quality, quality};
use crate::replication::{self, Order, Replication, Tasks};
use crate::tables::{Tables, container_state, duty};
use crate::view;
use crate::world::World;
use proto::scm::{
    AcceptContainerLossCommand, AcceptContainerLossRequest, AcceptContainerLossResponse,
    AllocateContainerCommand, AllocateContainerRequest, AllocateContainerResponse, CloseContainerRequest,
    ContainerInfo, ContainerRecord, ContainerReplica, ContainerState, ContainerTrouble, DeleteReplica,
    DropReplicaRequest, ListContainersRequest, ListContainersResponse, LocateContainersRequest,
    LocateContainersResponse, NodeAddress, NodeState, ReplicaInfo, TaskKind, scm_command::Command,
};
use proto::{Code, Failure};
use std::ops::Bound;
use tokio::time::Instant;
use tracing::warn;
use types::{ContainerId, NodeId};

/// The most containers of one answer; ten megabytes at most.
const LIST_MAX: usize = 10_000;
/// The most containers of one question where they are: the answer stays well below the message limit.
const LOCATE_MAX: usize = 10_000;

pub(super) async fn allocate(
    leader: &Leader,
    request: AllocateContainerRequest,
) -> Result<AllocateContainerResponse, Failure> {
    let AllocateContainerRequest { pipeline, after } = request;
    // A call that was made before has its answer in the tables, and needs no log entry.
    let known = leader.tables.read(|tables| {
        let record = tables.container(ContainerId(after));
        tables.container_after(record.filter(|record| record.pipeline == pipeline)?)
    });
    if let Some(ContainerId(container)) = known {
        return Ok(AllocateContainerResponse { container });
    }
    let command = AllocateContainerCommand { pipeline, after };
    let reply = leader.propose(Command::AllocateContainer(command)).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::new(Code::NotFound, reply.refused));
    }
    Ok(AllocateContainerResponse { container: reply.container })
}

pub(super) fn locate(
    leader: &Leader,
    request: LocateContainersRequest,
) -> Result<LocateContainersResponse, Failure> {
    let containers = request.containers;
    if containers.len() > LOCATE_MAX {
        let message = format!("asked for {} containers, at most {LOCATE_MAX} at a time", containers.len());
        return Err(Failure::new(Code::TooLarge, message));
    }
    let locations = leader.read(|world| {
        let locate = |container| crate::locate::locate(world, ContainerId(container));
        containers.into_iter().filter_map(locate).collect()
    });
    Ok(LocateContainersResponse { locations })
}

/// Has the leader of its pipeline close a container that is open, and begin the next.
pub(super) fn close(leader: &Leader, request: CloseContainerRequest) -> Result<(), Failure> {
    leader.plan(|world, replication| replication.rolls.want(ContainerId(request.container), world))
}

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
        let containers = found.into_iter().map(|record| match request.numbers_only {
            true => number(record),
            false => info(record, tables, nodes, replication, now),
        });
        let containers = containers.collect();
        ListContainersResponse { containers, more }
    })
}

/// Has a replica deleted that SCM never deletes by itself: one that may have what was acknowledged, and that
/// the good ones contradict.
pub(super) fn drop_replica(leader: &Leader, request: &DropReplicaRequest) -> Result<(), Failure> {
    let (container, node) = (ContainerId(request.container), NodeId(request.node));
    leader.check_knows_all()?;
    leader.plan(|world, replication| {
        if !world.may_move_data() {
            let why = "replication is off, and no replica is deleted: flotilla admin replication start";
            return Err(Failure::new(Code::NotYet, why));
        }
        let deletion = dropping(container, node, world, &replication.tasks)?;
        warn!(%container, %node, "an operator drops a replica, with what only it has");
        replication.tasks.ask(node, deletion, world.now);
        Ok(())
    })
}

/// Says what is left of a container that no replica is good of, and makes it that where an operator says so.
pub(super) async fn accept_loss(
    leader: &Leader,
    request: AcceptContainerLossRequest,
) -> Result<AcceptContainerLossResponse, Failure> {
    let AcceptContainerLossRequest { container, accept, keep_node } = request;
    leader.check_knows_all()?;
    let left = leader.read(|world| container_loss::left(ContainerId(container), world));
    let Left { before, node, after } = left.map_err(Failure::invalid)?;
    let node = node.map_or(0, |node| node.0);
    if accept {
        if keep_node != node {
            return Err(Failure::invalid(match node {
                0 => "nothing is left of it".to_owned(),
                best => format!("node {best} has the most of what is left"),
            }));
        }
        warn!(container, node, ?before, ?after, "an operator accepts what the container lost");
        let (before, after) = (Some(before), Some(after));
        let command = Command::AcceptContainerLoss(AcceptContainerLossCommand { before, after });
        let reply = leader.propose(command).await?;
        if !reply.refused.is_empty() {
            return Err(Failure::invalid(reply.refused));
        }
    }
    Ok(AcceptContainerLossResponse { node, container: Some(after) })
}

/// Refuses to drop a replica where that would leave no good one, and one that is no trouble, or is put right
/// without anybody. Replicas are dropped one after the other, so that each is decided on what the one before
/// has left. The deletion is of the replica as it is now.
fn dropping(
    container: ContainerId,
    node: NodeId,
    world: &World<'_>,
    tasks: &Tasks,
) -> Result<Order, Failure> {
    let none =
        || Failure::new(Code::NotFound, format!("container {container} has no replica on node {node}"));
    let known = replication::known(container, world).ok_or_else(none)?;
    let found = known.replicas.iter().find(|(on, _)| *on == node);
    let (_, replica) = found.ok_or_else(none)?;
    let is_in_doubt = match known.quality(replica) {
        Quality::Diverged | Quality::Ahead | Quality::Stale => true,
        quality => quality.is_good() && known.good_ones_differ(world.node_views()),
    };
    if !is_in_doubt {
        let why = "that replica is what the container is, or SCM repairs it by itself";
        return Err(Failure::invalid(why));
    }
    let is_deleted = container_state(known.record) == ContainerState::ContainerDeleted;
    if tasks.nodes_with(TaskKind::TaskDelete, container).iter().any(|other| *other != node) {
        let why = "another replica of it is being deleted: wait until that is done";
        return Err(Failure::new(Code::NotYet, why));
    }
    if is_deleted && !known.is_dispensable {
        let why = "it shows where its node's log ended: other containers of its pipeline are not decided yet";
        return Err(Failure::new(Code::NotYet, why));
    }
    let beside = usize::from(!is_deleted);
    if replication::firm_elsewhere(&known, world.node_views(), tasks, node) < beside {
        let why = "no other node that stays, speaks and can read it has a good replica of it";
        return Err(Failure::invalid(why));
    }
    if !replica.released {
        return Err(Failure::invalid("a log still reads that replica: its pipeline is not over there"));
    }
    match world.node_views().get(&node) {
        Some(view) if view.state == NodeState::NodeHealthy => {
            Ok(Order::Delete { replica: DeleteReplica::of(replica), beside })
        }
        _ => Err(Failure::invalid(format!("node {node} does not speak: nobody could delete it there"))),
    }
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

fn number(record: &ContainerRecord) -> ContainerInfo {
    let state = container_state(record) as i32;
    ContainerInfo { container: record.container, state, ..ContainerInfo::default() }
}

pub(super) fn info(
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
    // No replica of an open container is good yet, and all say something.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::oms::Oms;
    use crate::ops::testing::{close, create, end, good_replica, run, three_nodes};
    use crate::replicas::ContainersReport;
    use proto::scm::{
        AllocateContainerCommand, ReplicaState, SettleContainersCommand, SettledContainer, TermEnd,
    };
    use std::cell::RefCell;
    use std::time::Duration;

    #[test]
    fn only_a_replica_that_is_in_doubt_is_dropped_and_never_the_last_good_one() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let (state, last_term) = (ContainerState::ContainerClosed as i32, 2);
        let closed = SettledContainer { container: 1, state, last_term, last_index: 9 };
        run(&mut tables, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }));
        let mut now = Instant::now();
        let second = Duration::from_secs(1);
        let silence =
            Silence { stale_after: second, dead_after: 9 * second, disk_lost_after: Duration::from_secs(30) };
        let mut nodes = Nodes::new(silence, now);
        let good = |hash: &str| ContainerReplica {
            container: 1,
            pipeline: 1,
            state: ReplicaState::ReplicaClosed as i32,
            last_term: 2,
            last_index: 9,
            blocks: 1,
            released: true,
            hash: hash.to_owned(),
            terms: vec![TermEnd { term: 2, last_index: 9, mark: 0 }],
            ..ContainerReplica::default()
        };
        let other = ContainerReplica {
            state: ReplicaState::ReplicaQuasiClosed as i32,
            last_term: 1,
            last_index: 8,
            committed_term: 1,
            committed_index: 8,
            ..good("")
        };
        let tasks = RefCell::new(Tasks::default());
        let mut check = |replicas: &[(u64, &ContainerReplica)], node: u64, expect: Option<&str>| {
            for of in 1..=3 {
                nodes.see(NodeId(of), vec![], now);
                let replicas = replicas.iter().filter(|(on, _)| *on == of).map(|(_, it)| (*it).clone());
                let report =
                    ContainersReport { replicas: replicas.collect(), gone: vec![], begins: true, ends: true };
                nodes.report_containers(NodeId(of), report);
            }
            let world = World::of(&tables, &nodes, Oms::silent(), now, 0, false);
            let checked = dropping(ContainerId(1), NodeId(node), &world, &tasks.borrow());
            let there = replicas.iter().find(|(on, _)| *on == node);
            match expect {
                None => {
                    let replica = DeleteReplica::of(there.expect("it is there").1);
                    assert_eq!(checked, Ok(Order::Delete { replica, beside: 1 }));
                }
                Some(text) => {
                    let failure = checked.unwrap_err();
                    assert!(failure.message.contains(text), "{failure:?}");
                }
            }
        };
        let (one, two) = (good("a"), good("b"));
        check(&[(1, &one), (2, &one), (3, &other)], 3, None);
        check(&[(1, &one), (2, &one), (3, &other)], 1, Some("is what the container is"));
        check(&[(1, &one), (2, &one), (3, &two)], 3, None);
        check(&[(3, &other)], 3, Some("good replica of it"));
        check(&[(1, &one)], 3, Some("has no replica on node 3"));
        let read = ContainerReplica { released: false, ..other.clone() };
        check(&[(1, &one), (2, &one), (3, &read)], 3, Some("a log still reads"));

        // Dropped one after the other, all replicas could go.
        let deletion = Order::Delete { replica: DeleteReplica::of(&two), beside: 1 };
        tasks.borrow_mut().ask(NodeId(3), deletion, now);
        check(&[(1, &one), (2, &one), (3, &two)], 3, None);
        check(&[(1, &one), (2, &one), (3, &two)], 1, Some("another replica of it is being deleted"));
        tasks.take();
        check(&[(1, &one), (3, &two)], 3, None);
        // A replica on a node that does not speak may never come back.
        now += 2 * second;
        nodes.see(NodeId(3), vec![], now);
        let world = World::of(&tables, &nodes, Oms::silent(), now, 0, false);
        let failure = dropping(ContainerId(1), NodeId(3), &world, &tasks.borrow()).unwrap_err();
        assert!(failure.message.contains("good replica of it"), "{failure:?}");
    }

    /// With it the proof would go that its node's log was whole: the container before would wait for ever.
    #[test]
    fn what_shows_where_a_log_ended_is_not_dropped_before_its_pipeline_is_decided() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, Command::AllocateContainer(AllocateContainerCommand { pipeline: 1, after: 1 }));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let settle = |tables: &mut Tables, container, state: ContainerState| {
            let closed = SettledContainer { container, state: state as i32, last_term: 1, last_index: 9 };
            run(tables, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }));
        };
        settle(&mut tables, 1, ContainerState::ContainerQuasiClosed);
        settle(&mut tables, 2, ContainerState::ContainerDeleted);
        let now = Instant::now();
        let mut nodes = Nodes::new(
            Silence { stale_after: Duration::MAX, dead_after: Duration::MAX, disk_lost_after: Duration::MAX },
            now,
        );
        nodes.tell(1, vec![ContainerReplica { container: 2, committed_index: 9, ..good_replica() }], now);
        let check = |tables: &Tables| {
            dropping(ContainerId(2), NodeId(1), &World::at(tables, &nodes, now), &Tasks::default())
        };
        let refused = check(&tables).unwrap_err();
        assert!(refused.message.contains("it shows where its node's log ended"), "{refused:?}");
        settle(&mut tables, 1, ContainerState::ContainerClosed);
        assert!(matches!(check(&tables), Ok(Order::Delete { beside: 0, .. })));
    }
}
