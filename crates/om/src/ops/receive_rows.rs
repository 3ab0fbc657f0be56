//! Takes a part of what is in a bucket that comes from another group. The part is here, and in no bucket,
//! until the root says that the bucket has moved.
//!
//! Parts of a run are taken in their order, each once; the first part of a later run, or of a later attempt,
//! is taken when all that came before it is deleted.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks;
use crate::overlay::Overlay;
use crate::rules::ROWS_BYTES_MAX;
use crate::tables::{BucketNumber, Read, Refusal, contents, incoming_key, left_since, let_go, record_key};
use planted::Bug;
use prost::Message;
use proto::Failure;
use proto::om::receive_rows_response::Outcome;
use proto::om::{BucketMove, IncomingBucket, MovedRow, ReceiveRowsRequest, ReceiveRowsResponse};
use std::cmp::Ordering;

pub(crate) struct ReceiveRows;

impl Operation for ReceiveRows {
    type Request = ReceiveRowsRequest;
    type Command = ReceiveRowsRequest;
    type Response = ReceiveRowsResponse;
    wire!(ReceiveRows);
    const COMMAND_BYTES_MAX: usize = ROWS_BYTES_MAX;

    fn prepare(request: ReceiveRowsRequest, _: Fresh) -> Result<ReceiveRowsRequest, Failure> {
        let number = request.moved.map_or(0, |moved| moved.number);
        if number == 0 || request.run == 0 || request.seq == 0 {
            return Err(Failure::invalid("the request has no move, no run, or no number in it"));
        }
        let tables = contents(BucketNumber(number));
        let is_row = |key: &[u8]| tables.iter().any(|table| key.starts_with(table));
        if !request.rows.iter().all(|row| is_row(&row.key)) {
            return Err(Failure::invalid("a row is of another bucket"));
        }
        for row in &request.rows {
            let pieces = blocks::pieces_of(&row.key, row.value.as_deref().unwrap_or_default());
            pieces.map_err(|error| Failure::invalid(format!("{error:#}")))?;
        }
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: ReceiveRowsRequest) -> Result<ReceiveRowsResponse, Refusal> {
        let moved = command.moved.unwrap_or_default();
        let number = BucketNumber(moved.number);
        let Some(mut incoming) = in_run(apply, moved, command.run)? else {
            return answer(Outcome::Over);
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
        command.rows.into_iter().try_for_each(|row| take(apply.tables, row))?;
        (incoming.seq, incoming.record) = (command.seq, command.record);
        apply.tables.put(incoming_key(number), incoming.encode_to_vec());
        if !planted::has(Bug::RequestsLeftBehind) {
            apply.brought = command.requests;
        }
        answer(Outcome::Taken)
    }
}

/// Takes a row. What it named before is not filed as deleted here: the blocks are the bucket's, wherever that
/// is.
fn take(tables: &mut Overlay<'_>, row: MovedRow) -> anyhow::Result<()> {
    let before = blocks::pieces_in(tables, &row.key)?;
    blocks::unname(tables, &row.key, &before);
    match row.value {
        Some(value) => {
            blocks::name(tables, &row.key, &blocks::pieces_of(&row.key, &value)?);
            tables.put(row.key.into(), value.into());
        }
        None => tables.delete(row.key.into()),
    }
    Ok(())
}

/// The record of what has come by this run, made anew when the run begins; `None`: the run is over, or what
/// it sends is here.
fn in_run(apply: &mut Apply<'_, '_>, moved: BucketMove, run: u64) -> Result<Option<IncomingBucket>, Refusal> {
    let number = BucketNumber(moved.number);
    let is_let_go = let_go(apply.tables, number)?.is_some_and(|last| moved.attempt <= last);
    if is_let_go || apply.tables.get(&record_key(number))?.is_some() {
        return Ok(None);
    }
    let before: Option<IncomingBucket> = apply.tables.message(&incoming_key(number))?;
    let known = before.as_ref().map(|before| (before.moved.map_or(0, |moved| moved.attempt), before.run));
    match known.map(|known| known.cmp(&(moved.attempt, run))) {
        Some(Ordering::Greater) => return Ok(None),
        Some(Ordering::Equal) => return Ok(before),
        Some(Ordering::Less) => apply.leave(number),
        None => {}
    }
    let begun = IncomingBucket { moved: Some(moved), run, ..IncomingBucket::default() };
    apply.tables.put(incoming_key(number), begun.encode_to_vec());
    Ok(Some(begun))
}

fn answer(outcome: Outcome) -> Result<ReceiveRowsResponse, Refusal> {
    Ok(ReceiveRowsResponse { outcome: outcome.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::SweepRows;
    use crate::ops::testing::{Namespace, pieces};
    use crate::tables::key_key;
    use proto::Code;
    use proto::om::{Key, SweepRowsCommand};

    const BUCKET: BucketNumber = BucketNumber(7);

    /// A part with one row.
    fn part(attempt: u64, run: u64, seq: u64, key: &str) -> ReceiveRowsRequest {
        let value = Key { pieces: pieces(3, 10), ..Key::default() }.encode_to_vec();
        let row = MovedRow { key: key_key(BUCKET, key.as_bytes()).into(), value: Some(value.into()) };
        let moved = Some(BucketMove { number: BUCKET.0, attempt, from: 1, to: 2 });
        ReceiveRowsRequest { moved, run, seq, rows: vec![row], ..ReceiveRowsRequest::default() }
    }

    fn take(group: &mut Namespace, part: ReceiveRowsRequest) -> Outcome {
        group.run::<ReceiveRows>(part).unwrap().outcome()
    }

    fn sweep(group: &mut Namespace) {
        let since = left_since(&group.db, BUCKET).unwrap().unwrap();
        let sweep = SweepRowsCommand { number: BUCKET.0, since, ..SweepRowsCommand::default() };
        assert!(group.run::<SweepRows>(sweep).unwrap().is_done);
    }

    #[test]
    fn a_later_run_is_taken_once_all_of_the_one_before_is_gone_which_is_taken_no_more() {
        let mut group = Namespace::empty();
        assert_eq!(take(&mut group, part(1, 1, 1, "a")), Outcome::Taken);
        assert_eq!(take(&mut group, part(1, 1, 1, "a")), Outcome::Taken);
        assert_eq!(take(&mut group, part(1, 1, 2, "b")), Outcome::Taken);
        for (attempt, run) in [(1, 2), (2, 1)] {
            let before = group.records(b"k").len();
            assert_eq!(take(&mut group, part(attempt, run, 1, "c")), Outcome::Sweeping);
            assert_eq!(take(&mut group, part(1, 1, 3, "d")), Outcome::Over);
            assert_eq!(group.records(b"k").len(), before);
            sweep(&mut group);
            assert_eq!((group.records(b"k"), group.records(b"l")), (vec![], vec![]));
            assert_eq!(take(&mut group, part(1, 1, 3, "d")), Outcome::Over);
            assert_eq!(take(&mut group, part(attempt, run, 1, "c")), Outcome::Taken);
        }
        assert_eq!((group.records(b"k").len(), group.records(b"l").len()), (1, 1));
        assert_eq!(group.records(b"d"), [], "nothing of it is to go");
    }

    /// The command is that of a leader that is none any more: what it swept has come again since.
    #[test]
    fn a_late_command_to_delete_what_is_left_deletes_nothing_else() {
        let mut group = Namespace::empty();
        take(&mut group, part(1, 1, 1, "a"));
        take(&mut group, part(1, 2, 1, "a"));
        let since = left_since(&group.db, BUCKET).unwrap().unwrap();
        sweep(&mut group);
        take(&mut group, part(1, 2, 1, "a"));
        for after in ["", "k"] {
            let late = SweepRowsCommand { number: BUCKET.0, since, after: after.into(), pieces_max: 0 };
            assert!(group.run::<SweepRows>(late).unwrap().is_done);
            assert_eq!(group.records(b"k").len(), 1);
            take(&mut group, part(1, 3, 1, "a"));
        }
        assert!(left_since(&group.db, BUCKET).unwrap().is_some_and(|now| now > since));
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        let mut group = Namespace::empty();
        take(&mut group, part(1, 1, 1, "a"));
        let of_another = MovedRow { key: key_key(BucketNumber(8), b"a").into(), value: None };
        let no_row = MovedRow { key: "c".into(), value: None };
        let no_key = MovedRow { key: key_key(BUCKET, b"a").into(), value: Some("value".into()) };
        for refused in [
            part(1, 1, 3, "b"),
            part(1, 0, 2, "b"),
            part(1, 1, 0, "b"),
            ReceiveRowsRequest { moved: None, ..part(1, 1, 2, "b") },
            ReceiveRowsRequest { rows: vec![of_another], ..part(1, 1, 2, "b") },
            ReceiveRowsRequest { rows: vec![no_row], ..part(1, 1, 2, "b") },
            ReceiveRowsRequest { rows: vec![no_key], ..part(1, 1, 2, "b") },
        ] {
            group.check_refused::<ReceiveRows>(refused, Code::Invalid);
        }
    }
}
