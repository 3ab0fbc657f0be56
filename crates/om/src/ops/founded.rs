//! The note, in the group's own log, that its names are founded: SCM has noted so, and nobody begins them
//! anew. From here on the group serves without SCM.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{FOUNDED_KEY, Refusal};
use proto::Failure;
use proto::om::{FoundedCommand, FoundedReply};

pub(crate) struct Founded;

impl Operation for Founded {
    type Request = FoundedCommand;
    type Command = FoundedCommand;
    type Response = FoundedReply;
    wire!(Founded);

    fn prepare(request: FoundedCommand, _: Fresh) -> Result<FoundedCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, _: FoundedCommand) -> Result<FoundedReply, Refusal> {
        apply.tables.put(FOUNDED_KEY.to_vec(), Vec::new());
        Ok(FoundedReply {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::tables::is_founded;

    #[test]
    fn a_group_is_founded_by_the_first_note_and_the_second_changes_nothing() {
        let mut namespace = Namespace::empty();
        assert!(!is_founded(&namespace.db).unwrap());
        namespace.run::<Founded>(FoundedCommand {}).unwrap();
        assert!(is_founded(&namespace.db).unwrap());
        let before = namespace.names();
        namespace.run::<Founded>(FoundedCommand {}).unwrap();
        assert_eq!(namespace.names(), before);
    }
}
