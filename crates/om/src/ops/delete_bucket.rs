//! Deletes a bucket without keys. Uploads in progress end with it: they were filed under the bucket's number,
//! which is not reachable any more. Walking them here would make the command as long as their parts; a
//! [`DroppedBucket`] record leaves that to reclamation.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::check_volume;
use crate::tables::{Refusal, bucket_existing, bucket_key, dropped_key, keys_prefix, uploads_prefix};
use prost::Message;
use proto::om::{DeleteBucketRequest, DeleteBucketResponse, DroppedBucket};
use proto::{Code, Failure};

pub(crate) struct DeleteBucket;

impl Operation for DeleteBucket {
    type Request = DeleteBucketRequest;
    type Command = DeleteBucketRequest;
    type Response = DeleteBucketResponse;
    wire!(DeleteBucket);

    fn prepare(request: DeleteBucketRequest, _: Fresh) -> Result<DeleteBucketRequest, Failure> {
        check_volume(&request.volume)?;
        Ok(request)
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: DeleteBucketRequest,
    ) -> Result<DeleteBucketResponse, Refusal> {
        let DeleteBucketRequest { volume, bucket: name } = command;
        let (number, bucket) = bucket_existing(apply.tables, &volume, &name)?;
        if apply.tables.scan(&keys_prefix(number)).next().transpose()?.is_some() {
            return Err(Failure::new(Code::BucketNotEmpty, format!("bucket `{name}` has keys")).into());
        }
        if apply.tables.scan(&uploads_prefix(number)).next().transpose()?.is_some() {
            let dropped = DroppedBucket { bucket: Some(bucket), deleted_ms: apply.now_ms };
            apply.tables.put(dropped_key(number), dropped.encode_to_vec());
        }
        apply.tables.delete(bucket_key(&volume, &name));
        Ok(DeleteBucketResponse {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::ops::{AbortUpload, CreateBucket, CreateUpload, DeleteKeys};
    use bytes::Bytes;
    use proto::om::{AbortUploadRequest, CreateBucketRequest, CreateUploadRequest, DeleteKeysRequest};

    fn delete(bucket: &str) -> DeleteBucketRequest {
        DeleteBucketRequest { volume: "s3v".into(), bucket: bucket.into() }
    }

    #[test]
    fn only_empty_buckets_are_deleted() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        namespace.check_refused::<DeleteBucket>(delete("photos"), Code::BucketNotEmpty);
        let keys = vec![Bytes::from("a")];
        let request =
            DeleteKeysRequest { volume: "s3v".into(), bucket: "photos".into(), keys, precondition: None };
        namespace.run::<DeleteKeys>(request).unwrap();
        namespace.run::<DeleteBucket>(delete("photos")).unwrap();
        namespace.check_refused::<DeleteBucket>(delete("photos"), Code::NoSuchBucket);
        assert_eq!(namespace.commit("a", 2).unwrap_err().code, Code::NoSuchBucket);
    }

    #[test]
    fn uploads_in_progress_end_with_the_bucket() {
        let mut namespace = Namespace::new();
        let create = CreateUploadRequest {
            volume: "s3v".into(),
            bucket: "photos".into(),
            key: "a".into(),
            attributes: None,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        namespace.run::<DeleteBucket>(delete("photos")).unwrap();
        assert_eq!(namespace.records(b"x").len(), 1, "reclamation must find the upload");
        let again = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        namespace.run::<CreateBucket>(again).unwrap();
        let abort =
            AbortUploadRequest { volume: "s3v".into(), bucket: "photos".into(), key: "a".into(), upload };
        namespace.check_refused::<AbortUpload>(abort, Code::NoSuchUpload);
    }
}
