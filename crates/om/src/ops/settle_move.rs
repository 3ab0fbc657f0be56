//! The root decides what becomes of an attempt to move a bucket: the first word on it counts, whoever says it. From a
//! decision on the attempt is only finished: both groups hear of it, and then the root notes that they have.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, bucket_key, unsettled_key};
use prost::Message;
use proto::Failure;
use proto::om::{
    BucketEntry, BucketStage, MoveEndedCommand, MoveEndedReply, SettleMoveRequest, SettleMoveResponse,
};

/// Attempts that a bucket's group may be ahead by: none, unless a forced reset took some of the root's memory.
const AHEAD_MAX: u64 = 1_000_000;

pub(crate) struct SettleMove;

impl Operation for SettleMove {
    type Request = SettleMoveRequest;
    type Command = SettleMoveRequest;
    type Response = SettleMoveResponse;
    wire!(SettleMove);

    fn prepare(request: SettleMoveRequest, _: Fresh) -> Result<SettleMoveRequest, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: SettleMoveRequest) -> Result<SettleMoveResponse, Refusal> {
        let SettleMoveRequest { volume, bucket, number, attempt, is_done, why, known } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let Some(mut entry) = entry.filter(|entry| entry.number == number) else {
            return Ok(SettleMoveResponse { is_done: false });
        };
        if !is_at(&entry, BucketStage::BucketMoving, attempt) {
            return Ok(SettleMoveResponse { is_done: entry.epoch == attempt });
        }
        let mut last = entry.last_move.take().unwrap_or_default();
        let mut moved = last.moved.unwrap_or_default();
        if is_done {
            (entry.group, entry.epoch) = (moved.to, attempt);
            entry.set_stage(BucketStage::BucketMoved);
        } else {
            // The next one is numbered after all that anybody knows of.
            moved.attempt = attempt.max(known.min(attempt + AHEAD_MAX));
            last.undone = why;
            entry.set_stage(BucketStage::BucketStays);
        }
        last.moved = Some(moved);
        entry.last_move = Some(last);
        apply.tables.put(key, entry.encode_to_vec());
        Ok(SettleMoveResponse { is_done })
    }
}

fn is_at(entry: &BucketEntry, stage: BucketStage, attempt: u64) -> bool {
    let moved = entry.last_move.as_ref().and_then(|last| last.moved);
    entry.stage() == stage && moved.is_some_and(|moved| moved.attempt == attempt)
}

/// Both groups know what became of an attempt.
pub(crate) struct MoveEnded;

impl Operation for MoveEnded {
    type Request = MoveEndedCommand;
    type Command = MoveEndedCommand;
    type Response = MoveEndedReply;
    wire!(MoveEnded);

    fn prepare(request: MoveEndedCommand, _: Fresh) -> Result<MoveEndedCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: MoveEndedCommand) -> Result<MoveEndedReply, Refusal> {
        let MoveEndedCommand { volume, bucket, number, attempt } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let is_settled = |entry: &BucketEntry| {
            let stages = [BucketStage::BucketMoved, BucketStage::BucketStays];
            entry.number == number && stages.into_iter().any(|stage| is_at(entry, stage, attempt))
        };
        if let Some(mut entry) = entry.filter(is_settled) {
            entry.set_stage(BucketStage::BucketLive);
            apply.tables.delete(unsettled_key(BucketNumber(number)));
            apply.tables.put(key, entry.encode_to_vec());
        }
        Ok(MoveEndedReply {})
    }
}
