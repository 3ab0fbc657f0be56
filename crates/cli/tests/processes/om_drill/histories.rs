//! What clients asked of the names and were answered, bucket by bucket.

use client::{Client, ClientError, S3_VOLUME};
use history::{Answer, Call, Condition, Op, State, is_linearizable};
use proto::om::{Key, ListKeysRequest, Precondition, listed_key};
use proto::{Code, Failure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Buckets at a time: few, so that clients meet.
const ACTIVE: usize = 4;
/// The most calls about one bucket: a history is searched, and each call whose outcome is unknown doubles the
/// search.
const CALLS_MAX: usize = 90;
const UNKNOWN_MAX: usize = 6;
const KEY: &str = "key";
const THINK_MS_MAX: u64 = 30;

/// The calls about one bucket, which has one key.
pub(super) struct History {
    pub(super) bucket: String,
    calls: Mutex<Vec<Call>>,
}

impl History {
    fn new(number: u64) -> Arc<History> {
        Arc::new(History { bucket: format!("h{number:06}"), calls: Mutex::default() })
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().expect("no holder panics")
    }

    fn unknown(&self) -> usize {
        self.calls().iter().filter(|call| call.answered.is_none()).count()
    }

    fn is_full(&self) -> bool {
        self.calls().len() >= CALLS_MAX || self.unknown() >= UNKNOWN_MAX
    }

    /// The write that was acknowledged last.
    fn recent(&self) -> Option<u64> {
        let put = |call: &Call| match (&call.op, &call.answered) {
            (Op::Put { write, .. }, Some((_, Answer::Done))) => Some(*write),
            _ => None,
        };
        self.calls().iter().rev().find_map(put)
    }

    /// An error has the whole history.
    fn check(&self) -> Result<(), String> {
        let calls = self.calls();
        // Those who were about to ask when it became full make it a little longer.
        let calls = &calls[..calls.len().min(128)];
        match is_linearizable(State::new(false), calls) {
            true => Ok(()),
            false => Err(format!("{} could not have happened:\n{calls:#?}", self.bucket)),
        }
    }
}

/// All histories of a drill.
pub(super) struct Histories {
    ticks: AtomicU64,
    begun: AtomicU64,
    active: Mutex<[Arc<History>; ACTIVE]>,
    full: Mutex<Vec<Arc<History>>>,
    pub(super) over: AtomicBool,
}

/// What the check of all has found.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) histories: usize,
    pub(super) calls: usize,
    pub(super) unknown: usize,
}

impl Histories {
    pub(super) fn new() -> Arc<Histories> {
        Arc::new(Histories {
            ticks: AtomicU64::new(0),
            begun: AtomicU64::new(ACTIVE as u64),
            active: Mutex::new(std::array::from_fn(|at| History::new(at as u64))),
            full: Mutex::default(),
            over: AtomicBool::new(false),
        })
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    /// A history that is not full; a new one takes the place of one that is.
    pub(super) fn pick(&self, random: &mut SmallRng) -> Arc<History> {
        let mut active = self.active.lock().expect("no holder panics");
        let at = random.random_range(0..ACTIVE);
        if active[at].is_full() {
            let next = History::new(self.begun.fetch_add(1, Ordering::SeqCst));
            let full = std::mem::replace(&mut active[at], next);
            self.full.lock().expect("no holder panics").push(full);
        }
        active[at].clone()
    }

    /// Checks all histories; to be asked for when nobody calls any more.
    pub(super) fn check(&self) -> Result<Checked, String> {
        let active = self.active.lock().expect("no holder panics");
        let full = self.full.lock().expect("no holder panics");
        let all = || full.iter().chain(active.iter());
        all().try_for_each(|history| history.check())?;
        Ok(Checked {
            histories: all().count(),
            calls: all().map(|history| history.calls().len()).sum(),
            unknown: all().map(|history| history.unknown()).sum(),
        })
    }
}

pub(super) struct Caller {
    pub(super) client: Client,
    pub(super) histories: Arc<Histories>,
    random: SmallRng,
    number: u64,
    writes: u64,
}

impl Caller {
    pub(super) fn new(client: Client, histories: Arc<Histories>, number: u64, seed: u64) -> Caller {
        let random = SmallRng::seed_from_u64(seed ^ (number + 1).rotate_left(32));
        Caller { client, histories, random, number, writes: 0 }
    }

    /// Calls until it is over; the longest time that a call took.
    pub(super) async fn run(mut self) -> Result<Duration, String> {
        let mut longest = Duration::ZERO;
        while !self.histories.over.load(Ordering::Relaxed) {
            let history = self.histories.pick(&mut self.random);
            let op = self.draw(&history);
            let begun = Instant::now();
            self.call(&history, op).await?;
            longest = longest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(self.random.random_range(0..THINK_MS_MAX))).await;
        }
        Ok(longest)
    }

    fn draw(&mut self, history: &History) -> Op {
        match self.random.random_range(0..100) {
            0..8 => Op::CreateBucket,
            8..13 => Op::DeleteBucket,
            13..45 => {
                self.writes += 1;
                let write = (self.number << 40) + self.writes;
                let condition = match (self.random.random_range(0..4), history.recent()) {
                    (0, _) => Condition::Absent,
                    (1, Some(recent)) => Condition::Is(recent),
                    _ => Condition::Nothing,
                };
                Op::Put { write, condition }
            }
            45..57 => Op::Delete,
            _ => Op::Read,
        }
    }

    /// An error is an answer that cannot be.
    async fn call(&mut self, history: &History, op: Op) -> Result<(), String> {
        let asked_at = self.histories.tick();
        let answered = match self.ask(&history.bucket, &op).await {
            Ok(answer) => Some(answer),
            Err(ClientError::Refused(failure)) if is_said_by_tables(&failure) => {
                Some(Answer::Refused(failure.code))
            }
            // Nothing was done, as the error promises: the history must make sense without it.
            Err(ClientError::Unavailable(_)) => return Ok(()),
            Err(_) if op == Op::Read => return Ok(()),
            Err(ClientError::OutcomeUnknown(_)) => None,
            Err(ClientError::Refused(failure)) if failure.code == Code::OutcomeUnknown => None,
            Err(error) => return Err(format!("{op:?} of {}: {error}", history.bucket)),
        };
        let answered = answered.map(|answer| (self.histories.tick(), answer));
        history.calls().push(Call { op, asked_at, answered });
        Ok(())
    }

    async fn ask(&mut self, bucket: &str, op: &Op) -> Result<Answer, ClientError> {
        let client = &self.client;
        match op {
            Op::CreateBucket => client.create_bucket(S3_VOLUME, bucket).await.map(|_| Answer::Done),
            Op::DeleteBucket => client.delete_bucket(S3_VOLUME, bucket).await.map(|()| Answer::Done),
            Op::Put { write, condition } => {
                let precondition = match condition {
                    Condition::Nothing => None,
                    Condition::Absent => Some(Precondition { absent: true, ..Precondition::default() }),
                    Condition::Is(write) => {
                        Some(Precondition { etag: Some(write.to_string()), ..Precondition::default() })
                    }
                };
                let key = Key { key: KEY.into(), etag: write.to_string(), ..Key::default() };
                client.commit_key(S3_VOLUME, bucket, key, precondition).await.map(|_| Answer::Done)
            }
            Op::Delete => {
                let existed = client.delete_keys(S3_VOLUME, bucket, vec![KEY.into()], None).await?;
                Ok(Answer::Existed(existed == [true]))
            }
            _ if self.random.random_range(0..3) == 0 => self.list(bucket).await,
            _ => Ok(value(&client.lookup(S3_VOLUME, bucket, KEY.as_bytes()).await?)),
        }
    }

    /// A page is a way to read too.
    async fn list(&self, bucket: &str) -> Result<Answer, ClientError> {
        let (volume, bucket) = (S3_VOLUME.to_owned(), bucket.to_owned());
        let request = ListKeysRequest { volume, bucket, ..ListKeysRequest::default() };
        let page = self.client.list_keys(request).await?;
        match page.entries.first().and_then(|listed| listed.entry.as_ref()) {
            Some(listed_key::Entry::Key(key)) => Ok(value(key)),
            _ => Ok(Answer::Refused(Code::NoSuchKey)),
        }
    }
}

fn value(key: &Key) -> Answer {
    Answer::Value(Some(vec![key.etag.parse().expect("etags are numbers of writes")]))
}

/// Whether a failure is what the tables say of a request, which they say once for all.
fn is_said_by_tables(failure: &Failure) -> bool {
    matches!(
        failure.code,
        Code::NoSuchKey
            | Code::NoSuchBucket
            | Code::BucketExists
            | Code::BucketNotEmpty
            | Code::PreconditionFailed
    )
}
