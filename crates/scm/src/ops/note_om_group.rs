//! The word of a group of names about itself: founded, with these members.

use crate::oms::GIVEN_UP_MAX;
use crate::tables::{NAMES_OF_BEFORE, OM_MEMBERS, OmReplica, Tables, TablesMut};
use proto::scm::{NoteOmGroupCommand, OmGroupRecord, OmMemberRecord, ScmReply};
use std::collections::BTreeSet;
use types::{NodeId, ReplicaId};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: NoteOmGroupCommand) -> Result<ScmReply, String> {
    check(tables, &command)?;
    let NoteOmGroupCommand { group, members, given_up: more_given_up } = command;
    let before = tables.om_group(group).cloned().unwrap_or_default();
    let members: Vec<OmMemberRecord> =
        members.into_iter().map(|member| OmMemberRecord { has_voted: true, ..member }).collect();
    let is_member = |old: &OmMemberRecord| OmReplica::from(old).is_in(&members);
    let OmGroupRecord { mut removed, mut abandoned, mut given_up, .. } = before;
    given_up.extend(more_given_up);
    given_up.sort_unstable();
    given_up.dedup();
    // These names came in place of others: OMs that have the others keep them.
    let is_another = before.is_founded && !before.members.iter().chain(&removed).any(is_member);
    if is_another {
        removed.clear();
    } else if before.is_founded {
        removed.extend(before.members);
    } else {
        abandoned.extend(before.members);
    }
    let gone = |mut records: Vec<OmMemberRecord>| {
        records.retain(|old| !is_member(old) && !given_up.contains(&old.replica));
        OmReplica::last_kept(records)
    };
    let (removed, abandoned) = (gone(removed), gone(abandoned));
    tables.forget_names_of_before(group);
    tables.put_om_group(OmGroupRecord {
        group,
        members,
        is_founded: true,
        removed,
        abandoned,
        is_uncertain: false,
        given_up,
        restore: None,
    });
    Ok(ScmReply::default())
}

/// The reason why no group can have these members.
pub(crate) fn check(tables: &Tables, command: &NoteOmGroupCommand) -> Result<(), String> {
    let NoteOmGroupCommand { group, members, given_up } = command;
    if given_up.len() > GIVEN_UP_MAX {
        return Err(format!("more than {GIVEN_UP_MAX} replicas of group {group} are given up"));
    }
    let distinct = |of: fn(&OmMemberRecord) -> u64| members.iter().map(of).collect::<BTreeSet<u64>>().len();
    let count = members.len();
    let are_distinct = distinct(|member| member.replica) == count && distinct(|member| member.om) == count;
    if !(1..=OM_MEMBERS).contains(&count) || !are_distinct {
        return Err(format!("group {group} has 1 to {OM_MEMBERS} members on different OMs, got {members:?}"));
    }
    for OmMemberRecord { replica, om, .. } in members {
        let is_known = tables.om(NodeId(*om)).is_some() || tables.is_lost_om(NodeId(*om));
        if !is_known {
            return Err(format!("no OM {om}"));
        }
        if ReplicaId(*replica) != NAMES_OF_BEFORE && !tables.is_drawn_replica(ReplicaId(*replica)) {
            return Err(format!("replica {replica} was never given to anybody"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{change, found, members, note, run, three_oms};
    use crate::tables::{OmReplica, Tables, TablesMut};
    use proto::scm::OmMemberRecord;

    fn pairs(records: &[OmMemberRecord]) -> Vec<(u64, u64)> {
        records.iter().map(|record| (record.replica, record.om)).collect()
    }

    fn removed(tables: &Tables) -> Vec<(u64, u64)> {
        pairs(&tables.om_group(0).unwrap().removed)
    }

    /// Group 0 of replicas 2, 3 and 4 on OMs 1, 2 and 3.
    fn of_three() -> Tables {
        let mut tables = three_oms();
        run(&mut tables, found(0, 1));
        run(&mut tables, note(0, &[(2, 1)]));
        run(&mut tables, change(0, &[], &[2, 3]));
        run(&mut tables, note(0, &[(2, 1), (3, 2), (4, 3)]));
        assert!(tables.om_group(0).unwrap().members.iter().all(|member| member.has_voted));
        tables
    }

    #[test]
    fn what_a_group_says_is_its_record_and_who_is_not_in_it_was_removed() {
        let mut tables = of_three();
        assert_eq!(removed(&tables), []);
        run(&mut tables, note(0, &[(3, 2)]));
        assert_eq!((members(&tables, 0), removed(&tables)), (vec![(3, 2)], vec![(2, 1), (4, 3)]));
        run(&mut tables, note(0, &[(2, 1)]));
        assert_eq!(removed(&tables), [(4, 3), (3, 2)]);
    }

    #[test]
    fn names_in_place_of_others_leave_those_to_who_has_them() {
        let mut tables = of_three();
        TablesMut::new(&mut tables).reset();
        run(&mut tables, note(0, &[(70, 2)]));
        assert_eq!((members(&tables, 0), removed(&tables)), (vec![(70, 2)], vec![]));
    }

    #[test]
    fn names_of_before_are_taken_over_from_whoever_was_to_begin() {
        let mut tables = three_oms();
        run(&mut tables, found(0, 1));
        run(&mut tables, note(0, &[(1, 3)]));
        let record = tables.om_group(0).unwrap();
        assert_eq!((pairs(&record.members), pairs(&record.abandoned)), (vec![(1, 3)], vec![(2, 1)]));
        assert!(record.removed.is_empty());
        assert!(!OmReplica { replica: 1, om: 2 }.is_in(&record.members), "that is another directory");
    }

    #[test]
    fn what_no_group_can_be_changes_nothing() {
        let refused = |of: &[(u64, u64)], why: &str| {
            let mut tables = of_three();
            let reply = run(&mut tables, note(0, of));
            assert!(reply.refused.contains(why), "{of:?}: {reply:?}");
            assert_eq!(tables, of_three());
        };
        refused(&[], "1 to 3 members");
        refused(&[(2, 1), (2, 2)], "1 to 3 members");
        refused(&[(2, 1), (3, 1)], "1 to 3 members");
        refused(&[(2, 9)], "no OM 9");
        refused(&[(5, 1)], "replica 5 was never given");
        refused(&[(0, 1)], "replica 0 was never given");
    }
}
