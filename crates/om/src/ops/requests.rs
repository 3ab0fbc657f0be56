//! Which requests took effect lately, and what they were answered: a request that its sender repeats because the answer was lost takes
//! effect once, and is answered as it was then.

use crate::overlay::Overlay;
use crate::tables::{QUEUE_KEY, Read, queue_key, request_key};
use prost::Message;
use proto::om::{OmReply, RememberedRequest, RequestQueue, om_reply};
use std::time::Duration;

/// How long a request is remembered, by the leaders' clocks: far longer than any sender repeats it, as long as no clock jumps. A leader takes none that was first
/// sent longer ago than half of this. Part of the replicated state, as are the numbers below: all members must forget the same.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(600);
/// Requests that are remembered however old they are: the clock of a new leader may be ahead of its predecessor's.
const REMEMBERED_MIN: u64 = 100_000;
/// What one command forgets: more than one, so that a burst is forgotten too.
const FORGOTTEN_AT_ONCE: usize = 4;

/// What the request was answered when it took effect.
pub(super) fn answered(tables: &Overlay<'_>, request_id: &[u8]) -> anyhow::Result<Option<om_reply::Result>> {
    Ok(tables.message::<OmReply>(&request_key(request_id))?.and_then(|reply| reply.result))
}

pub(super) fn remember(
    tables: &mut Overlay<'_>,
    request_id: &[u8],
    answer: &om_reply::Result,
    now_ms: u64,
) -> anyhow::Result<()> {
    let mut queue: RequestQueue = tables.message(QUEUE_KEY)?.unwrap_or_default();
    tables.put(request_key(request_id), OmReply { result: Some(answer.clone()) }.encode_to_vec());
    let request = RememberedRequest { request_id: request_id.to_vec().into(), at_ms: now_ms };
    tables.put(queue_key(queue.next), request.encode_to_vec());
    queue.next += 1;
    forget(tables, &mut queue, now_ms, REMEMBERED_MIN)?;
    tables.put(QUEUE_KEY.to_vec(), queue.encode_to_vec());
    Ok(())
}

fn forget(
    tables: &mut Overlay<'_>,
    queue: &mut RequestQueue,
    now_ms: u64,
    remembered_min: u64,
) -> anyhow::Result<()> {
    for _ in 0..FORGOTTEN_AT_ONCE {
        if queue.next - queue.first <= remembered_min {
            break;
        }
        let place = queue_key(queue.first);
        let oldest: Option<RememberedRequest> = tables.message(&place)?;
        let at_ms = oldest.as_ref().map_or(0, |oldest| oldest.at_ms);
        // One whose leader's clock was far ahead must not keep all that come after it.
        if u128::from(now_ms.abs_diff(at_ms)) <= REMEMBERED.as_millis() {
            break;
        }
        if let Some(oldest) = oldest {
            tables.delete(request_key(&oldest.request_id));
        }
        tables.delete(place);
        queue.first += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request};
    use crate::ops::{
        CommitKey, CommitPart, CompleteUpload, CreateBucket, CreateUpload, DeleteBucket, DeleteKeys,
    };
    use bytes::Bytes;
    use proto::om::*;

    #[test]
    fn requests_are_forgotten_when_they_are_many_and_old() {
        let namespace = Namespace::new();
        let mut tables = Overlay::new(&namespace.db);
        let mut queue = RequestQueue { first: 100, next: 100 };
        let old_ms = REMEMBERED.as_millis() as u64 + 1;
        for number in 0..10u64 {
            let request_id = Bytes::copy_from_slice(&u128::from(number + 1).to_be_bytes());
            tables.put(request_key(&request_id), vec![]);
            // The last five come when the first five are old.
            let at_ms = if number < 5 { 0 } else { old_ms };
            let request = RememberedRequest { request_id, at_ms };
            tables.put(queue_key(queue.next), request.encode_to_vec());
            queue.next += 1;
        }
        let mut left_after = |now_ms: u64, remembered_min: u64| {
            forget(&mut tables, &mut queue, now_ms, remembered_min).unwrap();
            let requests = tables.scan(b"r").count() - namespace.records(b"r").len();
            assert_eq!(tables.scan(b"s").count() - namespace.records(b"s").len(), requests);
            requests
        };
        assert_eq!(left_after(old_ms - 1, 0), 10, "none is old");
        assert_eq!(left_after(old_ms, 10), 10, "they are few");
        assert_eq!(left_after(old_ms, 8), 8);
        assert_eq!(left_after(old_ms, 0), 5, "the others are young");
        assert_eq!(left_after(2 * old_ms, 0), 1, "a few at once");
        assert_eq!(left_after(2 * old_ms, 0), 0);
    }

    fn names() -> (String, String) {
        ("s3v".to_owned(), "photos".to_owned())
    }

    /// The answer to a DELETE is lost, somebody writes the key again, and the DELETE is repeated.
    #[test]
    fn a_repeated_deletion_does_not_delete_what_came_after_it() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let ((volume, bucket), keys) = (names(), vec![Bytes::from("a")]);
        let delete = DeleteKeysRequest { volume, bucket, keys, precondition: None };
        let answer = namespace.run_as::<DeleteKeys>(77, delete.clone()).unwrap();
        namespace.commit("a", 2).unwrap();
        assert_eq!(namespace.run_as::<DeleteKeys>(77, delete).unwrap(), answer);
        assert_eq!(namespace.key("a").unwrap().etag, "etag-2");
        assert_eq!(namespace.deleted_containers(), [1]);
    }

    #[test]
    fn a_repeated_commit_takes_effect_once() {
        let mut namespace = Namespace::new();
        let answer = namespace.run_as::<CommitKey>(77, commit_request("a", 1)).unwrap();
        namespace.commit("a", 2).unwrap();
        assert_eq!(namespace.run_as::<CommitKey>(77, commit_request("a", 1)).unwrap(), answer);
        assert_eq!(namespace.key("a").unwrap().etag, "etag-2", "the old value must not come back");
        assert_eq!(namespace.deleted_containers(), [1]);
    }

    #[test]
    fn a_repeated_deletion_of_a_bucket_spares_the_one_made_after_it() {
        let mut namespace = Namespace::new();
        let (volume, bucket) = names();
        let delete = DeleteBucketRequest { volume: volume.clone(), bucket: bucket.clone() };
        namespace.run_as::<DeleteBucket>(77, delete.clone()).unwrap();
        namespace.run::<CreateBucket>(CreateBucketRequest { volume, bucket }).unwrap();
        namespace.run_as::<DeleteBucket>(77, delete).unwrap();
        namespace.commit("a", 1).unwrap();
    }

    /// A part is replaced by a newer one, its pieces are filed as deleted, and its commit is repeated: the upload must not be made of
    /// deleted pieces.
    #[test]
    fn a_repeated_part_does_not_put_deleted_pieces_back() {
        let mut namespace = Namespace::new();
        let ((volume, bucket), key) = (names(), Bytes::from("a"));
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: None,
        };
        let upload = namespace.run_as::<CreateUpload>(5, create.clone()).unwrap().upload;
        assert_eq!(namespace.run_as::<CreateUpload>(5, create).unwrap().upload, upload, "one upload");
        let part = |container: u64| {
            let pieces = crate::ops::testing::pieces(container, 10);
            let etag = format!("{container:032}");
            let part = Part { number: 1, size: 10, etag, pieces, ..Part::default() };
            let (volume, bucket) = names();
            CommitPartRequest { volume, bucket, key: key.clone(), upload: upload.clone(), part: Some(part) }
        };
        namespace.run_as::<CommitPart>(6, part(1)).unwrap();
        namespace.run_as::<CommitPart>(7, part(2)).unwrap();
        namespace.run_as::<CommitPart>(6, part(1)).unwrap();
        assert_eq!(namespace.deleted_containers(), [1]);
        let parts = vec![CompletedPart { number: 1, etag: format!("{:032}", 2) }];
        let complete = CompleteUploadRequest {
            volume,
            bucket,
            key: key.clone(),
            upload: upload.clone(),
            parts,
            ..CompleteUploadRequest::default()
        };
        let answer = namespace.run_as::<CompleteUpload>(8, complete.clone()).unwrap();
        assert_eq!(namespace.run_as::<CompleteUpload>(8, complete).unwrap(), answer);
        assert_eq!(namespace.key("a").unwrap().pieces, crate::ops::testing::pieces(2, 10));
    }

    /// Nothing took effect the first time, so nothing is remembered: the repetition is a request like any other.
    #[test]
    fn a_refused_request_may_succeed_when_it_is_repeated() {
        let mut namespace = Namespace::new();
        let elsewhere = CommitKeyRequest { bucket: "music".into(), ..commit_request("a", 1) };
        namespace.run_as::<CommitKey>(77, elsewhere.clone()).unwrap_err();
        let create = CreateBucketRequest { volume: "s3v".into(), bucket: "music".into() };
        namespace.run::<CreateBucket>(create).unwrap();
        namespace.run_as::<CommitKey>(77, elsewhere).unwrap();
    }
}
