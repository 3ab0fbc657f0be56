//! Clients of whole objects: each writes a block and commits it to OM under a key, reads keys, and deletes
//! them. They lose answers, and repeat what they asked with the same id. Each key's history must be one that
//! could have happened.

use super::ledger::{Ledger, Written};
use super::mover::find_bucket;
use super::reader::{Way, read_checked};
use super::writer::Writer;
use bytes::Bytes;
use disk::sim::Random;
use history::{Answer, Call, Condition, Op, State, is_linearizable};
use proto::om::om_client::OmClient;
use proto::om::{
    BlockPiece, BucketPlace, Change, ChangeRequest, CommitKeyRequest, CreateBucketRequest, DeleteKeysRequest,
    HeadBucketRequest, Key, Lookup, LookupKeysRequest, OmReply, Precondition,
};
use proto::{Code, Failure, RequestId};
use rpc::Connector;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

pub(super) const VOLUME: &str = "s3v";
pub(super) const BUCKET: &str = "photos";
/// The keys are few, so that clients meet.
pub(super) const KEYS: usize = 3;
/// The most calls about one key: a history is searched, and each call whose outcome is unknown doubles the
/// search.
const CALLS_MAX: usize = 90;
const UNKNOWN_MAX: usize = 6;

const THINK_MS_MAX: u64 = 400;
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(2);
pub(super) const TRIES_MAX: u64 = 10;
pub(super) const RETRY_MS_MAX: u64 = 300;
/// One answer in so many is lost on purpose, besides what OM's troubles lose.
const LOST_ONE_IN: u64 = 4;

/// A record of what was asked of each key and answered, and which block each write is. A cheap handle.
#[derive(Clone, Default)]
pub(super) struct Objects {
    state: Arc<Mutex<ObjectsState>>,
}

#[derive(Default)]
struct ObjectsState {
    ticks: u64,
    calls: [Vec<Call>; KEYS],
    blocks: BTreeMap<u64, Written>,
    /// The place of the bucket that all keys are in.
    place: BucketPlace,
}

impl Objects {
    pub(super) fn place(&self) -> BucketPlace {
        self.lock().place
    }

    /// Keeps a place that is newer than the one that is known.
    pub(super) fn keep_place(&self, place: BucketPlace) {
        let known = &mut self.lock().place;
        if place.epoch > known.epoch {
            *known = place;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ObjectsState> {
        self.state.lock().expect("no holder of the objects panics")
    }

    pub(super) fn tick(&self) -> u64 {
        let state = &mut *self.lock();
        state.ticks += 1;
        state.ticks
    }

    pub(super) fn is_full(&self, key: usize) -> bool {
        let calls = &self.lock().calls[key];
        let unknown = calls.iter().filter(|call| call.answered.is_none()).count();
        calls.len() >= CALLS_MAX || unknown >= UNKNOWN_MAX
    }

    pub(super) fn note(&self, key: usize, op: Op, asked_at: u64, answer: Option<Answer>) {
        let answered = answer.map(|answer| (self.tick(), answer));
        self.lock().calls[key].push(Call { op, asked_at, answered });
    }

    pub(super) fn calls_of(&self, key: usize) -> usize {
        self.lock().calls[key].len()
    }

    fn block(&self, write: u64) -> Option<Written> {
        self.lock().blocks.get(&write).copied()
    }

    /// A write that was acknowledged under a key, mostly the last one.
    pub(super) fn recent(&self, key: usize) -> Option<u64> {
        let state = self.lock();
        let put = |call: &Call| match (&call.op, &call.answered) {
            (Op::Put { write, .. }, Some((_, Answer::Done))) => Some(*write),
            _ => None,
        };
        state.calls[key].iter().rev().find_map(put)
    }
}

/// A way to whichever OM leads, by the addresses of all.
#[derive(Clone)]
pub(super) struct OmWay {
    pub(super) connector: Arc<dyn Connector>,
    pub(super) addresses: Vec<String>,
    /// The place in `addresses` of the OM that is asked next.
    at: Arc<AtomicUsize>,
    pub(super) cluster: String,
}

impl OmWay {
    pub(super) fn new(connector: Arc<dyn Connector>, addresses: Vec<String>, cluster: String) -> OmWay {
        OmWay { connector, addresses, at: Arc::default(), cluster }
    }

    pub(super) fn address(&self) -> &str {
        &self.addresses[self.at.load(Ordering::Relaxed) % self.addresses.len()]
    }

    /// Turns to the OM that this failure names as the leader, or else to the next one.
    pub(super) fn failed(&self, failure: &Failure) {
        let named = failure.leader_address.as_ref();
        let leader = named.and_then(|leader| self.addresses.iter().position(|address| address == leader));
        let next = leader.unwrap_or(self.at.load(Ordering::Relaxed) + 1);
        self.at.store(next, Ordering::Relaxed);
    }
}

pub(super) struct ObjectClient {
    pub(super) writer: Writer,
    pub(super) objects: Objects,
    pub(super) oms: OmWay,
    pub(super) datanodes: Vec<String>,
    pub(super) random: Random,
}

impl ObjectClient {
    pub(super) async fn run(mut self) {
        let mut written = 0;
        while self.writer.ledger.is_writing() {
            sleep(Duration::from_millis(1 + self.random.below(THINK_MS_MAX))).await;
            let key = self.random.below(KEYS as u64) as usize;
            if self.objects.is_full(key) {
                continue;
            }
            let op = match self.random.below(100) {
                0..45 => {
                    written += 1;
                    match self.plan_put(key, written).await {
                        Some(put) => put,
                        None => continue,
                    }
                }
                45..60 => Op::Delete,
                _ => Op::Read,
            };
            self.call(key, op).await;
        }
    }

    /// Writes the block before its key is put, as gateways do.
    async fn plan_put(&mut self, key: usize, nth: u64) -> Option<Op> {
        let block = self.writer.write_object(nth).await?;
        let write = block.number;
        self.objects.lock().blocks.insert(write, block);
        let condition = match (self.random.below(4), self.objects.recent(key)) {
            (0, _) => Condition::Absent,
            (1, Some(recent)) => Condition::Is(recent),
            _ => Condition::Nothing,
        };
        Some(Op::Put { write, condition })
    }

    async fn call(&mut self, key: usize, op: Op) {
        let asked_at = self.objects.tick();
        let answer = self.ask(key, &op).await;
        let count = |count: fn(&mut super::Counts)| self.writer.ledger.count(count);
        match (&op, &answer) {
            // A question without an answer changes nothing.
            (Op::Read, None) => return,
            // The change will never be done, and nobody may ever see it.
            (_, Some(Answer::Refused(Code::GivenUp))) => {
                return count(|counts| counts.objects_given_up += 1);
            }
            (_, None) => count(|counts| counts.objects_unknown += 1),
            (Op::Read, _) => {}
            (_, Some(Answer::Refused(_))) => count(|counts| counts.objects_refused += 1),
            (Op::Delete, _) => count(|counts| counts.objects_deleted += 1),
            _ => count(|counts| counts.objects_put += 1),
        }
        self.objects.note(key, op, asked_at, answer.clone());
        if let Some(Answer::Value(Some(writes))) = answer {
            self.read_bytes(&writes).await;
        }
    }

    /// Reads the blocks of writes from some datanode: right bytes, or an error.
    async fn read_bytes(&mut self, writes: &[u64]) {
        let address = self.random.pick(&self.datanodes).clone();
        let ledger = &self.writer.ledger;
        for written in writes.iter().filter_map(|write| self.objects.block(*write)) {
            let way =
                Way { connector: &*self.writer.connector, cluster: &self.writer.cluster, address: &address };
            if read_checked(&way, ledger, &written, 0, written.length).await.is_ok() {
                ledger.count(|counts| counts.objects_read += 1);
            }
        }
    }

    /// Asks until there is an answer, or gives up: then nobody knows the outcome.
    async fn ask(&mut self, key: usize, op: &Op) -> Option<Answer> {
        let id = u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64());
        let begun = Instant::now();
        for _ in 0..TRIES_MAX {
            let (objects, ledger) = (self.objects.clone(), self.writer.ledger.clone());
            let (way, op) = (self.oms.clone(), op.clone());
            let call = async move {
                let call = call_om(&way, &objects, &ledger, key, &op, RequestId(id), begun.elapsed());
                timeout(ANSWER_MAX, call).await.unwrap_or_else(|_| Err(unanswered()))
            };
            if self.random.one_in(LOST_ONE_IN) {
                self.writer.ledger.count(|counts| counts.object_answers_lost += 1);
                tokio::spawn(call);
            } else {
                match call.await {
                    Ok(answer) => return Some(answer),
                    Err(failure) => match failure.code {
                        code if is_decided(code) => return Some(Answer::Refused(code)),
                        Code::NotHere => find_bucket(&self.oms, &self.objects).await,
                        _ => self.oms.failed(&failure),
                    },
                }
            }
            sleep(Duration::from_millis(1 + self.random.below(RETRY_MS_MAX))).await;
        }
        None
    }
}

/// Whether a refusal with this code is what the tables say of a request, once for all.
pub(super) fn is_decided(code: Code) -> bool {
    matches!(code, Code::NoSuchKey | Code::NoSuchBucket | Code::PreconditionFailed | Code::GivenUp)
}

pub(super) fn unanswered() -> Failure {
    Failure::new(Code::OutcomeUnknown, "no answer in time")
}

async fn call_om(
    way: &OmWay,
    objects: &Objects,
    ledger: &Ledger,
    key: usize,
    op: &Op,
    id: RequestId,
    age: Duration,
) -> Result<Answer, Failure> {
    let channel = way.connector.connect(way.address()).map_err(Failure::internal)?;
    let mut om = OmClient::new(channel);
    let (volume, bucket, name) = (VOLUME.to_owned(), BUCKET.to_owned(), name_of(key));
    let place = Some(objects.place());
    match op {
        Op::Put { write, condition } => {
            let Some(written) = objects.block(*write) else {
                return Err(Failure::internal("a block that nobody wrote"));
            };
            let precondition = match condition {
                Condition::Nothing => None,
                Condition::Absent => Some(Precondition { absent: true, ..Precondition::default() }),
                Condition::Is(write) => {
                    Some(Precondition { etag: Some(write.to_string()), ..Precondition::default() })
                }
            };
            let key = Key {
                key: name,
                size: written.length,
                etag: write.to_string(),
                pieces: vec![piece_of(&written)],
                ..Key::default()
            };
            let request = CommitKeyRequest { volume, bucket, key: Some(key), precondition };
            change(&mut om, &way.cluster, Change::of(request, id, age, place))
                .await?
                .answer::<CommitKeyRequest>()?;
            Ok(Answer::Done)
        }
        Op::Delete => {
            let request = DeleteKeysRequest { volume, bucket, keys: vec![name], precondition: None };
            let reply = change(&mut om, &way.cluster, Change::of(request, id, age, place)).await?;
            let existed = reply.answer::<DeleteKeysRequest>()?.existed;
            Ok(Answer::Existed(existed == [true]))
        }
        _ => {
            let found = look_up(way, objects, name).await?;
            Ok(Answer::Value(value_of(&found, objects, ledger).map(|it| vec![it])))
        }
    }
}

fn name_of(key: usize) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

async fn look_up(way: &OmWay, objects: &Objects, key: Bytes) -> Result<Key, Failure> {
    let channel = way.connector.connect(way.address()).map_err(Failure::internal)?;
    let (place, volume, bucket) = (Some(objects.place()), VOLUME.to_owned(), BUCKET.to_owned());
    let request =
        LookupKeysRequest { lookups: vec![Lookup { place, volume, bucket, key }], any_member: false };
    let request = proto::in_cluster(tonic::Request::new(request), &way.cluster);
    let mut replies = OmClient::new(channel).lookup_keys(request).await?.into_inner().replies;
    let reply = replies.pop().and_then(|reply| reply.result);
    Result::from(reply.ok_or_else(|| Failure::internal("OM gives no answer"))?)
}

pub(super) async fn change(
    om: &mut OmClient<rpc::Channel>,
    cluster: &str,
    change: Change,
) -> Result<OmReply, Failure> {
    let request = ChangeRequest { changes: vec![change] };
    let request = proto::in_cluster(tonic::Request::new(request), cluster);
    let replies = om.change(request).await?.into_inner().replies;
    replies.into_iter().next().ok_or_else(|| Failure::internal("OM gives no answer"))
}

pub(super) fn piece_of(written: &Written) -> BlockPiece {
    let (block, commit_index) = (Some(written.block.into()), written.commit_index);
    BlockPiece { block, offset: 0, length: written.length, commit_index, crc: 0 }
}

/// The write that made a key; all that OM says of the key must be of that write.
fn value_of(found: &Key, objects: &Objects, ledger: &Ledger) -> Option<u64> {
    let written = found.etag.parse().ok().and_then(|write| objects.block(write));
    let is_right = |it: &Written| found.size == it.length && found.pieces == [piece_of(it)];
    match written.filter(is_right) {
        Some(written) => Some(written.number),
        None => {
            ledger.fail(format!("OM answers a key that nobody put so: {found:?}"));
            None
        }
    }
}

/// Makes the bucket in a group of names, and asks until it is there and known where.
pub(super) async fn create_bucket(way: &OmWay, objects: &Objects, group: u64) {
    while let Ok(channel) = way.connector.connect(way.address()) {
        let made = timeout(ANSWER_MAX, make_bucket(OmClient::new(channel), &way.cluster, group)).await;
        match made.unwrap_or_else(|_| Err(unanswered())) {
            Ok(place) => {
                objects.lock().place = place;
                return;
            }
            Err(failure) => way.failed(&failure),
        }
        sleep(Duration::from_millis(RETRY_MS_MAX)).await;
    }
}

async fn make_bucket(
    mut om: OmClient<rpc::Channel>,
    cluster: &str,
    group: u64,
) -> Result<BucketPlace, Failure> {
    let (volume, bucket) = (VOLUME.to_owned(), BUCKET.to_owned());
    let create = CreateBucketRequest { volume: volume.clone(), bucket: bucket.clone(), group: Some(group) };
    let create = proto::in_cluster(tonic::Request::new(create), cluster);
    let made = om.create_bucket(proto::as_request(create, RequestId(1), Duration::ZERO)).await;
    match made.map_err(Failure::from) {
        Err(failure) if failure.code != Code::BucketExists => return Err(failure),
        Ok(_) | Err(_) => {}
    }
    let head = proto::in_cluster(tonic::Request::new(HeadBucketRequest { volume, bucket }), cluster);
    let place = om.head_bucket(head).await?.into_inner().place;
    place.ok_or_else(|| Failure::internal("OM does not say where the bucket is"))
}

impl Objects {
    /// Checks that what OM answered of each key could have happened; returns the number of keys that were
    /// asked about.
    pub(super) fn check_histories(&self) -> Result<u64, String> {
        let state = self.lock();
        for (key, calls) in state.calls.iter().enumerate() {
            if !is_linearizable(State::new(true), calls) {
                let calls: Vec<String> = calls.iter().map(|call| format!("  {call:?}")).collect();
                return Err(format!("key {key} has a history that cannot be:\n{}", calls.join("\n")));
            }
        }
        Ok(state.calls.iter().filter(|calls| !calls.is_empty()).count() as u64)
    }
}

/// Reads every key, however long OM takes.
pub(super) async fn read_all_at_last(way: &OmWay, objects: &Objects, ledger: &Ledger) {
    for key in 0..KEYS {
        read_at_last(way, objects, ledger, key).await;
    }
}

async fn read_at_last(way: &OmWay, objects: &Objects, ledger: &Ledger, key: usize) {
    let asked_at = objects.tick();
    let answer = match found_at_last(way, objects, &name_of(key)).await {
        Some(found) => Answer::Value(value_of(&found, objects, ledger).map(|it| vec![it])),
        None => Answer::Refused(Code::NoSuchKey),
    };
    if let Answer::Value(Some(writes)) = &answer {
        writes.iter().filter_map(|write| objects.block(*write)).for_each(|named| ledger.name(named));
    }
    objects.note(key, Op::Read, asked_at, Some(answer));
}

/// The entry that OM has under a key, if it has the key, however long it takes to say so.
pub(super) async fn found_at_last(way: &OmWay, objects: &Objects, name: &Bytes) -> Option<Key> {
    loop {
        let looked_up = timeout(ANSWER_MAX, look_up(way, objects, name.clone())).await;
        match looked_up.unwrap_or_else(|_| Err(unanswered())) {
            Ok(found) => return Some(found),
            Err(failure) if failure.code == Code::NoSuchKey => return None,
            Err(failure) if failure.code == Code::NotHere => find_bucket(way, objects).await,
            Err(failure) => way.failed(&failure),
        }
        sleep(Duration::from_millis(RETRY_MS_MAX)).await;
    }
}
