//! One more group of names is made: it is to be founded.

use crate::tables::{OM_GROUPS_MAX, TablesMut};
use proto::scm::{CreateOmGroupCommand, OmGroupRecord, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: CreateOmGroupCommand) -> Result<ScmReply, String> {
    if tables.om_groups().len() >= OM_GROUPS_MAX {
        return Err(format!("there are {OM_GROUPS_MAX} groups of names already, and no more are taken"));
    }
    if command.up_to != 0 && tables.om_groups().len() as u64 >= command.up_to {
        return Err(format!("there are {} groups of names already", command.up_to));
    }
    let group = tables.draw_om_group();
    tables.put_om_group(OmGroupRecord { group, ..OmGroupRecord::default() });
    Ok(ScmReply { om_group: group, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create_group, run};
    use crate::tables::{OM_GROUPS_MAX, Tables, TablesMut};
    use proto::scm::{CreateOmGroupCommand, scm_command::Command};

    #[test]
    fn groups_are_numbered_from_one_and_no_number_is_used_again() {
        let mut tables = Tables::default();
        assert_eq!([(); 2].map(|()| run(&mut tables, create_group()).om_group), [1, 2]);
        let up_to = |up_to| Command::CreateOmGroup(CreateOmGroupCommand { up_to });
        assert!(run(&mut tables, up_to(2)).refused.contains("already"), "it was proposed twice");
        assert_eq!(run(&mut tables, up_to(3)).om_group, 3);
        TablesMut::new(&mut tables).reset();
        assert!(run(&mut tables, create_group()).om_group > 1_000_000);
        while tables.om_groups().len() < OM_GROUPS_MAX {
            assert_eq!(run(&mut tables, create_group()).refused, "");
        }
        assert!(run(&mut tables, create_group()).refused.contains("no more are taken"));
    }
}
