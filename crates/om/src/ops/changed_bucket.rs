use super::Apply;
use crate::overlay::Overlay;
use crate::tables::{BucketNumber, Refusal, record_key};
use prost::Message;
use proto::om::{BucketRecord, Key};

/// A bucket whose keys a command changes: how many there are, and their bytes, stand in its record.
pub(crate) struct ChangedBucket {
    row: Vec<u8>,
    was: BucketRecord,
    is: BucketRecord,
}

impl ChangedBucket {
    /// The bucket, or the refusal that there is none here.
    pub(crate) fn find(
        apply: &mut Apply<'_, '_>,
        volume: &str,
        bucket: &str,
    ) -> Result<ChangedBucket, Refusal> {
        let was = apply.record(volume, bucket)?;
        Ok(ChangedBucket { row: record_key(BucketNumber(was.id)), is: was.clone(), was })
    }

    pub(crate) fn number(&self) -> BucketNumber {
        BucketNumber(self.is.id)
    }

    /// Counts that a key was `was` and is `is`, modulo 2^64, so that what went in comes out again, whatever
    /// sizes clients say.
    pub(crate) fn count(&mut self, was: Option<&Key>, is: Option<&Key>) {
        let (keys, bytes) =
            (|key: Option<&Key>| u64::from(key.is_some()), |key: Option<&Key>| key.map_or(0, |key| key.size));
        self.is.keys = self.is.keys.wrapping_sub(keys(was)).wrapping_add(keys(is));
        self.is.bytes = self.is.bytes.wrapping_sub(bytes(was)).wrapping_add(bytes(is));
    }

    pub(crate) fn put(self, tables: &mut Overlay<'_>) {
        if self.is != self.was {
            tables.put(self.row, self.is.encode_to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::CommitPart;
    use crate::ops::testing::{Namespace, commit_request, pieces};
    use crate::ops::{CommitKey, CompleteUpload, CreateUpload, DeleteKeys};
    use crate::tables::{BucketNumber, Read, record_key};
    use crate::upgrade::count;
    use bytes::Bytes;
    use proto::Code;
    use proto::om::{
        BucketRecord, CommitPartRequest, CompleteUploadRequest, CompletedPart, CreateUploadRequest,
        DeleteKeysRequest, Part, Precondition,
    };

    /// A bucket's counts by its record, checked against its keys.
    fn counted(namespace: &Namespace) -> (u64, u64) {
        let row = record_key(namespace.bucket("photos").unwrap());
        let record: BucketRecord = namespace.db.message(&row).unwrap().unwrap();
        let counted = (record.keys, record.bytes);
        assert_eq!(counted, count(&namespace.db, BucketNumber(record.id)).unwrap());
        counted
    }

    #[test]
    fn a_bucket_says_how_much_is_in_it() {
        let mut namespace = Namespace::new();
        assert_eq!(counted(&namespace), (0, 0));
        namespace.commit("a", 1).unwrap();
        namespace.commit("b", 2).unwrap();
        assert_eq!(counted(&namespace), (2, 20));
        let mut larger = commit_request("a", 3);
        let key = larger.key.as_mut().unwrap();
        (key.size, key.pieces) = (70, pieces(3, 70));
        namespace.run::<CommitKey>(larger.clone()).unwrap();
        assert_eq!(counted(&namespace), (2, 80));
        larger.precondition = Some(Precondition { absent: true, ..Precondition::default() });
        namespace.check_refused::<CommitKey>(larger, Code::PreconditionFailed);
        let (volume, bucket) = ("s3v".to_owned(), "photos".to_owned());
        let keys = ["a", "nothing", "a"].map(Bytes::from).to_vec();
        let delete = DeleteKeysRequest { volume, bucket, keys, precondition: None };
        namespace.run_as::<DeleteKeys>(77, delete.clone()).unwrap();
        assert_eq!(counted(&namespace), (1, 10));
        namespace.commit("a", 4).unwrap();
        namespace.run_as::<DeleteKeys>(77, delete).unwrap();
        assert_eq!(counted(&namespace), (2, 20), "a request that comes again changes nothing");
    }

    #[test]
    fn parts_count_once_they_are_an_object() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), Bytes::from("a"));
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: None,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        let etag = "0".repeat(32);
        let part =
            Part { number: 1, size: 5000, etag: etag.clone(), pieces: pieces(7, 5000), ..Part::default() };
        let (volume, bucket, key) = (volume, bucket, key);
        let request = CommitPartRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            upload: upload.clone(),
            part: Some(part),
        };
        namespace.run::<CommitPart>(request).unwrap();
        assert_eq!(counted(&namespace), (1, 10));
        let parts = vec![CompletedPart { number: 1, etag }];
        let complete =
            CompleteUploadRequest { volume, bucket, key, upload, parts, ..CompleteUploadRequest::default() };
        namespace.run::<CompleteUpload>(complete).unwrap();
        assert_eq!(counted(&namespace), (1, 5000));
    }

    #[test]
    fn sizes_that_no_sum_holds_come_out_as_they_went_in() {
        let mut namespace = Namespace::new();
        for (key, size) in [("a", u64::MAX), ("b", u64::MAX - 1)] {
            let mut request = commit_request(key, 1);
            let key = request.key.as_mut().unwrap();
            (key.size, key.pieces) = (size, pieces(1, size));
            namespace.run::<CommitKey>(request).unwrap();
        }
        assert_eq!(counted(&namespace).0, 2);
        namespace.commit("a", 2).unwrap();
        namespace.commit("b", 3).unwrap();
        assert_eq!(counted(&namespace), (2, 20));
    }
}
