//! A group of names is to have other members from here on: more, or one in place of another.

use crate::tables::{OM_MEMBERS, OmReplica, TablesMut, om_duty};
use proto::scm::{ChangeOmGroupCommand, NodeDuty, OmGroupRecord, OmMemberRecord, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: ChangeOmGroupCommand) -> Result<ScmReply, String> {
    let ChangeOmGroupCommand { group, removed: leaving, added } = command;
    let record = tables.om_group(group).ok_or_else(|| format!("no group {group}"))?.clone();
    let OmGroupRecord { mut members, mut removed, is_founded, .. } = record;
    if !is_founded {
        return Err(format!("group {group} is not founded"));
    }
    if added.is_empty() || leaving.len() > 1 {
        return Err(format!("one member of group {group} at a time, and none without another in its place"));
    }
    if members.len() + added.len() > OM_MEMBERS + leaving.len() {
        return Err(format!("group {group} has at most {OM_MEMBERS} members"));
    }
    for (at, om) in added.iter().enumerate() {
        if members.iter().any(|member| member.om == *om) || added[..at].contains(om) {
            return Err(format!("OM {om} has a member of group {group}"));
        }
        check_takes_replicas(tables, *om)?;
    }
    for replica in leaving {
        let at = members.iter().position(|member| member.replica == replica);
        let at = at.ok_or_else(|| format!("replica {replica} is no member of group {group}"))?;
        removed.push(members.remove(at));
    }
    for om in added {
        let replica = tables.draw_om_replica().0;
        members.push(OmMemberRecord { replica, om, has_voted: false });
    }
    let removed = OmReplica::last_kept(removed);
    tables.put_om_group(OmGroupRecord { members, removed, ..record });
    Ok(ScmReply::default())
}

/// The reason why an OM is given no replicas.
pub(super) fn check_takes_replicas(tables: &TablesMut<'_>, om: u64) -> Result<(), String> {
    match om_duty(tables.named_om(om)?) {
        NodeDuty::NodeInService => Ok(()),
        duty => Err(format!("OM {om} is {}", duty.as_str_name())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{change, found, members, note, register_om, run, set_om_duty, three_oms};
    use crate::tables::Tables;
    use proto::scm::NodeDuty;

    /// OMs 1 to 5, and group 0 of replica 2 on OM 1.
    fn of_one() -> Tables {
        let mut tables = three_oms();
        [4, 5].into_iter().for_each(|number| drop(run(&mut tables, register_om(number))));
        run(&mut tables, found(0, 1));
        run(&mut tables, note(0, &[(2, 1)]));
        tables
    }

    fn of_three() -> Tables {
        let mut tables = of_one();
        run(&mut tables, change(0, &[], &[2, 3]));
        tables
    }

    #[test]
    fn a_group_grows_and_changes_one_member_at_a_time() {
        let mut tables = of_three();
        assert_eq!(members(&tables, 0), [(2, 1), (3, 2), (4, 3)]);
        assert_eq!(run(&mut tables, change(0, &[2], &[4])).refused, "");
        assert_eq!(members(&tables, 0), [(3, 2), (4, 3), (5, 4)]);
        let record = tables.om_group(0).unwrap();
        assert_eq!((record.removed[0].replica, record.removed[0].has_voted), (2, true));
        assert!(record.members.iter().all(|member| !member.has_voted), "nobody has said that they are");
    }

    #[test]
    fn what_cannot_be_changes_nothing() {
        let refused = |before: fn() -> Tables, removed: &[u64], added: &[u64], why: &str| {
            let mut tables = before();
            let reply = run(&mut tables, change(0, removed, added));
            assert!(reply.refused.contains(why), "{removed:?} {added:?}: {reply:?}");
            assert_eq!(tables, before());
        };
        refused(three_oms, &[], &[1], "no group 0");
        let unfounded = || {
            let mut tables = three_oms();
            run(&mut tables, found(0, 1));
            tables
        };
        refused(unfounded, &[], &[2, 3], "is not founded");
        refused(of_three, &[9], &[4], "replica 9 is no member");
        refused(of_three, &[2], &[3], "OM 3 has a member");
        refused(of_three, &[2], &[1], "OM 1 has a member");
        refused(of_one, &[], &[2, 2], "OM 2 has a member");
        refused(of_three, &[2], &[7], "no OM 7");
        refused(of_three, &[], &[4], "at most 3 members");
        refused(of_three, &[2], &[4, 5], "at most 3 members");
        refused(of_three, &[2], &[], "none without another");
        refused(of_three, &[2, 3], &[4, 5], "one member");
        refused(of_three, &[], &[], "one member");
        let leaving = || {
            let mut tables = of_three();
            run(&mut tables, set_om_duty(4, NodeDuty::NodeDecommissioning));
            tables
        };
        refused(leaving, &[2], &[4], "OM 4 is NODE_DECOMMISSIONING");
    }
}
