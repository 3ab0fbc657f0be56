//! The root begins to move a bucket to another group ([`crate::moves`]). The bucket is where it was until the
//! attempt is settled.

use super::create_bucket::{check_settled, draw_number};
use super::{Apply, Fresh, Operation, wire};
use crate::rules::check_volume;
use crate::tables::{BucketNumber, Refusal, bucket_entry, bucket_key, check_places_known, unsettled_key};
use prost::Message;
use proto::Failure;
use proto::om::{BucketMove, BucketStage, LastMove, MoveBucketRequest, MoveBucketResponse};

pub(crate) struct MoveBucket;

impl Operation for MoveBucket {
    type Request = MoveBucketRequest;
    type Command = MoveBucketRequest;
    type Response = MoveBucketResponse;
    wire!(MoveBucket);

    fn prepare(request: MoveBucketRequest, _: Fresh) -> Result<MoveBucketRequest, Failure> {
        check_volume(&request.volume)?;
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: MoveBucketRequest) -> Result<MoveBucketResponse, Refusal> {
        let MoveBucketRequest { volume, bucket: name, to } = command;
        check_places_known(apply.tables)?;
        let mut entry = bucket_entry(apply.tables, &volume, &name)?;
        check_settled(&entry, &name)?;
        let last = entry.last_move.as_ref().and_then(|last| last.moved).unwrap_or_default();
        match entry.stage() {
            BucketStage::BucketLive if entry.group == to => {
                return Ok(MoveBucketResponse { moved: Some(last), is_there: true });
            }
            BucketStage::BucketMoving | BucketStage::BucketMoved if last.to == to => {
                return Ok(MoveBucketResponse { moved: Some(last), is_there: false });
            }
            BucketStage::BucketMoving | BucketStage::BucketMoved | BucketStage::BucketStays => {
                let why = format!("bucket `{name}` is being moved from group {} to {}", last.from, last.to);
                return Err(Failure::invalid(format!("{why}: wait for that, or give it up first")).into());
            }
            BucketStage::BucketLive | BucketStage::BucketMaking | BucketStage::BucketDropping => {}
        }
        // The number is drawn as for a bucket: no attempt is numbered like one that a root before a forced
        // reset has begun.
        let attempt = draw_number(apply)?;
        let moved = Some(BucketMove { number: entry.number, attempt, from: entry.group, to });
        entry.last_move =
            Some(LastMove { moved, since_ms: apply.now_ms, undone: String::new(), epoch: entry.epoch });
        entry.set_stage(BucketStage::BucketMoving);
        let key = bucket_key(&volume, &name);
        apply.tables.put(unsettled_key(BucketNumber(entry.number)), key.clone());
        apply.tables.put(key, entry.encode_to_vec());
        Ok(MoveBucketResponse { moved, is_there: false })
    }
}
