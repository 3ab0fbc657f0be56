//! Blocks that no group knows become unused ones of the root: they go as all that is unused does.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks::{BlockKey, IN_CONTAINER_BYTES, NamingRows};
use crate::tables::{Read, Refusal, fenced_key, fences};
use planted::Bug;
use prost::Message;
use proto::om::{Fences, FileOrphansCommand, FileOrphansReply, UnusedBlock};
use proto::{Code, Failure};

pub(crate) struct FileOrphans;

impl Operation for FileOrphans {
    type Request = FileOrphansCommand;
    type Command = FileOrphansCommand;
    type Response = FileOrphansReply;
    wire!(FileOrphans);

    fn prepare(request: FileOrphansCommand, _: Fresh) -> Result<FileOrphansCommand, Failure> {
        match request.blocks.len() == request.lengths.len() * IN_CONTAINER_BYTES {
            true => Ok(request),
            false => Err(Failure::invalid("there is not one length for each block")),
        }
    }

    /// Between the first group that was asked and this entry no bucket has changed its group, or it files
    /// nothing: so each name was where it was asked for. What is filed already, or named here, stays as it
    /// is.
    fn apply(apply: &mut Apply<'_, '_>, command: FileOrphansCommand) -> Result<FileOrphansReply, Refusal> {
        let Fences { moves, stop, .. } = fences(apply.tables)?;
        if let Some(stop) = stop {
            return Err(passing(&format!("the sweep is stopped: {}", stop.why)));
        }
        if moves != command.moves && !planted::has(Bug::MovesOverlooked) {
            return Err(passing("a bucket came to be in another group while groups were asked"));
        }
        if apply.tables.get(&fenced_key(command.container))?.is_none() {
            return Err(passing("the container is not fenced"));
        }
        let (mut reply, mut rows) = (FileOrphansReply::default(), NamingRows::default());
        let (rests, _) = command.blocks.as_chunks::<IN_CONTAINER_BYTES>();
        for (rest, bytes) in rests.iter().zip(command.lengths) {
            let block = BlockKey::in_container(command.container, rest);
            let key = block.unused_key();
            if apply.tables.get(&key)?.is_some() || rows.name(apply.tables, &block)? {
                continue;
            }
            let unused = UnusedBlock { bytes, deleted_ms: apply.now_ms };
            apply.tables.put(key, unused.encode_to_vec());
            apply.filed.unused(1, bytes);
            reply = FileOrphansReply { filed: reply.filed + 1, bytes: reply.bytes.wrapping_add(bytes) };
        }
        Ok(reply)
    }
}

fn passing(why: &str) -> Refusal {
    Refusal::Passing(Failure::new(Code::NotYet, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::ops::{CommitKey, FenceContainers};
    use crate::tables::ROOT;
    use proto::om::FenceContainersRequest;

    fn orphan(container: u64, moves: u64) -> FileOrphansCommand {
        let block = BlockKey::of(&pieces(container, 10)[0]).unwrap();
        let blocks = block.rest().to_vec().into();
        FileOrphansCommand { container, blocks, lengths: vec![10], moves }
    }

    #[test]
    fn what_nobody_knows_is_filed_once_and_what_is_named_never() {
        let mut root = Namespace::new();
        root.commit("a", 1).unwrap();
        root.check_refused::<FileOrphans>(orphan(2, 0), Code::NotYet);
        let containers = vec![1, 2];
        let fence = FenceContainersRequest { group: ROOT, containers, ..Default::default() };
        root.run::<FenceContainers>(fence).unwrap();
        root.check_refused::<FileOrphans>(orphan(2, 1), Code::NotYet);
        let filed = |root: &mut Namespace, container| {
            let filed = root.run::<FileOrphans>(orphan(container, 0)).unwrap();
            (filed.filed, filed.bytes)
        };
        assert_eq!(filed(&mut root, 2), (1, 10));
        assert_eq!(filed(&mut root, 2), (0, 0));
        assert_eq!(filed(&mut root, 1), (0, 0), "a key names it");
        assert_eq!((root.unused_containers(), root.totals().unused_bytes), (vec![2], 10));
        root.check_refused::<CommitKey>(crate::ops::testing::commit_request("b", 2), Code::GivenUp);
        let odd = FileOrphansCommand { lengths: vec![], ..orphan(2, 0) };
        root.check_refused::<FileOrphans>(odd, Code::Invalid);
    }
}
