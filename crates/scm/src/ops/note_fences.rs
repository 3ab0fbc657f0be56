//! SCM as a witness of how far the root of names is: the number of its last fences, which only becomes
//! higher.

use crate::tables::TablesMut;
use proto::scm::{NoteFencesCommand, ScmReply};

/// Takes the number, unless the root is behind what was noted: such a root was put back, and the right one
/// may come back.
pub(super) fn apply(tables: &mut TablesMut<'_>, command: NoteFencesCommand) -> ScmReply {
    let NoteFencesCommand { number, before } = command;
    let fences = tables.fences();
    if before >= fences && number > fences {
        tables.set_fences(number);
    }
    ScmReply { fences, ..ScmReply::default() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use crate::tables::Tables;
    use proto::scm::{NoteFencesCommand, scm_command::Command};

    #[test]
    fn the_number_of_fences_only_becomes_higher_and_is_not_taken_from_a_root_that_was_put_back() {
        let mut tables = Tables::default();
        let mut known = |before, number| {
            run(&mut tables, Command::NoteFences(NoteFencesCommand { number, before })).fences
        };
        assert_eq!([known(0, 7), known(7, 9), known(3, 100), known(9, 8), known(0, 0)], [0, 7, 9, 9, 9]);
        assert_eq!([known(10, 12), known(12, 13)], [9, 12], "what SCM has not heard of does no harm");
    }
}
