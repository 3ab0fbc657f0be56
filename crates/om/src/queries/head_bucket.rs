use super::{Query, Reach};
use crate::tables::{InGroup, Refusal, bucket_entry, entry_place};
use proto::om::{HeadBucketRequest, HeadBucketResponse};
use statedb::Db;

/// Whether a bucket exists, and where it is. A bucket that is being deleted is there until it is gone.
pub(crate) struct HeadBucket;

impl Query for HeadBucket {
    type Request = HeadBucketRequest;
    type Response = HeadBucketResponse;
    const REACH: Reach = Reach::Records;

    fn read(db: &Db, _: Option<InGroup>, request: HeadBucketRequest) -> Result<HeadBucketResponse, Refusal> {
        let entry = bucket_entry(db, &request.volume, &request.bucket)?;
        Ok(HeadBucketResponse {
            place: Some(entry_place(&entry)),
            stage: entry.stage,
            bucket: entry.bucket,
            last_move: entry.last_move,
        })
    }
}
