//! A bucket that the root has made is in this group from here on. One that is here already stays as it is,
//! and one that this group has let go of does not come back: the root's word may be late.

use super::create_bucket::hold;
use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, let_go, record_key};
use proto::om::{BucketPlace, BucketRecord, HoldBucketRequest, HoldBucketResponse};
use proto::{Code, Failure};

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
        let HoldBucketRequest { place, bucket, fences } = command;
        apply.check_fenced(fences)?;
        let BucketPlace { number: id, epoch, .. } = place.unwrap_or_default();
        let number = BucketNumber(id);
        if let_go(apply.tables, number)?.is_some_and(|last| epoch <= last) {
            return Ok(HoldBucketResponse {});
        }
        match apply.tables.message::<BucketRecord>(&record_key(number))? {
            Some(there) if there.bucket != bucket => {
                let name = there.bucket.unwrap_or_default().name;
                let why = format!("bucket {id} is here, and is `{name}`: numbers were given out twice");
                return Err(Failure::new(Code::Internal, why).into());
            }
            Some(_) => {}
            None => hold(apply, BucketRecord { id, bucket, epoch, ..BucketRecord::default() }),
        }
        Ok(HoldBucketResponse {})
    }
}
