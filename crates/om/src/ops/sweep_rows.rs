//! Deletes some of the rows that a bucket has left here: it is in another group, or did not come.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks;
use crate::tables::{BucketNumber, Read, Refusal, contents, left_key, left_since, record_key};
use bytes::Bytes;
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
        let mut rows = Vec::new();
        for table in contents(number) {
            let left = ROWS_AT_ONCE - rows.len();
            let scan = apply.tables.scan_after(&table, &command.after).take(left);
            rows.extend(scan.collect::<anyhow::Result<Vec<_>>>()?);
        }
        let is_done = rows.len() < ROWS_AT_ONCE;
        if is_done {
            apply.tables.delete(left_key(number));
        }
        let last = rows.last().map(|(row, _)| Bytes::copy_from_slice(row)).unwrap_or_default();
        for (row, value) in rows {
            // The blocks are the bucket's, wherever that is.
            blocks::unname(apply.tables, &row, &blocks::pieces_of(&row, &value)?);
            apply.tables.delete(row);
        }
        Ok(SweepRowsReply { last, is_done })
    }
}
