//! Nodes that leave: when nothing depends on them any more, and when their maintenance is over.

use crate::leader::Leader;
use crate::nodes::Nodes;
use crate::replication::{self, NodeViews, REPLICAS, REPLICAS_BESIDES_MAINTENANCE};
use crate::tables::{Tables, container_state, duty};
use proto::Failure;
use proto::scm::{ContainerState, NodeDuty, NodeRecord, SetNodeDutyCommand, scm_command::Command};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use types::NodeId;

/// Between two looks at the containers of nodes that leave.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a node that leaves is still needed for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) pipelines: usize,
    pub(crate) containers: usize,
}

/// Runs until the leadership ends.
pub(crate) async fn follow_departures(leader: &Leader) {
    loop {
        for command in leader.read(|tables, nodes| due(tables, nodes, Instant::now(), leader.clock.now_ms()))
        {
            let (node, duty) = (command.node, command.duty().as_str_name());
            match leader.propose(Command::SetNodeDuty(command)).await {
                Ok(_) => info!(node, duty, "node's duty"),
                Err(failure) => warn!(node, duty, %failure, "set node's duty"),
            }
            leader.places_changed.notify_one();
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Nodes that have come to the end of what they were in.
fn due(tables: &Tables, nodes: &Nodes, now: Instant, now_ms: u64) -> Vec<SetNodeDutyCommand> {
    let views = replication::node_views(tables, nodes, now);
    let next = |(&node, record): (&NodeId, &NodeRecord)| {
        let until_ms = record.duty_until_ms;
        let over = until_ms != 0 && now_ms >= until_ms;
        let done = || waiting(node, tables, nodes, &views, now) == Waiting::default();
        let duty = match duty(record) {
            NodeDuty::NodeDecommissioning if done() => NodeDuty::NodeDecommissioned,
            NodeDuty::NodeEnteringMaintenance | NodeDuty::NodeInMaintenance if over => {
                NodeDuty::NodeInService
            }
            NodeDuty::NodeEnteringMaintenance if done() => NodeDuty::NodeInMaintenance,
            _ => return None,
        };
        Some(SetNodeDutyCommand { node: node.0, duty: duty as i32, until_ms })
    };
    tables.nodes().iter().filter_map(next).collect()
}

/// What of it has no place elsewhere yet.
pub(crate) fn waiting(
    node: NodeId,
    tables: &Tables,
    nodes: &Nodes,
    views: &NodeViews,
    now: Instant,
) -> Waiting {
    let needed = match tables.node(node).map(duty) {
        Some(NodeDuty::NodeDecommissioning) => REPLICAS,
        Some(NodeDuty::NodeEnteringMaintenance) => REPLICAS_BESIDES_MAINTENANCE,
        _ => return Waiting::default(),
    };
    let waits = |container: &types::ContainerId| {
        let Some(known) = replication::known(*container, tables, nodes, now) else { return false };
        container_state(known.record) != ContainerState::ContainerDeleted
            && replication::good_elsewhere(&known, views, node) < needed
    };
    Waiting {
        pipelines: tables.unended_pipelines_on(node).count(),
        containers: nodes.replicas().on(node).filter(waits).count(),
    }
}

/// Refuses what would leave fewer nodes than a pipeline has members; such a cluster takes no writes, and nothing can be emptied.
pub(crate) fn check_enough_left(
    tables: &Tables,
    nodes: &Nodes,
    node: NodeId,
    now: Instant,
) -> Result<(), Failure> {
    let views = replication::node_views(tables, nodes, now);
    let left = views.iter().filter(|(other, view)| **other != node && view.in_service()).count();
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
    use crate::nodes::Silence;
    use crate::ops::testing::{register, run, set_duty, three_nodes};

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
                stale_after: LOOK_INTERVAL,
                dead_after: LOOK_INTERVAL,
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            now,
        );
        let duties = |tables: &Tables, now_ms: u64| -> Vec<NodeDuty> {
            due(tables, &nodes, now, now_ms).iter().map(|command| command.duty()).collect()
        };
        assert_eq!(duties(&tables, 999), [NodeDuty::NodeInMaintenance], "nothing depends on it");
        let entered = due(&tables, &nodes, now, 999).remove(0);
        run(&mut tables, Command::SetNodeDuty(entered));
        assert_eq!(duties(&tables, 999), []);
        assert_eq!(duties(&tables, 1000), [NodeDuty::NodeInService]);
    }

    #[test]
    fn the_last_three_nodes_stay() {
        let mut tables = three_nodes();
        let now = Instant::now();
        let nodes = Nodes::new(
            Silence {
                stale_after: LOOK_INTERVAL,
                dead_after: 9 * LOOK_INTERVAL,
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            now,
        );
        let check = |tables: &Tables| check_enough_left(tables, &nodes, NodeId(1), now);
        assert!(check(&tables).unwrap_err().message.contains("2 nodes would be left"));
        run(&mut tables, register(4));
        assert_eq!(check(&tables), Ok(()));
        run(&mut tables, set_duty(4, NodeDuty::NodeDecommissioning));
        assert!(check(&tables).is_err());
    }
}
