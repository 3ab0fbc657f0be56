use super::{Query, Reach, named};
use crate::tables::{InGroup, Refusal, bucket_record};
use proto::om::{StatBucketRequest, StatBucketResponse};
use statedb::Db;

/// The number of a bucket's keys, and their bytes.
pub(crate) struct StatBucket;

impl Query for StatBucket {
    type Request = StatBucketRequest;
    type Response = StatBucketResponse;
    const REACH: Reach = Reach::Records;

    fn read(
        db: &Db,
        place: Option<InGroup>,
        request: StatBucketRequest,
    ) -> Result<StatBucketResponse, Refusal> {
        let record = bucket_record(db, named(place, &request.volume, &request.bucket))?;
        Ok(StatBucketResponse { keys: record.keys, bytes: record.bytes, ..StatBucketResponse::default() })
    }
}
