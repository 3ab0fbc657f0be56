//! A part of what is in a bucket that comes from another group. It is here, and in no bucket, until the root says that the
//! bucket has moved.
//!
//! Parts of a run are taken in their order, each once; the first part of a later run, or of a later attempt, is taken
//! when all that came before it is deleted.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, contents, incoming_key, left_since, let_go, record_key};
use planted::Bug;
use prost::Message;
use proto::Failure;
use proto::om::receive_rows_response::Outcome;
use proto::om::{IncomingBucket, ReceiveRowsRequest, ReceiveRowsResponse};

pub(crate) struct ReceiveRows;

impl Operation for ReceiveRows {
    type Request = ReceiveRowsRequest;
    type Command = ReceiveRowsRequest;
    type Response = ReceiveRowsResponse;
    wire!(ReceiveRows);
    /// One row may be as large as a command that makes one.
    const COMMAND_BYTES_MAX: usize = 12 << 20;

    fn prepare(request: ReceiveRowsRequest, _: Fresh) -> Result<ReceiveRowsRequest, Failure> {
        let number = request.moved.map_or(0, |moved| moved.number);
        if number == 0 || request.run == 0 || request.seq == 0 {
            return Err(Failure::invalid("the request has no move, no run, or no number in it"));
        }
        let tables = contents(BucketNumber(number));
        let is_row = |key: &[u8]| tables.iter().any(|table| key.starts_with(table));
        match request.rows.iter().all(|row| is_row(&row.key)) {
            true => Ok(request),
            false => Err(Failure::invalid("a row is of another bucket")),
        }
    }

    fn apply(apply: &mut Apply<'_, '_>, command: ReceiveRowsRequest) -> Result<ReceiveRowsResponse, Refusal> {
        let moved = command.moved.unwrap_or_default();
        let number = BucketNumber(moved.number);
        let is_let_go = let_go(apply.tables, number)?.is_some_and(|last| moved.attempt <= last);
        if is_let_go || apply.tables.get(&record_key(number))?.is_some() {
            return answer(Outcome::Over);
        }
        let incoming: Option<IncomingBucket> = apply.tables.message(&incoming_key(number))?;
        let age = |attempt, run| (attempt, run);
        let asked = age(moved.attempt, command.run);
        let known = incoming.as_ref().map(|it| age(it.moved.unwrap_or_default().attempt, it.run));
        if known.is_some_and(|known| known > asked) {
            return answer(Outcome::Over);
        }
        let mut incoming = match incoming {
            Some(incoming) if known == Some(asked) => incoming,
            before => {
                let begun = IncomingBucket { moved: Some(moved), run: command.run, ..Default::default() };
                apply.tables.put(incoming_key(number), begun.encode_to_vec());
                if before.is_some() {
                    apply.leave(number);
                }
                begun
            }
        };
        if left_since(apply.tables, number)?.is_some() {
            return answer(Outcome::Sweeping);
        }
        if command.seq <= incoming.seq {
            return answer(Outcome::Taken);
        }
        if command.seq != incoming.seq + 1 || incoming.record.is_some() {
            let why = format!("part {} of run {} comes after {}", command.seq, command.run, incoming.seq);
            return Err(Failure::invalid(why).into());
        }
        for row in command.rows {
            match row.value {
                Some(value) => apply.tables.put(row.key.into(), value.into()),
                None => apply.tables.delete(row.key.into()),
            }
        }
        (incoming.seq, incoming.record) = (command.seq, command.record);
        apply.tables.put(incoming_key(number), incoming.encode_to_vec());
        if !planted::has(Bug::RequestsLeftBehind) {
            apply.brought = command.requests;
        }
        answer(Outcome::Taken)
    }
}

fn answer(outcome: Outcome) -> Result<ReceiveRowsResponse, Refusal> {
    Ok(ReceiveRowsResponse { outcome: outcome.into() })
}
