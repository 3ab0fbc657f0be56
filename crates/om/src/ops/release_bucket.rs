//! A bucket goes from this group, unless it has a key. Of one attempt there is one outcome, however often the root
//! asks, and however late one of its questions comes: a refused attempt stays refused when the bucket is empty later.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, dropped_key, keys_prefix, record_key, uploads_prefix};
use prost::Message;
use proto::Failure;
use proto::om::{BucketRecord, DroppedBucket, ReleaseBucketRequest, ReleaseBucketResponse};

pub(crate) struct ReleaseBucket;

impl Operation for ReleaseBucket {
    type Request = ReleaseBucketRequest;
    type Command = ReleaseBucketRequest;
    type Response = ReleaseBucketResponse;
    wire!(ReleaseBucket);

    fn prepare(request: ReleaseBucketRequest, _: Fresh) -> Result<ReleaseBucketRequest, Failure> {
        match request.place.as_ref().is_some_and(|place| place.number != 0) && request.deletion != 0 {
            true => Ok(request),
            false => Err(Failure::invalid("the request has no bucket, or no number of the attempt")),
        }
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: ReleaseBucketRequest,
    ) -> Result<ReleaseBucketResponse, Refusal> {
        let number = BucketNumber(command.place.unwrap_or_default().number);
        let released = release(apply, number, command.deletion)?;
        Ok(ReleaseBucketResponse { is_gone: released == Released::Gone })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Released {
    Gone,
    HasKeys,
}

/// Attempt 0 is one that is not repeated.
pub(super) fn release(
    apply: &mut Apply<'_, '_>,
    number: BucketNumber,
    deletion: u64,
) -> anyhow::Result<Released> {
    let row = record_key(number);
    // Numbers are never used again: what is not here went before, or never was.
    let Some(mut record) = apply.tables.message::<BucketRecord>(&row)? else { return Ok(Released::Gone) };
    let was_refused = deletion != 0 && record.deletions >= deletion;
    if was_refused || apply.tables.scan(&keys_prefix(number)).next().transpose()?.is_some() {
        if !was_refused && deletion != 0 {
            record.deletions = deletion;
            apply.tables.put(row, record.encode_to_vec());
        }
        return Ok(Released::HasKeys);
    }
    if apply.tables.scan(&uploads_prefix(number)).next().transpose()?.is_some() {
        let dropped = DroppedBucket { bucket: record.bucket, deleted_ms: apply.now_ms };
        apply.tables.put(dropped_key(number), dropped.encode_to_vec());
    }
    apply.tables.delete(row);
    Ok(Released::Gone)
}
