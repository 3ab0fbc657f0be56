//! A bucket goes from this group, unless it has a key. Of one attempt there is one outcome, however often the
//! root asks, and however late one of its questions comes: a refused attempt stays refused when the bucket is
//! empty later.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{
    BucketNumber, Read, Refusal, check_certain, dropped_key, keys_prefix, let_go, letting_go, record_key,
    uploads_prefix,
};
use planted::Bug;
use prost::Message;
use proto::Failure;
use proto::om::{BucketPlace, BucketRecord, DroppedBucket, ReleaseBucketRequest, ReleaseBucketResponse};

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
        let BucketPlace { number, epoch, .. } = command.place.unwrap_or_default();
        let number = BucketNumber(number);
        // The bucket was moved meanwhile: the question is late.
        let record: Option<BucketRecord> = apply.tables.message(&record_key(number))?;
        let is_late = record.map_or(has_left(apply, number, epoch)?, |record| record.epoch > epoch);
        if is_late {
            return Ok(ReleaseBucketResponse { is_gone: false, refused: 0 });
        }
        Ok(match release(apply, number, command.deletion)? {
            Released::Gone => ReleaseBucketResponse { is_gone: true, refused: 0 },
            Released::HasKeys { refused } => ReleaseBucketResponse { is_gone: false, refused },
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Released {
    Gone,
    /// The bucket has keys; `refused` is the last attempt that was refused.
    HasKeys {
        refused: u64,
    },
}

/// The most attempts that a root may be ahead by: one, unless a forced reset took some of this group's
/// memory. Whoever invents more shuts no bucket for good.
const AHEAD_MAX: u64 = 1_000_000;

/// Lets go of a bucket, unless it has a key. Attempt 0 is the root's own, on a bucket of its own, which
/// nobody asks for twice.
pub(super) fn release(
    apply: &mut Apply<'_, '_>,
    number: BucketNumber,
    deletion: u64,
) -> Result<Released, Refusal> {
    let row = record_key(number);
    let mut was_moved = false;
    if let Some(mut record) = apply.tables.message::<BucketRecord>(&row)? {
        check_certain(&record)?;
        was_moved = record.epoch != 0;
        if deletion > record.deletions.saturating_add(AHEAD_MAX) {
            return Err(
                Failure::invalid(format!("attempt {deletion} is far past {}", record.deletions)).into()
            );
        }
        let was_refused = deletion != 0 && record.deletions >= deletion;
        let has_keys = apply.tables.scan(&keys_prefix(number)).next().transpose()?.is_some();
        if was_refused || has_keys && !planted::has(Bug::BucketsGoWithKeys) {
            record.deletions = record.deletions.max(deletion);
            let refused = record.deletions;
            if !was_refused && deletion != 0 {
                apply.tables.put(row, record.encode_to_vec());
            }
            return Ok(Released::HasKeys { refused });
        }
        if apply.tables.scan(&uploads_prefix(number)).next().transpose()?.is_some() {
            let dropped = DroppedBucket { bucket: record.bucket, deleted_ms: apply.now_ms };
            apply.tables.put(dropped_key(number), dropped.encode_to_vec());
        }
        apply.tables.delete(row);
    }
    if deletion != 0 || was_moved {
        let (key, never) = letting_go(apply.tables, number, u64::MAX)?;
        apply.tables.put(key, never);
    }
    Ok(Released::Gone)
}

/// Whether the bucket was here, and went to another group after this epoch. One that came back later, and
/// that a forced reset lost, may go.
fn has_left(apply: &Apply<'_, '_>, number: BucketNumber, epoch: u64) -> anyhow::Result<bool> {
    Ok(let_go(apply.tables, number)?.is_some_and(|last| last != u64::MAX && last >= epoch))
}
