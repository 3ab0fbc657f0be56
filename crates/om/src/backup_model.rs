//! A backup that catches each group at any moment of a bucket's life, and what a restore makes of it. Where
//! the root's places are the same before and after all groups were caught, the bucket is there once, with
//! what its group had.

use crate::backup;
use crate::moves::Parts;
use crate::ops::testing::{Namespace, commit_request};
use crate::ops::*;
use crate::tables::{APPLIED_KEY, BucketNumber, Read, bucket_key, keys_prefix, left_since, record_key};
use proto::om::backup_part::Part;
use proto::om::receive_rows_response::Outcome;
use proto::om::{
    BeginRunCommand, BucketEntry, BucketMove, BucketPlace, BucketRecord, BucketStage, CreateBucketRequest,
    DeleteBucketRequest, EndMoveRequest, FoundedCommand, FreezeBucketCommand, HoldBucketRequest,
    MoveBucketRequest, MoveEndedCommand, ReceiveRowsRequest, ReleaseBucketRequest, ReleaseBucketResponse,
    RestoreRowsRequest, SendBucketRequest, SettleBucketCommand, SettleMoveRequest, SweepRowsCommand,
};
use raft::Applied;
use rocksdb::WriteBatch;
use std::sync::atomic::{AtomicU64, Ordering};
use types::LogId;

const BACKUP: [u8; 16] = [7; 16];

/// The root, which has no bucket itself, and groups 1 and 2.
struct World {
    root: Namespace,
    groups: [Namespace; 2],
    sending: Option<Sending>,
    writes: u64,
}

/// A run by which the bucket is being sent.
struct Sending {
    moved: BucketMove,
    run: u64,
    seq: u64,
    parts: Parts,
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// All rows of a group, and those of the bucket's keys, as they were caught.
#[derive(Clone)]
struct Caught {
    parts: Vec<RestoreRowsRequest>,
    places: bytes::Bytes,
    keys: Rows,
}

/// An id for each request: requests that are remembered go along from group to group.
fn id() -> u128 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    u128::from(LAST.fetch_add(1, Ordering::Relaxed)) << 64 | 1
}

fn far() -> (String, String) {
    ("s3v".to_owned(), "far".to_owned())
}

impl World {
    fn new() -> World {
        let groups = [Namespace::empty(), Namespace::empty()];
        World { root: Namespace::empty(), groups, sending: None, writes: 0 }
    }

    fn entry(&self) -> Option<BucketEntry> {
        self.root.db.message(&bucket_key("s3v", "far")).unwrap()
    }

    fn number(&self) -> BucketNumber {
        BucketNumber(self.entry().map_or(0, |entry| entry.number))
    }

    fn group(&mut self, group: u64) -> &mut Namespace {
        &mut self.groups[group as usize - 1]
    }

    fn record(&self, group: u64) -> Option<BucketRecord> {
        self.groups[group as usize - 1].db.message(&record_key(self.number())).unwrap()
    }

    fn moved(&self) -> BucketMove {
        self.entry().unwrap().last_move.unwrap().moved.unwrap()
    }

    fn create(&mut self) {
        let (volume, bucket) = far();
        self.root
            .run_as::<CreateBucket>(id(), CreateBucketRequest { volume, bucket, group: Some(1) })
            .unwrap();
    }

    fn hold(&mut self) {
        let entry = self.entry().unwrap();
        let place = Some(crate::tables::entry_place(&entry));
        self.group(entry.group)
            .run_as::<HoldBucket>(id(), HoldBucketRequest { place, bucket: entry.bucket, fences: 0 })
            .unwrap();
    }

    fn settle_bucket(&mut self, deletion: u64, released: ReleaseBucketResponse) {
        let ((volume, bucket), number) = (far(), self.number().0);
        let ReleaseBucketResponse { is_gone, refused } = released;
        let settle = SettleBucketCommand { volume, bucket, number, deletion, is_gone, refused };
        self.root.run_as::<SettleBucket>(id(), settle).unwrap();
    }

    fn delete(&mut self) {
        let (volume, bucket) = far();
        self.root.run_as::<DeleteBucket>(id(), DeleteBucketRequest { volume, bucket }).unwrap();
    }

    fn release(&mut self) -> ReleaseBucketResponse {
        let entry = self.entry().unwrap();
        let place = Some(crate::tables::entry_place(&entry));
        let release = ReleaseBucketRequest { place, deletion: entry.deletions };
        self.group(entry.group).run_as::<ReleaseBucket>(id(), release).unwrap()
    }

    /// Puts a key into the bucket, in the group that has it.
    fn put(&mut self, group: u64, key: &str) {
        let number = self.number().0;
        let epoch = self.record(group).unwrap().epoch;
        self.writes += 1;
        let write = commit_request(key, self.writes);
        let namespace = self.group(group);
        namespace.place = Some(BucketPlace { group, number, epoch });
        namespace.run_as::<CommitKey>(id(), write).unwrap();
        namespace.place = None;
    }

    fn begin_move(&mut self, to: u64) {
        let (volume, bucket) = far();
        self.root.run_as::<MoveBucket>(id(), MoveBucketRequest { volume, bucket, to }).unwrap();
    }

    fn send(&mut self) -> proto::om::SendBucketResponse {
        let moved = self.moved();
        self.group(moved.from).run_as::<SendBucket>(id(), SendBucketRequest { moved: Some(moved) }).unwrap()
    }

    /// Begins a run, and answers whether the bucket may be sent: it is not frozen already.
    fn begin_run(&mut self) -> bool {
        let (moved, number) = (self.moved(), self.number());
        let tap = self.group(moved.from).taps.open(number);
        let begin = BeginRunCommand { number: number.0, attempt: moved.attempt };
        let begun = self.group(moved.from).run_as::<BeginRun>(id(), begin).unwrap();
        let mut parts = Parts::new(number, tap);
        parts.count_max = 2;
        self.sending = Some(Sending { moved, run: begun.run, seq: 0, parts });
        !begun.is_frozen
    }

    /// Sends a part, and answers whether that was all.
    fn send_part(&mut self, with_record: bool) -> bool {
        let mut sending = self.sending.take().unwrap();
        let BucketMove { from, to, .. } = sending.moved;
        let part = sending.parts.next(&self.group(from).db).unwrap();
        sending.seq += 1;
        let record = self.record(from).filter(|_| with_record && part.is_rest);
        let request = ReceiveRowsRequest {
            moved: Some(sending.moved),
            run: sending.run,
            seq: sending.seq,
            rows: part.rows,
            requests: part.requests,
            record,
        };
        loop {
            match self.group(to).run_as::<ReceiveRows>(id(), request.clone()).unwrap().outcome() {
                Outcome::Taken => break,
                Outcome::Sweeping => self.sweep(to),
                Outcome::Over => panic!("the run is the last one"),
            }
        }
        self.sending = Some(sending);
        part.is_rest
    }

    fn freeze(&mut self) {
        let (moved, run) = self.sending.as_ref().map(|sending| (sending.moved, sending.run)).unwrap();
        let BucketMove { number, attempt, from, .. } = moved;
        self.group(from).run_as::<FreezeBucket>(id(), FreezeBucketCommand { number, attempt, run }).unwrap();
    }

    fn settle_move(&mut self, is_done: bool) {
        let ((volume, bucket), BucketMove { number, attempt, .. }) = (far(), self.moved());
        let settle = SettleMoveRequest { volume, bucket, number, attempt, is_done, why: String::new() };
        self.root.run_as::<SettleMove>(id(), settle).unwrap();
    }

    fn end(&self) -> EndMoveRequest {
        let is_done = self.entry().unwrap().stage() == BucketStage::BucketMoved;
        EndMoveRequest { moved: Some(self.moved()), is_done, fences: 0 }
    }

    fn end_sending(&mut self) {
        let (end, from) = (self.end(), self.moved().from);
        self.group(from).run_as::<EndSending>(id(), end).unwrap();
    }

    /// Ends the move in the other group, and answers whether all that was sent is there.
    fn end_receiving(&mut self) -> bool {
        let (end, to) = (self.end(), self.moved().to);
        !self.group(to).run_as::<EndReceiving>(id(), end).unwrap().is_lost
    }

    fn move_ended(&mut self) {
        let ((volume, bucket), BucketMove { number, attempt, .. }) = (far(), self.moved());
        self.root.run_as::<MoveEnded>(id(), MoveEndedCommand { volume, bucket, number, attempt }).unwrap();
    }

    fn sweep(&mut self, group: u64) {
        let number = self.number();
        while let Some(since) = left_since(&self.group(group).db, number).unwrap() {
            let sweep = SweepRowsCommand { number: number.0, since, ..SweepRowsCommand::default() };
            self.group(group).run_as::<SweepRows>(id(), sweep).unwrap();
        }
    }

    /// The steps of a bucket's life, each of one group: the bucket is made, written, moved while it is
    /// written, refused to be deleted, and about to move back, which is undone.
    fn life() -> Vec<fn(&mut World)> {
        vec![
            World::create,
            World::hold,
            |it| it.settle_bucket(0, ReleaseBucketResponse::default()),
            |it| it.put(1, "a"),
            |it| it.put(1, "b"),
            |it| it.put(1, "c"),
            |it| it.begin_move(2),
            |it| assert!(it.send().is_sent),
            |it| assert!(it.begin_run()),
            |it| assert!(!it.send_part(false)),
            |it| it.put(1, "d"),
            |it| {
                it.send_part(false);
            },
            |it| it.put(1, "a"),
            |it| while !it.send_part(false) {},
            World::freeze,
            |it| assert!(it.send_part(true)),
            |it| it.settle_move(true),
            World::end_sending,
            |it| assert!(it.end_receiving()),
            |it| it.put(2, "e"),
            World::move_ended,
            |it| it.put(2, "f"),
            |it| it.sweep(1),
            World::delete,
            |it| it.put(2, "g"),
            |it| assert!(!it.release().is_gone),
            |it| it.settle_bucket(1, ReleaseBucketResponse { is_gone: false, refused: 1 }),
            |it| it.put(2, "h"),
            |it| it.begin_move(1),
            |it| assert!(it.send().is_sent),
            |it| assert!(it.begin_run()),
            |it| assert!(!it.send_part(false)),
            |it| it.settle_move(false),
            World::end_sending,
            |it| assert!(it.end_receiving()),
            World::move_ended,
            |it| it.sweep(1),
        ]
    }

    fn catch(&mut self) -> [Caught; 3] {
        let keys = keys_prefix(self.number());
        let of = |group: u64, namespace: &Namespace| {
            let mut batch = WriteBatch::default();
            let applied = Applied { id: LogId::default(), membership: bytes::Bytes::new() };
            batch.put(APPLIED_KEY, applied.encode());
            namespace.db.write(batch).unwrap();
            let (mut parts, mut places) = (Vec::new(), bytes::Bytes::new());
            let mut take = |part| {
                match part {
                    Part::Head(head) => places = head.places,
                    Part::Rows(rows) => parts.push(rows.rows),
                    Part::End(_) => {}
                }
                Ok(())
            };
            backup::read(&namespace.db, group, &mut take).unwrap();
            let [rows] = &parts[..] else { panic!("that little goes in one part") };
            let request = RestoreRowsRequest {
                group,
                backup: BACKUP.to_vec().into(),
                seq: 1,
                rows: rows.clone(),
                is_last: true,
                entries: 1,
                format: crate::tables::FORMAT,
            };
            Caught { parts: vec![request], places, keys: namespace.records(&keys) }
        };
        [of(0, &self.root), of(1, &self.groups[0]), of(2, &self.groups[1])]
    }

    fn restore(caught: [&Caught; 3]) -> World {
        let mut world = World::new();
        let World { root, groups: [one, two], .. } = &mut world;
        for (namespace, caught) in [root, one, two].into_iter().zip(caught) {
            for part in &caught.parts {
                namespace.run_as::<RestoreRows>(id(), part.clone()).unwrap();
            }
            namespace.run_as::<Founded>(id(), FoundedCommand {}).unwrap();
        }
        world
    }

    /// Does what the leaders do of themselves, until nothing is left to do; an error where that cannot be.
    fn finish(&mut self) -> Result<(), String> {
        while let Some(entry) = self.entry().filter(|entry| entry.stage() != BucketStage::BucketLive) {
            match entry.stage() {
                BucketStage::BucketMaking => {
                    self.hold();
                    self.settle_bucket(0, ReleaseBucketResponse::default());
                }
                BucketStage::BucketDropping => {
                    let released = self.release();
                    self.settle_bucket(entry.deletions, released);
                }
                BucketStage::BucketMoving => {
                    let sent = self.send();
                    let is_done = if sent.is_sent { self.send_all() } else { sent.is_done };
                    self.settle_move(is_done);
                }
                BucketStage::BucketMoved | BucketStage::BucketStays => {
                    self.end_sending();
                    if !self.end_receiving() {
                        return Err("what was in the bucket is lost".to_owned());
                    }
                    self.move_ended();
                }
                BucketStage::BucketLive => unreachable!("there is something to do"),
            }
        }
        Ok(())
    }

    fn send_all(&mut self) -> bool {
        if !self.begin_run() {
            return false;
        }
        while !self.send_part(false) {}
        self.freeze();
        while !self.send_part(true) {}
        true
    }

    /// The keys of the bucket, which one group has and no other.
    fn keys(&self) -> Result<Rows, String> {
        let Some(entry) = self.entry() else { return Err("the bucket is gone".to_owned()) };
        let has = [1, 2].map(|group| self.record(group));
        let (home, other) = (entry.group as usize - 1, 2 - entry.group as usize);
        match (&has[home], &has[other]) {
            (Some(record), None) if record.epoch == entry.epoch && !record.frozen => {
                let keys = self.groups[home].records(&keys_prefix(self.number()));
                match keys.len() as u64 == record.keys {
                    true => Ok(keys),
                    false => Err(format!("it says that it has {} keys, and has {}", record.keys, keys.len())),
                }
            }
            _ => Err(format!("group {} is to have it, and {has:?} do", entry.group)),
        }
    }
}

/// Restores what was caught; the keys that must be there are those of the group that had the bucket then.
fn check(all: &[[Caught; 3]], root: usize, one: usize, two: usize) -> Result<(), String> {
    let mut world = World::restore([&all[root][0], &all[one][1], &all[two][2]]);
    let Some(entry) = world.entry() else { return Ok(()) };
    let moved = entry.last_move.as_ref().and_then(|last| last.moved);
    let home = match entry.stage() {
        BucketStage::BucketMoved => moved.unwrap().to,
        _ => entry.group,
    };
    let wanted = if home == 1 { &all[one][1].keys } else { &all[two][2].keys };
    world.finish()?;
    match world.keys()? == *wanted {
        true => Ok(()),
        false => Err(format!("group {home} had other keys")),
    }
}

#[test]
fn whenever_groups_are_caught_between_two_equal_looks_at_the_root_the_bucket_is_there_once() {
    let mut world = World::new();
    world.root.run_as::<Founded>(id(), FoundedCommand {}).unwrap();
    let mut all = vec![world.catch()];
    for step in World::life() {
        step(&mut world);
        all.push(world.catch());
    }
    let places = |at: usize| all[at][0].places.clone();
    let mut checked = 0;
    for first in 0..all.len() {
        let last = (first..all.len()).take_while(|last| places(*last) == places(first)).last().unwrap();
        for (one, two) in (first..=last).flat_map(|one| (first..=last).map(move |two| (one, two))) {
            // The look before had the same places: all pairs from here on were checked from there.
            if first > 0 && places(first - 1) == places(first) {
                continue;
            }
            check(&all, first, one, two)
                .unwrap_or_else(|why| panic!("{first}..={last}, {one}, {two}: {why}"));
            checked += 1;
        }
    }
    assert!(checked > 150, "{checked}");
    // Without the second look at the root the bucket may be nowhere, or twice: the root knows of no move, and
    // one group has let go of the bucket, or both have it.
    let moving = places(7);
    let begun = (0..all.len()).find(|at| places(*at) == moving).unwrap();
    let live = begun - 1;
    assert!(check(&all, live, 18, 12).is_err(), "the bucket is in no group");
    assert!(check(&all, live, live, 21).is_err(), "the bucket is in both");
}
