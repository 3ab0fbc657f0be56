use super::{Query, Reach};
use crate::tables::{Refusal, bucket_existing};
use proto::om::{HeadBucketRequest, HeadBucketResponse};
use statedb::Db;

/// Whether a bucket exists.
pub(crate) struct HeadBucket;

impl Query for HeadBucket {
    type Request = HeadBucketRequest;
    type Response = HeadBucketResponse;
    const REACH: Reach = Reach::Records;

    fn read(db: &Db, request: HeadBucketRequest) -> Result<HeadBucketResponse, Refusal> {
        let (_, bucket) = bucket_existing(db, &request.volume, &request.bucket)?;
        Ok(HeadBucketResponse { bucket: Some(bucket) })
    }
}
