use super::{Query, Reach, named};
use crate::tables::{InGroup, Read, Refusal, bucket_number, key_key};
use proto::om::{LookupKeyRequest, LookupKeyResponse};
use proto::{Code, Failure};
use statedb::Db;

/// A key with its pieces.
pub(crate) struct LookupKey;

impl Query for LookupKey {
    type Request = LookupKeyRequest;
    type Response = LookupKeyResponse;
    const REACH: Reach = Reach::Records;

    fn read(
        db: &Db,
        place: Option<InGroup>,
        request: LookupKeyRequest,
    ) -> Result<LookupKeyResponse, Refusal> {
        let bucket = bucket_number(db, named(place, &request.volume, &request.bucket))?;
        let key = db.message(&key_key(bucket, &request.key))?;
        if key.is_none() {
            let message = format!("no key `{}` in bucket `{}`", request.key.escape_ascii(), request.bucket);
            return Err(Failure::new(Code::NoSuchKey, message).into());
        }
        Ok(LookupKeyResponse { key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::queries::HeadBucket;
    use proto::om::HeadBucketRequest;

    #[test]
    fn keys_and_buckets_are_found_or_named_as_missing() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 5).unwrap();
        let lookup = |bucket: &str, key: &'static str| {
            let request = LookupKeyRequest { volume: "s3v".into(), bucket: bucket.into(), key: key.into() };
            match LookupKey::read(&namespace.db, None, request) {
                Ok(response) => Ok(response.key.unwrap().pieces),
                Err(Refusal::Failure(failure) | Refusal::Passing(failure)) => Err(failure.code),
                Err(Refusal::Broken(error)) => panic!("{error:#}"),
            }
        };
        assert_eq!(lookup("photos", "a"), Ok(pieces(5, 10)));
        assert_eq!(lookup("photos", "b"), Err(Code::NoSuchKey));
        assert_eq!(lookup("music", "a"), Err(Code::NoSuchBucket));
        let head = HeadBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        assert_eq!(HeadBucket::read(&namespace.db, None, head).unwrap().bucket.unwrap().name, "photos");
    }
}
