//! A group of names is to be begun by an OM, as its only member. While it is not founded, nobody is served
//! from it, and another one may be asked instead.

use super::change_om_group::check_takes_replicas;
use crate::tables::{OmReplica, TablesMut};
use proto::scm::{FoundOmGroupCommand, OmGroupRecord, OmMemberRecord, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: FoundOmGroupCommand) -> Result<ScmReply, String> {
    let FoundOmGroupCommand { group, om } = command;
    let before = tables.om_group(group).cloned().unwrap_or_default();
    if before.is_founded {
        return Err(format!("group {group} is founded"));
    }
    if before.members.iter().any(|member| member.om == om) {
        return Err(format!("OM {om} is to begin group {group} already"));
    }
    if let Some(why) = tables.names_may_be_elsewhere(group) {
        return Err(format!("group {group} is not founded anew: {why}"));
    }
    check_takes_replicas(tables, om)?;
    let replica = tables.draw_om_replica().0;
    let mut abandoned = before.abandoned;
    abandoned.extend(before.members);
    let members = vec![OmMemberRecord { replica, om, has_voted: false }];
    tables.put_om_group(OmGroupRecord {
        group,
        members,
        abandoned: OmReplica::last_kept(abandoned),
        restore: before.restore,
        ..OmGroupRecord::default()
    });
    Ok(ScmReply { replica, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{found, members, note, run, set_om_duty, three_oms};
    use crate::tables::{OmReplica, TablesMut};
    use proto::scm::NodeDuty;

    #[test]
    fn a_group_begins_with_one_member_and_another_may_be_asked_until_it_is_founded() {
        let mut tables = three_oms();
        let first = run(&mut tables, found(0, 2)).replica;
        assert_eq!(members(&tables, 0), [(first, 2)]);
        assert!(!tables.om_group(0).unwrap().is_founded);
        assert!(run(&mut tables, found(0, 2)).refused.contains("already"));
        let second = run(&mut tables, found(0, 3)).replica;
        assert_ne!(second, first);
        assert_eq!(members(&tables, 0), [(second, 3)]);
        assert!(OmReplica { replica: first, om: 2 }.is_in(&tables.om_group(0).unwrap().abandoned));
        assert_eq!(run(&mut tables, note(0, &[(second, 3)])).refused, "");
        assert_eq!(run(&mut tables, found(0, 1)).refused, "group 0 is founded");
    }

    #[test]
    fn who_is_unknown_or_leaves_begins_none() {
        let mut tables = three_oms();
        assert_eq!(run(&mut tables, found(0, 9)).refused, "no OM 9");
        run(&mut tables, set_om_duty(2, NodeDuty::NodeDecommissioning));
        assert_eq!(run(&mut tables, found(0, 2)).refused, "OM 2 is NODE_DECOMMISSIONING");
        TablesMut::new(&mut tables).reset();
        assert!(run(&mut tables, found(0, 1)).refused.contains("forced reset"));
        assert_eq!(tables.om_group(0), None);
    }
}
