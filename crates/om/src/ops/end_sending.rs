//! The group from which a bucket was sent hears what became of that. It lets go of a bucket that is
//! elsewhere: from here on it answers nothing about it, and only then the other group does. One that stays
//! changes again.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, letting_go, record_key, sending_key};
use prost::Message;
use proto::Failure;
use proto::om::{BucketRecord, EndMoveRequest, EndMoveResponse, SendingBucket};

pub(crate) struct EndSending;

impl Operation for EndSending {
    type Request = EndMoveRequest;
    type Command = EndMoveRequest;
    type Response = EndMoveResponse;
    wire!(EndSending);

    fn prepare(request: EndMoveRequest, _: Fresh) -> Result<EndMoveRequest, Failure> {
        check_move(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: EndMoveRequest) -> Result<EndMoveResponse, Refusal> {
        let moved = command.moved.unwrap_or_default();
        let number = BucketNumber(moved.number);
        let record: Option<BucketRecord> = apply.tables.message(&record_key(number))?;
        // The bucket came back by a later attempt, or went with this one: the word is late.
        let Some(mut record) = record.filter(|record| record.epoch < moved.attempt) else {
            return Ok(EndMoveResponse::default());
        };
        let sending: Option<SendingBucket> = apply.tables.message(&sending_key(number))?;
        let attempt = sending.and_then(|sending| sending.moved).map_or(0, |moved| moved.attempt);
        // Another attempt has begun; or this one has ended, and the bucket stayed.
        let has_ended = command.is_done && attempt == 0 && record.moves >= moved.attempt;
        if attempt > moved.attempt || has_ended {
            return Ok(EndMoveResponse::default());
        }
        apply.tables.delete(sending_key(number));
        if command.is_done {
            apply.tables.delete(record_key(number));
            apply.leave(number);
            let (key, value) = letting_go(apply.tables, number, moved.attempt)?;
            apply.tables.put(key, value);
        } else {
            (record.moves, record.frozen) = (record.moves.max(moved.attempt), false);
            apply.tables.put(record_key(number), record.encode_to_vec());
        }
        Ok(EndMoveResponse::default())
    }
}

pub(super) fn check_move(request: EndMoveRequest) -> Result<EndMoveRequest, Failure> {
    match request.moved {
        Some(moved) if moved.number != 0 && moved.attempt != 0 => Ok(request),
        _ => Err(Failure::invalid("the request has no move")),
    }
}
