//! Deletes a bucket without keys. Uploads in progress end with it: they were filed under the bucket's number,
//! which is not reachable any more. Walking them here would make the command as long as their parts; a
//! [`DroppedBucket`] record leaves that to reclamation. The group that has the bucket decides whether it goes
//! ([`crate::buckets`]): what puts a key into it is refused from there on.

use super::create_bucket::check_settled;
use super::release_bucket::{Released, release};
use super::{Apply, Fresh, Operation, wire};
use crate::rules::check_volume;
use crate::tables::{
    BucketNumber, ROOT, Read, Refusal, bucket_key, check_places_known, entry_place, unsettled_key,
    volume_existing,
};
use prost::Message;
use proto::om::{BucketEntry, BucketStage, DeleteBucketRequest, DeleteBucketResponse};
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
        let key = bucket_key(&volume, &name);
        let missing = || Failure::new(Code::NoSuchBucket, format!("no bucket `{name}` in volume `{volume}`"));
        check_places_known(apply.tables)?;
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let Some(mut entry) = entry else {
            volume_existing(apply.tables, &volume)?;
            return Err(missing().into());
        };
        check_settled(&entry, &name)?;
        check_does_not_move(&entry, &name)?;
        let (number, place) = (BucketNumber(entry.number), entry_place(&entry));
        if entry.group == ROOT {
            return match release(apply, number, 0)? {
                Released::Gone => {
                    apply.tables.delete(key);
                    Ok(DeleteBucketResponse::default())
                }
                Released::HasKeys { .. } => Err(not_empty(&name).into()),
            };
        }
        entry.deletions += 1;
        let deletion = entry.deletions;
        entry.set_stage(BucketStage::BucketDropping);
        apply.tables.put(unsettled_key(number), key.clone());
        apply.tables.put(key, entry.encode_to_vec());
        Ok(DeleteBucketResponse { place: Some(place), deletion })
    }
}

/// Refuses, for the moment, a bucket that is being moved.
fn check_does_not_move(entry: &BucketEntry, name: &str) -> Result<(), Refusal> {
    match entry.stage() {
        BucketStage::BucketMoving | BucketStage::BucketMoved | BucketStage::BucketStays => {
            let why = format!("bucket `{name}` is being moved to another group of names");
            Err(Refusal::Passing(Failure::new(Code::NotYet, why)))
        }
        BucketStage::BucketLive | BucketStage::BucketMaking | BucketStage::BucketDropping => Ok(()),
    }
}

pub(crate) fn not_empty(bucket: &str) -> Failure {
    Failure::new(Code::BucketNotEmpty, format!("bucket `{bucket}` has keys"))
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
        let again = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
        namespace.run::<CreateBucket>(again).unwrap();
        let abort =
            AbortUploadRequest { volume: "s3v".into(), bucket: "photos".into(), key: "a".into(), upload };
        namespace.check_refused::<AbortUpload>(abort, Code::NoSuchUpload);
    }
}
