//! A bucket that moves between two groups, beside one that stays and is asked the same.

use super::parts::Parts;
use crate::blocks::{self, BlockKey, NAMED_PREFIX};
use crate::ops::testing::{Namespace, commit_request, pieces};
use crate::ops::*;
use crate::tables::{
    BucketNumber, CONTENTS, DELETED_PREFIX, REMEMBERED_PREFIX, Read, decode, left_since, record_key,
};
use bytes::Bytes;
use planted::Bug;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proto::om::receive_rows_response::Outcome;
use proto::om::*;
use proto::{Code, Failure, RequestId};
use std::collections::BTreeSet;

const NUMBER: u64 = 7;
const BUCKET: BucketNumber = BucketNumber(NUMBER);

#[derive(Clone, Debug)]
enum Step {
    /// A request of some kind, about some key.
    Ask(u8, u8),
    /// A request of some time before, once more.
    Repeat(prop::sample::Index),
    /// A part goes over; or the move begins, or it is settled as done.
    Part,
    /// Another leader of the group goes on.
    NewLeader,
    GiveUp,
    /// A part that came before comes once more, or a word of the root's.
    Late(prop::sample::Index),
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        8 => (0u8..7, 0u8..5).prop_map(|(kind, key)| Step::Ask(kind, key)),
        3 => index().prop_map(Step::Repeat),
        8 => Just(Step::Part),
        1 => Just(Step::NewLeader),
        1 => Just(Step::GiveUp),
        3 => index().prop_map(Step::Late),
        2 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 10..80)
}

/// The move that is under way.
struct Under {
    moved: BucketMove,
    run: u64,
    seq: u64,
    parts: Parts,
    is_frozen: bool,
    /// Whether all has come, and the root is yet to hear so.
    is_complete: bool,
}

#[derive(Clone)]
enum Word {
    Rows(usize, ReceiveRowsRequest),
    Send(usize, SendBucketRequest),
    EndSending(usize, EndMoveRequest),
    EndReceiving(usize, EndMoveRequest),
}

struct World {
    still: Namespace,
    groups: [Namespace; 2],
    home: usize,
    epoch: u64,
    attempts: u64,
    moves: u64,
    under: Option<Under>,
    asked: Vec<OmCommand>,
    uploads: Vec<String>,
    said: Vec<Word>,
    now_ms: u64,
}

impl World {
    fn new() -> World {
        let mut world = World {
            still: Namespace::empty(),
            groups: [Namespace::empty(), Namespace::empty()],
            home: 0,
            epoch: 0,
            attempts: 0,
            moves: 0,
            under: None,
            asked: Vec::new(),
            uploads: Vec::new(),
            said: Vec::new(),
            now_ms: 1000,
        };
        let bucket = Some(Bucket { volume: "s3v".into(), name: "photos".into(), created_ms: 1 });
        let place = Some(BucketPlace { group: 0, number: NUMBER, epoch: 0 });
        let hold = HoldBucketRequest { place, bucket, fences: 0 };
        world.still.run::<HoldBucket>(hold.clone()).unwrap();
        world.groups[0].run::<HoldBucket>(hold).unwrap();
        world
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Ask(kind, key) => {
                self.now_ms += 1;
                let command = self.command(*kind, ["a", "b", "c", "d", "e"][usize::from(*key)]);
                self.ask(command)
            }
            Step::Repeat(nth) if !self.asked.is_empty() => {
                let again = self.asked[nth.index(self.asked.len())].clone();
                self.ask(again)
            }
            Step::Repeat(_) => Ok(()),
            Step::Part => self.part(),
            Step::NewLeader => self.new_leader(),
            Step::GiveUp => self.settle(false),
            Step::Late(nth) if !self.said.is_empty() => {
                let late = self.said[nth.index(self.said.len())].clone();
                self.late(late)
            }
            Step::Late(_) => Ok(()),
            Step::Sweep => {
                (0..2).for_each(|group| {
                    self.sweep(group);
                });
                Ok(())
            }
        }
    }

    /// A command that names no place yet.
    fn command(&self, kind: u8, key: &str) -> OmCommand {
        let bucket = || ("s3v".to_owned(), "photos".to_owned());
        let ((volume, bucket), number) = (bucket(), self.now_ms);
        let key = Bytes::copy_from_slice(key.as_bytes());
        let upload = self.uploads.last().cloned().unwrap_or_else(|| "0".repeat(32));
        match kind {
            0..=2 => {
                let mut request = commit_request(std::str::from_utf8(&key).unwrap(), number);
                let key = request.key.as_mut().unwrap();
                (key.size, key.pieces) = (number, pieces(number, number));
                let absent = Precondition { absent: true, ..Precondition::default() };
                request.precondition = (kind == 2).then_some(absent);
                self.prepared::<CommitKey>(request)
            }
            3 => {
                let keys = vec![key];
                self.prepared::<DeleteKeys>(DeleteKeysRequest { volume, bucket, keys, precondition: None })
            }
            4 => {
                let request = CreateUploadRequest { volume, bucket, key: "up".into(), attributes: None };
                self.prepared::<CreateUpload>(request)
            }
            5 => {
                let etag = format!("{number:032}");
                let part =
                    Some(Part { number: 1, size: 9, etag, pieces: pieces(number, 9), ..Part::default() });
                let request = CommitPartRequest { volume, bucket, key: "up".into(), upload, part };
                self.prepared::<CommitPart>(request)
            }
            _ => {
                let request = AbortUploadRequest { volume, bucket, key: "up".into(), upload };
                self.prepared::<AbortUpload>(request)
            }
        }
    }

    fn prepared<O: Operation>(&self, request: O::Request) -> OmCommand {
        let fresh = Fresh { random: self.now_ms.into(), now_ms: self.now_ms };
        prepare::<O>(RequestId(u128::from(self.now_ms) << 64), None, request, fresh).unwrap()
    }

    /// Asks both buckets, unless the one that moves has nobody who may answer.
    fn ask(&mut self, command: OmCommand) -> Result<(), String> {
        let at = |epoch| OmCommand { bucket: NUMBER, epoch, ..command.clone() };
        let is_answered_before = self.asked.contains(&command);
        let is_frozen = self.under.as_ref().is_some_and(|under| under.is_frozen);
        let answer = self.groups[self.home].answer(at(self.epoch));
        if let om_reply::Result::Error(error) = &answer
            && matches!(error.code(), Code::NotYet | Code::NotHere)
        {
            let is_right = is_frozen && error.code() == Code::NotYet && !is_answered_before;
            return if is_right { Ok(()) } else { Err(format!("{error:?}")) };
        }
        let wanted = self.still.answer(at(0));
        if let om_reply::Result::CreateUpload(created) = &wanted {
            self.uploads.push(created.upload.clone());
        }
        if !is_answered_before {
            self.asked.push(command);
        }
        match answer == wanted {
            true => Ok(()),
            false => Err(format!("answered {answer:?}, and where nothing moves {wanted:?}")),
        }
    }

    fn part(&mut self) -> Result<(), String> {
        let Some(mut under) = self.under.take() else { return self.begin() };
        if under.is_complete {
            self.under = Some(under);
            return self.settle(true);
        }
        let part = under.parts.next(&self.groups[self.home].db).unwrap();
        under.is_complete = part.is_rest && under.is_frozen;
        let record = under
            .is_complete
            .then(|| self.groups[self.home].db.message(&record_key(BUCKET)).unwrap().unwrap());
        let (rows, requests) = (part.rows, part.requests);
        under.seq += 1;
        let request = ReceiveRowsRequest {
            moved: Some(under.moved),
            run: under.run,
            seq: under.seq,
            rows,
            requests,
            record,
        };
        let to = 1 - self.home;
        self.said.push(Word::Rows(to, request.clone()));
        while self.receive(to, request.clone()).unwrap() != Outcome::Taken {
            self.sweep(to);
        }
        let BucketMove { number, attempt, .. } = under.moved;
        if part.is_rest && !under.is_frozen {
            let freeze = FreezeBucketCommand { number, attempt, run: under.run };
            self.groups[self.home].run::<FreezeBucket>(freeze).unwrap();
            under.is_frozen = true;
        }
        self.under = Some(under);
        Ok(())
    }

    fn begin(&mut self) -> Result<(), String> {
        self.attempts += 1;
        let (from, to) = (self.home as u64, 1 - self.home as u64);
        let moved = BucketMove { number: NUMBER, attempt: self.attempts, from, to };
        let send = SendBucketRequest { moved: Some(moved) };
        self.said.push(Word::Send(self.home, send));
        assert!(self.groups[self.home].run::<SendBucket>(send).unwrap().is_sent);
        self.begin_run(moved);
        Ok(())
    }

    fn begin_run(&mut self, moved: BucketMove) {
        let home = &mut self.groups[self.home];
        let tap = home.taps.open(BUCKET);
        let begin = BeginRunCommand { number: NUMBER, attempt: moved.attempt };
        let begun = home.run::<BeginRun>(begin).unwrap();
        assert!(!begun.is_frozen);
        let mut parts = Parts::new(BUCKET, tap);
        parts.count_max = 3;
        self.under =
            Some(Under { moved, run: begun.run, seq: 0, parts, is_frozen: false, is_complete: false });
    }

    fn new_leader(&mut self) -> Result<(), String> {
        match self.under.take() {
            None => Ok(()),
            Some(under) if under.is_frozen => {
                self.under = Some(under);
                self.settle(false)
            }
            Some(under) => {
                let moved = under.moved;
                drop(under);
                self.begin_run(moved);
                Ok(())
            }
        }
    }

    fn receive(&mut self, to: usize, request: ReceiveRowsRequest) -> Result<Outcome, Failure> {
        self.groups[to].run::<ReceiveRows>(request).map(|answer| answer.outcome())
    }

    /// Settles the move as the root has decided: the group that had the bucket hears it before the other.
    fn settle(&mut self, is_done: bool) -> Result<(), String> {
        let Some(under) = self.under.take() else { return Ok(()) };
        let end = EndMoveRequest { moved: Some(under.moved), is_done, fences: 0 };
        let (from, to) = (self.home, 1 - self.home);
        self.said.extend([Word::EndSending(from, end), Word::EndReceiving(to, end)]);
        self.groups[from].run::<EndSending>(end).unwrap();
        if is_done {
            self.check_elsewhere(from, self.epoch)?;
            self.check_elsewhere(to, under.moved.attempt)?;
        }
        self.groups[to].run::<EndReceiving>(end).unwrap();
        if is_done {
            (self.home, self.epoch, self.moves) = (to, under.moved.attempt, self.moves + 1);
        }
        self.check_elsewhere(1 - self.home, self.epoch)?;
        // The home refuses places of before, and one of which nobody has heard.
        let others = (0..self.attempts + 2).filter(|epoch| *epoch != self.epoch).collect::<Vec<_>>();
        others.into_iter().try_for_each(|epoch| self.check_elsewhere(self.home, epoch))?;
        self.compare()
    }

    /// Checks that a group refuses a new request, as one that does not have the bucket by this epoch.
    fn check_elsewhere(&mut self, group: usize, epoch: u64) -> Result<(), String> {
        self.now_ms += 1;
        let command = OmCommand { bucket: NUMBER, epoch, ..self.command(0, "a") };
        match self.groups[group].answer(command) {
            om_reply::Result::Error(error) if error.code() == Code::NotHere => Ok(()),
            other => Err(format!("group {group} has it not by epoch {epoch}, and answers {other:?}")),
        }
    }

    /// Says a word of before once more, and checks that it changes nothing.
    fn late(&mut self, word: Word) -> Result<(), String> {
        let group = match &word {
            Word::Rows(group, _)
            | Word::Send(group, _)
            | Word::EndSending(group, _)
            | Word::EndReceiving(group, _) => *group,
        };
        let before = self.groups[group].names();
        // Some are refused.
        match word.clone() {
            Word::Rows(_, rows) => drop(self.receive(group, rows)),
            Word::Send(_, send) => drop(self.groups[group].run::<SendBucket>(send)),
            Word::EndSending(_, end) => drop(self.groups[group].run::<EndSending>(end)),
            Word::EndReceiving(_, end) => drop(self.groups[group].run::<EndReceiving>(end)),
        }
        match self.groups[group].names() == before {
            true => Ok(()),
            false => Err("a late word changed something".to_owned()),
        }
    }

    /// Deletes all that is left in a group, and answers whether there was anything.
    fn sweep(&mut self, group: usize) -> bool {
        let Some(since) = left_since(&self.groups[group].db, BUCKET).unwrap() else { return false };
        let mut after = Bytes::new();
        loop {
            let some = SweepRowsCommand { number: NUMBER, since, after, pieces_max: 3 };
            let swept = self.groups[group].run::<SweepRows>(some).unwrap();
            if swept.is_done {
                return true;
            }
            after = swept.last;
        }
    }

    fn contents(namespace: &Namespace) -> Vec<(Vec<u8>, Vec<u8>)> {
        CONTENTS.iter().flat_map(|table| namespace.records(table)).collect()
    }

    fn compare(&self) -> Result<(), String> {
        let home = &self.groups[self.home];
        if World::contents(home) != World::contents(&self.still) {
            return Err("not what is where nothing moves".to_owned());
        }
        let record = |namespace: &Namespace| -> BucketRecord {
            namespace.db.message(&record_key(BUCKET)).unwrap().unwrap()
        };
        let (moved, stayed) = (record(home), record(&self.still));
        match (moved.keys, moved.bytes, moved.bucket) == (stayed.keys, stayed.bytes, stayed.bucket) {
            true => Ok(()),
            false => Err("not counted as where nothing moves".to_owned()),
        }
    }

    /// Brings the move that is under way to its end, asks all requests once more, and sweeps all that is
    /// left.
    fn end(&mut self) -> Result<(), String> {
        let moves = self.moves;
        while self.under.is_some() && self.moves == moves {
            self.part()?;
        }
        for command in self.asked.clone() {
            self.ask(command)?;
        }
        self.compare()?;
        (0..2).for_each(|group| {
            self.sweep(group);
        });
        let rest = World::contents(&self.groups[1 - self.home]);
        if !rest.is_empty() {
            return Err(format!("{rest:?} is left"));
        }
        self.groups.iter().try_for_each(check_named)
    }
}

/// Checks that each row that names a block is said to, and that any other row that is said to has filed that
/// it does so no more.
fn check_named(group: &Namespace) -> Result<(), String> {
    let keys = |pieces: &[BlockPiece], row: &[u8]| -> Vec<Vec<u8>> {
        pieces.iter().map(|piece| BlockKey::of(piece).unwrap().named_key(row)).collect()
    };
    let rows = CONTENTS.iter().flat_map(|table| group.records(table));
    let named = rows.flat_map(|(row, value)| keys(&blocks::pieces_of(&row, &value).unwrap(), &row));
    let named: BTreeSet<Vec<u8>> = named.collect();
    let filed = group.records(DELETED_PREFIX).into_iter().flat_map(|(key, value)| {
        let record: DeletedPieces = decode(&key, &value).unwrap();
        keys(&record.pieces, &record.row)
    });
    let filed: BTreeSet<Vec<u8>> = filed.collect();
    let said: BTreeSet<Vec<u8>> = group.records(NAMED_PREFIX).into_iter().map(|(key, _)| key).collect();
    match said.is_superset(&named) && said.iter().all(|key| named.contains(key) || filed.contains(key)) {
        true => Ok(()),
        false => Err(format!("{named:?} name blocks, {filed:?} did, and said is {said:?}")),
    }
}

fn run(steps: &[Step]) -> Result<u64, String> {
    let mut world = World::new();
    steps.iter().try_for_each(|step| world.step(step))?;
    world.end()?;
    Ok(world.moves)
}

/// The number of cases of which some shows each bug.
const CASES: u32 = 40;

#[test]
fn a_bucket_that_moves_is_what_it_would_have_been() {
    let mut runner = TestRunner::new(Config::with_cases(CASES));
    let moves = std::cell::Cell::new(0);
    let checked = runner.run(&steps(), |steps| {
        moves.set(moves.get() + run(&steps).map_err(TestCaseError::fail)?);
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    assert!(moves.get() > u64::from(CASES) / 2, "{} moves show little", moves.get());
}

/// The numbers under which a group remembers requests about the bucket.
fn remembered(group: &Namespace) -> Vec<Vec<u8>> {
    let entries = group.records(REMEMBERED_PREFIX).into_iter();
    let about = entries.filter_map(|(key, value)| about(decode(&key, &value).unwrap(), BUCKET));
    about.flat_map(|it| it.request_ids.chunks(16).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

#[test]
fn what_is_remembered_does_not_grow_with_the_moves() {
    let mut world = World::new();
    for key in 0..5 {
        world.step(&Step::Ask(0, key)).unwrap();
    }
    while world.moves < 6 {
        world.step(&Step::Part).unwrap();
    }
    for group in &world.groups {
        let mut ids = remembered(group);
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!((ids.len(), count), (5, 5));
    }
}

/// Checks that some case shows the bug, in these words.
fn finds(bug: Bug, words: &str) {
    planted::plant(Some(bug));
    let config = Config { failure_persistence: None, max_shrink_iters: 0, ..Config::with_cases(3 * CASES) };
    // The same histories each time: a bug shows in more than one way.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let found = TestRunner::new_with_rng(config, random)
        .run(&steps(), |steps| run(&steps).map(drop).map_err(TestCaseError::fail));
    planted::plant(None);
    let why = found.expect_err("the bug is found").to_string();
    assert!(why.contains(words), "{why}");
}

#[test]
fn a_freeze_that_is_left_out() {
    finds(Bug::FreezeLeftOut, "where nothing moves");
}

#[test]
fn requests_that_are_left_behind() {
    finds(Bug::RequestsLeftBehind, "where nothing moves");
}

#[test]
fn epochs_that_are_ignored() {
    finds(Bug::EpochsIgnored, "has it not by epoch");
}
