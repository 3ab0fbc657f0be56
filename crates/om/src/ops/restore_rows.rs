//! A part of a backup's rows, for a group that nobody is served from yet (docs/adr/0016). Parts are taken in
//! their order, each once; the group serves once SCM has said that all groups have theirs
//! ([`super::Founded`]).

use super::{Apply, Fresh, Operation, wire};
use crate::rules::ROWS_BYTES_MAX;
use crate::tables::{FORMAT, OF_THIS_LOG, RESTORED_KEY, Refusal, is_founded, restored as restored_names};
use prost::Message;
use proto::om::{RestoreRowsRequest, RestoreRowsResponse, RestoredNames};
use proto::{Code, Failure, bytes16};

pub(crate) struct RestoreRows;

impl Operation for RestoreRows {
    type Request = RestoreRowsRequest;
    type Command = RestoreRowsRequest;
    type Response = RestoreRowsResponse;
    wire!(RestoreRows);
    const COMMAND_BYTES_MAX: usize = ROWS_BYTES_MAX;

    fn prepare(request: RestoreRowsRequest, _: Fresh) -> Result<RestoreRowsRequest, Failure> {
        bytes16(&request.backup, "the id of a backup")?;
        if request.format != FORMAT {
            let other = if request.format > FORMAT { "a newer" } else { "an older" };
            return Err(Failure::invalid(format!(
                "the backup has tables of format {}, this version restores {FORMAT}: restore it with {other} flotilla",
                request.format
            )));
        }
        let is_of_names =
            |key: &[u8]| !key.is_empty() && !OF_THIS_LOG.iter().any(|table| key.starts_with(table));
        match request.rows.iter().all(|row| is_of_names(&row.key) && row.value.is_some()) {
            true => Ok(request),
            false => Err(Failure::invalid("a row is none that a backup has")),
        }
    }

    fn apply(apply: &mut Apply<'_, '_>, command: RestoreRowsRequest) -> Result<RestoreRowsResponse, Refusal> {
        if is_founded(apply.tables)? {
            let why = "the names of this group are founded: nothing is restored into them";
            return Err(Failure::new(Code::PreconditionFailed, why).into());
        }
        let RestoreRowsRequest { backup, seq, rows, is_last, entries, .. } = command;
        let known: Option<RestoredNames> = restored_names(apply.tables)?;
        let mut names =
            known.unwrap_or_else(|| RestoredNames { backup: backup.clone(), ..Default::default() });
        if names.backup != backup {
            let why = "rows of another backup are here: empty the directory of this OM, and begin again";
            return Err(Failure::new(Code::PreconditionFailed, why).into());
        }
        if seq > names.seq {
            if seq != names.seq + 1 || names.is_all {
                let why = format!("part {seq} of the backup comes after {}", names.seq);
                return Err(Failure::invalid(why).into());
            }
            for row in rows {
                apply.tables.put(row.key.into(), row.value.unwrap_or_default().into());
            }
            (names.seq, names.is_all, names.entries) = (seq, is_last, entries);
            apply.tables.put(RESTORED_KEY.to_vec(), names.encode_to_vec());
        }
        Ok(RestoreRowsResponse { seq: names.seq, is_all: names.is_all })
    }
}
