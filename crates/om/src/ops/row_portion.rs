//! Some of the rows that a bucket has left: so many that it is a small step to delete them with what their
//! blocks have elsewhere.

use crate::blocks;
use crate::overlay::Overlay;
use crate::tables::{BucketNumber, contents};
use bytes::Bytes;
use proto::om::BlockPiece;

/// The most pieces of blocks that one command takes out of the tables, or moves within them, which takes some
/// milliseconds. A row is never divided: one with more is a step by itself.
pub(crate) const PIECES_AT_ONCE: usize = 2048;

pub(super) struct RowPortion {
    /// The rows' keys, and the pieces in each.
    pub(super) rows: Vec<(Vec<u8>, Vec<BlockPiece>)>,
    /// Whether there are no more.
    pub(super) is_last: bool,
}

impl RowPortion {
    /// Reads the rows of a bucket behind `after`, until they are `rows_max`, or have `pieces_max` pieces; a
    /// 0, which leaders of older releases say, is no limit.
    pub(super) fn read(
        tables: &Overlay<'_>,
        bucket: BucketNumber,
        after: &[u8],
        rows_max: usize,
        pieces_max: u32,
    ) -> anyhow::Result<RowPortion> {
        let pieces_max = if pieces_max == 0 { usize::MAX } else { pieces_max as usize };
        let (mut rows, mut pieces) = (Vec::new(), 0);
        for table in contents(bucket) {
            for row in tables.scan_after(&table, after) {
                let (key, value) = row?;
                let of_row = blocks::pieces_of(&key, &value)?;
                pieces += of_row.len();
                rows.push((key, of_row));
                if rows.len() == rows_max || pieces >= pieces_max {
                    return Ok(RowPortion { rows, is_last: false });
                }
            }
        }
        Ok(RowPortion { rows, is_last: true })
    }

    pub(super) fn last(&self) -> Bytes {
        self.rows.last().map(|(key, _)| Bytes::copy_from_slice(key)).unwrap_or_default()
    }
}
