//! Blocks that come and go, beside a memory of all that were ever brought: what is named is never given up,
//! and all else is in the end.

use super::portion::{self, Deleted};
use super::waits::Waits;
use crate::blocks::{self, BlockKey};
use crate::ops::testing::{Namespace, commit_request};
use crate::ops::*;
use bytes::Bytes;
use planted::Bug;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proto::datanode::BlockName;
use proto::om::*;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

#[derive(Clone, Debug)]
enum Step {
    /// A key is written, of so many new blocks; perhaps only if there is none.
    Put {
        key: u8,
        blocks: u8,
        if_absent: bool,
    },
    /// A key is written over a block that was brought before.
    PutAgain {
        key: u8,
        block: prop::sample::Index,
    },
    Delete(u8),
    Begin,
    Part {
        number: u8,
        blocks: u8,
    },
    Complete {
        if_absent: bool,
    },
    Abort,
    /// The bucket goes, with its uploads, and another one comes.
    Drop,
    /// Some of what is deleted is sorted, so many pieces at once.
    Sort(u8),
    /// Some of what is unused is given up.
    Discard,
    /// Blocks that were given up are forgotten; or, by a leader that is none any more, once more.
    Forget(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        8 => (0u8..4, 1u8..4, any::<bool>()).prop_map(|(key, blocks, if_absent)| Step::Put { key, blocks, if_absent }),
        3 => (0u8..4, index()).prop_map(|(key, block)| Step::PutAgain { key, block }),
        3 => (0u8..4).prop_map(Step::Delete),
        2 => Just(Step::Begin),
        4 => (1u8..4, 1u8..3).prop_map(|(number, blocks)| Step::Part { number, blocks }),
        2 => any::<bool>().prop_map(|if_absent| Step::Complete { if_absent }),
        1 => Just(Step::Abort),
        1 => Just(Step::Drop),
        5 => (1u8..6).prop_map(Step::Sort),
        4 => Just(Step::Discard),
        3 => index().prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 10..80)
}

struct World {
    names: Namespace,
    waits: Waits,
    /// All blocks that were ever brought.
    brought: Vec<BlockPiece>,
    gone: BTreeSet<BlockKey>,
    /// The commands that said what is gone, for tables that may not have heard so.
    forgotten: Vec<ForgetBlocksCommand>,
    upload: String,
    parts: BTreeMap<u32, String>,
}

impl World {
    fn new() -> World {
        let (waits, brought, gone, forgotten, parts) = Default::default();
        World { names: Namespace::new(), waits, brought, gone, forgotten, upload: "0".repeat(32), parts }
    }

    fn bring(&mut self, count: u8) -> Vec<BlockPiece> {
        let first = self.brought.len() as u64;
        let piece = |local: u64| {
            let name = BlockName { container: local % 3 + 1, local, nonce: proto::uuid_bytes(local.into()) };
            BlockPiece { block: Some(name), offset: 0, length: 10, commit_index: 9, crc: 0 }
        };
        let new: Vec<_> = (first..first + u64::from(count)).map(piece).collect();
        self.brought.extend(new.clone());
        new
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Put { key, blocks, if_absent } => {
                let pieces = self.bring(*blocks);
                self.put(*key, pieces, *if_absent);
            }
            Step::PutAgain { key, block } => {
                let known = self.brought.iter().filter(|piece| !self.gone.contains(&block_of(piece)));
                let known: Vec<_> = known.cloned().collect();
                if !known.is_empty() {
                    self.put(*key, vec![known[block.index(known.len())].clone()], false);
                }
            }
            Step::Delete(key) => {
                let keys = vec![name(*key)];
                let (volume, bucket) = place();
                let delete = DeleteKeysRequest { volume, bucket, keys, precondition: None };
                self.names.run::<DeleteKeys>(delete).unwrap();
            }
            Step::Begin => {
                let (volume, bucket) = place();
                let create = CreateUploadRequest { volume, bucket, key: name(0), attributes: None };
                self.upload = self.names.run::<CreateUpload>(create).unwrap().upload;
                self.parts.clear();
            }
            Step::Part { number, blocks } => self.part((*number).into(), *blocks),
            Step::Complete { if_absent } => self.complete(*if_absent),
            Step::Abort => {
                let ((volume, bucket), upload) = (place(), self.upload.clone());
                let abort = AbortUploadRequest { volume, bucket, key: name(0), upload };
                let _ = self.names.run::<AbortUpload>(abort);
            }
            Step::Drop => self.drop_bucket(),
            Step::Sort(pieces_max) => {
                self.sort((*pieces_max).into());
            }
            Step::Discard => {
                self.discard()?;
            }
            Step::Forget(nth) if !self.forgotten.is_empty() => {
                let late = self.forgotten[nth.index(self.forgotten.len())].clone();
                self.names.run::<ForgetBlocks>(late).unwrap();
            }
            Step::Forget(_) => {}
        }
        self.check_named()
    }

    /// Writes a key, which may be refused.
    fn put(&mut self, key: u8, pieces: Vec<BlockPiece>, if_absent: bool) {
        let mut request = commit_request(std::str::from_utf8(&name(key)).unwrap(), 1);
        let key = request.key.as_mut().unwrap();
        (key.size, key.pieces) = (10 * pieces.len() as u64, pieces);
        request.precondition = absent(if_absent);
        let _ = self.names.run::<CommitKey>(request);
    }

    fn part(&mut self, number: u32, blocks: u8) {
        let pieces = self.bring(blocks);
        let etag = format!("{:032x}", self.brought.len());
        let size = 10 * pieces.len() as u64;
        let part = Some(Part { number, size, etag: etag.clone(), pieces, ..Part::default() });
        let ((volume, bucket), upload) = (place(), self.upload.clone());
        let request = CommitPartRequest { volume, bucket, key: name(0), upload, part };
        if self.names.run::<CommitPart>(request).is_ok() {
            self.parts.insert(number, etag);
        }
    }

    /// Completes the upload with its first part alone: parts before the last would be too small.
    fn complete(&mut self, if_absent: bool) {
        let ((volume, bucket), upload) = (place(), self.upload.clone());
        let parts = self
            .parts
            .iter()
            .take(1)
            .map(|(number, etag)| CompletedPart { number: *number, etag: etag.clone() });
        let request = CompleteUploadRequest {
            volume,
            bucket,
            key: name(0),
            upload,
            parts: parts.collect(),
            precondition: absent(if_absent),
            checksum: None,
        };
        let _ = self.names.run::<CompleteUpload>(request);
    }

    fn drop_bucket(&mut self) {
        let keys = (0..4).map(name).collect();
        let (volume, bucket) = place();
        let delete = DeleteKeysRequest { volume, bucket, keys, precondition: None };
        self.names.run::<DeleteKeys>(delete).unwrap();
        let number = self.names.bucket("photos").unwrap().0;
        let (volume, bucket) = place();
        self.names.run::<DeleteBucket>(DeleteBucketRequest { volume, bucket }).unwrap();
        let (volume, bucket) = place();
        self.names.run::<CreateBucket>(CreateBucketRequest { volume, bucket, group: None }).unwrap();
        let walk = WalkDroppedCommand { number, ..Default::default() };
        assert!(self.names.run::<WalkDropped>(walk).unwrap().is_done);
    }

    /// Sorts some of what is deleted, and answers whether there was anything.
    fn sort(&mut self, pieces_max: u32) -> bool {
        let Deleted::UpTo(last) = portion::deleted(&self.names.db, b"", b"e").unwrap() else {
            return false;
        };
        let some = SortDeletedCommand { after: Bytes::new(), last, pieces_max };
        self.names.run::<SortDeleted>(some).unwrap();
        true
    }

    /// Gives up what the tables say is unused, which must not be named, and answers whether there was
    /// anything.
    fn discard(&mut self) -> Result<bool, String> {
        let portion = portion::unused(&self.names.db, 0, &self.waits, Instant::now()).unwrap();
        let is_any = !portion.containers.is_empty();
        for found in portion.containers {
            let rests = |blocks: &[BlockKey]| blocks.iter().flat_map(|block| block.rest()).copied().collect();
            let (gone, named) = (rests(&found.blocks), rests(&found.named));
            self.forgotten.push(ForgetBlocksCommand { container: found.container, gone, named });
            self.gone.extend(found.blocks);
        }
        self.check_named().map(|()| is_any)
    }

    /// All blocks that rows of keys and parts name.
    fn named(&self) -> BTreeMap<BlockKey, Vec<u8>> {
        let rows = [b"k", b"p"].into_iter().flat_map(|table| self.names.records(table));
        let named = rows.flat_map(|(row, value)| {
            let pieces = blocks::pieces_of(&row, &value).unwrap();
            pieces.iter().map(|piece| (block_of(piece), row.clone())).collect::<Vec<_>>()
        });
        named.collect()
    }

    fn check_named(&self) -> Result<(), String> {
        match self.named().into_iter().find(|(block, _)| self.gone.contains(block)) {
            Some((block, row)) => Err(format!("{} names {block:?}, which was given up", row.escape_ascii())),
            None => Ok(()),
        }
    }

    /// Checks that all that is not named goes, and that the tables know of nothing else in the end.
    fn end(&mut self) -> Result<(), String> {
        let number = self.names.bucket("photos").unwrap().0;
        while self.sort(7) {}
        for round in 0.. {
            if !self.discard()? {
                break;
            }
            for forgotten in self.forgotten.clone() {
                self.names.run::<ForgetBlocks>(forgotten).unwrap();
            }
            assert!(round < 10, "it does not end");
        }
        let named = self.named();
        let left = self.brought.iter().map(block_of).filter(|block| !self.gone.contains(block));
        let left: BTreeSet<BlockKey> = left.collect();
        if left != named.keys().copied().collect() {
            return Err(format!("bucket {number} names {named:?}, and left are {left:?}"));
        }
        let said: Vec<Vec<u8>> = self.names.records(b"l").into_iter().map(|(key, _)| key).collect();
        let rows: BTreeSet<Vec<u8>> = said.iter().cloned().collect();
        let is_so = said.iter().all(|key| named.contains_key(&BlockKey::in_key(key).unwrap()));
        let totals = UnusedTotals { still_named: self.names.totals().still_named, ..Default::default() };
        match is_so && rows.len() >= named.len() && self.names.totals() == totals {
            true => Ok(()),
            false => Err(format!("{rows:?} are said to name {named:?}; filed are {:?}", self.names.totals())),
        }
    }
}

fn block_of(piece: &BlockPiece) -> BlockKey {
    BlockKey::of(piece).unwrap()
}

fn name(key: u8) -> Bytes {
    Bytes::copy_from_slice(&[b'a' + key])
}

fn place() -> (String, String) {
    ("s3v".to_owned(), "photos".to_owned())
}

fn absent(if_absent: bool) -> Option<Precondition> {
    if_absent.then_some(Precondition { absent: true, ..Precondition::default() })
}

fn run(steps: &[Step]) -> Result<usize, String> {
    let mut world = World::new();
    steps.iter().try_for_each(|step| world.step(step))?;
    world.end()?;
    Ok(world.gone.len())
}

/// The number of cases of which some shows the bug.
const CASES: u32 = 60;

#[test]
fn what_is_named_stays_and_all_else_goes() {
    let mut runner = TestRunner::new(Config::with_cases(CASES));
    let gone = std::cell::Cell::new(0);
    let checked = runner.run(&steps(), |steps| {
        gone.set(gone.get() + run(&steps).map_err(TestCaseError::fail)?);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    assert!(gone.get() > CASES as usize, "{} blocks show little", gone.get());
}

#[test]
fn blocks_that_go_though_they_are_named() {
    planted::plant(Some(Bug::NamedBlocksGo));
    let config = Config { failure_persistence: None, max_shrink_iters: 0, ..Config::with_cases(3 * CASES) };
    // The same histories each time: a bug shows in more than one way.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let found = TestRunner::new_with_rng(config, random)
        .run(&steps(), |steps| run(&steps).map(drop).map_err(TestCaseError::fail));
    planted::plant(None);
    let why = found.expect_err("the bug is found").to_string();
    assert!(why.contains("which was given up"), "{why}");
}
