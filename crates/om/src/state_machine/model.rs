//! All commands of users beside a namespace in memory: what each is answered, and what is there afterwards,
//! however the log merges them into entries and batches, and wherever a crash makes it begin again.

use super::tests::{Machine, applied_index, apply, committed, open, prepared};
use crate::ops::{
    AbortUpload, CommitKey, CommitPart, CompleteUpload, CreateBucket, CreateUpload, CreateVolume,
    DeleteBucket, DeleteKeys, DeleteVolume,
};
use crate::queries::{self, ListBuckets, ListKeys, ListParts, ListUploads, ListVolumes};
use crate::rules::{PART_BYTES_MIN, VOLUME};
use crate::tables::Refusal;
use bytes::Bytes;
use planted::Bug;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use prost::Message;
use proto::Code;
use proto::datanode::BlockName;
use proto::om::*;
use raft::Committed;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

const VOLUMES: [&str; 2] = [VOLUME, "mine"];
const BUCKETS: [&str; 2] = ["photos", "music"];
const KEYS: [&str; 3] = ["a", "a/b", "b"];

/// A bucket by its volume and name, as indexes of those there are.
type At = (usize, usize);
type BlockNumber = u64;

#[derive(Clone, Copy, Debug)]
enum Condition {
    None,
    Absent,
    Present,
    /// The etag that the key has; without one, some etag.
    Etag,
    AnotherEtag,
}

#[derive(Clone, Debug)]
enum Step {
    CreateVolume(usize),
    DeleteVolume(usize),
    CreateBucket(At),
    DeleteBucket(At),
    /// A key of new blocks; or of the blocks that it has, if it has some.
    Commit {
        at: At,
        key: usize,
        condition: Condition,
        over_itself: bool,
    },
    Delete {
        at: At,
        keys: Vec<usize>,
        condition: Condition,
    },
    Begin {
        at: At,
        key: usize,
    },
    Part {
        upload: Index,
        number: u32,
        is_small: bool,
    },
    /// Parts by number, and whether each is named by the etag that it has.
    Complete {
        upload: Index,
        parts: Vec<(u32, bool)>,
        condition: Condition,
    },
    Abort {
        upload: Index,
    },
    /// A request that was sent before comes once more.
    Again(Index),
}

/// The answer to a command, as far as its sender can know what it must be.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Refused(Code),
    Done,
    Modified(u64),
    Begun(String),
    Existed(Vec<bool>),
    Completed { etag_parts: usize, size: u64 },
}

#[derive(Clone, Debug, PartialEq)]
struct ModelKey {
    etag: String,
    modified_ms: u64,
    blocks: Vec<BlockNumber>,
}

#[derive(Clone, Debug, PartialEq)]
struct ModelPart {
    etag: String,
    size: u64,
    block: BlockNumber,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelBucket {
    keys: BTreeMap<String, ModelKey>,
    uploads: BTreeMap<(String, String), BTreeMap<u32, ModelPart>>,
}

/// The buckets of each volume.
type Names = BTreeMap<String, BTreeMap<String, ModelBucket>>;

/// An upload that was begun, whatever has become of it.
#[derive(Clone, Debug)]
struct Upload {
    at: At,
    key: usize,
    id: String,
}

struct Model {
    names: Names,
    uploads: Vec<Upload>,
    /// The commands so far, with what each must be answered.
    log: Vec<(OmCommand, Answer)>,
}

impl Model {
    fn new() -> Model {
        let names = BTreeMap::from([(VOLUME.to_owned(), BTreeMap::new())]);
        Model { names, uploads: Vec::new(), log: Vec::new() }
    }

    fn volume(&mut self, volume: usize) -> Result<&mut BTreeMap<String, ModelBucket>, Code> {
        self.names.get_mut(VOLUMES[volume]).ok_or(Code::NoSuchVolume)
    }

    fn bucket(&mut self, (volume, bucket): At) -> Result<&mut ModelBucket, Code> {
        self.volume(volume)?.get_mut(BUCKETS[bucket]).ok_or(Code::NoSuchBucket)
    }

    fn existing(&mut self, at: At, key: usize) -> Option<ModelKey> {
        self.bucket(at).ok()?.keys.get(KEYS[key]).cloned()
    }

    /// Carries out a step, and adds its command to the log.
    fn step(&mut self, step: &Step) {
        let number = self.log.len() as u64 + 1;
        let (command, answer) = match step {
            Step::CreateVolume(volume) => {
                let request = CreateVolumeRequest { volume: VOLUMES[*volume].to_owned() };
                (prepared::<CreateVolume>(number, request), self.create_volume(*volume))
            }
            Step::DeleteVolume(volume) => {
                // The one that S3 sees stays; such a request does not come to the log.
                let volume = (*volume).max(1);
                let request = DeleteVolumeRequest { volume: VOLUMES[volume].to_owned() };
                (prepared::<DeleteVolume>(number, request), self.delete_volume(volume))
            }
            Step::CreateBucket(at) => {
                let (volume, bucket) = names(*at);
                let request = CreateBucketRequest { volume, bucket, group: None };
                (prepared::<CreateBucket>(number, request), self.create_bucket(*at))
            }
            Step::DeleteBucket(at) => {
                let (volume, bucket) = names(*at);
                let request = DeleteBucketRequest { volume, bucket };
                (prepared::<DeleteBucket>(number, request), self.delete_bucket(*at))
            }
            Step::Commit { at, key, condition, over_itself } => {
                let ((volume, bucket), existing) = (names(*at), self.existing(*at, *key));
                let precondition = condition.of(existing.as_ref());
                let blocks = match existing {
                    Some(existing) if *over_itself => existing.blocks,
                    _ => vec![2 * number, 2 * number + 1],
                };
                let pieces: Vec<_> = blocks.iter().map(|block| piece(*block, 10)).collect();
                let (size, etag) = (10 * pieces.len() as u64, format!("etag-{number}"));
                let name = Bytes::from(KEYS[*key]);
                let record = Some(Key { key: name, size, etag: etag.clone(), pieces, ..Key::default() });
                let request = CommitKeyRequest { volume, bucket, key: record, precondition };
                let committed = ModelKey { etag, modified_ms: number, blocks };
                let answer = self.commit(*at, *key, *condition, committed);
                (prepared::<CommitKey>(number, request), answer)
            }
            Step::Delete { at, keys, condition } => {
                let (volume, bucket) = names(*at);
                let condition = if keys.len() == 1 { *condition } else { Condition::None };
                let precondition = condition.of(self.existing(*at, keys[0]).as_ref());
                let names = keys.iter().map(|key| Bytes::from(KEYS[*key])).collect();
                let request = DeleteKeysRequest { volume, bucket, keys: names, precondition };
                (prepared::<DeleteKeys>(number, request), self.delete(*at, keys, condition))
            }
            Step::Begin { at, key } => {
                let (volume, bucket) = names(*at);
                let name = Bytes::from(KEYS[*key]);
                let request = CreateUploadRequest { volume, bucket, key: name, attributes: None };
                (prepared::<CreateUpload>(number, request), self.begin(*at, *key, number))
            }
            Step::Part { upload, number: part, is_small } => {
                let Some(upload) = self.upload(upload) else { return };
                let (volume, bucket) = names(upload.at);
                let size = if *is_small { 10 } else { PART_BYTES_MIN };
                let (block, etag) = (2 * number, format!("{number:032x}"));
                let record = Part {
                    number: *part,
                    size,
                    etag: etag.clone(),
                    pieces: vec![piece(block, size)],
                    ..Part::default()
                };
                let (key, id) = (Bytes::from(KEYS[upload.key]), upload.id.clone());
                let request = CommitPartRequest { volume, bucket, key, upload: id, part: Some(record) };
                let answer = self.part(&upload, *part, ModelPart { etag, size, block }, number);
                (prepared::<CommitPart>(number, request), answer)
            }
            Step::Complete { upload, parts, condition } => {
                let Some(upload) = self.upload(upload) else { return };
                let (volume, bucket) = names(upload.at);
                let precondition = condition.of(self.existing(upload.at, upload.key).as_ref());
                let there = self.parts(&upload).unwrap_or_default();
                // Parts out of their order do not come to the log.
                let named: BTreeMap<u32, bool> = parts.iter().copied().collect();
                let etag = |number: u32, is_right: bool| match there.get(&number) {
                    Some(part) if is_right => part.etag.clone(),
                    _ => "f".repeat(32),
                };
                let named: Vec<CompletedPart> = named
                    .into_iter()
                    .map(|(number, is_right)| CompletedPart { number, etag: etag(number, is_right) })
                    .collect();
                let answer = self.complete(&upload, &named, *condition, number);
                let request = CompleteUploadRequest {
                    volume,
                    bucket,
                    key: Bytes::from(KEYS[upload.key]),
                    upload: upload.id,
                    parts: named,
                    precondition,
                    checksum: None,
                };
                (prepared::<CompleteUpload>(number, request), answer)
            }
            Step::Abort { upload } => {
                let Some(upload) = self.upload(upload) else { return };
                let ((volume, bucket), key) = (names(upload.at), Bytes::from(KEYS[upload.key]));
                let answer = self.abort(&upload);
                let request = AbortUploadRequest { volume, bucket, key, upload: upload.id };
                (prepared::<AbortUpload>(number, request), answer)
            }
            Step::Again(_) if self.log.is_empty() => return,
            // It is answered as it was, whatever has happened since.
            Step::Again(nth) => self.log[nth.index(self.log.len())].clone(),
        };
        self.log.push((command, answer));
    }

    fn create_volume(&mut self, volume: usize) -> Answer {
        if self.names.contains_key(VOLUMES[volume]) {
            return Answer::Refused(Code::VolumeExists);
        }
        self.names.insert(VOLUMES[volume].to_owned(), BTreeMap::new());
        Answer::Done
    }

    fn delete_volume(&mut self, volume: usize) -> Answer {
        answered(self.volume(volume).map(|buckets| buckets.is_empty()).and_then(|is_empty| {
            if !is_empty {
                return Err(Code::VolumeNotEmpty);
            }
            self.names.remove(VOLUMES[volume]);
            Ok(Answer::Done)
        }))
    }

    fn create_bucket(&mut self, (volume, bucket): At) -> Answer {
        answered(self.volume(volume).and_then(|buckets| {
            if buckets.contains_key(BUCKETS[bucket]) {
                return Err(Code::BucketExists);
            }
            buckets.insert(BUCKETS[bucket].to_owned(), ModelBucket::default());
            Ok(Answer::Done)
        }))
    }

    /// Uploads in progress end with their bucket.
    fn delete_bucket(&mut self, at: At) -> Answer {
        answered(self.bucket(at).map(|bucket| bucket.keys.is_empty()).and_then(|is_empty| {
            if !is_empty {
                return Err(Code::BucketNotEmpty);
            }
            self.volume(at.0)?.remove(BUCKETS[at.1]);
            Ok(Answer::Done)
        }))
    }

    fn commit(&mut self, at: At, key: usize, condition: Condition, committed: ModelKey) -> Answer {
        answered(self.bucket(at).and_then(|bucket| {
            condition.check(bucket.keys.contains_key(KEYS[key]))?;
            let modified_ms = committed.modified_ms;
            bucket.keys.insert(KEYS[key].to_owned(), committed);
            Ok(Answer::Modified(modified_ms))
        }))
    }

    fn delete(&mut self, at: At, keys: &[usize], condition: Condition) -> Answer {
        answered(self.bucket(at).and_then(|bucket| {
            condition.check(bucket.keys.contains_key(KEYS[keys[0]]))?;
            Ok(Answer::Existed(keys.iter().map(|key| bucket.keys.remove(KEYS[*key]).is_some()).collect()))
        }))
    }

    fn begin(&mut self, at: At, key: usize, number: u64) -> Answer {
        let id = format!("{number:032x}");
        let begun = self.bucket(at).map(|bucket| {
            bucket.uploads.insert((KEYS[key].to_owned(), id.clone()), BTreeMap::new());
            Answer::Begun(id.clone())
        });
        // Also one that nobody has begun is spoken of later.
        self.uploads.push(Upload { at, key, id });
        answered(begun)
    }

    /// One of the last few uploads that were begun, and so most likely one that goes on.
    fn upload(&self, nth: &Index) -> Option<Upload> {
        let last = &self.uploads[self.uploads.len().saturating_sub(3)..];
        (!last.is_empty()).then(|| last[nth.index(last.len())].clone())
    }

    fn parts(&mut self, upload: &Upload) -> Result<BTreeMap<u32, ModelPart>, Code> {
        let named = (KEYS[upload.key].to_owned(), upload.id.clone());
        self.bucket(upload.at)?.uploads.get(&named).cloned().ok_or(Code::NoSuchUpload)
    }

    fn part(&mut self, upload: &Upload, number: u32, part: ModelPart, now_ms: u64) -> Answer {
        answered(self.parts(upload).and_then(|mut parts| {
            parts.insert(number, part);
            let named = (KEYS[upload.key].to_owned(), upload.id.clone());
            self.bucket(upload.at)?.uploads.insert(named, parts);
            Ok(Answer::Modified(now_ms))
        }))
    }

    fn abort(&mut self, upload: &Upload) -> Answer {
        answered(self.parts(upload).and_then(|_| {
            let named = (KEYS[upload.key].to_owned(), upload.id.clone());
            self.bucket(upload.at)?.uploads.remove(&named);
            Ok(Answer::Done)
        }))
    }

    fn complete(
        &mut self,
        upload: &Upload,
        named: &[CompletedPart],
        condition: Condition,
        now_ms: u64,
    ) -> Answer {
        answered(self.parts(upload).and_then(|parts| {
            let bucket = self.bucket(upload.at)?;
            condition.check(bucket.keys.contains_key(KEYS[upload.key]))?;
            let mut chosen = Vec::new();
            for (nth, CompletedPart { number, etag }) in named.iter().enumerate() {
                let part = parts.get(number).filter(|part| part.etag == *etag).ok_or(Code::InvalidPart)?;
                if part.size < PART_BYTES_MIN && nth + 1 < named.len() {
                    return Err(Code::PartTooSmall);
                }
                chosen.push(part);
            }
            let (size, etag_parts) = (chosen.iter().map(|part| part.size).sum(), chosen.len());
            // The hash of the parts' hashes is held by the operation's own test.
            let key = ModelKey {
                etag: format!("-{etag_parts}"),
                modified_ms: now_ms,
                blocks: chosen.iter().map(|part| part.block).collect(),
            };
            bucket.uploads.remove(&(KEYS[upload.key].to_owned(), upload.id.clone()));
            bucket.keys.insert(KEYS[upload.key].to_owned(), key);
            Ok(Answer::Completed { etag_parts, size })
        }))
    }
}

impl Condition {
    fn of(self, existing: Option<&ModelKey>) -> Option<Precondition> {
        let etag = |etag: String| Precondition { etag: Some(etag), ..Precondition::default() };
        match self {
            Condition::None => None,
            Condition::Absent => Some(Precondition { absent: true, ..Precondition::default() }),
            Condition::Present => Some(Precondition { present: true, ..Precondition::default() }),
            // That of an object of parts is a hash, which the model does not know.
            Condition::Etag if existing.is_some_and(|key| key.etag.starts_with('-')) => {
                Some(Precondition { present: true, ..Precondition::default() })
            }
            Condition::Etag => Some(etag(existing.map_or("some".to_owned(), |key| key.etag.clone()))),
            Condition::AnotherEtag => Some(etag("another".to_owned())),
        }
    }

    fn check(self, exists: bool) -> Result<(), Code> {
        match (self, exists) {
            (Condition::Absent, true) | (Condition::AnotherEtag, true) => Err(Code::PreconditionFailed),
            (Condition::Present | Condition::Etag | Condition::AnotherEtag, false) => Err(Code::NoSuchKey),
            _ => Ok(()),
        }
    }
}

fn answered(done: Result<Answer, Code>) -> Answer {
    done.unwrap_or_else(Answer::Refused)
}

fn names((volume, bucket): At) -> (String, String) {
    (VOLUMES[volume].to_owned(), BUCKETS[bucket].to_owned())
}

fn piece(number: BlockNumber, length: u64) -> BlockPiece {
    let name =
        BlockName { container: number % 3 + 1, local: number, nonce: proto::uuid_bytes(number.into()) };
    BlockPiece { block: Some(name), offset: 0, length, commit_index: 9, crc: 0 }
}

fn blocks(pieces: &[BlockPiece]) -> Vec<BlockNumber> {
    pieces.iter().map(|piece| piece.block.as_ref().unwrap().local).collect()
}

/// The answer in a reply.
fn answer(reply: OmReply) -> Answer {
    match reply.result.unwrap() {
        om_reply::Result::Error(error) => Answer::Refused(error.code()),
        om_reply::Result::CommitKey(done) => Answer::Modified(done.modified_ms),
        om_reply::Result::CommitPart(done) => Answer::Modified(done.modified_ms),
        om_reply::Result::CreateUpload(begun) => Answer::Begun(begun.upload),
        om_reply::Result::DeleteKeys(deleted) => Answer::Existed(deleted.existed),
        om_reply::Result::CompleteUpload(completed) => {
            let key = completed.key.unwrap();
            let (_, parts) = key.etag.split_once('-').unwrap();
            Answer::Completed { etag_parts: parts.parse().unwrap(), size: key.size }
        }
        _ => Answer::Done,
    }
}

/// The namespace as queries show it.
fn shown(machine: &Machine) -> Names {
    let db = &machine.db;
    let page = 1000;
    let volumes = found(queries::read::<ListVolumes>(
        db,
        None,
        ListVolumesRequest { after: String::new(), limit: page },
    ));
    let mut names = Names::new();
    for volume in volumes.volumes.into_iter().map(|volume| volume.name) {
        let request =
            ListBucketsRequest { volume: volume.clone(), limit: page, ..ListBucketsRequest::default() };
        let buckets = found(queries::read::<ListBuckets>(db, None, request)).buckets;
        let shown = buckets.into_iter().map(|bucket| {
            let shown = ModelBucket {
                keys: shown_keys(machine, &volume, &bucket.name),
                uploads: shown_uploads(machine, &volume, &bucket.name),
            };
            (bucket.name, shown)
        });
        let shown = shown.collect();
        names.insert(volume, shown);
    }
    names
}

fn shown_keys(machine: &Machine, volume: &str, bucket: &str) -> BTreeMap<String, ModelKey> {
    let (volume, bucket) = (volume.to_owned(), bucket.to_owned());
    let request = ListKeysRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        limit: 1000,
        ..ListKeysRequest::default()
    };
    let listed = found(queries::read::<ListKeys>(&machine.db, None, request)).entries;
    let keys = listed.into_iter().map(|listed| {
        let Some(listed_key::Entry::Key(listed)) = listed.entry else { panic!("there is no delimiter") };
        let (volume, bucket, key) = (volume.clone(), bucket.clone(), listed.key.clone());
        let key = found(queries::lookup_key(&machine.db, None, &Lookup { place: None, volume, bucket, key }));
        assert_eq!(listed, Key { pieces: Vec::new(), part_sizes: Vec::new(), ..key.clone() });
        let etag = match key.etag.split_once('-') {
            Some((hash, parts)) if hash != "etag" => format!("-{parts}"),
            _ => key.etag,
        };
        let name = String::from_utf8(key.key.to_vec()).unwrap();
        (name, ModelKey { etag, modified_ms: key.modified_ms, blocks: blocks(&key.pieces) })
    });
    keys.collect()
}

fn shown_uploads(
    machine: &Machine,
    volume: &str,
    bucket: &str,
) -> BTreeMap<(String, String), BTreeMap<u32, ModelPart>> {
    let (volume, bucket) = (volume.to_owned(), bucket.to_owned());
    let request = ListUploadsRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        limit: 1000,
        ..ListUploadsRequest::default()
    };
    let uploads = found(queries::read::<ListUploads>(&machine.db, None, request)).uploads;
    let shown = uploads.into_iter().map(|upload| {
        let request = ListPartsRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: upload.key.clone(),
            upload: upload.upload.clone(),
            limit: 1000,
            ..ListPartsRequest::default()
        };
        let parts = found(queries::read::<ListParts>(&machine.db, None, request)).parts;
        // Listings have no pieces; the block follows from the etag.
        let block = |etag: &str| 2 * u64::from_str_radix(etag, 16).unwrap();
        let shown = parts.into_iter().map(|part| {
            let (block, size) = (block(&part.etag), part.size);
            (part.number, ModelPart { etag: part.etag, size, block })
        });
        let key = String::from_utf8(upload.key.to_vec()).unwrap();
        ((key, upload.upload), shown.collect())
    });
    shown.collect()
}

fn found<T>(read: Result<T, Refusal>) -> T {
    match read {
        Ok(found) => found,
        Err(Refusal::Failure(failure) | Refusal::Passing(failure)) => panic!("{failure}"),
        Err(Refusal::Broken(error)) => panic!("{error:#}"),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<Index>;
    let at = || (prop_oneof![3 => Just(0usize), 1 => Just(1)], prop_oneof![3 => Just(0usize), 1 => Just(1)]);
    let key = || 0..KEYS.len();
    let condition = || {
        prop_oneof![
            6 => Just(Condition::None),
            2 => Just(Condition::Absent),
            1 => Just(Condition::Present),
            2 => Just(Condition::Etag),
            1 => Just(Condition::AnotherEtag),
        ]
    };
    let parts = prop::collection::vec((1u32..4, prop::bool::weighted(0.9)), 1..4);
    let step = prop_oneof![
        1 => (0usize..2).prop_map(Step::CreateVolume),
        1 => (0usize..2).prop_map(Step::DeleteVolume),
        3 => at().prop_map(Step::CreateBucket),
        2 => at().prop_map(Step::DeleteBucket),
        8 => (at(), key(), condition(), any::<bool>()).prop_map(|(at, key, condition, over_itself)| {
            Step::Commit { at, key, condition, over_itself }
        }),
        4 => (at(), prop::collection::vec(key(), 1..4), condition())
            .prop_map(|(at, keys, condition)| Step::Delete { at, keys, condition }),
        3 => (at(), key()).prop_map(|(at, key)| Step::Begin { at, key }),
        9 => (index(), 1u32..4, prop::bool::weighted(0.3))
            .prop_map(|(upload, number, is_small)| Step::Part { upload, number, is_small }),
        4 => (index(), parts, condition())
            .prop_map(|(upload, parts, condition)| Step::Complete { upload, parts, condition }),
        1 => index().prop_map(|upload| Step::Abort { upload }),
        2 => index().prop_map(Step::Again),
    ];
    prop::collection::vec(step, 1..60).prop_map(|steps| {
        // Most is about a bucket that is there.
        [vec![Step::CreateBucket((0, 0))], steps].concat()
    })
}

/// The log of the commands, of which so many go into each entry.
fn merged(commands: &[OmCommand], counts: &[usize]) -> Vec<Committed> {
    let (mut rest, mut log) = (commands, Vec::new());
    for count in counts.iter().cycle() {
        let (together, later) = rest.split_at((*count).min(rest.len()));
        let entry = OmEntry { commands: together.to_vec() }.encode_to_vec();
        log.push(committed(log.len() as u64, entry));
        rest = later;
        if rest.is_empty() {
            return log;
        }
    }
    unreachable!("the counts go on for ever")
}

/// The commands, how they are merged into entries and batches, where the tables stand that a crash leaves,
/// and where the crash comes.
type Case = (Vec<Step>, Vec<usize>, Vec<usize>, Index, Index);

fn cases() -> impl Strategy<Value = Case> {
    let counts = |most: usize| prop::collection::vec(1..most, 1..8);
    (steps(), counts(6), counts(9), any::<Index>(), any::<Index>())
}

/// Carries a case out, on tables and in memory.
fn check((steps, counts, batches, kept, crash): Case) -> Result<(), TestCaseError> {
    let mut model = Model::new();
    steps.iter().for_each(|step| model.step(step));
    let (commands, expected): (Vec<OmCommand>, Vec<Answer>) = model.log.iter().cloned().unzip();
    let log = merged(&commands, &counts);
    let dir = tempfile::tempdir().unwrap();
    let (mut machine, kept_tables) = (open(&dir.path().join("first")), dir.path().join("kept"));
    let (kept, crash) = (kept.index(log.len()).max(1), crash.index(log.len()));
    let (mut answers, mut at, mut is_kept, mut is_crashed) = (Vec::new(), 0, false, false);
    for batch in batches.iter().cycle() {
        if at >= log.len() {
            break;
        }
        if at >= kept && !is_kept {
            is_kept = true;
            let checkpoint = rocksdb::checkpoint::Checkpoint::new(machine.db.rocks()).unwrap();
            checkpoint.create_checkpoint(&kept_tables).unwrap();
        }
        if at >= crash && is_kept && !is_crashed {
            is_crashed = true;
            // What was written since is in the log alone. It is answered again as it was.
            machine = open(&kept_tables);
            let from = applied_index(&machine) as usize + 1;
            if from < at {
                let again: Vec<_> = apply(&mut machine, &log[from..at]).into_iter().map(answer).collect();
                prop_assert_eq!(&answers[answers.len() - again.len()..], &again[..]);
            }
        }
        let end = (at + batch).min(log.len());
        answers.extend(apply(&mut machine, &log[at..end]).into_iter().map(answer));
        at = end;
    }
    for (nth, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
        prop_assert_eq!(answer, expected, "command {}: {:?}", nth, &commands[nth]);
    }
    prop_assert_eq!(answers.len(), expected.len());
    prop_assert_eq!(shown(&machine), model.names);
    Ok(())
}

#[test]
fn each_command_is_answered_and_carried_out_as_in_memory() {
    let checked = TestRunner::new(Config::with_cases(60)).run(&cases(), check);
    checked.unwrap_or_else(|error| panic!("{error}"));
}

/// A runner that draws the same cases each time.
fn same_each_time(cases: u32) -> TestRunner {
    let config = Config { failure_persistence: None, max_shrink_iters: 0, ..Config::with_cases(cases) };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// What is never answered would show nothing.
#[test]
fn every_answer_there_is_comes_up() {
    let seen = RefCell::new(HashSet::new());
    let drawn = same_each_time(300).run(&steps(), |steps| {
        let mut model = Model::new();
        steps.iter().for_each(|step| model.step(step));
        seen.borrow_mut().extend(model.log.iter().map(|(_, answer)| format!("{answer:?}")));
        Ok(())
    });
    drawn.unwrap();
    let seen = seen.into_inner();
    for code in [
        Code::VolumeExists,
        Code::VolumeNotEmpty,
        Code::NoSuchVolume,
        Code::BucketExists,
        Code::BucketNotEmpty,
        Code::NoSuchBucket,
        Code::PreconditionFailed,
        Code::NoSuchKey,
        Code::NoSuchUpload,
        Code::InvalidPart,
        Code::PartTooSmall,
    ] {
        let refused = format!("{:?}", Answer::Refused(code));
        assert!(seen.contains(&refused), "no command was refused as {code:?}: {seen:?}");
    }
    let completed = seen.iter().filter(|answer| answer.starts_with("Completed")).count();
    assert!(completed > 1, "{completed} kinds of uploads were completed");
}

#[test]
fn a_request_that_takes_effect_again() {
    planted::plant(Some(Bug::RequestIdsIgnored));
    let found = same_each_time(60).run(&cases(), check);
    planted::plant(None);
    found.expect_err("the bug is found");
}
