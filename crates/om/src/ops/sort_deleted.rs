//! Deleted pieces that have waited long enough become unused blocks, which stand by container. A block that a
//! row names again is not unused; that it was filed is an error, which is counted.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks::{self, BlockKey};
use crate::tables::{DELETED_PREFIX, Read, Refusal, decode};
use bytes::Bytes;
use planted::Bug;
use prost::Message;
use proto::Failure;
use proto::om::{BlockPiece, DeletedPieces, SortDeletedCommand, SortDeletedReply, UnusedBlock};
use std::collections::HashSet;

pub(crate) struct SortDeleted;

impl Operation for SortDeleted {
    type Request = SortDeletedCommand;
    type Command = SortDeletedCommand;
    type Response = SortDeletedReply;
    wire!(SortDeleted);

    fn prepare(request: SortDeletedCommand, _: Fresh) -> Result<SortDeletedCommand, Failure> {
        Ok(request)
    }

    /// Sorts records of deleted pieces. `after` is a record that is gone already: reading past what is
    /// deleted and not yet compacted takes long. Records come with greater keys only, so that those up to
    /// `last` are no others than the leader has seen.
    fn apply(apply: &mut Apply<'_, '_>, command: SortDeletedCommand) -> Result<SortDeletedReply, Refusal> {
        let mut room = command.pieces_max as usize;
        let mut reply = SortDeletedReply { after: command.after };
        for (key, record) in read(apply, &reply.after, &command.last, room)? {
            let mut record: DeletedPieces = decode(&key, &record)?;
            let rest = record.pieces.split_off(record.pieces.len().min(room));
            room -= record.pieces.len();
            sort(apply, &record)?;
            if !rest.is_empty() {
                let rest = DeletedPieces { pieces: rest, ..record };
                apply.tables.put(key, rest.encode_to_vec());
                break;
            }
            apply.tables.delete(key.clone());
            reply.after = Bytes::from(key);
        }
        Ok(reply)
    }
}

/// Reads the records after `after` and up to `last`, at most `pieces_max` of them: so many have as many
/// pieces, or more.
fn read(
    apply: &Apply<'_, '_>,
    after: &[u8],
    last: &[u8],
    pieces_max: usize,
) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // No record is empty.
    let records = apply.tables.scan_after(DELETED_PREFIX, after).take(pieces_max);
    records.take_while(|record| record.as_ref().map_or(true, |(key, _)| key.as_slice() <= last)).collect()
}

fn sort(apply: &mut Apply<'_, '_>, record: &DeletedPieces) -> anyhow::Result<()> {
    apply.filed.undelete(&record.pieces);
    let named = blocks::pieces_in(apply.tables, &record.row)?;
    let named: HashSet<BlockKey> = named.iter().filter_map(BlockKey::of).collect();
    for piece in &record.pieces {
        let Some(block) = BlockKey::of(piece) else { continue };
        if named.contains(&block) && !planted::has(Bug::NamedBlocksGo) {
            apply.filed.still_named();
            continue;
        }
        apply.tables.delete(block.named_key(&record.row));
        put_unused(apply, &block, piece, record.deleted_ms)?;
    }
    Ok(())
}

fn put_unused(
    apply: &mut Apply<'_, '_>,
    block: &BlockKey,
    piece: &BlockPiece,
    deleted_ms: u64,
) -> anyhow::Result<()> {
    let key = block.unused_key();
    let known: Option<UnusedBlock> = apply.tables.message(&key)?;
    apply.filed.unused(u64::from(known.is_none()), piece.length);
    let mut unused = known.unwrap_or(UnusedBlock { bytes: 0, deleted_ms });
    unused.bytes = unused.bytes.wrapping_add(piece.length);
    apply.tables.put(key, unused.encode_to_vec());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CommitKey;
    use crate::ops::testing::{Namespace, commit_request, pieces};
    use proto::om::UnusedTotals;

    /// Sorts all that is filed, so many pieces at a time, and returns how often it was asked.
    fn sort_all(namespace: &mut Namespace, pieces_max: u32) -> usize {
        let last =
            Bytes::from(namespace.records(b"d").last().map(|(key, _)| key.clone()).unwrap_or_default());
        let mut after = Bytes::new();
        for asked in 1.. {
            let some = SortDeletedCommand { after, last: last.clone(), pieces_max };
            after = namespace.run::<SortDeleted>(some).unwrap().after;
            if after >= last {
                return asked;
            }
        }
        unreachable!("it ends")
    }

    #[test]
    fn deleted_pieces_become_unused_blocks_in_bounded_steps() {
        for (pieces_max, steps) in [(100, 1), (2, 3), (1, 5)] {
            let mut namespace = Namespace::new();
            let mut large = commit_request("large", 1);
            let key = large.key.as_mut().unwrap();
            (key.size, key.pieces) = (40, (1..=4).flat_map(|container| pieces(container, 10)).collect());
            namespace.run::<CommitKey>(large).unwrap();
            namespace.commit("small", 5).unwrap();
            assert_eq!(namespace.records(b"l").len(), 5);
            namespace.commit("large", 6).unwrap();
            namespace.commit("small", 7).unwrap();
            let totals = UnusedTotals { deleted_pieces: 5, deleted_bytes: 50, ..UnusedTotals::default() };
            assert_eq!(namespace.totals(), totals);
            assert_eq!(sort_all(&mut namespace, pieces_max), steps);
            assert_eq!(namespace.deleted_containers(), [0; 0]);
            assert_eq!(namespace.unused_containers(), [1, 2, 3, 4, 5]);
            let totals = UnusedTotals { unused_blocks: 5, unused_bytes: 50, ..UnusedTotals::default() };
            assert_eq!(namespace.totals(), totals);
            assert_eq!(namespace.records(b"l").len(), 2, "only what is named is said to be");
            assert_eq!(sort_all(&mut namespace, pieces_max), 1, "again it changes nothing");
            assert_eq!(namespace.totals(), totals);
        }
    }

    #[test]
    fn what_its_row_names_again_stays_and_is_counted() {
        let mut namespace = Namespace::new();
        for container in [1, 2, 1] {
            namespace.commit("a", container).unwrap();
        }
        sort_all(&mut namespace, 100);
        assert_eq!(namespace.unused_containers(), [2]);
        assert_eq!(namespace.totals().still_named, 1);
        assert_eq!(namespace.records(b"l").len(), 1);
    }
}
