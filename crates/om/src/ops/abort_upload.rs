//! Ends an upload without an object.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks;
use crate::rules::check_volume;
use crate::tables::{BucketNumber, Refusal, decode, parts_prefix, upload_existing, upload_key};
use proto::Failure;
use proto::om::{AbortUploadRequest, AbortUploadResponse, Part};

pub(crate) struct AbortUpload;

impl Operation for AbortUpload {
    type Request = AbortUploadRequest;
    type Command = AbortUploadRequest;
    type Response = AbortUploadResponse;
    wire!(AbortUpload);

    fn prepare(request: AbortUploadRequest, _: Fresh) -> Result<AbortUploadRequest, Failure> {
        check_volume(&request.volume)?;
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: AbortUploadRequest) -> Result<AbortUploadResponse, Refusal> {
        let AbortUploadRequest { volume, bucket, key, upload } = command;
        let bucket = apply.bucket(&volume, &bucket)?;
        upload_existing(apply.tables, bucket, &key, &upload)?;
        let parts = take_parts(apply, bucket, &key, &upload)?;
        apply.delete_pieces(&[], parts.into_iter().flat_map(|part| part.pieces).collect());
        Ok(AbortUploadResponse {})
    }
}

/// Removes an upload with its parts (at most 10 000) and returns these, in order. Nothing names their blocks
/// then.
pub(super) fn take_parts(
    apply: &mut Apply<'_, '_>,
    bucket: BucketNumber,
    key: &[u8],
    upload: &str,
) -> anyhow::Result<Vec<Part>> {
    let records: Vec<_> = apply.tables.scan(&parts_prefix(bucket, upload)).collect::<anyhow::Result<_>>()?;
    let mut parts = Vec::with_capacity(records.len());
    for (table_key, value) in records {
        let part: Part = decode(&table_key, &value)?;
        blocks::unname(apply.tables, &table_key, &part.pieces);
        apply.tables.delete(table_key);
        parts.push(part);
    }
    apply.tables.delete(upload_key(bucket, key, upload));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::ops::{CommitPart, CreateUpload};
    use proto::Code;
    use proto::om::{CommitPartRequest, CreateUploadRequest};

    #[test]
    fn nothing_but_deleted_pieces_is_left_of_an_aborted_upload() {
        let mut namespace = Namespace::new();
        let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), bytes::Bytes::from("a"));
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: None,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        for number in 1..=3 {
            let pieces = pieces(number.into(), 10);
            let part = Some(Part { number, size: 10, etag: "0".repeat(32), pieces, ..Part::default() });
            let (volume, bucket, key, upload) = (volume.clone(), bucket.clone(), key.clone(), upload.clone());
            namespace.run::<CommitPart>(CommitPartRequest { volume, bucket, key, upload, part }).unwrap();
        }
        let abort = AbortUploadRequest { volume, bucket, key, upload };
        namespace.run::<AbortUpload>(abort.clone()).unwrap();
        assert_eq!((namespace.records(b"u"), namespace.records(b"p")), (vec![], vec![]));
        assert_eq!(namespace.deleted_containers(), [1, 2, 3]);
        namespace.check_refused::<AbortUpload>(abort, Code::NoSuchUpload);
    }
}
