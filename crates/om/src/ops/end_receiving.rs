//! The group to which a bucket was sent hears what became of that: it holds the bucket from here on, or
//! forgets what came. The other group has let go of the bucket before.

use super::end_sending::check_move;
use super::{Apply, Fresh, Operation, wire};
use crate::tables::{
    BucketNumber, Read, Refusal, check_certain, incoming_key, let_go, letting_go, record_key,
};
use prost::Message;
use proto::Failure;
use proto::om::{BucketMove, BucketRecord, EndMoveRequest, EndMoveResponse, IncomingBucket};

pub(crate) struct EndReceiving;

impl Operation for EndReceiving {
    type Request = EndMoveRequest;
    type Command = EndMoveRequest;
    type Response = EndMoveResponse;
    wire!(EndReceiving);

    fn prepare(request: EndMoveRequest, _: Fresh) -> Result<EndMoveRequest, Failure> {
        check_move(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: EndMoveRequest) -> Result<EndMoveResponse, Refusal> {
        let moved = command.moved.unwrap_or_default();
        let number = BucketNumber(moved.number);
        if let Some(record) = apply.tables.message::<BucketRecord>(&record_key(number))? {
            // What is here may be what this group had forgotten to have let go of.
            check_certain(&record)?;
            return Ok(EndMoveResponse::default());
        }
        // The bucket was here, and the word is late; or a root that was reset says so once more.
        if let_go(apply.tables, number)?.is_some_and(|last| moved.attempt <= last) {
            return Ok(EndMoveResponse { is_lost: command.is_done });
        }
        let incoming: Option<IncomingBucket> = apply.tables.message(&incoming_key(number))?;
        let attempt = |incoming: &IncomingBucket| incoming.moved.map_or(0, |moved| moved.attempt);
        match command.is_done {
            true => {
                apply.check_fenced(command.fences)?;
                let incoming = incoming.filter(|incoming| attempt(incoming) == moved.attempt);
                match incoming.and_then(|incoming| incoming.record) {
                    Some(record) => hold(apply, moved, record),
                    None => return Ok(EndMoveResponse { is_lost: true }),
                }
            }
            false => {
                let (key, value) = letting_go(apply.tables, number, moved.attempt)?;
                apply.tables.put(key, value);
                if incoming.is_some_and(|incoming| attempt(&incoming) <= moved.attempt) {
                    apply.tables.delete(incoming_key(number));
                    apply.leave(number);
                }
            }
        }
        Ok(EndMoveResponse::default())
    }
}

fn hold(apply: &mut Apply<'_, '_>, moved: BucketMove, sent: BucketRecord) {
    let number = BucketNumber(moved.number);
    let record =
        BucketRecord { epoch: moved.attempt, moves: moved.attempt, frozen: false, doubted: false, ..sent };
    apply.tables.delete(incoming_key(number));
    apply.tables.put(record_key(number), record.encode_to_vec());
}
