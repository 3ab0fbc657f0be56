//! Deletes some of the rows that a bucket has left here: it is in another group, or did not come.

use super::row_portion::RowPortion;
use super::{Apply, Fresh, Operation, wire};
use crate::blocks;
use crate::tables::{BucketNumber, Read, Refusal, left_key, left_since, record_key};
use proto::Failure;
use proto::om::{SweepRowsCommand, SweepRowsReply};

/// The most rows that one command deletes. Part of the replicated state: all members delete the same.
const ROWS_AT_ONCE: usize = 1000;

pub(crate) struct SweepRows;

impl Operation for SweepRows {
    type Request = SweepRowsCommand;
    type Command = SweepRowsCommand;
    type Response = SweepRowsReply;
    wire!(SweepRows);

    fn prepare(request: SweepRowsCommand, _: Fresh) -> Result<SweepRowsCommand, Failure> {
        Ok(request)
    }

    /// Deletes some rows. `after` is the last row that a command before deleted: reading past what is deleted
    /// and not yet compacted takes long. Nothing is written under the number meanwhile; of what is left since
    /// another entry this one knows nothing.
    fn apply(apply: &mut Apply<'_, '_>, command: SweepRowsCommand) -> Result<SweepRowsReply, Refusal> {
        let number = BucketNumber(command.number);
        let is_left = left_since(apply.tables, number)? == Some(command.since);
        if !is_left || apply.tables.get(&record_key(number))?.is_some() {
            return Ok(SweepRowsReply { is_done: true, ..SweepRowsReply::default() });
        }
        let portion =
            RowPortion::read(apply.tables, number, &command.after, ROWS_AT_ONCE, command.pieces_max)?;
        if portion.is_last {
            apply.tables.delete(left_key(number));
        }
        let reply = SweepRowsReply { last: portion.last(), is_done: portion.is_last };
        for (row, pieces) in portion.rows {
            // The blocks are the bucket's, wherever that is.
            blocks::unname(apply.tables, &row, &pieces);
            apply.tables.delete(row);
        }
        Ok(reply)
    }
}
