//! The answers that requests got lately: a request that its sender repeats because the answer was lost takes
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
use crate::tables::{BucketNumber, QUEUE_KEY, REMEMBERED_PREFIX, Read, decode, remembered_key};
use crate::upgrade::rows;
use anyhow::Context;
use bytes::Bytes;
use planted::Bug;
use prost::Message;
use proto::om::{OmReply, RememberedIds, RememberedRequests, RequestQueue, om_command, om_reply};
use proto::{Code, Failure};
use statedb::Db;
use std::collections::HashMap;
use std::time::Duration;

/// The time for which a request is remembered, by the log's clock: far longer than any sender repeats it.
/// A leader takes none that was first sent longer ago than half of this. Part of the replicated state, as are
/// the numbers below: all members must forget the same.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(300);
/// The most by which one entry moves the log's clock on, whatever the clocks of leaders say: one may jump,
/// and a new leader's may be far from its predecessor's. In half of [`REMEMBERED`] leaders change a few times
/// at most.
const STEP_MAX: Duration = Duration::from_secs(10);
/// The time by the log's clock after which it is saved, though the entry has nothing to be remembered.
const SAVED_EVERY: Duration = Duration::from_secs(1);
/// Requests that are remembered however old they are.
const REMEMBERED_MIN: u64 = 100_000;
/// Requests that are remembered, and the bytes of their records, all together; above either changes are
/// refused as busy until the oldest are forgotten. In [`REMEMBERED`] this is 33 000 changes and 7 MB a
/// second. [`REMEMBERED_MIN`] of the largest, 15 KiB, fit in; in memory each takes some 30 bytes.
const REMEMBERED_MAX: u64 = 10_000_000;
const REMEMBERED_BYTES_MAX: u64 = 2 << 30;
/// The entries that one entry forgets: more than one, so that a burst is forgotten too, and few, so that no
/// entry waits for that.
const FORGOTTEN_AT_ONCE: usize = 4;
/// The length of a request's id, and of its digest.
const ID_BYTES: usize = 16;
/// The factor by which ids are folded: odd, with ones and zeros all over it.
const FOLDING: u64 = 0x9e37_79b9_7f4a_7c15;

/// The requests that tables remember, in memory: the place of each one's entry. Follows from the tables
/// alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// The places of entries by folded id: of two ids that fold to the same the later one is remembered.
    places: HashMap<u64, u64>,
}

impl Remembered {
    /// Reads the ids of all that is remembered: every row of it.
    pub(crate) fn read(tables: &Db) -> anyhow::Result<Remembered> {
        let mut remembered = Remembered::default();
        for row in rows(tables, REMEMBERED_PREFIX) {
            let (key, value) = row?;
            let place = key[REMEMBERED_PREFIX.len()..].try_into().context("a place has 8 bytes")?;
            let entry: RememberedIds = decode(&key, &value)?;
            remembered.note(&entry.request_ids, u64::from_be_bytes(place));
        }
        Ok(remembered)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    fn note(&mut self, ids: &[u8], place: u64) {
        self.places.extend(ids.chunks_exact(ID_BYTES).map(|id| (folded(id), place)));
    }

    fn forget(&mut self, ids: &[u8], place: u64) {
        for id in ids.chunks_exact(ID_BYTES).map(folded) {
            if self.places.get(&id) == Some(&place) {
                self.places.remove(&id);
            }
        }
    }
}

/// Folds an id. Ids are random; where only a part of one is, all of that part counts.
fn folded(id: &[u8]) -> u64 {
    let id = id.first_chunk().map_or(0, |id| u128::from_be_bytes(*id));
    ((id >> 64) as u64).wrapping_mul(FOLDING) ^ id as u64
}

/// The request that a command carries out.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) id: Bytes,
    pub(super) digest: Bytes,
}

impl Request {
    /// The answer to the request when its id was answered before.
    fn answer(&self, digest: &[u8], reply: &OmReply) -> OmReply {
        match digest == self.digest {
            true => reply.clone(),
            false => refusal(Failure::invalid("the request id was used for another request")),
        }
    }
}

/// A request of the entry that is being applied, or one that this brings along, and its answer.
struct Own {
    request: Request,
    /// The number of the bucket that it was about, or 0.
    bucket: u64,
    reply: OmReply,
}

/// The requests of the entry that is being applied, and what is remembered of those before.
pub(super) struct Requests<'a> {
    remembered: &'a mut Remembered,
    queue: RequestQueue,
    /// Whether the queue is to be saved, whatever the entry brings.
    has_changed: bool,
    /// The requests of this entry.
    own: Vec<Own>,
}

impl<'a> Requests<'a> {
    /// Begins an entry: forgets what is old.
    pub(super) fn begin(
        tables: &mut Overlay<'_>,
        remembered: &'a mut Remembered,
        now_ms: u64,
    ) -> anyhow::Result<Requests<'a>> {
        let min = if planted::has(Bug::RequestsForgottenSoon) { 2 } else { REMEMBERED_MIN };
        let before: RequestQueue = tables.message(QUEUE_KEY)?.unwrap_or_default();
        let mut queue = before;
        go_on(&mut queue, now_ms);
        forget(tables, remembered, &mut queue, min)?;
        tables.keep_command();
        // Where nothing has been remembered yet nothing is said, either: names that have a queue are founded.
        let passed_ms = queue.clock_ms.saturating_sub(before.clock_ms);
        let is_due = before.clock_ms != 0 && u128::from(passed_ms) >= SAVED_EVERY.as_millis();
        let has_changed = queue.first != before.first || is_due;
        Ok(Requests { remembered, queue, has_changed, own: Vec::new() })
    }

    /// The answer that the request got when it came first; a refusal, when it was another one then.
    pub(super) fn answered(
        &self,
        tables: &Overlay<'_>,
        request: &Request,
        what: &om_command::Command,
    ) -> anyhow::Result<Option<OmReply>> {
        let is_part = matches!(what, om_command::Command::CommitPart(_));
        if planted::has(Bug::RequestIdsIgnored) || (is_part && planted::has(Bug::PartsRepeated)) {
            return Ok(None);
        }
        let Some(&place) = self.remembered.places.get(&folded(&request.id)) else { return Ok(None) };
        if place == self.queue.next {
            let first = self.own.iter().find(|own| own.request.id == request.id);
            return Ok(first.map(|own| request.answer(&own.request.digest, &own.reply)));
        }
        let entry: Option<RememberedRequests> = tables.message(&remembered_key(place))?;
        let entry = entry.with_context(|| format!("what is remembered at {place} is not there"))?;
        Ok(answer_in(&entry, request))
    }

    /// The answer where there is no room for one more request: nothing was done, and nothing is remembered.
    pub(super) fn full(&self) -> Option<OmReply> {
        let RequestQueue { bytes, requests, .. } = self.queue;
        (bytes > REMEMBERED_BYTES_MAX || requests >= REMEMBERED_MAX).then(|| {
            let why = format!(
                "the {requests} changes of the last {REMEMBERED:?} are remembered in {bytes} bytes; the limits are {REMEMBERED_MAX}, and {REMEMBERED_BYTES_MAX} bytes"
            );
            refusal(Failure::new(Code::Busy, why))
        })
    }

    /// Remembers what another group has, as this entry's own. What is known here already is remembered once:
    /// it was about a bucket that was here before, and comes back.
    pub(super) fn take_over(&mut self, brought: RememberedRequests) {
        let of_each = brought.request_ids.chunks_exact(ID_BYTES);
        let of_each = of_each.zip(brought.request_digests.chunks_exact(ID_BYTES));
        let of_each = of_each.zip(&brought.buckets).zip(brought.replies);
        for (((id, digest), &bucket), reply) in of_each {
            if self.remembered.places.contains_key(&folded(id)) {
                continue;
            }
            let [id, digest] = [id, digest].map(Bytes::copy_from_slice);
            self.note(Own { request: Request { id, digest }, bucket, reply });
        }
    }

    fn note(&mut self, own: Own) {
        self.remembered.note(&own.request.id, self.queue.next);
        self.own.push(own);
    }

    pub(super) fn remember(&mut self, request: Request, bucket: u64, answer: &OmReply) {
        let is_refused = matches!(answer.result, Some(om_reply::Result::Error(_)));
        if is_refused && planted::has(Bug::RefusalsForgotten) {
            return;
        }
        self.note(Own { request, bucket, reply: answer.clone() });
    }

    /// Files what there is to remember of the entry.
    pub(super) fn end(self, tables: &mut Overlay<'_>) {
        let Requests { mut queue, has_changed, own, .. } = self;
        if !own.is_empty() {
            let ids: Vec<u8> = own.iter().flat_map(|own| &own.request.id).copied().collect();
            let digests: Vec<u8> = own.iter().flat_map(|own| &own.request.digest).copied().collect();
            let buckets = own.iter().map(|own| own.bucket).collect();
            let replies: Vec<OmReply> = own.into_iter().map(|own| own.reply).collect();
            queue.requests += replies.len() as u64;
            let entry = RememberedRequests {
                request_ids: ids.into(),
                request_digests: digests.into(),
                replies,
                at_ms: queue.clock_ms,
                buckets,
            };
            let (key, entry) = (remembered_key(queue.next), entry.encode_to_vec());
            queue.next += 1;
            queue.bytes += (key.len() + entry.len()) as u64;
            tables.put(key, entry);
        } else if !has_changed {
            return;
        }
        tables.put(QUEUE_KEY.to_vec(), queue.encode_to_vec());
        tables.keep_command();
    }
}

/// Those of an entry's requests that were about a bucket, and their answers; `None`: none was.
pub(crate) fn about(entry: RememberedRequests, bucket: BucketNumber) -> Option<RememberedRequests> {
    // Entries of before format 7 do not say which buckets they were about.
    let buckets = if entry.buckets.is_empty() { vec![bucket.0; entry.replies.len()] } else { entry.buckets };
    let is_about: Vec<bool> = buckets.iter().map(|about| *about == bucket.0).collect();
    let of_each = |all: &[u8]| -> Bytes {
        let each = all.chunks_exact(ID_BYTES).zip(&is_about).filter(|(_, is_about)| **is_about);
        each.flat_map(|(it, _)| it).copied().collect()
    };
    let replies = entry.replies.into_iter().zip(&is_about).filter(|(_, is_about)| **is_about);
    let about = RememberedRequests {
        request_ids: of_each(&entry.request_ids),
        request_digests: of_each(&entry.request_digests),
        replies: replies.map(|(reply, _)| reply).collect(),
        at_ms: entry.at_ms,
        buckets: buckets.into_iter().filter(|about| *about == bucket.0).collect(),
    };
    (!about.replies.is_empty()).then_some(about)
}

fn answer_in(entry: &RememberedRequests, request: &Request) -> Option<OmReply> {
    let ids = entry.request_ids.chunks_exact(ID_BYTES);
    let of_each = ids.zip(entry.request_digests.chunks_exact(ID_BYTES)).zip(&entry.replies);
    let mut first = of_each.filter(|((id, _), _)| *id == request.id);
    first.next().map(|((_, digest), reply)| request.answer(digest, reply))
}

fn refusal(failure: Failure) -> OmReply {
    OmReply { result: Some(om_reply::Result::Error(failure.into())) }
}

/// Moves the log's clock on. Tables of before it had entries by the leaders' clocks, with one of which it
/// begins.
fn go_on(queue: &mut RequestQueue, now_ms: u64) {
    let step_ms = STEP_MAX.as_millis() as u64;
    let passed_ms = now_ms.saturating_sub(queue.last_ms).min(step_ms);
    queue.clock_ms = if queue.clock_ms == 0 { now_ms } else { queue.clock_ms.saturating_add(passed_ms) };
    // Entries come a little out of order, and what was counted counts once; a clock that is far behind is
    // another one.
    if now_ms > queue.last_ms || now_ms.saturating_add(step_ms) < queue.last_ms {
        queue.last_ms = now_ms;
    }
}

fn forget(
    tables: &mut Overlay<'_>,
    remembered: &mut Remembered,
    queue: &mut RequestQueue,
    remembered_min: u64,
) -> anyhow::Result<()> {
    for _ in 0..FORGOTTEN_AT_ONCE {
        if queue.requests <= remembered_min {
            break;
        }
        let key = remembered_key(queue.first);
        let value = tables
            .get(&key)?
            .with_context(|| format!("what is remembered at {} is not there", queue.first))?;
        let oldest: RememberedRequests = decode(&key, &value)?;
        // An entry of before there was a clock of the log, by one far ahead, must not keep all that come
        // after it.
        let is_old = u128::from(queue.clock_ms.abs_diff(oldest.at_ms)) > REMEMBERED.as_millis();
        let requests = oldest.replies.len() as u64;
        if (!is_old && !planted::has(Bug::RequestsForgottenSoon))
            || queue.requests - requests < remembered_min
        {
            break;
        }
        remembered.forget(&oldest.request_ids, queue.first);
        queue.bytes = queue.bytes.saturating_sub((key.len() + value.len()) as u64);
        queue.requests -= requests;
        queue.first += 1;
        tables.delete(key);
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

    fn id(number: u64) -> Bytes {
        Bytes::copy_from_slice(&u128::from(number).to_be_bytes())
    }

    #[test]
    fn requests_are_forgotten_when_they_are_many_and_old() {
        let db = Namespace::empty().db;
        let (mut tables, mut remembered) = (Overlay::new(&db), Remembered::default());
        let mut queue = RequestQueue { first: 100, next: 100, ..RequestQueue::default() };
        let old_ms = REMEMBERED.as_millis() as u64 + 1;
        // Entries of one request and of two, the last five when the first five are old.
        for number in 0..10u64 {
            let ids = (0..=number % 2).flat_map(|nth| id(number * 2 + nth)).collect::<Vec<u8>>();
            let replies = vec![OmReply::default(); ids.len() / ID_BYTES];
            let at_ms = if number < 5 { 0 } else { old_ms };
            queue.requests += replies.len() as u64;
            remembered.note(&ids, queue.next);
            let entry = RememberedRequests { request_ids: ids.into(), replies, at_ms, ..Default::default() };
            let (key, entry) = (remembered_key(queue.next), entry.encode_to_vec());
            queue.bytes += (key.len() + entry.len()) as u64;
            tables.put(key, entry);
            queue.next += 1;
        }
        let mut left_after = |clock_ms: u64, remembered_min: u64| {
            queue.clock_ms = clock_ms;
            forget(&mut tables, &mut remembered, &mut queue, remembered_min).unwrap();
            let rows: Vec<_> = tables.scan(REMEMBERED_PREFIX).map(Result::unwrap).collect();
            assert_eq!(rows.len() as u64, queue.next - queue.first);
            let bytes: usize = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
            assert_eq!(queue.bytes, bytes as u64);
            assert_eq!(remembered.len() as u64, queue.requests);
            queue.requests
        };
        assert_eq!(left_after(old_ms - 1, 0), 15, "none is old");
        assert_eq!(left_after(old_ms, 15), 15, "they are few");
        assert_eq!(left_after(old_ms, 13), 14, "one entry goes, and not the one with two");
        assert_eq!(left_after(old_ms, 12), 12);
        assert_eq!(left_after(old_ms, 0), 8, "the others are young");
        assert_eq!(left_after(2 * old_ms, 0), 2, "a few at once");
        assert_eq!(left_after(2 * old_ms, 0), 0);
    }

    #[test]
    fn leaders_whose_clocks_are_apart_forget_nothing_before_its_time() {
        let mut queue = RequestQueue::default();
        let mut at = |now_ms: u64| {
            go_on(&mut queue, now_ms);
            queue.clock_ms
        };
        let step_ms = STEP_MAX.as_millis() as u64;
        assert_eq!(at(1_000_000), 1_000_000);
        assert_eq!(at(1_000_700), 1_000_700);
        // A leader whose clock is six minutes ahead, the first one again, and the second.
        assert_eq!(at(1_360_000), 1_000_700 + step_ms);
        assert_eq!(at(1_001_000), 1_000_700 + step_ms);
        assert_eq!(at(1_002_000), 1_001_700 + step_ms);
        assert_eq!(at(1_362_000), 1_001_700 + 2 * step_ms);
        // Entries that come out of order move it no further than one of them does.
        assert_eq!([at(1_362_900), at(1_362_100), at(1_362_900)], [1_002_600 + 2 * step_ms; 3]);
    }

    /// Nothing more is remembered then, and time must go on.
    #[test]
    fn a_full_memory_of_requests_comes_to_an_end() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let had = queue(&namespace);
        let full = RequestQueue { requests: REMEMBERED_MAX, ..had };
        let mut batch = rocksdb::WriteBatch::default();
        batch.put(QUEUE_KEY, full.encode_to_vec());
        namespace.db.write(batch).unwrap();
        for _ in 0..3 {
            namespace.now_ms += 5000;
            namespace.commit("a", 2).unwrap_err();
        }
        assert!((15_000..15_100).contains(&(queue(&namespace).clock_ms - had.clock_ms)));
    }

    #[test]
    fn of_ids_that_are_the_same_when_folded_the_later_one_is_remembered() {
        let mut namespace = Namespace::new();
        let (one, other) = (7u128, u128::from(7 ^ FOLDING) | 1 << 64);
        namespace.run_as::<CommitKey>(one, commit_request("a", 1)).unwrap();
        namespace.run_as::<CommitKey>(other, commit_request("b", 2)).unwrap();
        namespace.commit("b", 3).unwrap();
        namespace.run_as::<CommitKey>(other, commit_request("b", 2)).unwrap();
        assert_eq!(namespace.key("b").unwrap().etag, "etag-3");
        // The earlier of the two ids is forgotten.
        namespace.run_as::<CommitKey>(one, commit_request("c", 4)).unwrap();
        assert_eq!(namespace.key("c").unwrap().etag, "etag-4");
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
        let stored = namespace.records(REMEMBERED_PREFIX).into_iter();
        let stored: usize = stored.map(|(key, value)| key.len() + value.len()).sum();
        let RequestQueue { first, next, bytes, requests, .. } = queue(&namespace);
        assert_eq!(
            (first, next, requests),
            (0, 3, 3),
            "the bucket, the key and a refusal; what no leader proposes is none"
        );
        assert_eq!(bytes, stored as u64);
    }

    #[test]
    fn changes_wait_while_the_memory_of_requests_is_full() {
        let mut namespace = Namespace::new();
        let first = namespace.run_as::<CommitKey>(7, commit_request("a", 1)).unwrap();
        let put = |namespace: &Namespace, queue: &RequestQueue| {
            let mut batch = rocksdb::WriteBatch::default();
            batch.put(QUEUE_KEY, queue.encode_to_vec());
            namespace.db.write(batch).unwrap();
        };
        let had = queue(&namespace);
        for full in [
            RequestQueue { bytes: REMEMBERED_BYTES_MAX + 1, ..had },
            RequestQueue { requests: REMEMBERED_MAX, ..had },
        ] {
            put(&namespace, &full);
            let failure = namespace.run_as::<CommitKey>(8, commit_request("a", 2)).unwrap_err();
            assert_eq!((failure.code, failure.retry), (Code::Busy, proto::Retry::Here), "{failure}");
            assert_eq!(queue(&namespace), full);
            assert_eq!(namespace.run_as::<CommitKey>(7, commit_request("a", 1)).unwrap(), first);
        }
        put(&namespace, &RequestQueue { bytes: REMEMBERED_BYTES_MAX, ..had });
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
        // This is to the byte what was refused, and of another kind.
        let create = CreateBucketRequest { volume, bucket, group: None };
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
        namespace.run::<CreateBucket>(CreateBucketRequest { volume, bucket, group: None }).unwrap();
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
        let create = CreateBucketRequest { volume: "s3v".into(), bucket: "music".into(), group: None };
        namespace.run::<CreateBucket>(create).unwrap();
        assert_eq!(namespace.run_as::<CommitKey>(77, elsewhere.clone()).unwrap_err(), refused);
        namespace.run_as::<CommitKey>(78, elsewhere).unwrap();
    }
}
