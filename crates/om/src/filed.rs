//! The count of what an entry of the log has filed, and of what there is after it.

use crate::overlay::Overlay;
use crate::tables::{Read, UNUSED_TOTALS_KEY};
use prost::Message;
use proto::om::{BlockPiece, UnusedTotals};

/// The counts of what the commands of an entry have filed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Filed {
    /// Records of deleted pieces.
    records: u32,
    /// The change of the totals of what is filed, modulo 2^64.
    change: UnusedTotals,
    /// Unused blocks that there were before the entry, once somebody has asked.
    unused_before: Option<u64>,
}

impl Filed {
    /// Counts pieces that are filed as deleted, and returns the number, in the entry, of the record that has
    /// them.
    pub(crate) fn delete(&mut self, pieces: &[BlockPiece]) -> u32 {
        self.change.deleted_pieces = self.change.deleted_pieces.wrapping_add(pieces.len() as u64);
        self.change.deleted_bytes = self.change.deleted_bytes.wrapping_add(bytes(pieces));
        self.records += 1;
        self.records - 1
    }

    /// Counts deleted pieces out, which are sorted now.
    pub(crate) fn undelete(&mut self, pieces: &[BlockPiece]) {
        self.change.deleted_pieces = self.change.deleted_pieces.wrapping_sub(pieces.len() as u64);
        self.change.deleted_bytes = self.change.deleted_bytes.wrapping_sub(bytes(pieces));
    }

    pub(crate) fn unused(&mut self, blocks: u64, bytes: u64) {
        self.change.unused_blocks = self.change.unused_blocks.wrapping_add(blocks);
        self.change.unused_bytes = self.change.unused_bytes.wrapping_add(bytes);
    }

    pub(crate) fn forget(&mut self, bytes: u64) {
        self.change.unused_blocks = self.change.unused_blocks.wrapping_sub(1);
        self.change.unused_bytes = self.change.unused_bytes.wrapping_sub(bytes);
    }

    pub(crate) fn still_named(&mut self) {
        self.change.still_named += 1;
    }

    pub(crate) fn change(&self) -> UnusedTotals {
        self.change
    }

    /// Whether there is any unused block: where there is none, no block need be looked up.
    pub(crate) fn has_unused(&mut self, tables: &Overlay<'_>) -> anyhow::Result<bool> {
        let before = match self.unused_before {
            Some(before) => before,
            None => tables.message::<UnusedTotals>(UNUSED_TOTALS_KEY)?.unwrap_or_default().unused_blocks,
        };
        self.unused_before = Some(before);
        Ok(before.wrapping_add(self.change.unused_blocks) != 0)
    }

    /// Notes in the tables how much is filed after the entry.
    pub(crate) fn end(self, tables: &mut Overlay<'_>) -> anyhow::Result<()> {
        if self.change == UnusedTotals::default() {
            return Ok(());
        }
        let before: UnusedTotals = tables.message(UNUSED_TOTALS_KEY)?.unwrap_or_default();
        let change = self.change;
        let after = UnusedTotals {
            deleted_pieces: before.deleted_pieces.wrapping_add(change.deleted_pieces),
            deleted_bytes: before.deleted_bytes.wrapping_add(change.deleted_bytes),
            unused_blocks: before.unused_blocks.wrapping_add(change.unused_blocks),
            unused_bytes: before.unused_bytes.wrapping_add(change.unused_bytes),
            still_named: before.still_named.wrapping_add(change.still_named),
        };
        tables.put(UNUSED_TOTALS_KEY.to_vec(), after.encode_to_vec());
        tables.keep_command();
        Ok(())
    }
}

/// The bytes of pieces, modulo 2^64, so that what went in comes out again, whatever lengths clients say.
fn bytes(pieces: &[BlockPiece]) -> u64 {
    pieces.iter().fold(0, |sum: u64, piece| sum.wrapping_add(piece.length))
}
