//! A bucket that the root has made is in this group from here on. One that is here already stays as it is.

use super::create_bucket::hold;
use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, record_key};
use proto::Failure;
use proto::om::{BucketRecord, HoldBucketRequest, HoldBucketResponse};

pub(crate) struct HoldBucket;

impl Operation for HoldBucket {
    type Request = HoldBucketRequest;
    type Command = HoldBucketRequest;
    type Response = HoldBucketResponse;
    wire!(HoldBucket);

    fn prepare(request: HoldBucketRequest, _: Fresh) -> Result<HoldBucketRequest, Failure> {
        match (&request.place, &request.bucket) {
            (Some(place), Some(_)) if place.number != 0 => Ok(request),
            _ => Err(Failure::invalid("the request has no bucket")),
        }
    }

    fn apply(apply: &mut Apply<'_, '_>, command: HoldBucketRequest) -> Result<HoldBucketResponse, Refusal> {
        let HoldBucketRequest { place, bucket } = command;
        let place = place.unwrap_or_default();
        if apply.tables.get(&record_key(BucketNumber(place.number)))?.is_none() {
            let (id, epoch) = (place.number, place.epoch);
            hold(apply, BucketRecord { id, bucket, epoch, ..BucketRecord::default() });
        }
        Ok(HoldBucketResponse {})
    }
}
