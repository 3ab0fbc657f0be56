//! A leader of SCM moves and destroys nothing until it knows enough.

use crate::nodes::Nodes;
use crate::quality::quality;
use crate::tables::{Tables, container_state, duty};
use crate::world::World;
use proto::scm::{ContainerReplica, ContainerState, NodeDuty, NodeState};
use tokio::time::Instant;
use types::NodeId;

/// The conditions that are still waited for, in words; none when enough is known.
pub(crate) fn waits(world: &World<'_>) -> Vec<String> {
    let World { tables, nodes, now, .. } = *world;
    let told_all = |node| nodes.replicas().is_complete(node);
    let silent = tables
        .nodes()
        .keys()
        .filter(|node| !told_all(**node) && nodes.state(**node, now) != NodeState::NodeDead);
    if silent.count() == 0 {
        // No more will be heard.
        return Vec::new();
    }
    let in_service = tables.nodes().iter().filter(|(_, record)| duty(record) == NodeDuty::NodeInService);
    let in_service: Vec<_> = in_service.map(|(node, _)| *node).collect();
    let told = in_service.iter().filter(|node| told_all(**node)).count();
    let needed = (in_service.len() * 2).div_ceil(3);
    let mut waits = Vec::new();
    if told < needed {
        waits.push(format!(
            "full reports of {needed} of {} nodes in service; {told} are in",
            in_service.len()
        ));
    }
    let (closed, found) = closed_containers(tables, nodes, now);
    let needed = closed - closed / 100;
    if found < needed {
        waits.push(format!("a good replica of {needed} of {closed} closed containers; {found} have one"));
    }
    waits
}

/// Counts the closed containers, and those of them that have a good replica. A replica on a lost disk does
/// not count.
fn closed_containers(tables: &Tables, nodes: &Nodes, now: Instant) -> (usize, usize) {
    let (mut closed, mut found) = (0, 0);
    for (&container, record) in tables.containers() {
        if container_state(record) == ContainerState::ContainerClosed {
            closed += 1;
            let is_good = |(node, replica): (NodeId, &ContainerReplica)| {
                quality(record, replica).is_good() && !nodes.disk_is_lost(node, &replica.disk, now)
            };
            found += usize::from(nodes.replicas().of(container).any(is_good));
        }
    }
    (closed, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::three_nodes;
    use crate::replicas::ContainersReport;
    use std::time::Duration;

    #[test]
    fn two_thirds_of_the_nodes_are_enough_and_the_dead_are_not_waited_for() {
        let tables = three_nodes();
        let start = Instant::now();
        let silence = Silence {
            stale_after: Duration::from_secs(5),
            dead_after: Duration::from_secs(600),
            disk_lost_after: std::time::Duration::from_secs(30),
        };
        let mut nodes = Nodes::new(silence, start);
        let told = |nodes: &mut Nodes, node: u64| {
            nodes.see(NodeId(node), Vec::new(), start);
            let report = ContainersReport { replicas: vec![], gone: vec![], begins: true, ends: true };
            nodes.report_containers(NodeId(node), report);
        };
        let nothing_told = waits(&World::at(&tables, &nodes, start));
        assert_eq!(nothing_told, ["full reports of 2 of 3 nodes in service; 0 are in"]);
        assert_eq!(waits(&World::at(&tables, &nodes, start + silence.dead_after)), [""; 0]);
        told(&mut nodes, 1);
        assert_eq!(waits(&World::at(&tables, &nodes, start)).len(), 1);
        told(&mut nodes, 2);
        assert_eq!(waits(&World::at(&tables, &nodes, start)), [""; 0]);
    }
}
