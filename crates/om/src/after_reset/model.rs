//! A bucket that moves between groups, each of which may be reset to what a member had that lagged.

use super::place;
use crate::moves::{self, Parts};
use crate::ops::testing::{Namespace, commit_request};
use crate::ops::*;
use crate::queries;
use crate::reach::Reach;
use crate::state_machine::reset_rows;
use crate::tables::{
    BucketNumber, Read, bucket_key, doubt, key_key, left_since, record_key, runs_before, sending_key,
};
use bytes::Bytes;
use futures::FutureExt;
use planted::Bug;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proto::om::*;
use proto::{Code, Failure};
use statedb::Db;
use std::cell::RefCell;
use std::collections::BTreeSet;

const GROUPS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Put,
    /// The root begins to move the bucket to a group.
    Begin(usize),
    /// The next step of what is under way.
    GoOn,
    GiveUp,
    /// A member of the group lags from here on.
    Copy(usize),
    /// The group goes on with what that member had.
    Reset(usize),
    /// The group asks which buckets are its own.
    Place(usize),
    /// One of the next calls of the root's leader does not arrive, or its answer is lost.
    Drop(usize, Lost),
    Sweep,
}

#[derive(Clone, Copy, Debug)]
enum Lost {
    Call,
    Answer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let group = || 0..GROUPS;
    let step = prop_oneof![
        6 => Just(Step::Put),
        3 => group().prop_map(Step::Begin),
        10 => Just(Step::GoOn),
        1 => Just(Step::GiveUp),
        3 => group().prop_map(Step::Copy),
        2 => group().prop_map(Step::Reset),
        3 => group().prop_map(Step::Place),
        3 => (0..12usize, prop_oneof![Just(Lost::Call), Just(Lost::Answer)])
            .prop_map(|(nth, lost)| Step::Drop(nth, lost)),
        1 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 10..80)
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

struct World {
    /// The root and two others.
    groups: [Namespace; GROUPS],
    copies: [Option<Rows>; GROUPS],
    number: BucketNumber,
    /// The keys that were acknowledged, and that no reset may have taken.
    keys: BTreeSet<String>,
    puts: u64,
    resets: u64,
    /// The number of calls before the one that is lost.
    drops: Option<(usize, Lost)>,
    dropped: u64,
    /// A reset took the group that had the bucket back to before it had it.
    is_lost: bool,
}

fn named() -> (String, String) {
    ("s3v".to_owned(), "far".to_owned())
}

impl World {
    fn new() -> World {
        let mut groups = [Namespace::new(), Namespace::empty_from(10_000), Namespace::empty_from(20_000)];
        let (volume, bucket) = named();
        let create = CreateBucketRequest { volume, bucket, group: Some(1) };
        let made = groups[0].run::<CreateBucket>(create).unwrap();
        let (place, bucket) = (made.place, made.bucket);
        let number = place.unwrap().number;
        groups[1].run::<HoldBucket>(HoldBucketRequest { place, bucket, fences: 0 }).unwrap();
        let (volume, bucket) = named();
        let settle = SettleBucketCommand { volume, bucket, number, ..SettleBucketCommand::default() };
        groups[0].run_as::<SettleBucket>(settle_id(number, 0).0, settle).unwrap();
        let (copies, keys) = Default::default();
        let number = BucketNumber(number);
        World { groups, copies, number, keys, puts: 0, resets: 0, drops: None, dropped: 0, is_lost: false }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Put => self.put(),
            Step::Begin(to) => {
                let ((volume, bucket), to) = (named(), *to as u64);
                // Some are refused.
                let _ = self.groups[0].run::<MoveBucket>(MoveBucketRequest { volume, bucket, to });
                Ok(())
            }
            Step::GoOn => self.go_on(),
            Step::GiveUp => self.give_up(),
            Step::Copy(group) => {
                self.copies[*group] = Some(self.groups[*group].records(b""));
                Ok(())
            }
            Step::Reset(group) => self.reset(*group),
            Step::Place(group) => self.place(*group),
            Step::Drop(nth, lost) => {
                self.drops = Some((*nth, *lost));
                Ok(())
            }
            Step::Sweep => {
                (0..GROUPS).for_each(|group| self.sweep(group));
                Ok(())
            }
        }
    }

    fn entry(&self) -> BucketEntry {
        let (volume, bucket) = named();
        self.groups[0]
            .db
            .message(&bucket_key(&volume, &bucket))
            .unwrap()
            .expect("the root has the bucket's name")
    }

    fn record(&self, group: usize) -> Option<BucketRecord> {
        self.groups[group].db.message(&record_key(self.number)).unwrap()
    }

    /// Puts a key where a group takes it: somebody may know any place that there was.
    fn put(&mut self) -> Result<(), String> {
        self.puts += 1;
        let key = format!("key {}", self.puts);
        let mut takers = Vec::new();
        for group in 0..GROUPS {
            let Some(record) = self.record(group) else { continue };
            let namespace = &mut self.groups[group];
            let epoch = record.epoch;
            namespace.place = Some(BucketPlace { group: group as u64, number: self.number.0, epoch });
            let request = CommitKeyRequest { bucket: "far".into(), ..commit_request(&key, self.puts) };
            let taken = namespace.run::<CommitKey>(request);
            namespace.place = None;
            takers.extend(taken.is_ok().then_some(group));
        }
        self.keys.extend((!takers.is_empty()).then_some(key));
        match takers.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("groups {takers:?} have the bucket at a time")),
        }
    }

    fn go_on(&mut self) -> Result<(), String> {
        let entry = self.entry();
        if doubt(&self.groups[0].db).unwrap().is_some_and(|doubt| doubt.places) {
            return Ok(());
        }
        let moved = entry.last_move.as_ref().and_then(|last| last.moved).unwrap_or_default();
        let is_live = entry.stage() == BucketStage::BucketLive;
        let under_way = if is_live { BucketMove::default() } else { moved };
        (0..GROUPS).for_each(|group| self.end_forgotten(group, under_way));
        if is_live {
            return Ok(());
        }
        let gone_on = moves::root::go_on(&RefCell::new(&mut *self), &entry).now_or_never();
        self.check(&entry, gone_on.expect("nobody waits"))?;
        let from = moved.from as usize;
        let is_sent = self.sending(from) == Some(moved) && self.entry().stage() == BucketStage::BucketMoving;
        if is_sent {
            let is_done = self.send(moved);
            self.settle(moved, is_done);
        }
        Ok(())
    }

    /// Holds what came of a step to what may come of it: who is yet to know something says so, a call may be
    /// lost, and a bucket that is somewhere is not made again.
    fn check(&self, before: &BucketEntry, came: Result<(), Failure>) -> Result<(), String> {
        let is_made_again = self.entry().number != before.number;
        if is_made_again && !self.is_lost {
            return Err(format!("the bucket is somewhere, and was made again: {before:?}"));
        }
        match came {
            Err(failure) if ![Code::NotYet, Code::Unavailable].contains(&failure.code) => {
                Err(failure.to_string())
            }
            _ => Ok(()),
        }
    }

    fn sending(&self, group: usize) -> Option<BucketMove> {
        let sending: Option<SendingBucket> =
            self.groups[group].db.message(&sending_key(self.number)).unwrap();
        sending.and_then(|sending| sending.moved)
    }

    /// The sender asks the root what became of an attempt that is not its last one.
    fn end_forgotten(&mut self, group: usize, last: BucketMove) {
        let Some(moved) = self.sending(group).filter(|moved| *moved != last) else { return };
        if !self.settle(moved, false) {
            let end = EndMoveRequest { moved: Some(moved), is_done: false, fences: 0 };
            self.groups[group].run::<EndSending>(end).unwrap();
            // It is refused where that is reset too, and what came is dropped then.
            let _ = self.groups[moved.to as usize].run::<EndReceiving>(end);
        }
    }

    /// Sends all there is, as the sender does, and answers whether the other group has it.
    fn send(&mut self, moved: BucketMove) -> bool {
        let BucketMove { number, attempt, from, to } = moved;
        let (from, to) = (from as usize, to as usize);
        let home = &mut self.groups[from];
        let tap = home.taps.open(self.number);
        let Ok(begun) = home.run::<BeginRun>(BeginRunCommand { number, attempt }) else { return false };
        if begun.is_frozen {
            return false;
        }
        home.run::<FreezeBucket>(FreezeBucketCommand { number, attempt, run: begun.run }).unwrap();
        let mut parts = Parts::new(self.number, tap);
        for seq in 1.. {
            let part = parts.next(&self.groups[from].db).unwrap();
            let record = part.is_rest.then(|| self.record(from).unwrap());
            let (rows, requests, run) = (part.rows, part.requests, begun.run);
            let request = ReceiveRowsRequest { moved: Some(moved), run, seq, rows, requests, record };
            self.sweep(to);
            let taken = self.groups[to].run::<ReceiveRows>(request.clone()).map(|taken| taken.outcome());
            let taken = match taken {
                Ok(receive_rows_response::Outcome::Sweeping) => {
                    self.sweep(to);
                    self.groups[to].run::<ReceiveRows>(request).map(|taken| taken.outcome())
                }
                taken => taken,
            };
            match taken {
                Ok(receive_rows_response::Outcome::Taken) if part.is_rest => return true,
                Ok(receive_rows_response::Outcome::Taken) => {}
                _ => return false,
            }
        }
        false
    }

    fn settle(&mut self, moved: BucketMove, is_done: bool) -> bool {
        let ((volume, bucket), why) = (named(), String::new());
        let BucketMove { number, attempt, .. } = moved;
        let settle = SettleMoveRequest { volume, bucket, number, attempt, is_done, why };
        self.groups[0].run::<SettleMove>(settle).unwrap().is_done
    }

    fn give_up(&mut self) -> Result<(), String> {
        let entry = self.entry();
        let is_doubted = doubt(&self.groups[0].db).unwrap().is_some_and(|doubt| doubt.places);
        if entry.stage() == BucketStage::BucketMoving && !is_doubted {
            self.settle(entry.last_move.unwrap().moved.unwrap(), false);
        }
        Ok(())
    }

    fn held(&self, group: usize, from: u64, to: u64) -> ListHeldResponse {
        let list = ListHeldRequest { group: group as u64, from, to };
        queries::held(&self.groups[group].db, &list).unwrap()
    }

    /// Puts a group back to what a member had. What was acknowledged since is lost with the others.
    fn reset(&mut self, group: usize) -> Result<(), String> {
        let Some(copy) = self.copies[group].take() else { return Ok(()) };
        self.resets += 1;
        let (before, best) = (self.record(group), self.latest());
        let is_home = before.as_ref().is_some_and(|record| !record.doubted);
        self.groups[group].set_records(&copy);
        let changed = reset_rows(group as u64, &self.groups[group].db).unwrap();
        self.groups[group].put_records(changed);
        // Which containers are fenced is told at once: no block is refused for want of that.
        let history = runs_before(&self.groups[group].db).unwrap();
        let (group_number, complete_to) = (group as u64, if group == 0 { u64::MAX } else { 1 });
        let fences =
            FenceContainersRequest { group: group_number, complete_to, history, ..Default::default() };
        self.groups[group].run::<FenceContainers>(fences).unwrap();
        let is_here =
            self.record(group).is_some_and(|record| before.is_some_and(|was| was.epoch == record.epoch));
        self.is_lost |= self.latest().is_none_or(|latest| Some(latest) < best);
        match (is_home, is_here) {
            (true, true) => self.keys.retain(|key| has_key(&self.groups[group], self.number, key)),
            (true, false) => self.is_lost = true,
            _ => {}
        }
        Ok(())
    }

    /// The last epoch by which somebody has the bucket: of those that hold it, or else of those to which all
    /// has come.
    fn latest(&self) -> Option<u64> {
        let all: Vec<HeldBucket> =
            (0..GROUPS).flat_map(|group| self.held(group, self.number.0, self.number.0).held).collect();
        let epoch = |held: &HeldBucket| held.place.unwrap().epoch;
        let certain = all.iter().filter(|held| held.comes.is_none() && !held.doubted).map(epoch).max();
        certain.or(all.iter().map(epoch).max())
    }

    fn place(&mut self, group: usize) -> Result<(), String> {
        if doubt(&self.groups[group].db).unwrap().is_none() {
            return Ok(());
        }
        let before = self.entry();
        let placed = place(&RefCell::new(&mut *self), group as u64).now_or_never();
        self.check(&before, placed.expect("nobody waits"))
    }

    /// Carries a call of the root's leader out, unless it is the one that is lost.
    fn call<T>(&mut self, call: impl FnOnce(&mut World) -> Result<T, Failure>) -> Result<T, Failure> {
        let lost = match self.drops.take() {
            Some((0, lost)) => Some(lost),
            Some((more, lost)) => {
                self.drops = Some((more - 1, lost));
                None
            }
            None => None,
        };
        self.dropped += u64::from(lost.is_some());
        match lost {
            None => call(self),
            Some(Lost::Call) => Err(Failure::new(Code::Unavailable, "it did not arrive")),
            Some(Lost::Answer) => {
                let _ = call(self);
                Err(Failure::new(Code::Unavailable, "the answer is lost"))
            }
        }
    }

    fn sweep(&mut self, group: usize) {
        let Some(since) = left_since(&self.groups[group].db, self.number).unwrap() else { return };
        let mut after = Bytes::new();
        loop {
            let some = SweepRowsCommand { number: self.number.0, since, after, pieces_max: 3 };
            let swept = self.groups[group].run::<SweepRows>(some).unwrap();
            if swept.is_done {
                return;
            }
            after = swept.last;
        }
    }

    /// Has all come to its end, and checks that the bucket is where the root says, with all its keys.
    fn end(&mut self) -> Result<(), String> {
        self.drops = None;
        for _ in 0..8 {
            if self.is_lost {
                return Ok(());
            }
            (0..GROUPS).try_for_each(|group| self.place(group))?;
            self.go_on()?;
            self.go_on()?;
            self.put()?;
        }
        let entry = self.entry();
        let doubted: Vec<usize> =
            (0..GROUPS).filter(|group| doubt(&self.groups[*group].db).unwrap().is_some()).collect();
        if entry.stage() != BucketStage::BucketLive || !doubted.is_empty() {
            return Err(format!("{entry:?} does not come to its end, and {doubted:?} doubt"));
        }
        let home = entry.group as usize;
        match self.record(home) {
            Some(record) if record.epoch == entry.epoch && !record.frozen => {}
            other => return Err(format!("the root says {entry:?}, and its group has {other:?}")),
        }
        let lacks = self.keys.iter().find(|key| !has_key(&self.groups[home], self.number, key));
        match lacks {
            None => Ok(()),
            Some(key) => Err(format!("{key} was acknowledged, and is not there")),
        }
    }
}

/// The root's leader, whose calls may be lost.
impl Reach for RefCell<&mut World> {
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Db) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        Ok(look(&self.borrow().groups[0].db).unwrap())
    }

    async fn catch_up(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn write<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure> {
        self.borrow_mut().call(|world| world.groups[0].run::<O>(what))
    }

    async fn groups(&self) -> Result<BTreeSet<u64>, Failure> {
        Ok((0..GROUPS as u64).collect())
    }

    async fn list_held(&self, list: ListHeldRequest) -> Result<ListHeldResponse, Failure> {
        self.borrow_mut().call(|world| Ok(world.held(list.group as usize, list.from, list.to)))
    }

    async fn keep(&self, keep: KeepBucketsRequest) -> Result<(), Failure> {
        let group = keep.group as usize;
        self.borrow_mut().call(|world| world.groups[group].run::<KeepBuckets>(keep).map(drop))
    }

    async fn send(&self, moved: BucketMove) -> Result<SendBucketResponse, Failure> {
        let send = SendBucketRequest { moved: Some(moved) };
        self.borrow_mut().call(|world| world.groups[moved.from as usize].run::<SendBucket>(send))
    }

    async fn end_sending(&self, moved: BucketMove, is_done: bool) -> Result<(), Failure> {
        let end = EndMoveRequest { moved: Some(moved), is_done, fences: 0 };
        self.borrow_mut().call(|world| world.groups[moved.from as usize].run::<EndSending>(end).map(drop))
    }

    async fn end_receiving(&self, moved: BucketMove, is_done: bool) -> Result<bool, Failure> {
        let end = EndMoveRequest { moved: Some(moved), is_done, fences: 0 };
        let ended = self.borrow_mut().call(|world| world.groups[moved.to as usize].run::<EndReceiving>(end));
        Ok(ended?.is_lost)
    }

    async fn bring_fences(&self, _: u64) -> Result<(), Failure> {
        Ok(())
    }
}

fn has_key(group: &Namespace, number: BucketNumber, key: &str) -> bool {
    Read::get(&group.db, &key_key(number, key.as_bytes())).unwrap().is_some()
}

fn run(steps: &[Step]) -> Result<World, String> {
    let mut world = World::new();
    for (nth, step) in steps.iter().enumerate() {
        world.step(step).map_err(|why| format!("step {nth}, {step:?}: {why}"))?;
        if world.is_lost {
            break;
        }
    }
    world.end()?;
    Ok(world)
}

const CASES: u32 = 40;

#[test]
fn a_bucket_is_in_one_group_with_all_its_keys_whichever_was_reset() {
    let mut runner = TestRunner::new(Config::with_cases(CASES));
    let counts = std::cell::Cell::new((0, 0, 0));
    let checked = runner.run(&steps(), |steps| {
        let world = run(&steps).map_err(TestCaseError::fail)?;
        let (resets, kept, dropped) = counts.get();
        let kept = kept + u64::from(!world.is_lost && world.resets > 0);
        counts.set((resets + world.resets, kept, dropped + world.dropped));
        Ok(())
    });
    checked.unwrap_or_else(|error| panic!("{error}"));
    let (resets, kept, dropped) = counts.get();
    let cases = u64::from(CASES);
    let is_enough = resets > cases / 2 && kept > cases / 4 && dropped > cases / 4;
    assert!(is_enough, "{resets} resets, {kept} kept, {dropped} calls lost");
}

/// The root and the group to which a bucket is moved are reset once it has come there, and before the group
/// that sent it has heard so.
#[test]
fn a_bucket_that_only_the_group_that_sent_it_has_is_not_made_again() {
    let world = run(&[
        Step::Begin(2),
        Step::Copy(2),
        Step::GoOn,
        Step::Copy(0),
        Step::Reset(2),
        Step::Reset(0),
        Step::Put,
    ]);
    assert!(!world.unwrap().is_lost);
}

/// A group that is reset to before a bucket left it, and came back, has what the bucket was then. It sends
/// none of that to another group, where it would be taken for what the bucket is.
#[test]
fn what_a_reset_group_had_before_is_not_moved_on() {
    let mut world = World::new();
    let mut steps = vec![Step::Put, Step::Copy(1)];
    for to in [2, 1] {
        steps.push(Step::Begin(to));
        steps.extend((0..3).map(|_| Step::GoOn));
    }
    steps.extend([Step::Put, Step::Sweep, Step::Begin(2), Step::Reset(1)]);
    steps.iter().for_each(|step| world.step(step).unwrap());
    let (before, entry) = (world.number.0, world.entry());
    assert_eq!((entry.number, entry.stage()), (before, BucketStage::BucketMoving));
    assert!(world.is_lost && world.record(1).is_some_and(|record| record.doubted && record.epoch == 0));
    for _ in 0..3 {
        world.go_on().unwrap();
        assert!(world.record(2).is_none(), "what came is older than what the bucket was");
    }
    for _ in 0..8 {
        if world.entry().number == before {
            let _ = world.place(1);
            let _ = world.go_on();
        }
    }
    assert_ne!(world.entry().number, before, "it is made again, empty");
}

/// A group that had forgotten to have sent a bucket away served it, beside the group that has it.
#[test]
fn doubt_that_is_ignored() {
    let history = [
        Step::Copy(1),
        Step::Begin(2),
        Step::GoOn,
        Step::GoOn,
        Step::GoOn,
        Step::Put,
        Step::Reset(1),
        Step::Put,
    ];
    planted::plant(Some(Bug::DoubtIgnored));
    let found = run(&history).map(|world| world.keys);
    planted::plant(None);
    let why = found.expect_err("the bug is found");
    assert!(why.contains("have the bucket at a time"), "{why}");
    assert_eq!(run(&history).unwrap().resets, 1);
}
