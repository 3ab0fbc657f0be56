//! Nodes that leave: when nothing depends on them any more, when their maintenance is over, and when they
//! die.

use crate::quality::Quality;
use crate::replication::{self, REPLICAS, REPLICAS_BESIDES_MAINTENANCE, Tasks};
use crate::tables::{container_state, duty};
use crate::world::World;
use proto::Failure;
use proto::scm::{
    ContainerRecord, ContainerReplica, ContainerState, NodeDuty, NodeRecord, NodeState, NoteNodesCommand,
    PipelineState, SetNodeDutyCommand,
};
use types::{NodeId, PipelineId};

/// The number of pipelines and containers that a leaving node is still needed for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) pipelines: usize,
    pub(crate) containers: usize,
}

/// The changes of duty that are due: of nodes that nothing depends on any more, or whose maintenance is over.
pub(crate) fn due(world: &World<'_>, tasks: &Tasks) -> Vec<SetNodeDutyCommand> {
    let next = |(&node, record): (&NodeId, &NodeRecord)| {
        let until_ms = record.duty_until_ms;
        let over = until_ms != 0 && world.now_ms >= until_ms;
        let done = || !world.in_safe_mode && waiting(node, world, tasks) == Waiting::default();
        // A dead node tells no more.
        let all_told = || {
            world.nodes.replicas().is_complete(node)
                || world.nodes.state(node, world.now) == NodeState::NodeDead
        };
        let duty = match duty(record) {
            NodeDuty::NodeDecommissioning if all_told() && done() => NodeDuty::NodeDecommissioned,
            NodeDuty::NodeEnteringMaintenance | NodeDuty::NodeInMaintenance if over => {
                NodeDuty::NodeInService
            }
            NodeDuty::NodeEnteringMaintenance if done() => NodeDuty::NodeInMaintenance,
            _ => return None,
        };
        Some(SetNodeDutyCommand { node: node.0, duty: duty as i32, until_ms })
    };
    world.tables.nodes().iter().filter_map(next).collect()
}

/// The nodes of which SCM's log says wrongly that they are dead, or are not; `None` if it is right of all.
pub(crate) fn deaths(world: &World<'_>) -> Option<NoteNodesCommand> {
    let mut note = NoteNodesCommand::default();
    for (&node, record) in world.tables.nodes() {
        match world.nodes.state(node, world.now) {
            NodeState::NodeDead if !record.is_dead => note.dead.push(node.0),
            NodeState::NodeHealthy if record.is_dead => note.back.push(node.0),
            _ => {}
        }
    }
    (note != NoteNodesCommand::default()).then_some(note)
}

/// Counts the pipelines and containers of `node` that have no place elsewhere yet. A node that has not told
/// this leader of all its replicas may have any container.
pub(crate) fn waiting(node: NodeId, world: &World<'_>, tasks: &Tasks) -> Waiting {
    let World { tables, nodes, .. } = *world;
    let needed = match tables.node(node).map(duty) {
        Some(NodeDuty::NodeDecommissioning) => REPLICAS,
        Some(NodeDuty::NodeEnteringMaintenance) => REPLICAS_BESIDES_MAINTENANCE,
        _ => return Waiting::default(),
    };
    let is_dead = nodes.state(node, world.now) == NodeState::NodeDead;
    let waits = |container: &types::ContainerId| {
        let Some(known) = replication::known(*container, world) else { return false };
        let is_closed = container_state(known.record) == ContainerState::ContainerClosed;
        let is_only_here = |(on, replica): &(NodeId, &ContainerReplica)| {
            *on == node
                && match known.quality(replica) {
                    Quality::Diverged => true,
                    // The replica is not compared yet, or cannot be.
                    Quality::Stale | Quality::Bad
                        if known.may_have_acknowledged_more(replica)
                            || known.is_yet_to_be_compared(replica) =>
                    {
                        true
                    }
                    // Its time of being told of is not over, or it is about to be deleted.
                    Quality::Ahead => true,
                    Quality::Stale => is_closed && known.is_shared(replica) != Some(true),
                    // The replica cannot be read at the moment.
                    Quality::Unfinished => is_closed && known.pipeline_over,
                    quality => quality.is_good() && !known.good_ones_agree(world.node_views()),
                }
        };
        // The node takes along what nobody else has; after a maintenance it is there again, and a dead node
        // has taken it along already.
        if needed == REPLICAS && !is_dead && known.replicas.iter().any(is_only_here) {
            return true;
        }
        container_state(known.record) != ContainerState::ContainerDeleted
            && !replication::are_good_elsewhere(needed, &known, world.node_views(), tasks, node)
    };
    // An open container is written to by its pipeline's members, which are counted, until that is over.
    let is_over = |record: &ContainerRecord| {
        let pipeline = tables.pipeline(PipelineId(record.pipeline));
        pipeline.is_none_or(|pipeline| pipeline.state() == PipelineState::PipelineClosed)
    };
    let not_open = tables
        .containers()
        .iter()
        .filter(|(_, record)| container_state(record) != ContainerState::ContainerOpen || is_over(record));
    let containers = match nodes.replicas().is_complete(node) {
        true => nodes.replicas().on(node).filter(waits).count(),
        false => not_open.map(|(container, _)| *container).filter(waits).count(),
    };
    Waiting { pipelines: tables.unended_pipelines_on(node).count(), containers }
}

/// Refuses to take a node out of service where fewer nodes would be left than a pipeline has members; such a
/// cluster takes no writes, and nothing can be emptied.
pub(crate) fn check_enough_left(node: NodeId, world: &World<'_>) -> Result<(), Failure> {
    let left = world.node_views().iter().filter(|(other, view)| **other != node && view.in_service()).count();
    if left >= REPLICAS {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "without node {node}, {left} nodes would be left in service, and each container needs {REPLICAS}; use force to do it regardless"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::oms::Oms;
    use crate::replication::Order;
    use crate::tables::Tables;
    use proto::scm::DeleteReplica;
    use proto::scm::scm_command::Command;
    use std::cell::RefCell;
    use std::time::Duration;
    use tokio::time::Instant;

    const STALE_AFTER: Duration = Duration::from_secs(1);
    use crate::ops::testing::{
        close, create, disk, end, good_replica, one_closed_container, register, run, set_duty, three_nodes,
    };
    use crate::replicas::ContainersReport;
    use proto::scm::{DiskReport, DiskState, ReplicaState, TermEnd};

    #[test]
    fn maintenance_ends_with_its_time() {
        let mut tables = three_nodes();
        run(&mut tables, register(4));
        let until_ms = 1000;
        let entering = NodeDuty::NodeEnteringMaintenance as i32;
        run(&mut tables, Command::SetNodeDuty(SetNodeDutyCommand { node: 2, duty: entering, until_ms }));
        let now = Instant::now();
        let nodes = Nodes::new(
            Silence {
                stale_after: STALE_AFTER,
                dead_after: STALE_AFTER,
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            now,
        );
        let duties = |tables: &Tables, now_ms: u64| -> Vec<NodeDuty> {
            due(&World::of(tables, &nodes, Oms::silent(), now, now_ms, false), &Tasks::default())
                .iter()
                .map(|command| command.duty())
                .collect()
        };
        assert_eq!(duties(&tables, 999), [NodeDuty::NodeInMaintenance], "nothing depends on it");
        let entered =
            due(&World::of(&tables, &nodes, Oms::silent(), now, 999, false), &Tasks::default()).remove(0);
        run(&mut tables, Command::SetNodeDuty(entered));
        assert_eq!(duties(&tables, 999), []);
        assert_eq!(duties(&tables, 1000), [NodeDuty::NodeInService]);
    }

    /// A new leader of SCM has heard of no replica: it must not take that for an empty node.
    #[test]
    fn a_node_that_has_not_told_what_it_has_does_not_leave() {
        let mut tables = one_closed_container();
        run(&mut tables, set_duty(2, NodeDuty::NodeDecommissioning));
        let now = Instant::now();
        let silence =
            Silence { stale_after: STALE_AFTER, dead_after: 9 * STALE_AFTER, disk_lost_after: STALE_AFTER };
        let mut nodes = Nodes::new(silence, now);
        let tasks = RefCell::new(Tasks::default());
        let leaves = |nodes: &Nodes, at: Instant, in_safe_mode: bool| {
            let world = World::of(&tables, nodes, Oms::silent(), at, 1, in_safe_mode);
            !due(&world, &tasks.borrow()).is_empty()
        };
        assert!(!leaves(&nodes, now, false) && !leaves(&nodes, now + 9 * STALE_AFTER, false));
        let replica = good_replica();
        let mut tells = |node: u64, replicas: Vec<ContainerReplica>| nodes.tell(node, replicas, now);
        for node in 1..=3 {
            tells(node, vec![replica.clone()]);
        }
        tells(4, vec![]);
        assert!(!leaves(&nodes, now, false), "there are two others");
        nodes.report_containers(
            NodeId(4),
            ContainersReport { replicas: vec![replica.clone()], gone: vec![], begins: true, ends: true },
        );
        assert!(leaves(&nodes, now, false) && !leaves(&nodes, now, true));
        // The replica on node 4 is one too many, and is deleted before anybody thought of leaving.
        let deletion = Order::Delete { replica: DeleteReplica::of(&replica), beside: 0 };
        tasks.borrow_mut().ask(NodeId(4), deletion, now);
        assert!(!leaves(&nodes, now, false), "one of three is about to be deleted");
        tasks.take();
        let without_log =
            ContainerReplica { state: ReplicaState::ReplicaWithoutLog as i32, ..replica.clone() };
        nodes.report_containers(
            NodeId(4),
            ContainersReport { replicas: vec![without_log], gone: vec![], begins: true, ends: true },
        );
        assert!(!leaves(&nodes, now, false), "one of three has lost its log, and is made anew");

        let ends = |term, last_index| vec![TermEnd { term, last_index, mark: 0 }];
        for node in [1, 3, 4] {
            let read = ContainerReplica { terms: ends(1, 9), ..replica.clone() };
            let replicas = vec![read];
            nodes.report_containers(
                NodeId(node),
                ContainersReport { replicas, gone: vec![], begins: true, ends: true },
            );
        }
        let state = ReplicaState::ReplicaQuasiClosed as i32;
        let more = ContainerReplica { state, last_term: 2, committed_term: 2, committed_index: 9, ..replica };
        nodes.report_containers(
            NodeId(2),
            ContainersReport { replicas: vec![more], gone: vec![], begins: true, ends: true },
        );
        assert!(!leaves(&nodes, now, false), "it has what the others lack");
    }

    /// Both are switched off as soon as both are in maintenance.
    #[test]
    fn two_that_go_into_maintenance_do_not_count_each_other() {
        let mut tables = one_closed_container();
        let now = Instant::now();
        let silence =
            Silence { stale_after: STALE_AFTER, dead_after: 9 * STALE_AFTER, disk_lost_after: STALE_AFTER };
        let mut nodes = Nodes::new(silence, now);
        let replica = good_replica();
        let tell = |nodes: &mut Nodes, node: u64, replicas| nodes.tell(node, replicas, now);
        for node in 1..=4 {
            tell(&mut nodes, node, if node < 4 { vec![replica.clone()] } else { vec![] });
        }
        let enter =
            |tables: &mut Tables, node| run(tables, set_duty(node, NodeDuty::NodeEnteringMaintenance));
        let leaving = |tables: &Tables, nodes: &Nodes| -> Vec<u64> {
            let world = World::at(tables, nodes, now);
            due(&world, &Tasks::default()).iter().map(|command| command.node).collect()
        };
        enter(&mut tables, 1);
        assert_eq!(leaving(&tables, &nodes), [1], "two others have it");
        enter(&mut tables, 2);
        assert_eq!(leaving(&tables, &nodes), [] as [u64; 0], "only node 3 would be left");
        tell(&mut nodes, 4, vec![replica]);
        assert_eq!(leaving(&tables, &nodes), [1, 2]);
    }

    /// Of three replicas the others were on a disk that had just failed, and on a node that was silent.
    #[test]
    fn a_node_counts_only_on_those_that_speak_and_can_read() {
        let mut tables = one_closed_container();
        run(&mut tables, set_duty(1, NodeDuty::NodeEnteringMaintenance));
        let now = Instant::now();
        let silence = Silence {
            stale_after: STALE_AFTER,
            dead_after: 9 * STALE_AFTER,
            disk_lost_after: 9 * STALE_AFTER,
        };
        let mut nodes = Nodes::new(silence, now);
        let may_leave =
            |nodes: &Nodes, at: Instant| !due(&World::at(&tables, nodes, at), &Tasks::default()).is_empty();
        let on = |node: u64| ContainerReplica { disk: disk(node, 0), ..good_replica() };
        for node in 1..=4 {
            nodes.tell(node, if node < 4 { vec![on(node)] } else { vec![] }, now);
        }
        let has_disk = |nodes: &mut Nodes, node: u64, state: DiskState, at: Instant| {
            let disk = DiskReport { disk: disk(node, 0), state: state as i32, ..DiskReport::default() };
            nodes.see(NodeId(node), vec![disk], at);
        };
        (1..=3).for_each(|node| has_disk(&mut nodes, node, DiskState::Works, now));
        assert!(may_leave(&nodes, now), "two others have it");
        has_disk(&mut nodes, 2, DiskState::Failed, now);
        assert!(!may_leave(&nodes, now), "one of them cannot read it");
        has_disk(&mut nodes, 2, DiskState::Works, now);
        assert!(may_leave(&nodes, now));
        let later = now + 2 * STALE_AFTER;
        [1, 3, 4].into_iter().for_each(|node| has_disk(&mut nodes, node, DiskState::Works, later));
        assert!(!may_leave(&nodes, later), "one of them is silent");
    }

    /// The contents of a container that nobody has looked into may be on any node that has not spoken.
    #[test]
    fn containers_of_a_pipeline_that_is_over_count_before_they_are_decided() {
        let mut tables = three_nodes();
        run(&mut tables, register(4));
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        let now = Instant::now();
        let silence =
            Silence { stale_after: STALE_AFTER, dead_after: 9 * STALE_AFTER, disk_lost_after: STALE_AFTER };
        let nodes = Nodes::new(silence, now);
        run(&mut tables, set_duty(1, NodeDuty::NodeDecommissioning));
        let waits = |tables: &Tables| {
            waiting(NodeId(1), &World::at(tables, &nodes, now + 9 * STALE_AFTER), &Tasks::default())
        };
        assert_eq!(waits(&tables), Waiting { pipelines: 1, containers: 0 });
        run(&mut tables, end(1));
        assert_eq!(waits(&tables), Waiting { pipelines: 0, containers: 1 });
    }

    #[test]
    fn the_last_three_nodes_stay() {
        let mut tables = three_nodes();
        let now = Instant::now();
        let nodes = Nodes::new(
            Silence {
                stale_after: STALE_AFTER,
                dead_after: 9 * STALE_AFTER,
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            now,
        );
        let check = |tables: &Tables| check_enough_left(NodeId(1), &World::at(tables, &nodes, now));
        assert!(check(&tables).unwrap_err().message.contains("2 nodes would be left"));
        run(&mut tables, register(4));
        assert_eq!(check(&tables), Ok(()));
        run(&mut tables, set_duty(4, NodeDuty::NodeDecommissioning));
        assert!(check(&tables).is_err());
    }

    #[test]
    fn who_died_and_who_came_back_is_noted_once_and_the_next_leader_knows() {
        let mut tables = three_nodes();
        let [stale_after, dead_after, disk_lost_after] = [5, 600, 30].map(Duration::from_secs);
        let silence = Silence { stale_after, dead_after, disk_lost_after };
        let start = Instant::now();
        let (mut nodes, now) = (Nodes::new(silence, start), start + dead_after);
        nodes.see(NodeId(1), vec![], now);
        let note = deaths(&World::at(&tables, &nodes, now)).expect("two are dead");
        assert_eq!(note, NoteNodesCommand { dead: vec![2, 3], back: vec![] });
        run(&mut tables, Command::NoteNodes(note));
        assert_eq!(deaths(&World::at(&tables, &nodes, now)), None);

        let mut nodes = Nodes::new(silence, now);
        let dead = tables.nodes().iter().filter(|(_, record)| record.is_dead);
        nodes.know_dead(dead.map(|(&node, _)| node));
        let now = now + stale_after;
        nodes.see(NodeId(2), vec![], now);
        let note = deaths(&World::at(&tables, &nodes, now));
        assert_eq!(note, Some(NoteNodesCommand { dead: vec![], back: vec![2] }));
        assert_eq!(nodes.state(NodeId(3), now), NodeState::NodeDead);
    }
}
