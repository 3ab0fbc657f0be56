use super::{check_still_here, named};
use crate::tables::{InGroup, Read, Refusal, bucket_number, key_key};
use proto::om::{Key, Lookup};
use proto::{Code, Failure};

/// A key with its pieces.
pub(crate) fn lookup_key(db: &impl Read, place: Option<InGroup>, lookup: &Lookup) -> Result<Key, Refusal> {
    let bucket = bucket_number(db, named(place, &lookup.volume, &lookup.bucket))?;
    if let Some(key) = db.message(&key_key(bucket, &lookup.key))? {
        return Ok(key);
    }
    check_still_here(db, place)?;
    let message = format!("no key `{}` in bucket `{}`", lookup.key.escape_ascii(), lookup.bucket);
    Err(Failure::new(Code::NoSuchKey, message).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::queries::{HeadBucket, Query};
    use proto::om::HeadBucketRequest;

    #[test]
    fn keys_and_buckets_are_found_or_named_as_missing() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 5).unwrap();
        let lookup = |bucket: &str, key: &'static str| {
            let (volume, bucket, key) = ("s3v".into(), bucket.into(), key.into());
            match lookup_key(&namespace.db, None, &Lookup { place: None, volume, bucket, key }) {
                Ok(key) => Ok(key.pieces),
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
