//! The filing of blocks that no row names any more, which go once nobody reads them ([`crate::reclaim`]).

use super::Apply;
use crate::blocks::{self, BlockKey, NamingRows};
use crate::tables::{Read, Refusal, deleted_key, fences};
use prost::Message;
use proto::om::{BlockPiece, DeletedPieces, OmCommand, om_command};
use proto::{Code, Failure};
use std::collections::HashSet;

/// Persisted in commands: this release's rules about blocks.
pub(super) const RULES: u32 = 1;

impl Apply<'_, '_> {
    /// Refuses what would name a block that is unused by now, and may be gone, or that is of a container of
    /// which nothing more is taken. Whoever finds its blocks refused once has them filed, and writes again.
    pub(super) fn check_takes(&mut self, pieces: &[BlockPiece]) -> Result<(), Refusal> {
        let lacks = fences(self.tables)?.lacks;
        let (refused, code) = match self.unused_of(pieces)? {
            Some(unused) => (Some(unused), self.code_of_unused()?),
            None => (self.beyond_fence(pieces, lacks)?, Code::GivenUp),
        };
        let Some(block) = refused else { return Ok(()) };
        if lacks && code == Code::GivenUp {
            let why =
                "the group was reset or restored, and waits to be told of all fences against old blocks";
            return Err(Refusal::Passing(Failure::new(Code::NotYet, why)));
        }
        let why = format!("block {:?} was given up: write it again", block.to_proto());
        Err(Failure::new(code, why).into())
    }

    /// The code by which unused blocks are refused. What is remembered of a command is the same at members of
    /// all releases, and those of before know no other code than `Invalid`, and no fences.
    fn code_of_unused(&self) -> anyhow::Result<Code> {
        Ok(if fences(self.tables)?.number == 0 { Code::Invalid } else { Code::GivenUp })
    }

    fn unused_of(&mut self, pieces: &[BlockPiece]) -> anyhow::Result<Option<BlockKey>> {
        if self.rules < RULES || !self.filed.has_unused(self.tables)? {
            return Ok(None);
        }
        for block in pieces.iter().filter_map(BlockKey::of) {
            if self.tables.get(&block.unused_key())?.is_some() {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Files what `replaced` has and `by` does not, both of one row: it may be written again over its own
    /// blocks, with other attributes or because its writer repeats itself. Blocks that both refer to stay
    /// whole.
    pub(super) fn delete_replaced(&mut self, row: &[u8], replaced: Vec<BlockPiece>, by: &[BlockPiece]) {
        let kept: HashSet<_> = by.iter().map(|piece| &piece.block).collect();
        self.delete_pieces(row, replaced.into_iter().filter(|piece| !kept.contains(&piece.block)).collect());
    }

    /// Files pieces that a row names no more. An empty `row`: no row names them, which is noted already.
    pub(super) fn delete_pieces(&mut self, row: &[u8], pieces: Vec<BlockPiece>) {
        if pieces.is_empty() {
            return;
        }
        let count = self.filed.delete(&pieces);
        let mut row = bytes::Bytes::copy_from_slice(row);
        // A command of an earlier release leaves what upgrading makes of what it left then: members upgrade
        // at different entries.
        if self.rules < RULES {
            blocks::unname(self.tables, &row, &pieces);
            row.clear();
        }
        let record = DeletedPieces { pieces, deleted_ms: self.now_ms, row };
        self.tables.put(deleted_key(self.index, count), record.encode_to_vec());
    }

    /// Files what a refused command has brought, but for what somebody names: a writer that repeats itself
    /// under another id brings what it has committed.
    pub(super) fn delete_refused(&mut self, brought: Vec<BlockPiece>) -> anyhow::Result<()> {
        let (mut unnamed, mut rows) = (Vec::with_capacity(brought.len()), NamingRows::default());
        for piece in brought {
            let Some(block) = BlockKey::of(&piece) else { continue };
            let is_unused = self.tables.get(&block.unused_key())?.is_some();
            if !is_unused && !rows.name(self.tables, &block)? {
                unnamed.push(piece);
            }
        }
        self.delete_pieces(&[], unnamed);
        Ok(())
    }
}

/// The pieces that a command brings, by the rules of its leader.
pub(super) fn brought(command: &OmCommand) -> Vec<BlockPiece> {
    match &command.command {
        _ if command.rules < RULES => Vec::new(),
        Some(om_command::Command::CommitKey(commit)) => {
            commit.key.as_ref().map_or(Vec::new(), |key| key.pieces.clone())
        }
        Some(om_command::Command::CommitPart(commit)) => {
            commit.part.as_ref().map_or(Vec::new(), |part| part.pieces.clone())
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request};
    use crate::ops::{CommitKey, CommitPart, prepare};
    use proto::RequestId;
    use proto::om::{CommitKeyRequest, CommitPartRequest, Part, Precondition};

    /// A race that is lost by whoever has written this container.
    fn lost(container: u64) -> CommitKeyRequest {
        let absent = Precondition { absent: true, ..Precondition::default() };
        CommitKeyRequest { precondition: Some(absent), ..commit_request("a", container) }
    }

    #[test]
    fn what_a_refused_command_brings_is_filed_once_unless_it_is_named() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        for _ in 0..2 {
            namespace.run_as::<CommitKey>(7, lost(2)).unwrap_err();
        }
        assert_eq!(namespace.deleted_containers(), [2]);
        // The writer has said the same before, under another id.
        namespace.check_refused::<CommitKey>(lost(1), Code::PreconditionFailed);
        let elsewhere = CommitKeyRequest { bucket: "music".into(), ..commit_request("a", 3) };
        namespace.check_refused::<CommitKey>(elsewhere, Code::NoSuchBucket);
        let pieces = commit_request("a", 4).key.unwrap().pieces;
        let part = Part { number: 1, size: 10, etag: "0".repeat(32), pieces, ..Part::default() };
        let part = CommitPartRequest {
            volume: "s3v".into(),
            bucket: "photos".into(),
            key: "a".into(),
            upload: "f".repeat(32),
            part: Some(part),
        };
        namespace.check_refused::<CommitPart>(part, Code::NoSuchUpload);
        assert_eq!(namespace.deleted_containers(), [2, 3, 4]);
        assert_eq!(namespace.totals().deleted_pieces, 3);
    }

    #[test]
    fn a_command_of_before_files_nothing_when_it_is_refused() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let fresh = crate::ops::Fresh { random: 0, now_ms: namespace.now_ms };
        let command = prepare::<CommitKey>(RequestId(7), None, lost(2), fresh).unwrap();
        namespace.apply::<CommitKey>(OmCommand { rules: 0, ..command }).unwrap_err();
        assert_eq!(namespace.deleted_containers(), [0; 0]);
    }

    /// Members upgrade at different entries, and are to hold the same.
    #[test]
    fn what_a_command_of_before_replaces_is_filed_as_upgrading_leaves_it() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let fresh = crate::ops::Fresh { random: 0, now_ms: namespace.now_ms };
        let command = prepare::<CommitKey>(RequestId(7), None, commit_request("a", 2), fresh).unwrap();
        namespace.apply::<CommitKey>(OmCommand { rules: 0, ..command }).unwrap();
        let named = namespace.records(blocks::NAMED_PREFIX);
        let named = named.iter().map(|(key, _)| BlockKey::in_key(key).unwrap().container());
        assert_eq!(named.collect::<Vec<_>>(), [2]);
        let filed = namespace.records(b"d");
        let filed = filed.iter().map(|(_, value)| DeletedPieces::decode(&value[..]).unwrap());
        assert_eq!(filed.map(|record| record.row.len()).collect::<Vec<_>>(), [0]);
        assert_eq!(namespace.deleted_containers(), [1]);
    }
}
