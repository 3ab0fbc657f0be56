//! A new, empty bucket with a number that no bucket had before.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::{check_bucket_name, check_volume};
use crate::tables::{NEXT_BUCKET_KEY, Read, Refusal, bucket_key, bucket_record};
use anyhow::Context;
use prost::Message;
use proto::om::{Bucket, BucketRecord, CreateBucketRequest, CreateBucketResponse};
use proto::{Code, Failure};

pub(crate) struct CreateBucket;

impl Operation for CreateBucket {
    type Request = CreateBucketRequest;
    type Command = CreateBucketRequest;
    type Response = CreateBucketResponse;
    wire!(CreateBucket);

    fn prepare(request: CreateBucketRequest, _: Fresh) -> Result<CreateBucketRequest, Failure> {
        check_volume(&request.volume)?;
        check_bucket_name(&request.bucket)?;
        Ok(request)
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: CreateBucketRequest,
    ) -> Result<CreateBucketResponse, Refusal> {
        let CreateBucketRequest { volume, bucket: name } = command;
        if bucket_record(apply.tables, &volume, &name)?.is_some() {
            return Err(Failure::new(Code::BucketExists, format!("bucket `{name}` exists already")).into());
        }
        let id = draw_number(apply)?;
        let key = bucket_key(&volume, &name);
        let bucket = Bucket { volume, name, created_ms: apply.now_ms };
        let record = BucketRecord { id, bucket: Some(bucket.clone()), ..BucketRecord::default() };
        apply.tables.put(key, record.encode_to_vec());
        Ok(CreateBucketResponse { bucket: Some(bucket) })
    }
}

fn draw_number(apply: &mut Apply<'_, '_>) -> anyhow::Result<u64> {
    let number = match apply.tables.get(NEXT_BUCKET_KEY)? {
        Some(next) => {
            u64::from_le_bytes(next.as_slice().try_into().context("the next bucket number has 8 bytes")?)
        }
        None => 1,
    };
    apply.tables.put(NEXT_BUCKET_KEY.to_vec(), (number + 1).to_le_bytes().to_vec());
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::DeleteBucket;
    use crate::ops::testing::Namespace;
    use crate::tables::bucket_number;
    use proto::om::DeleteBucketRequest;

    fn request(volume: &str, bucket: &str) -> CreateBucketRequest {
        CreateBucketRequest { volume: volume.into(), bucket: bucket.into() }
    }

    #[test]
    fn a_bucket_is_created_once() {
        let mut namespace = Namespace::new();
        let bucket = namespace.run::<CreateBucket>(request("s3v", "music")).unwrap().bucket.unwrap();
        assert_eq!((bucket.name.as_str(), bucket.created_ms), ("music", namespace.now_ms));
        namespace.check_refused::<CreateBucket>(request("s3v", "music"), Code::BucketExists);
        namespace.check_refused::<CreateBucket>(request("s3v", "Music"), Code::Invalid);
        namespace.check_refused::<CreateBucket>(request("vol1", "music"), Code::NotFound);
    }

    #[test]
    fn a_bucket_number_is_never_used_again() {
        let mut namespace = Namespace::new();
        let first = bucket_number(&namespace.db, "s3v", "photos").unwrap();
        let delete = DeleteBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        namespace.run::<DeleteBucket>(delete).unwrap();
        namespace.run::<CreateBucket>(request("s3v", "photos")).unwrap();
        let second = bucket_number(&namespace.db, "s3v", "photos").unwrap();
        assert_eq!((first.0, second.0), (1, 2));
    }
}
