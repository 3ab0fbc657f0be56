//! A bucket that no group has any more, since one was reset by force, is made again where it was, and empty:
//! what was in it is lost with that group. It is another bucket of that name, with a number of its own:
//! nothing that is left of the one before can get into it.

use super::create_bucket::make;
use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, bucket_key, unsettled_key};
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

    /// Makes none where the bucket has changed since it was found to be nowhere.
    fn apply(apply: &mut Apply<'_, '_>, command: RemakeBucketCommand) -> Result<RemakeBucketReply, Refusal> {
        let RemakeBucketCommand { volume, bucket: name, number, epoch } = command;
        let key = bucket_key(&volume, &name);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let is_as_found = |entry: &BucketEntry| {
            let is_settling =
                matches!(entry.stage(), BucketStage::BucketMaking | BucketStage::BucketDropping);
            (entry.number, entry.epoch) == (number, epoch) && !is_settling
        };
        let Some(BucketEntry { group, bucket, .. }) = entry.filter(is_as_found) else {
            return Ok(RemakeBucketReply { is_made: false });
        };
        apply.tables.delete(unsettled_key(BucketNumber(number)));
        make(apply, key, group, bucket)?;
        Ok(RemakeBucketReply { is_made: true })
    }
}
