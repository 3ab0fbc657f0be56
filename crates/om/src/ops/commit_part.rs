//! Adds a part to an upload, or replaces it: the last one with a number counts.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks;
use crate::rules::{PARTS_MAX, check_key, check_pieces, check_volume, part_md5};
use crate::tables::{Read, Refusal, part_key, upload_existing};
use prost::Message;
use proto::Failure;
use proto::om::{CommitPartRequest, CommitPartResponse, Part};

pub(crate) struct CommitPart;

impl Operation for CommitPart {
    type Request = CommitPartRequest;
    type Command = CommitPartRequest;
    type Response = CommitPartResponse;
    wire!(CommitPart);

    fn prepare(request: CommitPartRequest, _: Fresh) -> Result<CommitPartRequest, Failure> {
        check_volume(&request.volume)?;
        check_key(&request.key)?;
        let part = request.part.as_ref().ok_or_else(|| Failure::invalid("the request has no part"))?;
        if !(1..=PARTS_MAX).contains(&part.number) {
            return Err(Failure::invalid(format!("part number {} is not in 1..={PARTS_MAX}", part.number)));
        }
        part_md5(&part.etag)?;
        check_pieces(&part.pieces, part.size)?;
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: CommitPartRequest) -> Result<CommitPartResponse, Refusal> {
        let bucket = apply.bucket(&command.volume, &command.bucket)?;
        upload_existing(apply.tables, bucket, &command.key, &command.upload)?;
        let part = command.part.ok_or_else(|| Failure::invalid("the command has no part"))?;
        let table_key = part_key(bucket, &command.upload, part.number);
        let replaced: Option<Part> = apply.tables.message(&table_key)?;
        apply.check_takes(&part.pieces)?;
        let part = Part { modified_ms: apply.now_ms, ..part };
        blocks::name(apply.tables, &table_key, &part.pieces);
        apply.tables.put(table_key.clone(), part.encode_to_vec());
        if let Some(replaced) = replaced {
            apply.delete_replaced(&table_key, replaced.pieces, &part.pieces);
        }
        Ok(CommitPartResponse { modified_ms: apply.now_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CreateUpload;
    use crate::ops::testing::{Namespace, pieces};
    use proto::Code;
    use proto::om::CreateUploadRequest;

    fn started() -> (Namespace, CommitPartRequest) {
        let mut namespace = Namespace::new();
        let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), bytes::Bytes::from("a"));
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: None,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        let part =
            Part { number: 1, size: 10, etag: "0".repeat(32), pieces: pieces(1, 10), ..Part::default() };
        (namespace, CommitPartRequest { volume, bucket, key, upload, part: Some(part) })
    }

    #[test]
    fn a_part_replaces_the_one_with_its_number() {
        let (mut namespace, mut request) = started();
        namespace.run::<CommitPart>(request.clone()).unwrap();
        namespace.run::<CommitPart>(request.clone()).unwrap();
        assert_eq!(namespace.deleted_containers(), [0; 0], "the same part again keeps its blocks");
        request.part.as_mut().unwrap().pieces = pieces(2, 10);
        namespace.run::<CommitPart>(request).unwrap();
        assert_eq!(namespace.deleted_containers(), [1]);
        assert_eq!(namespace.records(b"p").len(), 1);
    }

    #[test]
    fn malformed_parts_are_refused() {
        let (mut namespace, good) = started();
        let mut check = |code, change: &dyn Fn(&mut CommitPartRequest)| {
            let mut request = good.clone();
            change(&mut request);
            namespace.check_refused::<CommitPart>(request, code);
        };
        check(Code::Invalid, &|request| request.part = None);
        check(Code::Invalid, &|request| request.part.as_mut().unwrap().number = 0);
        check(Code::Invalid, &|request| request.part.as_mut().unwrap().number = 10_001);
        check(Code::Invalid, &|request| request.part.as_mut().unwrap().etag = "no md5".into());
        check(Code::Invalid, &|request| request.part.as_mut().unwrap().size = 9);
        check(Code::NoSuchUpload, &|request| request.upload = "f".repeat(32));
        check(Code::NoSuchUpload, &|request| request.upload = "f".into());
        check(Code::NoSuchUpload, &|request| request.key = "b".into());
        check(Code::NoSuchBucket, &|request| request.bucket = "music".into());
    }
}
