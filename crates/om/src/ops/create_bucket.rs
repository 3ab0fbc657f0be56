//! A new, empty bucket with a number that no bucket had before. In the root itself it is there at once;
//! another group is asked to hold it first ([`crate::buckets`]), and until then its name is taken and it is
//! not there.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::{check_bucket_name, check_volume};
use crate::tables::{
    BucketNumber, FIRST_BUCKET_KEY, NEXT_BUCKET_KEY, ROOT, Read, Refusal, bucket_key, check_places_known,
    entry_place, next_bucket, record_key, unsettled_key, volume_existing,
};
use prost::Message;
use proto::om::{Bucket, BucketEntry, BucketRecord, BucketStage, CreateBucketRequest, CreateBucketResponse};
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

    /// The request without its group: at each try the leader may choose another one.
    fn asked(request: &CreateBucketRequest) -> Vec<u8> {
        CreateBucketRequest { group: None, ..request.clone() }.encode_to_vec()
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: CreateBucketRequest,
    ) -> Result<CreateBucketResponse, Refusal> {
        let CreateBucketRequest { volume, bucket: name, group } = command;
        volume_existing(apply.tables, &volume)?;
        let key = bucket_key(&volume, &name);
        check_places_known(apply.tables)?;
        let there: Option<BucketEntry> = apply.tables.message(&key)?;
        if let Some(there) = there {
            check_settled(&there, &name)?;
            return Err(Failure::new(Code::BucketExists, format!("bucket `{name}` exists already")).into());
        }
        // Entries of before there were several groups name none.
        let (is_placed, group) = (group.is_some(), group.unwrap_or(ROOT));
        let bucket = Some(Bucket { volume, name, created_ms: apply.now_ms });
        let entry = make(apply, key, group, bucket.clone())?;
        // A sender of before there were several groups was answered no place, and must be remembered so.
        Ok(CreateBucketResponse { bucket, place: is_placed.then(|| entry_place(&entry)) })
    }
}

/// Makes a bucket with a number of its own: in the root itself it is there, another group is yet to hold it.
pub(super) fn make(
    apply: &mut Apply<'_, '_>,
    key: Vec<u8>,
    group: u64,
    bucket: Option<Bucket>,
) -> anyhow::Result<BucketEntry> {
    let number = draw_number(apply)?;
    let mut entry = BucketEntry { number, bucket: bucket.clone(), group, ..BucketEntry::default() };
    if group == ROOT {
        hold(apply, BucketRecord { id: number, bucket, ..BucketRecord::default() });
    } else {
        entry.set_stage(BucketStage::BucketMaking);
        apply.tables.put(unsettled_key(BucketNumber(number)), key.clone());
    }
    apply.tables.put(key, entry.encode_to_vec());
    Ok(entry)
}

/// Refuses, for the moment, a bucket of which it is not settled whether it is there.
pub(super) fn check_settled(entry: &BucketEntry, name: &str) -> Result<(), Refusal> {
    let what = match entry.stage() {
        BucketStage::BucketLive
        | BucketStage::BucketMoving
        | BucketStage::BucketMoved
        | BucketStage::BucketStays => return Ok(()),
        BucketStage::BucketMaking => "made",
        BucketStage::BucketDropping => "deleted",
    };
    Err(Refusal::Passing(Failure::new(Code::Unavailable, format!("bucket `{name}` is being {what}"))))
}

/// Has this group hold a bucket from here on.
pub(super) fn hold(apply: &mut Apply<'_, '_>, record: BucketRecord) {
    apply.tables.put(record_key(BucketNumber(record.id)), record.encode_to_vec());
}

pub(super) fn draw_number(apply: &mut Apply<'_, '_>) -> anyhow::Result<u64> {
    // A root that was founded anew goes on past all that the one before it gave out.
    let next = next_bucket(apply.tables)?;
    let number = next.unwrap_or(apply.now_ms.max(1));
    if next.is_none() {
        apply.tables.put(FIRST_BUCKET_KEY.to_vec(), number.to_le_bytes().to_vec());
    }
    apply.tables.put(NEXT_BUCKET_KEY.to_vec(), (number + 1).to_le_bytes().to_vec());
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::DeleteBucket;
    use crate::ops::testing::Namespace;
    use proto::om::DeleteBucketRequest;

    /// The time of the first command of a namespace.
    const FIRST_MS: u64 = 1001;

    fn request(volume: &str, bucket: &str) -> CreateBucketRequest {
        CreateBucketRequest { volume: volume.into(), bucket: bucket.into(), group: None }
    }

    #[test]
    fn a_bucket_is_created_once() {
        let mut namespace = Namespace::new();
        let bucket = namespace.run::<CreateBucket>(request("s3v", "music")).unwrap().bucket.unwrap();
        assert_eq!((bucket.name.as_str(), bucket.created_ms), ("music", namespace.now_ms));
        namespace.check_refused::<CreateBucket>(request("s3v", "music"), Code::BucketExists);
        namespace.check_refused::<CreateBucket>(request("s3v", "Music"), Code::Invalid);
        namespace.check_refused::<CreateBucket>(request("vol1", "music"), Code::NoSuchVolume);
    }

    #[test]
    fn a_bucket_number_is_never_used_again() {
        let mut namespace = Namespace::new();
        let first = namespace.bucket("photos").unwrap();
        let delete = DeleteBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        namespace.run::<DeleteBucket>(delete).unwrap();
        namespace.run::<CreateBucket>(request("s3v", "photos")).unwrap();
        let second = namespace.bucket("photos").unwrap();
        assert_eq!((first.0, second.0), (FIRST_MS, FIRST_MS + 1), "the first is the time");
    }
}
