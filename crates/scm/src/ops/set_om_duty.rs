//! An OM's duty: what operators want of it, and how far SCM has come with it.

use crate::tables::{TablesMut, om_duty};
use proto::scm::{NodeDuty, OmRecord, ScmReply, SetOmDutyCommand};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: SetOmDutyCommand) -> Result<ScmReply, String> {
    let (om, wanted) = (command.om, command.duty());
    let record = tables.named_om(om)?.clone();
    let before = om_duty(&record);
    let possible = match wanted {
        NodeDuty::NodeInService => true,
        // An emptying that is done is not begun again.
        NodeDuty::NodeDecommissioning => before != NodeDuty::NodeDecommissioned,
        NodeDuty::NodeDecommissioned => {
            let is_member = |member: &proto::scm::OmMemberRecord| member.om == om;
            let is_needed = tables.om_groups().values().any(|group| group.members.iter().any(is_member));
            before != NodeDuty::NodeInService && !is_needed
        }
        NodeDuty::Unspecified | NodeDuty::NodeEnteringMaintenance | NodeDuty::NodeInMaintenance => false,
    };
    if !possible {
        let (before, wanted) = (before.as_str_name(), wanted.as_str_name());
        return Err(format!("OM {om} is {before}, not to become {wanted}"));
    }
    tables.put_om(OmRecord { duty: wanted as i32, ..record });
    Ok(ScmReply { om, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{found, run, set_om_duty, three_oms};
    use crate::tables::om_duty;
    use proto::scm::NodeDuty::{self, *};
    use types::NodeId;

    fn check(om: u64, steps: &[NodeDuty], expect: NodeDuty, refusals: usize) {
        let mut tables = three_oms();
        run(&mut tables, found(0, 1));
        let refused =
            steps.iter().filter(|step| !run(&mut tables, set_om_duty(om, **step)).refused.is_empty());
        assert_eq!(refused.count(), refusals, "{steps:?}");
        assert_eq!(om_duty(tables.om(NodeId(om)).unwrap()), expect, "{steps:?}");
    }

    #[test]
    fn an_om_is_emptied_before_it_is_empty() {
        check(2, &[], NodeInService, 0);
        check(2, &[NodeDecommissioned], NodeInService, 1);
        check(2, &[NodeDecommissioning, NodeDecommissioned], NodeDecommissioned, 0);
        check(1, &[NodeDecommissioning, NodeDecommissioned], NodeDecommissioning, 1);
        check(2, &[NodeDecommissioning, NodeDecommissioned, NodeDecommissioning], NodeDecommissioned, 1);
        check(2, &[NodeDecommissioning, NodeDecommissioned, NodeInService], NodeInService, 0);
        check(2, &[NodeEnteringMaintenance, NodeInMaintenance, Unspecified], NodeInService, 3);
        assert_eq!(run(&mut three_oms(), set_om_duty(9, NodeInService)).refused, "no OM 9");
    }
}
