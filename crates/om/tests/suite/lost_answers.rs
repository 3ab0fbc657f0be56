//! Callers that lose requests and answers and repeat them: late, twice at once, and after OM was stopped or
//! killed. Each key's history must be one that could have happened, and each write must be in one place: in a
//! key, in an upload, or filed as deleted.
//!
//! `FLOTILLA_SEEDS` says how many seeds, `FLOTILLA_SEED` the first one. A seed decides what is asked, lost
//! and repeated; in which order it comes to OM, over real sockets and a real disk, is the machine's.

use crate::restart::copy_dir;
use crate::server::{Client, Server, change, look_up};
use bytes::Bytes;
use disk::sim::Random;
use history::{Answer, Call, Condition, Op, State, is_linearizable};
use planted::Bug;
use prost::Message;
use proto::datanode::BlockName;
use proto::om::*;
use proto::{Code, Failure, RequestId, Retry};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// A seed takes a third of a second.
const SEEDS: u64 = 10;
/// Tried before a planted bug counts as not found. The rarest shows in one of ten or twenty.
const SEEDS_MAX: u64 = 200;

const CALLERS: u64 = 4;
const CALLS_PER_CALLER: u64 = 14;
const TRIES_MAX: u64 = 7;
const DEADLINE: Duration = Duration::from_secs(60);

/// Bucket and key. The last one's bucket comes and goes, and has no other key.
const OBJECTS: [(&str, &str); 4] = [("photos", "a"), ("photos", "b"), ("photos", "c"), ("albums", "only")];
const IN_BUCKET: usize = 3;
const ALONE: usize = 3;

#[test]
fn what_is_repeated_takes_effect_once() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
    };
    let (first, seeds) = (number("FLOTILLA_SEED", 1), number("FLOTILLA_SEEDS", SEEDS));
    let mut all = Counts::default();
    for seed in first..first + seeds {
        let counts = run_seed(seed, None).unwrap_or_else(|why| {
            panic!("{why}\nreplay, several times if need be: FLOTILLA_SEED={seed} FLOTILLA_SEEDS=1 ./dev test 'om/suite lost_answers::what'")
        });
        all.add(&counts);
    }
    println!("{seeds} seeds from {first}: {all:?}");
    // A slice in which nothing happens proves nothing.
    if seeds >= SEEDS {
        let Counts { calls, refused, unknown, requests_lost, answers_lost, late, stops, kills } = all;
        let happened = [calls, refused, unknown, requests_lost, answers_lost, late, stops, kills];
        assert!(happened.iter().all(|count| *count > 0), "{all:?}");
    }
}

#[test]
fn ids_that_are_ignored() {
    finds(Bug::RequestIdsIgnored);
}

#[test]
fn requests_that_are_forgotten_soon() {
    finds(Bug::RequestsForgottenSoon);
}

#[test]
fn parts_that_take_effect_again() {
    finds(Bug::PartsRepeated);
}

#[test]
fn refusals_that_are_forgotten() {
    finds(Bug::RefusalsForgotten);
}

/// Finds it by what it does to names; that a try was answered otherwise than the first shows some of them
/// sooner.
fn finds(bug: Bug) {
    let is_harm = |why: &String| why.contains(CANNOT_BE) || why.contains(IS_TWICE);
    let mut seeds = 1..=SEEDS_MAX;
    let found = seeds.find_map(|seed| Some((seed, run_seed(seed, Some(bug)).err().filter(is_harm)?)));
    let (seed, why) = found.unwrap_or_else(|| panic!("no seed of {SEEDS_MAX} shows {bug:?}"));
    println!("{bug:?}, seed {seed}: {why}");
}

const CANNOT_BE: &str = "has a history that cannot be";
const IS_TWICE: &str = "is at once in";
const DELETED: &str = "what is deleted";

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    calls: u64,
    refused: u64,
    unknown: u64,
    requests_lost: u64,
    answers_lost: u64,
    late: u64,
    stops: u64,
    kills: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.calls += other.calls;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.requests_lost += other.requests_lost;
        self.answers_lost += other.answers_lost;
        self.late += other.late;
        self.stops += other.stops;
        self.kills += other.kills;
    }
}

/// Runs a seed, all on this thread, which alone has the bug.
fn run_seed(seed: u64, bug: Option<Bug>) -> Result<Counts, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    planted::plant(bug);
    let run = runtime.block_on(run(seed));
    planted::plant(None);
    run.map_err(|why| format!("seed {seed}: {why}"))
}

async fn run(seed: u64) -> Result<Counts, String> {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let mut om = RunningOm::start(dir.path()).await;
    let world = Arc::new(World::new(seed, om.client.subscribe()));
    let first = Ask { targets: vec![0], op: Op::CreateBucket, id: world.id() };
    world.settle(&first).await;

    let callers = (0..CALLERS).map(|_| {
        let (world, mut random) = (world.clone(), Random::new(random.next_u64()));
        async move {
            for _ in 0..CALLS_PER_CALLER {
                let (targets, op) = world.plan(&mut random);
                world.call(&mut random, targets, op).await;
            }
        }
    });
    let callers = async {
        futures::future::join_all(callers).await;
        world.is_over.store(true, Ordering::Relaxed);
    };
    futures::join!(callers, om.trouble(&world, Random::new(seed ^ 1)));

    // What is still on its way arrives, and then everything is read.
    let mut under_way = std::mem::take(&mut *world.under_way.lock().unwrap());
    while let Some(ended) = timeout(DEADLINE, under_way.join_next()).await.expect("everything arrives") {
        ended.unwrap();
    }
    world.read_all().await;
    let db_dir = om.stop().await;
    world.verdict(&Places::of(&db_dir))
}

/// OM in a directory; killed, it goes on in a copy.
struct RunningOm {
    root: PathBuf,
    dirs: u32,
    server: Option<Server>,
    client: watch::Sender<Option<Client>>,
}

impl RunningOm {
    async fn start(root: &Path) -> RunningOm {
        let (client, _) = watch::channel(None);
        let mut om = RunningOm { root: root.to_owned(), dirs: 0, server: None, client };
        om.open().await;
        om
    }

    fn dir(&self) -> PathBuf {
        self.root.join(self.dirs.to_string())
    }

    async fn open(&mut self) {
        let server = Server::open(&self.dir()).await;
        self.client.send_replace(Some(server.client.clone()));
        self.server = Some(server);
    }

    /// Stops or kills OM and starts it again, up to twice.
    async fn trouble(&mut self, world: &World, mut random: Random) {
        let mut at = 0;
        for _ in 0..random.below(3) {
            at += 10 + random.below(60);
            while world.time.load(Ordering::Relaxed) < at {
                if world.is_over.load(Ordering::Relaxed) {
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
            let is_stopped = random.percent(50);
            self.client.send_replace(None);
            match is_stopped {
                true => self.server.take().unwrap().stop().await,
                false => self.kill(world).await,
            }
            self.open().await;
            world.count(|counts| match is_stopped {
                true => counts.stops += 1,
                false => counts.kills += 1,
            });
        }
    }

    /// Kills the OM: what stands in the files now is what a killed process leaves, as nothing is flushed for
    /// it. It is copied while nobody is served, or something would be acknowledged that the copy lacks.
    async fn kill(&mut self, world: &World) {
        let given_up = Instant::now() + DEADLINE;
        while world.in_flight.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < given_up, "calls do not end");
            sleep(Duration::from_millis(1)).await;
        }
        let from = self.dir();
        self.dirs += 1;
        copy_dir(&from, &self.dir());
        self.server.take().unwrap().stop().await;
    }

    /// Stops the OM, and says where its tables are then.
    async fn stop(mut self) -> PathBuf {
        self.client.send_replace(None);
        self.server.take().unwrap().stop().await;
        self.dir().join("db-om-0")
    }
}

/// A request: one operation, on some keys.
#[derive(Clone, Debug)]
struct Ask {
    targets: Vec<usize>,
    op: Op,
    id: u128,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reply {
    /// The answers for each key.
    answers: Vec<Answer>,
    upload: Option<String>,
}

/// An object as callers know it, and what they did to it.
#[derive(Default)]
struct Object {
    calls: Vec<Call>,
    puts: Vec<u64>,
    uploads: Vec<String>,
    parts: HashMap<String, BTreeMap<u32, u64>>,
}

struct World {
    seed: u64,
    client: watch::Receiver<Option<Client>>,
    /// Questions and answers so far.
    time: AtomicU64,
    next_id: AtomicU64,
    next_write: AtomicU64,
    in_flight: AtomicU64,
    is_over: AtomicBool,
    objects: Mutex<[Object; OBJECTS.len()]>,
    counts: Mutex<Counts>,
    under_way: Mutex<JoinSet<()>>,
    wrong: Mutex<Vec<String>>,
}

impl World {
    fn new(seed: u64, client: watch::Receiver<Option<Client>>) -> World {
        World {
            seed,
            client,
            time: 0.into(),
            next_id: 0.into(),
            next_write: 1.into(),
            in_flight: 0.into(),
            is_over: false.into(),
            objects: Mutex::default(),
            counts: Mutex::default(),
            under_way: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    fn id(&self) -> u128 {
        (u128::from(self.seed) << 64) | u128::from(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn tick(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap());
    }

    fn plan(&self, random: &mut Random) -> (Vec<usize>, Op) {
        let at = random.below(OBJECTS.len() as u64) as usize;
        let one = vec![at];
        if at == ALONE && random.percent(40) {
            return (one, if random.percent(50) { Op::CreateBucket } else { Op::DeleteBucket });
        }
        let write = self.next_write.fetch_add(1, Ordering::Relaxed);
        let objects = self.objects.lock().unwrap();
        let object = &objects[at];
        let op = match random.below(100) {
            0..20 => Op::Put { write, condition: Condition::Nothing },
            20..30 => Op::Put { write, condition: Condition::Absent },
            30..38 if !object.puts.is_empty() => {
                let recent = &object.puts[object.puts.len().saturating_sub(3)..];
                Op::Put { write, condition: Condition::Is(*random.pick(recent)) }
            }
            30..48 => Op::Delete,
            48..55 if at < IN_BUCKET => {
                let left_out = random.below(IN_BUCKET as u64 + 1) as usize;
                return ((0..IN_BUCKET).filter(|at| *at != left_out).collect(), Op::Delete);
            }
            48..68 => Op::Read,
            _ => plan_upload(object, write, random),
        };
        (one, op)
    }

    /// Asks until there is an answer, or nobody waits for one any more.
    async fn call(self: &Arc<World>, random: &mut Random, targets: Vec<usize>, op: Op) {
        let ask = Ask { targets, op, id: self.id() };
        let (asked_at, begun) = (self.tick(), Instant::now());
        let reply = self.ask(random, &ask, begun).await;
        if !matches!(ask.op, Op::Read | Op::ReadParts { .. }) && random.percent(35) {
            // One more, when the caller has gone on.
            let delay = Duration::from_millis(random.below(60));
            self.count(|counts| counts.late += 1);
            self.send(&ask, begun, delay, Then::Compare(reply.clone()));
        }
        self.note(ask, asked_at, reply);
    }

    async fn ask(self: &Arc<World>, random: &mut Random, ask: &Ask, begun: Instant) -> Option<Reply> {
        let (to, mut answers) = mpsc::unbounded_channel();
        for _ in 0..TRIES_MAX {
            let soon = Duration::from_millis(random.below(8));
            let patience = match random.below(100) {
                0..20 => {
                    self.count(|counts| counts.requests_lost += 1);
                    soon
                }
                20..45 => {
                    self.count(|counts| counts.answers_lost += 1);
                    self.send(ask, begun, Duration::ZERO, Then::Lose);
                    soon
                }
                45..60 => {
                    self.count(|counts| counts.late += 1);
                    let delay = Duration::from_millis(random.below(40));
                    self.send(ask, begun, delay, Then::Answer(to.clone()));
                    soon
                }
                luck => {
                    if luck < 65 {
                        self.send(ask, begun, Duration::ZERO, Then::Answer(to.clone()));
                    }
                    self.send(ask, begun, Duration::ZERO, Then::Answer(to.clone()));
                    DEADLINE
                }
            };
            match timeout(patience, answers.recv()).await {
                Ok(Some(Ok(reply))) => return Some(reply),
                Err(_) if patience == DEADLINE => panic!("seed {}: no answer to {ask:?}", self.seed),
                _ => {}
            }
        }
        None
    }

    /// Sends one try, which goes on when its caller does not wait for it.
    fn send(self: &Arc<World>, ask: &Ask, begun: Instant, delay: Duration, then: Then) {
        let (world, ask) = (self.clone(), ask.clone());
        self.under_way.lock().unwrap().spawn(async move {
            sleep(delay).await;
            let reply = world.try_once(&ask, begun.elapsed()).await;
            match (then, reply) {
                (Then::Answer(to), reply) => {
                    // Err: its caller has an answer, or gave up.
                    let _ = to.send(reply);
                }
                (Then::Compare(Some(first)), Ok(again)) if first != again => {
                    let why = format!("{ask:?} was answered {first:?}, and later {again:?}");
                    world.wrong.lock().unwrap().push(why);
                }
                (Then::Compare(_) | Then::Lose, _) => {}
            }
        });
    }

    async fn try_once(&self, ask: &Ask, age: Duration) -> Result<Reply, Failure> {
        let mut client = self.client.clone();
        let client = async { client.wait_for(Option::is_some).await.unwrap().clone().unwrap() };
        let client = timeout(DEADLINE, client).await.expect("OM comes back");
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let reply = call(client, ask, age).await;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        match reply {
            Err(failure) if failure.retry == Retry::No && failure.code != Code::OutcomeUnknown => {
                let answers = ask.targets.iter().map(|_| Answer::Refused(failure.code)).collect();
                Ok(Reply { answers, upload: None })
            }
            reply => reply,
        }
    }

    /// Asks without a loss until there is an answer.
    async fn settle(&self, ask: &Ask) -> Reply {
        let given_up = Instant::now() + DEADLINE;
        loop {
            match self.try_once(ask, Duration::ZERO).await {
                Ok(reply) => return reply,
                Err(failure) => assert!(Instant::now() < given_up, "{ask:?}: {failure}"),
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn note(&self, ask: Ask, asked_at: u64, reply: Option<Reply>) {
        let answered_at = self.tick();
        self.count(|counts| {
            counts.calls += 1;
            counts.unknown += u64::from(reply.is_none());
            let answers = reply.iter().flat_map(|reply| &reply.answers);
            counts.refused += u64::from(answers.into_iter().any(|it| matches!(it, Answer::Refused(_))));
        });
        let mut objects = self.objects.lock().unwrap();
        for (nth, target) in ask.targets.iter().enumerate() {
            let answer = reply.as_ref().map(|reply| reply.answers[nth].clone());
            let is_done = answer == Some(Answer::Done);
            let mut op = ask.op.clone();
            let object = &mut objects[*target];
            match &mut op {
                Op::Put { write, .. } if is_done => object.puts.push(*write),
                Op::CommitPart { upload, number, write } if is_done => {
                    object.parts.entry(upload.clone()).or_default().insert(*number, *write);
                }
                Op::CreateUpload { upload } => {
                    upload.clone_from(&reply.as_ref().and_then(|reply| reply.upload.clone()));
                    object.uploads.extend(upload.clone());
                }
                _ => {}
            }
            let answered = answer.map(|answer| (answered_at, answer));
            object.calls.push(Call { op, asked_at, answered });
        }
    }

    async fn read_all(&self) {
        for target in 0..OBJECTS.len() {
            let uploads = self.objects.lock().unwrap()[target].uploads.clone();
            let uploads = uploads.into_iter().map(|upload| Op::ReadParts { upload });
            for op in std::iter::once(Op::Read).chain(uploads) {
                let ask = Ask { targets: vec![target], op, id: self.id() };
                let asked_at = self.tick();
                let reply = self.settle(&ask).await;
                self.note(ask, asked_at, Some(reply));
            }
        }
    }

    fn verdict(&self, places: &Places) -> Result<Counts, String> {
        let mut wrong = self.wrong.lock().unwrap().clone();
        let objects = self.objects.lock().unwrap();
        for ((bucket, key), (at, object)) in OBJECTS.iter().zip(objects.iter().enumerate()) {
            let first = State::new(at < IN_BUCKET);
            if !is_linearizable(first, &object.calls) {
                let calls: Vec<_> = object.calls.iter().map(|call| format!("  {call:?}")).collect();
                wrong.push(format!("{bucket}/{key} {CANNOT_BE}:\n{}", calls.join("\n")));
            }
        }
        wrong.extend(places.violations(objects.iter().flat_map(|object| &object.calls)));
        match wrong.is_empty() {
            true => Ok(*self.counts.lock().unwrap()),
            false => Err(wrong.join("\n")),
        }
    }
}

/// The fate of a try's answer.
enum Then {
    Answer(mpsc::UnboundedSender<Result<Reply, Failure>>),
    Lose,
    /// The answer must be the one that the caller got, if it got one.
    Compare(Option<Reply>),
}

fn plan_upload(object: &Object, write: u64, random: &mut Random) -> Op {
    let recent = &object.uploads[object.uploads.len().saturating_sub(2)..];
    if recent.is_empty() || random.percent(10) {
        return Op::CreateUpload { upload: None };
    }
    let upload = random.pick(recent).clone();
    let number = 1 + random.below(2) as u32;
    match random.below(100) {
        0..60 => Op::CommitPart { upload, number, write },
        60..82 => {
            let parts: Vec<_> =
                object.parts.get(&upload).into_iter().flatten().map(|(n, w)| (*n, *w)).collect();
            match parts.is_empty() {
                true => Op::CommitPart { upload, number, write },
                false => Op::Complete { upload, parts },
            }
        }
        82..88 => Op::Abort { upload },
        _ => Op::ReadParts { upload },
    }
}

/// The bytes of a part, so that it need not be the last.
const PART_BYTES: u64 = 5 << 20;

fn pieces(write: u64) -> Vec<BlockPiece> {
    let block = Some(BlockName { container: write, local: 1, nonce: proto::uuid_bytes(write.into()) });
    vec![BlockPiece { block, offset: 0, length: PART_BYTES, commit_index: 3, crc: 0 }]
}

fn writes(pieces: &[BlockPiece]) -> Vec<u64> {
    pieces.iter().map(|piece| piece.block.as_ref().unwrap().container).collect()
}

fn part_etag(write: u64) -> String {
    format!("{write:032x}")
}

/// Listed parts are without their pieces.
fn write_of(part_etag: &str) -> u64 {
    u64::from_str_radix(part_etag, 16).unwrap()
}

async fn call(mut client: Client, ask: &Ask, age: Duration) -> Result<Reply, Failure> {
    let (bucket, key) = OBJECTS[ask.targets[0]];
    let (volume, bucket, key) = ("s3v".to_owned(), bucket.to_owned(), Bytes::from(key));
    let one = |answer: Answer| Reply { answers: vec![answer], upload: None };
    macro_rules! change_root {
        ($method:ident, $request:expr) => {{
            let request = tonic::Request::new($request);
            client.$method(proto::as_request(request, RequestId(ask.id), age)).await?.into_inner()
        }};
    }
    let answer = match ask.op.clone() {
        Op::CreateBucket => {
            change_root!(create_bucket, CreateBucketRequest { volume, bucket, group: None });
            Answer::Done
        }
        Op::DeleteBucket => {
            change_root!(delete_bucket, DeleteBucketRequest { volume, bucket });
            Answer::Done
        }
        Op::Put { write, condition } => {
            let precondition = match condition {
                Condition::Nothing => None,
                Condition::Absent => Some(Precondition { absent: true, ..Precondition::default() }),
                Condition::Is(write) => {
                    Some(Precondition { etag: Some(format!("etag-{write}")), ..Precondition::default() })
                }
            };
            let (etag, pieces) = (format!("etag-{write}"), pieces(write));
            let key = Some(Key { key, size: PART_BYTES, etag, pieces, ..Key::default() });
            change(&client, ask.id, age, CommitKeyRequest { volume, bucket, key, precondition }).await?;
            Answer::Done
        }
        Op::Delete => {
            let keys = ask.targets.iter().map(|at| Bytes::from(OBJECTS[*at].1)).collect();
            let request = DeleteKeysRequest { volume, bucket, keys, precondition: None };
            let existed = change(&client, ask.id, age, request).await?.existed;
            let answers = existed.into_iter().map(Answer::Existed).collect();
            return Ok(Reply { answers, upload: None });
        }
        Op::Read => {
            let found = look_up(&client, Lookup { place: None, volume, bucket, key }).await?;
            Answer::Value(Some(writes(&found.pieces)))
        }
        Op::CreateUpload { .. } => {
            let request = CreateUploadRequest { volume, bucket, key, attributes: None };
            let upload = Some(change(&client, ask.id, age, request).await?.upload);
            return Ok(Reply { upload, ..one(Answer::Done) });
        }
        Op::CommitPart { upload, number, write } => {
            let (etag, pieces) = (part_etag(write), pieces(write));
            let part = Some(Part { number, size: PART_BYTES, etag, pieces, ..Part::default() });
            change(&client, ask.id, age, CommitPartRequest { volume, bucket, key, upload, part }).await?;
            Answer::Done
        }
        Op::Complete { upload, parts } => {
            let parts = parts.into_iter().map(|(number, write)| (number, part_etag(write)));
            let parts = parts.map(|(number, etag)| CompletedPart { number, etag }).collect();
            let (precondition, checksum) = (None, None);
            let request =
                CompleteUploadRequest { volume, bucket, key, upload, parts, precondition, checksum };
            change(&client, ask.id, age, request).await?;
            Answer::Done
        }
        Op::Abort { upload } => {
            change(&client, ask.id, age, AbortUploadRequest { volume, bucket, key, upload }).await?;
            Answer::Done
        }
        Op::ReadParts { upload } => {
            let request = ListPartsRequest { volume, bucket, key, upload, after: 0, limit: 0 };
            let parts = client.list_parts(request).await?.into_inner().parts;
            Answer::Parts(parts.into_iter().map(|part| (part.number, write_of(&part.etag))).collect())
        }
    };
    Ok(one(answer))
}

/// The places at which OM's tables have each write, and the uploads in them.
struct Places {
    writes: HashMap<u64, Vec<&'static str>>,
    uploads: Vec<String>,
}

impl Places {
    fn of(db_dir: &Path) -> Places {
        let db = statedb::Db::open(db_dir, &statedb::DbOptions::default()).unwrap();
        let mut places = Places { writes: HashMap::new(), uploads: Vec::new() };
        for record in db.rocks().iterator(rocksdb::IteratorMode::Start) {
            let (key, value) = record.unwrap();
            let (place, pieces) = match key[0] {
                b'k' => ("a key", Key::decode(&value[..]).unwrap().pieces),
                b'p' => ("an upload", Part::decode(&value[..]).unwrap().pieces),
                b'd' => (DELETED, DeletedPieces::decode(&value[..]).unwrap().pieces),
                b'u' => {
                    places.uploads.push(Upload::decode(&value[..]).unwrap().upload);
                    continue;
                }
                _ => continue,
            };
            writes(&pieces).into_iter().for_each(|write| places.writes.entry(write).or_default().push(place));
        }
        places
    }

    fn violations<'a>(&self, calls: impl Iterator<Item = &'a Call>) -> Vec<String> {
        let mut wrong: Vec<String> = Vec::new();
        for (write, places) in self.writes.iter().filter(|(_, places)| places.len() > 1) {
            wrong.push(format!("write {write} {IS_TWICE} {}", places.join(" and in ")));
        }
        let (mut known, mut unknown) = (HashSet::new(), 0);
        for call in calls {
            let answer = call.answered.as_ref().map(|(_, answer)| answer);
            match (&call.op, answer) {
                (Op::CreateUpload { upload: Some(upload) }, _) => {
                    known.insert(upload);
                }
                (Op::CreateUpload { .. }, None) => unknown += 1,
                (Op::Put { write, .. } | Op::CommitPart { write, .. }, Some(answer)) => {
                    // What a refused one has brought is filed.
                    let places = self.writes.get(write).map_or(&[][..], Vec::as_slice);
                    let is_right = match answer {
                        Answer::Done => !places.is_empty(),
                        _ => places == [DELETED],
                    };
                    if !is_right {
                        wrong.push(format!("{call:?}, and it is in the tables in {places:?}"));
                    }
                }
                _ => {}
            }
        }
        let strange = self.uploads.iter().filter(|upload| !known.contains(upload)).count();
        if strange > unknown {
            wrong.push(format!("{strange} uploads are nobody's, and {unknown} may be"));
        }
        wrong
    }
}
