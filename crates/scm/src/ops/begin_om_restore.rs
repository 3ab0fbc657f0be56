//! All names are lost, as a person says, and come back from a backup: all groups are begun anew, and none of
//! them is founded before all have their rows. A group that was made since the backup begins empty, with the
//! others.

use crate::tables::{OmReplica, ROOT_OF_NAMES, Tables, TablesMut};
use proto::scm::{BeginOmRestoreCommand, OmGroupRecord, OmRestore, ScmReply};
use std::collections::BTreeSet;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: BeginOmRestoreCommand) -> Result<ScmReply, String> {
    let restore = command.restore.unwrap_or_default();
    check(tables, &restore, &command.groups)?;
    let known = tables.om_groups().keys().copied();
    let groups: BTreeSet<u64> = known.chain(command.groups).chain([ROOT_OF_NAMES]).collect();
    for group in groups {
        let before = tables.om_group(group).cloned().unwrap_or_default();
        // The group is restored from this backup already: what has come of that stays.
        if before.restore.as_ref().is_some_and(|known| known.backup == restore.backup) {
            continue;
        }
        let mut abandoned = before.abandoned;
        if !before.is_founded {
            abandoned.extend(before.members);
        }
        tables.forget_names_of_before(group);
        let (abandoned, restore) = (OmReplica::last_kept(abandoned), Some(restore.clone()));
        tables.put_om_group(OmGroupRecord { group, abandoned, restore, ..OmGroupRecord::default() });
    }
    Ok(ScmReply::default())
}

fn check(tables: &Tables, restore: &OmRestore, groups: &[u64]) -> Result<(), String> {
    let decided =
        tables.om_groups().values().find_map(|record| record.restore.as_ref().filter(|it| it.is_complete));
    if decided.is_some() {
        return Err(
            "the restore of a backup is decided, and its groups are about to serve: wait for them".to_owned()
        );
    }
    if restore.backup.is_empty() {
        return Err("the backup has no id".to_owned());
    }
    match groups.iter().find(|group| !tables.may_have_made_om_group(**group)) {
        Some(group) => Err(format!("this cluster never made a group {group} of names, which the backup has")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        begin_restore, change, create_group, end_restore, found, give_up, members, note, run, three_oms,
    };
    use crate::tables::{OmReplica, Tables};

    /// Two groups, of which one is founded, and replicas 2 and 3 have begun them.
    fn of_two() -> Tables {
        let mut tables = three_oms();
        run(&mut tables, found(0, 1));
        run(&mut tables, note(0, &[(2, 1)]));
        run(&mut tables, change(0, &[], &[2, 3]));
        run(&mut tables, create_group());
        run(&mut tables, found(1, 2));
        tables
    }

    fn is_of(tables: &Tables, group: u64) -> Option<u8> {
        tables.om_group(group)?.restore.as_ref().map(|restore| restore.backup[0])
    }

    #[test]
    fn all_groups_are_begun_anew_also_those_that_the_backup_has_not() {
        let mut tables = of_two();
        assert_eq!(run(&mut tables, begin_restore(9, &[0])).refused, "");
        for group in [0, 1] {
            let record = tables.om_group(group).unwrap();
            assert!(!record.is_founded && record.members.is_empty() && record.removed.is_empty());
            assert_eq!(is_of(&tables, group), Some(9));
        }
        assert!(OmReplica { replica: 5, om: 2 }.is_in(&tables.om_group(1).unwrap().abandoned));
        run(&mut tables, found(0, 3));
        assert_eq!(
            (members(&tables, 0).len(), is_of(&tables, 0)),
            (1, Some(9)),
            "another OM begins it likewise"
        );
        // Repeated, it changes nothing; another backup begins anew.
        let before = tables.om_groups().clone();
        run(&mut tables, begin_restore(9, &[0, 1]));
        assert_eq!(*tables.om_groups(), before);
        run(&mut tables, begin_restore(8, &[0, 1]));
        assert_eq!((members(&tables, 0).len(), is_of(&tables, 0)), (0, Some(8)));
    }

    #[test]
    fn once_it_is_decided_no_other_backup_takes_its_place_and_what_is_founded_is_no_restore_any_more() {
        let mut tables = of_two();
        assert_eq!(run(&mut tables, end_restore(9)).refused, "no group waits for the rows of this backup");
        run(&mut tables, begin_restore(9, &[0, 1]));
        assert!(run(&mut tables, end_restore(8)).refused.contains("no group waits"));
        let first = run(&mut tables, found(0, 1)).replica;
        assert_eq!(run(&mut tables, end_restore(9)).refused, "");
        assert_eq!(run(&mut tables, end_restore(9)).refused, "");
        assert!(run(&mut tables, begin_restore(8, &[0, 1])).refused.contains("is decided"));
        run(&mut tables, note(0, &[(first, 1)]));
        assert_eq!((is_of(&tables, 0), is_of(&tables, 1)), (None, Some(9)));
        assert!(tables.om_group(0).unwrap().is_founded);
        run(&mut tables, give_up(1));
        assert_eq!(is_of(&tables, 1), None, "a person has decided otherwise");
    }

    #[test]
    fn a_group_that_was_never_made_is_of_no_backup_of_this_cluster() {
        let mut tables = of_two();
        assert!(run(&mut tables, begin_restore(9, &[0, 1, 2])).refused.contains("never made a group 2"));
        assert_eq!(tables, of_two());
    }
}
