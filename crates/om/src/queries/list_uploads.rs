use super::scan::Scan;
use super::{Query, Reach, named};
use crate::rules::page_limit;
use crate::tables::{
    InGroup, Refusal, bucket_number, decode, upload_key, uploads_after_key, uploads_with_prefix,
};
use proto::om::{ListUploadsRequest, ListUploadsResponse};
use statedb::Db;

/// A page of the uploads in progress, by key and then by id. Strictly after `after_key` and `after_upload`;
/// without the latter, after all uploads to that key.
pub(crate) struct ListUploads;

impl Query for ListUploads {
    type Request = ListUploadsRequest;
    type Response = ListUploadsResponse;
    const REACH: Reach = Reach::Page;

    fn read(
        db: &Db,
        place: Option<InGroup>,
        request: ListUploadsRequest,
    ) -> Result<ListUploadsResponse, Refusal> {
        let bucket = bucket_number(db, named(place, &request.volume, &request.bucket))?;
        let limit = page_limit(request.limit);
        let prefix = uploads_with_prefix(bucket, &request.prefix);
        let from = match (request.after_key.is_empty(), request.after_upload.is_empty()) {
            (true, _) => prefix.clone(),
            (false, true) => uploads_after_key(bucket, &request.after_key),
            (false, false) => {
                [&upload_key(bucket, &request.after_key, &request.after_upload)[..], b"\0"].concat()
            }
        };
        let mut scan = Scan::new(db, &prefix, &from);
        let mut response = ListUploadsResponse::default();
        while let Some((key, value)) = scan.record()? {
            if response.uploads.len() == limit {
                response.truncated = true;
                break;
            }
            response.uploads.push(decode(key, value)?);
            scan.step();
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::ops::{CommitPart, CreateUpload};
    use crate::queries::ListParts;
    use bytes::Bytes;
    use proto::om::{CommitPartRequest, CreateUploadRequest, ListPartsRequest, Part};

    fn create(namespace: &mut Namespace, key: &'static [u8]) -> String {
        let (volume, bucket) = ("s3v".into(), "photos".into());
        let request = CreateUploadRequest { volume, bucket, key: Bytes::from_static(key), attributes: None };
        namespace.run::<CreateUpload>(request).unwrap().upload
    }

    fn list(namespace: &Namespace, prefix: &[u8], after: (&[u8], &str), limit: u32) -> (Vec<String>, bool) {
        let request = ListUploadsRequest {
            volume: "s3v".into(),
            bucket: "photos".into(),
            prefix: Bytes::copy_from_slice(prefix),
            after_key: Bytes::copy_from_slice(after.0),
            after_upload: after.1.to_owned(),
            limit,
        };
        let response = ListUploads::read(&namespace.db, None, request).unwrap();
        (response.uploads.into_iter().map(|upload| upload.upload).collect(), response.truncated)
    }

    #[test]
    fn uploads_come_by_key_then_by_id() {
        let mut namespace = Namespace::new();
        let zero = create(&mut namespace, b"a\0");
        let first = create(&mut namespace, b"a");
        let second = create(&mut namespace, b"a");
        let other = create(&mut namespace, b"b");
        let all = [&first, &second, &zero, &other].map(String::clone);
        assert_eq!(list(&namespace, b"", (b"", ""), 0), (all.to_vec(), false));
        assert_eq!(list(&namespace, b"", (b"", ""), 3), (all[..3].to_vec(), true));
        assert_eq!(list(&namespace, b"", (b"a", &first), 9), (all[1..].to_vec(), false));
        assert_eq!(list(&namespace, b"", (b"a", ""), 9), (all[2..].to_vec(), false));
        assert_eq!(list(&namespace, b"a", (b"", ""), 9), (all[..3].to_vec(), false));
        assert_eq!(list(&namespace, b"b", (b"a", ""), 9), (all[3..].to_vec(), false));
    }

    #[test]
    fn parts_come_by_number() {
        let mut namespace = Namespace::new();
        let upload = create(&mut namespace, b"a");
        for number in [300, 2, 10_000, 1] {
            let part =
                Part { number, size: 1, etag: "0".repeat(32), pieces: pieces(1, 1), ..Part::default() };
            let (volume, bucket, key, upload) = ("s3v".into(), "photos".into(), "a".into(), upload.clone());
            let request = CommitPartRequest { volume, bucket, key, upload, part: Some(part) };
            namespace.run::<CommitPart>(request).unwrap();
        }
        let list = |after: u32, limit: u32| {
            let (volume, bucket, key, upload) = ("s3v".into(), "photos".into(), "a".into(), upload.clone());
            let request = ListPartsRequest { volume, bucket, key, upload, after, limit };
            let response = ListParts::read(&namespace.db, None, request).unwrap();
            assert!(response.parts.iter().all(|part| part.pieces.is_empty()));
            (response.parts.iter().map(|part| part.number).collect::<Vec<_>>(), response.truncated)
        };
        assert_eq!(list(0, 0), (vec![1, 2, 300, 10_000], false));
        assert_eq!(list(0, 2), (vec![1, 2], true));
        assert_eq!(list(2, 2), (vec![300, 10_000], false));
        assert_eq!(list(u32::MAX, 2), (vec![], false));
    }
}
