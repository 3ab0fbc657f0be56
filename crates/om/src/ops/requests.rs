//! Answers that requests got lately: a request that its sender repeats because the answer was lost takes
//! effect once, and is answered as it was then.
//!
//! A refusal is remembered too. Of two tries the first may come late, when the second was refused and its
//! sender has gone on:
//!
//! ```text
//! sender   put if absent ─┐ (slow)   put if absent ── refused: it is there     (goes on)
//! OM                      └──────────────────────────────────────── deleted ──┘ the first one comes, and would take effect
//! ```

use crate::overlay::Overlay;
use crate::tables::{QUEUE_KEY, Read, queue_key, request_key};
use bytes::Bytes;
use planted::Bug;
use prost::Message;
use proto::om::{OmReply, RememberedAnswer, RememberedRequest, RequestQueue, om_command, om_reply};
use proto::{Code, Failure};
use std::time::Duration;

/// The time for which a request is remembered, by the leaders' clocks: far longer than any sender repeats it.
/// A leader takes none that was first sent longer ago than half of this. Part of the replicated state, as are
/// the numbers below: all members must forget the same.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(600);
/// Requests that are remembered however old they are: the clock of a new leader may be ahead of its
/// predecessor's.
const REMEMBERED_MIN: u64 = 100_000;
/// Records of remembered requests, all together; above it changes are refused as busy until the oldest are
/// forgotten. In [`REMEMBERED`] this is 7 MB a second: more than 50 000 changes, or 6 000 deletions of a
/// thousand keys. [`REMEMBERED_MIN`] of the largest, 15 KiB, fit in.
const REMEMBERED_BYTES_MAX: u64 = 4 << 30;
/// The requests that one command forgets: more than one, so that a burst is forgotten too, and few, so that
/// after a clock's jump all that is remembered is not gone at once: what is repeated stands at the end of the
/// queue, behind what came in [`REMEMBERED`].
const FORGOTTEN_AT_ONCE: usize = 4;

/// The request that a command carries out.
pub(super) struct Request {
    pub(super) id: Bytes,
    pub(super) digest: Bytes,
}

/// The answer that the request got when it came first; a refusal, when it was another one then.
pub(super) fn answered(
    tables: &Overlay<'_>,
    request: &Request,
    what: &om_command::Command,
) -> anyhow::Result<Option<OmReply>> {
    let is_part = matches!(what, om_command::Command::CommitPart(_));
    if planted::has(Bug::RequestIdsIgnored) || (is_part && planted::has(Bug::PartsRepeated)) {
        return Ok(None);
    }
    let Some(remembered) = tables.message::<RememberedAnswer>(&request_key(&request.id))? else {
        return Ok(None);
    };
    if remembered.request_digest != request.digest {
        return Ok(Some(refusal(Failure::invalid("the request id was used for another request"))));
    }
    Ok(Some(remembered.reply.unwrap_or_default()))
}

/// Forgets what is old. With no room for one more request all the same, what is to be answered: nothing was
/// done, and nothing is remembered.
pub(super) fn make_room(tables: &mut Overlay<'_>, now_ms: u64) -> anyhow::Result<Option<OmReply>> {
    let min = if planted::has(Bug::RequestsForgottenSoon) { 2 } else { REMEMBERED_MIN };
    let mut queue: RequestQueue = tables.message(QUEUE_KEY)?.unwrap_or_default();
    let before = queue;
    forget(tables, &mut queue, now_ms, min)?;
    if queue != before {
        tables.put(QUEUE_KEY.to_vec(), queue.encode_to_vec());
        tables.keep_command();
    }
    if queue.bytes <= REMEMBERED_BYTES_MAX {
        return Ok(None);
    }
    let why = format!(
        "the changes of the last {REMEMBERED:?} are remembered in {} bytes, the limit is {REMEMBERED_BYTES_MAX}",
        queue.bytes
    );
    Ok(Some(refusal(Failure::new(Code::Busy, why))))
}

fn refusal(failure: Failure) -> OmReply {
    OmReply { result: Some(om_reply::Result::Error(failure.into())) }
}

pub(super) fn remember(
    tables: &mut Overlay<'_>,
    request: &Request,
    answer: &OmReply,
    now_ms: u64,
) -> anyhow::Result<()> {
    let is_refused = matches!(answer.result, Some(om_reply::Result::Error(_)));
    if is_refused && planted::has(Bug::RefusalsForgotten) {
        return Ok(());
    }
    let mut queue: RequestQueue = tables.message(QUEUE_KEY)?.unwrap_or_default();
    let answer = RememberedAnswer { request_digest: request.digest.clone(), reply: Some(answer.clone()) };
    let answer = answer.encode_to_vec();
    let bytes = answer.len() as u64;
    tables.put(request_key(&request.id), answer);
    let remembered = RememberedRequest { request_id: request.id.clone(), at_ms: now_ms, bytes };
    tables.put(queue_key(queue.next), remembered.encode_to_vec());
    queue.next += 1;
    queue.bytes += bytes + PLACE_BYTES;
    tables.put(QUEUE_KEY.to_vec(), queue.encode_to_vec());
    Ok(())
}

/// Both keys of a remembered request, and its place in the queue.
const PLACE_BYTES: u64 = 17 + 9 + 32;

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
        let is_old = u128::from(now_ms.abs_diff(at_ms)) > REMEMBERED.as_millis();
        if !is_old && !planted::has(Bug::RequestsForgottenSoon) {
            break;
        }
        if let Some(oldest) = oldest {
            tables.delete(request_key(&oldest.request_id));
            queue.bytes = queue.bytes.saturating_sub(oldest.bytes + PLACE_BYTES);
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
    use proto::om::*;

    #[test]
    fn requests_are_forgotten_when_they_are_many_and_old() {
        let namespace = Namespace::new();
        let mut tables = Overlay::new(&namespace.db);
        let mut queue = RequestQueue { first: 100, next: 100, bytes: 0 };
        let old_ms = REMEMBERED.as_millis() as u64 + 1;
        for number in 0..10u64 {
            let request_id = Bytes::copy_from_slice(&u128::from(number + 1).to_be_bytes());
            tables.put(request_key(&request_id), vec![]);
            // The last five come when the first five are old.
            let at_ms = if number < 5 { 0 } else { old_ms };
            let request = RememberedRequest { request_id, at_ms, bytes: number };
            tables.put(queue_key(queue.next), request.encode_to_vec());
            queue.next += 1;
            queue.bytes += number + PLACE_BYTES;
        }
        let mut left_after = |now_ms: u64, remembered_min: u64| {
            forget(&mut tables, &mut queue, now_ms, remembered_min).unwrap();
            let requests = tables.scan(b"r").count() - namespace.records(b"r").len();
            assert_eq!(tables.scan(b"s").count() - namespace.records(b"s").len(), requests);
            let of_numbers = (10 - requests as u64..10).sum::<u64>();
            assert_eq!(queue.bytes, requests as u64 * PLACE_BYTES + of_numbers);
            requests
        };
        assert_eq!(left_after(old_ms - 1, 0), 10, "none is old");
        assert_eq!(left_after(old_ms, 10), 10, "they are few");
        assert_eq!(left_after(old_ms, 8), 8);
        assert_eq!(left_after(old_ms, 0), 5, "the others are young");
        assert_eq!(left_after(2 * old_ms, 0), 1, "a few at once");
        assert_eq!(left_after(2 * old_ms, 0), 0);
    }

    fn queue(namespace: &Namespace) -> RequestQueue {
        namespace.db.message(QUEUE_KEY).unwrap().unwrap()
    }

    #[test]
    fn what_is_remembered_is_counted_as_it_is_stored() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        namespace.commit(&"b".repeat(2000), 2).unwrap_err();
        let absent = Some(Precondition { absent: true, ..Precondition::default() });
        let taken = CommitKeyRequest { precondition: absent, ..commit_request("a", 3) };
        namespace.run::<CommitKey>(taken).unwrap_err();
        let records = |prefix: &[u8]| namespace.records(prefix).into_iter();
        let stored: usize =
            records(b"r").chain(records(b"s")).map(|(key, value)| key.len() + value.len()).sum();
        let RequestQueue { first, next, bytes } = queue(&namespace);
        assert_eq!(
            (first, next),
            (0, 3),
            "the bucket, the key and a refusal; what no leader proposes is none"
        );
        // A place is a little shorter when its numbers are small.
        assert!((stored as u64..stored as u64 + 3 * 16).contains(&bytes), "{bytes} for {stored}");
    }

    #[test]
    fn changes_wait_while_the_memory_of_requests_is_full() {
        let mut namespace = Namespace::new();
        let first = namespace.run_as::<CommitKey>(7, commit_request("a", 1)).unwrap();
        let mut full = queue(&namespace);
        full.bytes = REMEMBERED_BYTES_MAX + 1;
        let mut batch = rocksdb::WriteBatch::default();
        batch.put(QUEUE_KEY, full.encode_to_vec());
        namespace.db.write(batch).unwrap();
        let failure = namespace.run_as::<CommitKey>(8, commit_request("a", 2)).unwrap_err();
        assert_eq!((failure.code, failure.retry), (Code::Busy, proto::Retry::Here), "{failure}");
        assert_eq!(queue(&namespace), full);
        assert_eq!(namespace.run_as::<CommitKey>(7, commit_request("a", 1)).unwrap(), first);
        full.bytes = REMEMBERED_BYTES_MAX;
        let mut batch = rocksdb::WriteBatch::default();
        batch.put(QUEUE_KEY, full.encode_to_vec());
        namespace.db.write(batch).unwrap();
        namespace.run_as::<CommitKey>(8, commit_request("a", 2)).unwrap();
    }

    #[test]
    fn the_id_of_a_request_is_refused_to_another() {
        let mut namespace = Namespace::new();
        let (volume, bucket) = names();
        namespace.run_as::<CommitKey>(7, commit_request("a", 1)).unwrap();
        let other = namespace.run_as::<CommitKey>(7, commit_request("a", 2)).unwrap_err();
        assert_eq!((other.code, other.retry), (Code::Invalid, proto::Retry::No), "{other}");
        let delete = DeleteBucketRequest { volume: volume.clone(), bucket: bucket.clone() };
        namespace.run_as::<DeleteBucket>(8, delete).unwrap_err();
        // To the byte what was refused, and another kind.
        let create = CreateBucketRequest { volume, bucket };
        assert_eq!(namespace.run_as::<CreateBucket>(8, create).unwrap_err().code, Code::Invalid);
        assert_eq!(namespace.key("a").unwrap().etag, "etag-1");
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

    /// A part is replaced by a newer one, its pieces are filed as deleted, and its commit is repeated: the
    /// upload must not be made of deleted pieces.
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

    /// The second try is refused, its sender goes on, and the first one comes late, when it could be carried
    /// out.
    #[test]
    fn a_refused_request_stays_refused() {
        let mut namespace = Namespace::new();
        let elsewhere = CommitKeyRequest { bucket: "music".into(), ..commit_request("a", 1) };
        let refused = namespace.run_as::<CommitKey>(77, elsewhere.clone()).unwrap_err();
        let create = CreateBucketRequest { volume: "s3v".into(), bucket: "music".into() };
        namespace.run::<CreateBucket>(create).unwrap();
        assert_eq!(namespace.run_as::<CommitKey>(77, elsewhere.clone()).unwrap_err(), refused);
        namespace.run_as::<CommitKey>(78, elsewhere).unwrap();
    }
}
