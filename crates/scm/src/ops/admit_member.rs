//! A process that is to be a member of SCM's own group, and has no replica, gets an id for one. No id is
//! given twice: who asks again may have lost what the first replica promised.

use crate::tables::TablesMut;
use proto::scm::{AdmitMemberCommand, ScmReply};

/// Draws the id. The address of the command is in the log for people who read it.
pub(super) fn apply(tables: &mut TablesMut<'_>, _command: AdmitMemberCommand) -> ScmReply {
    ScmReply { replica: tables.draw_member().0, ..ScmReply::default() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use crate::tables::Tables;
    use proto::scm::{AdmitMemberCommand, scm_command::Command};
    use types::ReplicaId;

    #[test]
    fn an_id_is_given_once() {
        let mut tables = Tables::default();
        assert!(tables.is_drawn_member(ReplicaId(1)), "the founder has 1 without asking");
        assert!(!tables.is_drawn_member(ReplicaId(2)) && !tables.is_drawn_member(ReplicaId(0)));
        let mut admit = || {
            let command = AdmitMemberCommand { address: "b:1".to_owned() };
            run(&mut tables, Command::AdmitMember(command)).replica
        };
        assert_eq!((admit(), admit()), (2, 3));
        assert!(tables.is_drawn_member(ReplicaId(3)) && !tables.is_drawn_member(ReplicaId(4)));
    }
}
