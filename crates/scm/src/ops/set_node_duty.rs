//! A node's duty: what operators want of it, and how far SCM has come with it. Whether a step is due is for
//! the leader to know; what is refused here is what no node may do: jump over the emptying.

use crate::tables::{TablesMut, duty};
use proto::scm::{NodeDuty, NodeRecord, ScmReply, SetNodeDutyCommand};
use types::NodeId;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: SetNodeDutyCommand) -> Result<ScmReply, String> {
    let SetNodeDutyCommand { node, until_ms, .. } = command;
    let record = tables.node(NodeId(node)).ok_or_else(|| format!("no node {node}"))?.clone();
    let (before, wanted) = (duty(&record), command.duty());
    let possible = match wanted {
        NodeDuty::Unspecified => false,
        NodeDuty::NodeInService => true,
        // An emptying that is done is not begun again.
        NodeDuty::NodeDecommissioning => before != NodeDuty::NodeDecommissioned,
        NodeDuty::NodeDecommissioned => {
            matches!(before, NodeDuty::NodeDecommissioning | NodeDuty::NodeDecommissioned)
        }
        NodeDuty::NodeEnteringMaintenance => {
            !matches!(before, NodeDuty::NodeDecommissioning | NodeDuty::NodeDecommissioned)
        }
        NodeDuty::NodeInMaintenance => {
            matches!(before, NodeDuty::NodeEnteringMaintenance | NodeDuty::NodeInMaintenance)
        }
    };
    if !possible {
        return Err(format!(
            "node {node} is {}, not to become {}",
            before.as_str_name(),
            wanted.as_str_name()
        ));
    }
    // A maintenance that is announced again gets the new end; the replicas have not moved meanwhile.
    let entered = (wanted, before) == (NodeDuty::NodeEnteringMaintenance, NodeDuty::NodeInMaintenance);
    let duty = if entered { before } else { wanted };
    let until = matches!(duty, NodeDuty::NodeEnteringMaintenance | NodeDuty::NodeInMaintenance);
    let duty_until_ms = if until { until_ms } else { 0 };
    tables.put_node(NodeRecord { duty: duty as i32, duty_until_ms, ..record });
    Ok(ScmReply { node, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, set_duty, three_nodes};
    use crate::tables::duty;
    use proto::scm::NodeDuty::{self, *};
    use types::NodeId;

    fn check(steps: &[NodeDuty], expect: NodeDuty, refusals: usize) {
        let mut tables = three_nodes();
        let refused = steps.iter().filter(|step| !run(&mut tables, set_duty(2, **step)).refused.is_empty());
        assert_eq!(refused.count(), refusals, "{steps:?}");
        assert_eq!(duty(tables.node(NodeId(2)).unwrap()), expect, "{steps:?}");
    }

    #[test]
    fn a_node_is_emptied_before_it_is_empty() {
        check(&[], NodeInService, 0);
        check(&[NodeDecommissioned], NodeInService, 1);
        check(&[NodeInMaintenance], NodeInService, 1);
        check(&[NodeDecommissioning, NodeDecommissioned], NodeDecommissioned, 0);
        check(&[NodeDecommissioning, NodeEnteringMaintenance], NodeDecommissioning, 1);
        check(&[NodeDecommissioning, NodeDecommissioned, NodeInService], NodeInService, 0);
        check(&[NodeEnteringMaintenance, NodeInMaintenance, NodeEnteringMaintenance], NodeInMaintenance, 0);
        check(&[NodeEnteringMaintenance, NodeDecommissioning], NodeDecommissioning, 0);
    }

    #[test]
    fn nodes_that_leave_get_no_pipelines() {
        let mut tables = three_nodes();
        run(&mut tables, set_duty(2, NodeDecommissioning));
        assert_eq!(run(&mut tables, create([1, 2, 3])).refused, "node 2 is NODE_DECOMMISSIONING");
    }
}
