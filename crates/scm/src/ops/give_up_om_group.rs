//! The names of a group are lost, as a person says: it is to be founded anew. An OM that comes back with the
//! old names keeps them.

use crate::tables::{OmReplica, TablesMut};
use proto::scm::{GiveUpOmGroupCommand, OmGroupRecord, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: GiveUpOmGroupCommand) -> Result<ScmReply, String> {
    let GiveUpOmGroupCommand { group } = command;
    let before = match tables.om_group(group) {
        Some(record) => record.clone(),
        // Names that may be elsewhere are waited for until this is said.
        None if tables.names_may_be_elsewhere(group).is_some() => OmGroupRecord::default(),
        None => return Err(format!("no group {group}")),
    };
    let mut abandoned = before.abandoned;
    if !before.is_founded {
        abandoned.extend(before.members);
    }
    tables.forget_names_of_before(group);
    let abandoned = OmReplica::last_kept(abandoned);
    tables.put_om_group(OmGroupRecord { group, abandoned, ..OmGroupRecord::default() });
    Ok(ScmReply::default())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{change, found, give_up, members, note, run, three_oms};
    use crate::tables::TablesMut;

    #[test]
    fn a_group_that_is_given_up_is_founded_anew_by_another_replica() {
        let mut tables = three_oms();
        assert_eq!(run(&mut tables, give_up(0)).refused, "no group 0");
        run(&mut tables, found(0, 1));
        run(&mut tables, note(0, &[(2, 1)]));
        run(&mut tables, change(0, &[], &[2, 3]));
        assert_eq!(run(&mut tables, give_up(0)).refused, "");
        let record = tables.om_group(0).unwrap();
        assert!(!record.is_founded && record.members.is_empty());
        assert!(record.removed.is_empty() && record.abandoned.is_empty(), "they keep what they have");
        run(&mut tables, found(0, 1));
        assert_eq!(members(&tables, 0), [(5, 1)]);
    }

    #[test]
    fn what_a_reset_may_have_lost_is_founded_once_a_person_has_given_it_up() {
        let mut tables = three_oms();
        TablesMut::new(&mut tables).reset();
        assert!(run(&mut tables, found(0, 1)).refused.contains("forced reset"));
        assert_eq!(run(&mut tables, give_up(0)).refused, "");
        assert_eq!(run(&mut tables, found(0, 1)).refused, "");
        TablesMut::new(&mut tables).reset();
        assert!(run(&mut tables, found(0, 2)).refused.contains("forced reset"));
        run(&mut tables, give_up(0));
        assert_eq!(tables.om_group(0).unwrap().abandoned.len(), 1);
        assert_eq!(run(&mut tables, found(0, 2)).refused, "");
    }
}
