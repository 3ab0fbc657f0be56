//! The root notes that a container was swept, when, and what came of it: another leader does not begin again.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{Read, Refusal, fenced_key};
use prost::Message;
use proto::Failure;
use proto::om::{NoteSweptCommand, NoteSweptReply, SweptContainer};

pub(crate) struct NoteSwept;

impl Operation for NoteSwept {
    type Request = NoteSweptCommand;
    type Command = NoteSweptCommand;
    type Response = NoteSweptReply;
    wire!(NoteSwept);

    fn prepare(request: NoteSweptCommand, _: Fresh) -> Result<NoteSweptCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: NoteSweptCommand) -> Result<NoteSweptReply, Refusal> {
        let key = fenced_key(command.container);
        // A fence that a forced reset took away is made anew first.
        if apply.tables.get(&key)?.is_some() {
            let swept = command.swept.unwrap_or_default();
            let swept = SweptContainer { swept_ms: apply.now_ms, ..swept };
            apply.tables.put(key, swept.encode_to_vec());
        }
        Ok(NoteSweptReply {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::FenceContainers;
    use crate::ops::testing::Namespace;
    use crate::tables::{FENCED_PREFIX, ROOT};
    use proto::om::FenceContainersRequest;

    #[test]
    fn only_of_a_fenced_container_it_is_noted_that_it_was_swept() {
        let mut root = Namespace::new();
        let containers = vec![3];
        let fence = FenceContainersRequest { group: ROOT, containers, ..Default::default() };
        root.run::<FenceContainers>(fence.clone()).unwrap();
        for container in [3, 4] {
            let swept = Some(SweptContainer { blocks: 9, ..SweptContainer::default() });
            root.run::<NoteSwept>(NoteSweptCommand { container, swept }).unwrap();
        }
        let rows = root.records(FENCED_PREFIX);
        let swept: Vec<_> =
            rows.iter().map(|(_, value)| SweptContainer::decode(&value[..]).unwrap()).collect();
        assert_eq!((swept.len(), swept[0].blocks, swept[0].swept_ms > 0), (1, 9, true));
        root.run::<FenceContainers>(fence).unwrap();
        assert_eq!(root.records(FENCED_PREFIX), rows, "fenced once more it was swept all the same");
    }
}
