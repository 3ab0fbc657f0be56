//! Clients of few buckets and keys, by the client crate. What it answers must have been so: what is
//! "unavailable" was never done, and what has an unknown outcome was done once, or not at all.

use super::counts::Counts;
use super::histories::{Begun, Histories};
use super::record::Record;
use client::{Client, ClientError, S3_VOLUME};
use disk::sim::Random;
use history::{BucketAnswer, BucketOp, Condition};
use proto::om::{Key, ListKeysRequest, Precondition, listed_key};
use proto::{Code, Failure};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The number of keys of each bucket.
const KEYS: u64 = 3;
/// A caller's writes have numbers from this times the caller's own number, so no two callers write the same.
const WRITES_EACH: u64 = 1_000_000;

pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) histories: Histories,
    pub(super) record: Record,
    pub(super) random: Random,
    pub(super) number: u64,
    pub(super) writes: u64,
    pub(super) think_ms_max: u64,
    /// So many OMs have full disks before changes find no room.
    pub(super) full_disks_min: usize,
    /// Whether the caller changes nothing: then none of its calls fails on a leader that cannot commit, and
    /// makes it look for another.
    pub(super) only_asks: bool,
    /// A token that is held while the caller is at work.
    pub(super) at_work: Arc<()>,
}

impl Caller {
    pub(super) async fn run(mut self) {
        while !self.record.is_over() {
            sleep(Duration::from_millis(1 + self.random.below(self.think_ms_max))).await;
            let history = self.histories.pick(&mut self.random);
            let op = self.draw(history);
            let begun = self.histories.begin(history, op.clone());
            self.call(begun, op).await;
        }
        drop(self.at_work);
    }

    fn key(&mut self) -> u8 {
        self.random.below(KEYS) as u8
    }

    fn draw(&mut self, history: usize) -> BucketOp {
        // The numbers from this one on stand for questions.
        const QUESTIONS: u64 = 60;
        let least = if self.only_asks { QUESTIONS } else { 0 };
        match least + self.random.below(100 - least) {
            0..10 => BucketOp::Create,
            10..17 => BucketOp::Delete,
            17..47 => {
                self.writes += 1;
                let (key, write) = (self.key(), self.number * WRITES_EACH + self.writes);
                let condition = match (self.random.below(4), self.histories.recent(history, key)) {
                    (0, _) => Condition::Absent,
                    (1, Some(recent)) => Condition::Is(recent),
                    _ => Condition::Nothing,
                };
                BucketOp::Put { key, write, condition }
            }
            47..60 if self.random.one_in(3) => BucketOp::DeleteKeys { keys: (0..KEYS as u8).collect() },
            47..60 => BucketOp::DeleteKeys { keys: vec![self.key()] },
            QUESTIONS..80 => BucketOp::Read { key: self.key() },
            _ => {
                let after = self.random.one_in(3).then(|| self.key());
                BucketOp::List { after, limit: 1 + self.random.below(KEYS) as usize }
            }
        }
    }

    async fn call(&mut self, begun: Begun, op: BucketOp) {
        let answer = ask(&self.client, &begun.bucket, &op).await;
        self.record.count(|counts| counts.calls += 1);
        match answer {
            Ok(answer) => {
                self.record.count(|counts| count(counts, &op));
                self.histories.note(begun, Some(answer));
            }
            Err(ClientError::Refused(failure)) if is_said_by_tables(&failure) => {
                self.record.count(|counts| counts.refused += 1);
                self.histories.note(begun, Some(BucketAnswer::Refused(failure.code)));
            }
            // Nothing was done, as the error promises: the history must make sense without it.
            Err(ClientError::Unavailable(why)) => {
                self.record.count(|counts| counts.unavailable += 1);
                self.record.event(format_args!("{op:?} of {} was not carried out: {why}", begun.bucket));
                self.histories.forget(begun);
            }
            // As above; one disk that is full, of those of three members, is in nobody's way.
            Err(ClientError::Refused(failure))
                if failure.code == Code::DiskFull && self.record.full_disks() >= self.full_disks_min =>
            {
                self.record.count(|counts| counts.unavailable += 1);
                self.record.event(format_args!("{op:?} of {} had no room: {failure}", begun.bucket));
                self.histories.forget(begun);
            }
            // A question without an answer changes nothing.
            Err(error) if is_unknown(&error) && op.is_question() => self.histories.forget(begun),
            Err(error) if is_unknown(&error) => {
                self.record.count(|counts| counts.unknown += 1);
                self.histories.note(begun, None);
            }
            Err(error) => self.record.fail(format!("{op:?} of {} is answered so: {error}", begun.bucket)),
        }
    }
}

fn count(counts: &mut Counts, op: &BucketOp) {
    let count = match op {
        BucketOp::Create => &mut counts.buckets_made,
        BucketOp::Delete => &mut counts.buckets_deleted,
        BucketOp::Put { .. } => &mut counts.puts,
        BucketOp::DeleteKeys { .. } => &mut counts.deletes,
        BucketOp::Read { .. } => &mut counts.reads,
        BucketOp::List { .. } => &mut counts.pages,
    };
    *count += 1;
}

fn name(key: u8) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

async fn ask(client: &Client, bucket: &str, op: &BucketOp) -> Result<BucketAnswer, ClientError> {
    match op {
        BucketOp::Create => client.create_bucket(S3_VOLUME, bucket).await.map(|_| BucketAnswer::Done),
        BucketOp::Delete => client.delete_bucket(S3_VOLUME, bucket).await.map(|()| BucketAnswer::Done),
        BucketOp::Put { key, write, condition } => {
            let precondition = match condition {
                Condition::Nothing => None,
                Condition::Absent => Some(Precondition { absent: true, ..Precondition::default() }),
                Condition::Is(write) => {
                    Some(Precondition { etag: Some(write.to_string()), ..Precondition::default() })
                }
            };
            let key = Key { key: name(*key).into(), etag: write.to_string(), ..Key::default() };
            client.commit_key(S3_VOLUME, bucket, key, precondition).await.map(|_| BucketAnswer::Done)
        }
        BucketOp::DeleteKeys { keys } => {
            let keys = keys.iter().map(|key| name(*key).into()).collect();
            client.delete_keys(S3_VOLUME, bucket, keys, None).await.map(BucketAnswer::Existed)
        }
        BucketOp::Read { key } => {
            let found = client.lookup(S3_VOLUME, bucket, &name(*key)).await?;
            Ok(BucketAnswer::Value(write_of(&found)?))
        }
        BucketOp::List { after, limit } => list(client, bucket, *after, *limit).await,
    }
}

/// Lists one page of a bucket's keys.
pub(super) async fn list(
    client: &Client,
    bucket: &str,
    after: Option<u8>,
    limit: usize,
) -> Result<BucketAnswer, ClientError> {
    let request = ListKeysRequest {
        volume: S3_VOLUME.to_owned(),
        bucket: bucket.to_owned(),
        after: after.map(name).unwrap_or_default().into(),
        limit: limit as u32,
        ..ListKeysRequest::default()
    };
    let page = client.list_keys(request).await?;
    let keys = page.entries.iter().filter_map(|listed| match &listed.entry {
        Some(listed_key::Entry::Key(key)) => Some(key),
        _ => None,
    });
    let number =
        |key: &Key| String::from_utf8_lossy(&key.key).strip_prefix("key-").and_then(|it| it.parse().ok());
    let listed = keys.map(|key| match number(key) {
        Some(number) => Ok((number, write_of(key)?)),
        None => Err(ClientError::Invalid(format!("a key that nobody put: {key:?}"))),
    });
    listed.collect::<Result<_, _>>().map(BucketAnswer::Listed)
}

fn write_of(key: &Key) -> Result<u64, ClientError> {
    key.etag.parse().map_err(|_| ClientError::Invalid(format!("a key that nobody put so: {key:?}")))
}

/// Whether a failure is what the tables say of a request, which they say once for all.
pub(super) fn is_said_by_tables(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::NoSuchKey
            | Code::NoSuchBucket
            | Code::BucketExists
            | Code::BucketNotEmpty
            | Code::PreconditionFailed
    )
}

fn is_unknown(error: &ClientError) -> bool {
    matches!(error, ClientError::OutcomeUnknown(_)) || error.code() == Some(Code::OutcomeUnknown)
}
