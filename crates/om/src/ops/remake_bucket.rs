//! A bucket that no group has any more, since one was reset by force, is made again where it was, and empty:
//! what was in it is lost with that group. It gets an epoch by which nobody ever let go of it.

use super::create_bucket::draw_number;
use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, bucket_key, entry_place, unsettled_key};
use prost::Message;
use proto::Failure;
use proto::om::{BucketEntry, BucketStage, RemakeBucketCommand, RemakeBucketReply};

pub(crate) struct RemakeBucket;

impl Operation for RemakeBucket {
    type Request = RemakeBucketCommand;
    type Command = RemakeBucketCommand;
    type Response = RemakeBucketReply;
    wire!(RemakeBucket);

    fn prepare(request: RemakeBucketCommand, _: Fresh) -> Result<RemakeBucketCommand, Failure> {
        Ok(request)
    }

    /// Answers with no place where the bucket has changed since it was found to be nowhere.
    fn apply(apply: &mut Apply<'_, '_>, command: RemakeBucketCommand) -> Result<RemakeBucketReply, Refusal> {
        let RemakeBucketCommand { volume, bucket, number, epoch } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let is_as_found = |entry: &BucketEntry| {
            let is_settling =
                matches!(entry.stage(), BucketStage::BucketMaking | BucketStage::BucketDropping);
            (entry.number, entry.epoch) == (number, epoch) && !is_settling
        };
        let Some(mut entry) = entry.filter(is_as_found) else { return Ok(RemakeBucketReply::default()) };
        entry.epoch = draw_number(apply)?;
        // A move that was under way has nothing to move.
        entry.set_stage(BucketStage::BucketLive);
        apply.tables.delete(unsettled_key(BucketNumber(number)));
        let place = Some(entry_place(&entry));
        apply.tables.put(key, entry.encode_to_vec());
        Ok(RemakeBucketReply { place })
    }
}
