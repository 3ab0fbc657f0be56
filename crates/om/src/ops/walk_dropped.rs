//! Uploads that were in progress when their bucket was deleted end, a few at a time; their parts' blocks are
//! filed.

use super::row_portion::RowPortion;
use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, dropped_key, record_key};
use proto::Failure;
use proto::om::{WalkDroppedCommand, WalkDroppedReply};

/// The most rows that one command deletes. Part of the replicated state: all members delete the same.
const ROWS_AT_ONCE: usize = 500;

pub(crate) struct WalkDropped;

impl Operation for WalkDropped {
    type Request = WalkDroppedCommand;
    type Command = WalkDroppedCommand;
    type Response = WalkDroppedReply;
    wire!(WalkDropped);

    fn prepare(request: WalkDroppedCommand, _: Fresh) -> Result<WalkDroppedCommand, Failure> {
        Ok(request)
    }

    /// Deletes some rows. `after` is the last row that a command before deleted. The bucket's number is not
    /// reachable any more: nothing comes under it.
    fn apply(apply: &mut Apply<'_, '_>, command: WalkDroppedCommand) -> Result<WalkDroppedReply, Refusal> {
        let number = BucketNumber(command.number);
        let is_dropped = apply.tables.get(&dropped_key(number))?.is_some();
        if !is_dropped || apply.tables.get(&record_key(number))?.is_some() {
            return Ok(WalkDroppedReply { is_done: true, ..WalkDroppedReply::default() });
        }
        let portion =
            RowPortion::read(apply.tables, number, &command.after, ROWS_AT_ONCE, command.pieces_max)?;
        if portion.is_last {
            apply.tables.delete(dropped_key(number));
        }
        let reply = WalkDroppedReply { last: portion.last(), is_done: portion.is_last };
        for (row, pieces) in portion.rows {
            apply.delete_pieces(&row, pieces);
            apply.tables.delete(row);
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::ops::{CommitPart, CreateUpload, DeleteBucket};
    use bytes::Bytes;
    use proto::om::*;

    #[test]
    fn parts_of_a_dropped_bucket_are_filed_in_bounded_steps() {
        let parts = ROWS_AT_ONCE as u32 + 20;
        let mut namespace = Namespace::new();
        let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), Bytes::from("a"));
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: None,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        for number in 1..=parts {
            let pieces = pieces(number.into(), 10);
            let part = Some(Part { number, size: 10, etag: "0".repeat(32), pieces, ..Part::default() });
            let (volume, bucket, key, upload) = (volume.clone(), bucket.clone(), key.clone(), upload.clone());
            namespace.run::<CommitPart>(CommitPartRequest { volume, bucket, key, upload, part }).unwrap();
        }
        let number = namespace.bucket("photos").unwrap().0;
        let walk_some = |namespace: &mut Namespace, after, pieces_max| {
            namespace.run::<WalkDropped>(WalkDroppedCommand { number, after, pieces_max }).unwrap()
        };
        let walk = |namespace: &mut Namespace, after| walk_some(namespace, after, 0);
        assert!(walk(&mut namespace, Bytes::new()).is_done, "it is there");
        assert_eq!(namespace.records(b"p").len(), parts as usize);
        namespace.run::<DeleteBucket>(DeleteBucketRequest { volume, bucket }).unwrap();
        let walked = walk_some(&mut namespace, Bytes::new(), 5);
        assert!(!walked.is_done);
        assert_eq!(namespace.records(b"p").len(), parts as usize - 5, "each part has a piece");
        let walked = walk(&mut namespace, walked.last);
        assert!(!walked.is_done);
        assert_eq!(namespace.records(b"p").len(), 15);
        assert!(walk(&mut namespace, walked.last).is_done);
        for table in [b"p", b"u", b"x"] {
            assert_eq!(namespace.records(table), []);
        }
        assert_eq!(namespace.deleted_containers(), (1..=u64::from(parts)).collect::<Vec<_>>());
        assert!(walk(&mut namespace, Bytes::new()).is_done);
    }
}
