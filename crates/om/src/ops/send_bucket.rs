//! The sending of a bucket to another group ([`crate::moves`]): from when on it is sent, by which run, and
//! from when on it changes no more.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{
    BucketNumber, Read, Refusal, check_certain, let_go, record_key, runs_before, sending_key,
};
use prost::Message;
use proto::om::{
    BeginRunCommand, BeginRunReply, BucketMove, BucketRecord, FreezeBucketCommand, FreezeBucketReply,
    SendBucketRequest, SendBucketResponse, SendingBucket,
};
use proto::{Code, Failure};

/// Notes that a bucket is to be sent. An attempt that this group has heard the end of begins no second time:
/// the root's word may be late.
pub(crate) struct SendBucket;

impl Operation for SendBucket {
    type Request = SendBucketRequest;
    type Command = SendBucketRequest;
    type Response = SendBucketResponse;
    wire!(SendBucket);

    fn prepare(request: SendBucketRequest, _: Fresh) -> Result<SendBucketRequest, Failure> {
        match request.moved {
            Some(moved) if moved.number != 0 && moved.attempt != 0 => Ok(request),
            _ => Err(Failure::invalid("the request has no move")),
        }
    }

    fn apply(apply: &mut Apply<'_, '_>, command: SendBucketRequest) -> Result<SendBucketResponse, Refusal> {
        let moved = command.moved.unwrap_or_default();
        let number = BucketNumber(moved.number);
        let Some(mut record) = apply.tables.message::<BucketRecord>(&record_key(number))? else {
            let is_done = let_go(apply.tables, number)? == Some(moved.attempt);
            return Ok(SendBucketResponse { is_sent: false, is_done });
        };
        // What was here before this group was reset may be older than what the bucket is elsewhere.
        check_certain(&record)?;
        let sending: Option<SendingBucket> = apply.tables.message(&sending_key(number))?;
        if sending.is_some_and(|sending| sending.moved == Some(moved)) {
            return Ok(SendBucketResponse { is_sent: true, is_done: false });
        }
        if moved.attempt <= record.moves.max(record.epoch) {
            return Ok(SendBucketResponse { is_sent: false, is_done: false });
        }
        // Whatever an earlier attempt had begun is over: the root begins no other before.
        (record.moves, record.frozen) = (moved.attempt, false);
        apply.tables.put(record_key(number), record.encode_to_vec());
        let sending = SendingBucket { moved: Some(moved), run: runs_before(apply.tables)? };
        apply.tables.put(sending_key(number), sending.encode_to_vec());
        Ok(SendBucketResponse { is_sent: true, is_done: false })
    }
}

/// The sending of a bucket by this attempt, and its record, or the refusal that the attempt is over, or waits
/// for the root to say whether the bucket is here.
fn sent(
    apply: &Apply<'_, '_>,
    number: BucketNumber,
    attempt: u64,
) -> Result<(SendingBucket, BucketRecord), Refusal> {
    let sending: Option<SendingBucket> = apply.tables.message(&sending_key(number))?;
    let record: Option<BucketRecord> = apply.tables.message(&record_key(number))?;
    let is_of = |sending: &SendingBucket| sending.moved.is_some_and(|moved| moved.attempt == attempt);
    let over =
        || Failure::new(Code::NotHere, format!("attempt {attempt} to move bucket {} is over", number.0));
    let (sending, record) = sending.filter(is_of).zip(record).ok_or_else(over)?;
    check_certain(&record)?;
    Ok((sending, record))
}

/// Begins a run: the group's leader sends all there is from here on. What an earlier leader sent, and is
/// still on its way, counts no more.
pub(crate) struct BeginRun;

impl Operation for BeginRun {
    type Request = BeginRunCommand;
    type Command = BeginRunCommand;
    type Response = BeginRunReply;
    wire!(BeginRun);

    fn prepare(request: BeginRunCommand, _: Fresh) -> Result<BeginRunCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: BeginRunCommand) -> Result<BeginRunReply, Refusal> {
        let number = BucketNumber(command.number);
        let (mut sending, record) = sent(apply, number, command.attempt)?;
        if !record.frozen {
            sending.run += 1;
            apply.tables.put(sending_key(number), sending.encode_to_vec());
        }
        Ok(BeginRunReply { run: sending.run, is_frozen: record.frozen })
    }
}

/// Freezes a bucket: what is in it changes no more until the root has settled the attempt; reads go on.
pub(crate) struct FreezeBucket;

impl Operation for FreezeBucket {
    type Request = FreezeBucketCommand;
    type Command = FreezeBucketCommand;
    type Response = FreezeBucketReply;
    wire!(FreezeBucket);

    fn prepare(request: FreezeBucketCommand, _: Fresh) -> Result<FreezeBucketCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: FreezeBucketCommand) -> Result<FreezeBucketReply, Refusal> {
        let number = BucketNumber(command.number);
        let (sending, mut record) = sent(apply, number, command.attempt)?;
        if sending.run != command.run {
            let BucketMove { attempt, .. } = sending.moved.unwrap_or_default();
            let why = format!("run {} of attempt {attempt} has begun", sending.run);
            return Err(Failure::new(Code::NotHere, why).into());
        }
        record.frozen = true;
        apply.tables.put(record_key(number), record.encode_to_vec());
        Ok(FreezeBucketReply {})
    }
}
