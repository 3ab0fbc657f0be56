//! Buckets of other groups: the root's leader has their groups hold them and let go of them.
//!
//! Names are the root's, and what is in a bucket its group's. Both change one after the other, and each step
//! may be repeated, by whoever leads the root by then:
//!
//! ```text
//! the root               the bucket's group      the root
//! made: name is taken ─► holds it ─────────────► live
//! live: one attempt ───► lets go, or has keys ─► gone, or live
//! ```
//!
//! Whoever asked to make or delete a bucket waits for the end. [`finish_always`] goes on with what a crash
//! has left, and with moves, whose steps are told in [`crate::moves`].

use crate::moves;
use crate::ops::{self, Fresh, Operation, SettleBucket, settle_id};
use crate::others::Others;
use crate::reach::Reach;
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::sweep::{Lacks, Root};
use crate::tables::{
    BucketNumber, ROOT, Read, UNSETTLED_PREFIX, bucket_key, doubt, entry_place, fences, number_in,
};
use crate::unsettled::{Unsettled, What};
use crate::upgrade::rows;
use anyhow::Context;
use proto::om::om_client::OmClient;
use proto::om::*;
use proto::{Code, Failure, RequestId, Retry, in_bucket};
use raft::{AddressBook, ReadPolicy};
use rand::RngExt;
use rpc::Channel;
use statedb::Db;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Request, Response, Status};
use tracing::{debug, info, warn};
use types::random::random;
use types::{Backoff, Clock, GroupId};

/// The time for which somebody who makes or deletes a bucket is kept waiting: shorter than those who ask wait
/// for an answer of any kind.
const ASKER_WAITS: Duration = Duration::from_secs(2);
/// The time for which a move is gone on with at once; longer than an election takes.
const GO_ON_FOR: Duration = Duration::from_secs(10);
/// Buckets that are gone on with at a time.
const AT_A_TIME: usize = 32;
/// The time after which what nobody waits for is gone on with.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The way of buckets from the root to their groups, and back.
#[derive(Clone)]
pub(crate) struct Buckets {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) others: Others,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) unsettled: Arc<Unsettled>,
    /// Held while a group hears which buckets it has: one at a time.
    pub(crate) placing: Arc<tokio::sync::Mutex<()>>,
}

impl Buckets {
    pub(crate) fn root(&self) -> Result<Arc<Replica>, Failure> {
        self.replicas.serving(GroupId::om(ROOT), &self.addresses)
    }

    /// Waits until a bucket that was made is there.
    pub(crate) async fn made(&self, bucket: &Bucket, place: &BucketPlace) -> Result<(), Failure> {
        match self.entry(bucket)? {
            Some(entry) if entry.number == place.number && entry.stage() == BucketStage::BucketMaking => {
                self.settle_soon(entry).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Waits for the outcome of an attempt to delete a bucket: whether it is gone.
    pub(crate) async fn deleted(
        &self,
        bucket: Bucket,
        place: BucketPlace,
        deletion: u64,
    ) -> Result<bool, Failure> {
        let BucketPlace { number, group, epoch } = place;
        let bucket = Some(bucket);
        let entry = BucketEntry { number, group, epoch, deletions: deletion, bucket, ..Default::default() };
        let stage = BucketStage::BucketDropping as i32;
        self.settle_soon(BucketEntry { stage, ..entry }).await
    }

    /// Settles a bucket ([`Buckets::settle`]) for somebody who waits a little. The root has taken the change
    /// on, so it comes to an end, then or later, and whoever asks once more hears of it.
    async fn settle_soon(&self, entry: BucketEntry) -> Result<bool, Failure> {
        let buckets = self.clone();
        let settled = tokio::spawn(async move { buckets.settle(&entry).await });
        let why = match timeout(ASKER_WAITS, settled).await {
            Ok(Ok(Ok(is_gone))) => return Ok(is_gone),
            Ok(Ok(Err(failure))) => failure.to_string(),
            Ok(Err(ended)) => ended.to_string(),
            Err(_) => "its group has not answered yet".to_owned(),
        };
        let why = format!("the bucket is being made or deleted: {why}");
        Err(Failure { retry: Retry::Unknown, ..Failure::new(Code::NotYet, why) })
    }

    fn entry(&self, bucket: &Bucket) -> Result<Option<BucketEntry>, Failure> {
        let entry = self.root()?.dbs.current().message(&bucket_key(&bucket.volume, &bucket.name));
        entry.map_err(|error| Failure::internal(format!("read the bucket's entry: {error:#}")))
    }

    /// Has a bucket's group do what the bucket's stage asks for, notes the outcome, and answers whether the
    /// bucket is gone.
    async fn settle(&self, entry: &BucketEntry) -> Result<bool, Failure> {
        let place = Some(entry_place(entry));
        let (deletion, is_gone, refused) = match entry.stage() {
            BucketStage::BucketLive => return Ok(false),
            BucketStage::BucketMoving | BucketStage::BucketMoved | BucketStage::BucketStays => {
                return moves::root::go_on(self, entry).await.map(|()| false);
            }
            BucketStage::BucketMaking => {
                let hold = |fences| HoldBucketRequest { place, bucket: entry.bucket.clone(), fences };
                let call = |mut om: OmClient<Channel>, hold| async move { om.hold_bucket(hold).await };
                self.ask_fenced(entry.group, hold, call).await?;
                (0, false, 0)
            }
            BucketStage::BucketDropping => {
                let release = ReleaseBucketRequest { place, deletion: entry.deletions };
                let released = self.others.ask(entry.group, release, |mut om, release| async move {
                    om.release_bucket(release).await
                });
                let ReleaseBucketResponse { is_gone, refused } = released.await?;
                (entry.deletions, is_gone, refused)
            }
        };
        let Bucket { volume, name: bucket, .. } = entry.bucket.clone().unwrap_or_default();
        let number = entry.number;
        let request = SettleBucketCommand { volume, bucket, number, deletion, is_gone, refused };
        Ok(self.note::<SettleBucket>(settle_id(number, deletion), request).await?.is_gone)
    }

    /// Has a group take a bucket, once it has all fences that the root has.
    pub(crate) async fn ask_fenced<Q: Clone, A, F>(
        &self,
        group: u64,
        question: impl Fn(u64) -> Q,
        call: impl Fn(OmClient<Channel>, Request<Q>) -> F + Copy,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        match self.others.ask(group, question(self.fences()?), call).await {
            Err(failure) if failure.code == Code::NotYet => {
                let fences = self.bring(group, Lacks::ByNumber).await?;
                self.others.ask(group, question(fences), call).await
            }
            taken => taken,
        }
    }

    fn fences(&self) -> Result<u64, Failure> {
        let fences = fences(&*self.root()?.dbs.current());
        Ok(fences.map_err(|error| Failure::internal(format!("read fences: {error:#}")))?.number)
    }

    /// Has a group take the fences of the root that it lacks, and answers up to which number it has them.
    pub(crate) async fn bring(&self, group: u64, lacks: Lacks<'_>) -> Result<u64, Failure> {
        self.as_root()?.bring(group, lacks).await
    }

    fn as_root(&self) -> Result<Root, Failure> {
        Ok(Root { replica: self.root()?, others: self.others.clone(), clock: self.clock.clone() })
    }

    /// Writes into the root's log what has become of something.
    pub(crate) async fn note<O: Operation>(
        &self,
        id: RequestId,
        what: O::Request,
    ) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: 0, now_ms: self.clock.now_ms() };
        self.root()?.change::<O>(ops::prepare::<O>(id, None, what, fresh)?).await
    }

    /// Refuses to have a bucket moved to a group of which nobody answers. A bucket that is there already, or
    /// not at rest, is not asked about.
    pub(crate) async fn check_takes(&self, volume: &str, bucket: &str, to: u64) -> Result<(), Failure> {
        let wanted = Bucket { volume: volume.to_owned(), name: bucket.to_owned(), ..Bucket::default() };
        let Some(entry) = self.entry(&wanted)? else { return Ok(()) };
        if entry.stage() != BucketStage::BucketLive || entry.group == to {
            return Ok(());
        }
        let stat = StatBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        let place = BucketPlace { group: to, number: entry.number, epoch: u64::MAX };
        let stat = self.others.ask(to, stat, |mut om, stat| {
            let stat = in_bucket(stat, &place);
            async move { om.stat_bucket(stat).await }
        });
        // The group cannot have the bucket by this place: that it says so shows that it is there.
        match stat.await {
            Ok(_) => {}
            Err(failure) if failure.code == Code::NotHere => {}
            Err(failure) => return Err(failure),
        }
        // The group gets its fences now, and not while writers of the bucket wait.
        self.bring_fences(to).await
    }

    /// Goes on with a move now: nobody waits for the answer, and writers of the bucket may wait for the end.
    pub(crate) fn go_on(&self, volume: &str, bucket: &str) {
        let bucket = Bucket { volume: volume.to_owned(), name: bucket.to_owned(), ..Bucket::default() };
        let (buckets, until) = (self.clone(), Instant::now() + GO_ON_FOR);
        tokio::spawn(async move {
            let mut retry = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
            while let Ok(Some(entry)) = buckets.entry(&bucket)
                && !finish(buckets.clone(), entry).await
                && Instant::now() < until
            {
                sleep(retry.pause()).await;
            }
        });
    }

    /// The buckets of which the tables say that something is to be done.
    fn unsettled(&self) -> anyhow::Result<Vec<BucketEntry>> {
        let Some(root) = self.replicas.led_root(&self.addresses) else { return Ok(Vec::new()) };
        let db = root.dbs.current();
        // What was begun may have come to its end, and that be forgotten.
        if doubt(&*db)?.is_some_and(|doubt| doubt.places) {
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for row in rows(&db, UNSETTLED_PREFIX) {
            let (key, name) = row?;
            let BucketNumber(number) = number_in(&key)?;
            let entry: Option<BucketEntry> = db.message(&name)?;
            entries.extend(entry.filter(|entry| entry.number == number));
        }
        Ok(entries)
    }
}

impl Reach for Buckets {
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Db) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let db = self.root()?.dbs.current();
        let looked = raft::blocking(move || look(&db)).await;
        let looked = looked.map_err(|error| Failure::internal(format!("read the root: {error}")))?;
        looked.map_err(|error| Failure::internal(format!("read the root: {error:#}")))
    }

    async fn catch_up(&self) -> Result<(), Failure> {
        let applied = self.root()?.group.read_soon(ReadPolicy::Index).await;
        applied.map(drop).map_err(|error| error.into_failure(&self.addresses))
    }

    async fn write<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure> {
        self.note::<O>(RequestId(random().random()), what).await
    }

    async fn groups(&self) -> Result<BTreeSet<u64>, Failure> {
        if !self.others.groups.are_all_known() {
            let why = "SCM has not said yet which groups of names there are, and where";
            return Err(Failure::new(Code::NotYet, why));
        }
        self.as_root()?.groups().await
    }

    async fn list_held(&self, list: ListHeldRequest) -> Result<ListHeldResponse, Failure> {
        self.others.ask(list.group, list, |mut om, list| async move { om.list_held(list).await }).await
    }

    async fn keep(&self, keep: KeepBucketsRequest) -> Result<(), Failure> {
        let call = |mut om: OmClient<Channel>, keep| async move { om.keep_buckets(keep).await };
        self.others.ask(keep.group, keep, call).await.map(drop)
    }

    async fn send(&self, moved: BucketMove) -> Result<SendBucketResponse, Failure> {
        let send = SendBucketRequest { moved: Some(moved) };
        self.others.ask(moved.from, send, |mut om, send| async move { om.send_bucket(send).await }).await
    }

    async fn end_sending(&self, moved: BucketMove, is_done: bool) -> Result<(), Failure> {
        let end = EndMoveRequest { moved: Some(moved), is_done, fences: 0 };
        let call = |mut om: OmClient<Channel>, end| async move { om.end_sending(end).await };
        self.others.ask(moved.from, end, call).await.map(drop)
    }

    async fn end_receiving(&self, moved: BucketMove, is_done: bool) -> Result<bool, Failure> {
        let end = |fences| EndMoveRequest { moved: Some(moved), is_done, fences };
        let call = |mut om: OmClient<Channel>, end| async move { om.end_receiving(end).await };
        Ok(self.ask_fenced(moved.to, end, call).await?.is_lost)
    }

    async fn bring_fences(&self, group: u64) -> Result<(), Failure> {
        match self.fences()? {
            0 => Ok(()),
            _ => self.bring(group, Lacks::ByNumber).await.map(drop),
        }
    }
}

/// Goes on, wherever the root is led from here, with changes of buckets that nobody waits for any more.
pub(crate) async fn finish_always(buckets: Buckets) {
    let attempt = |entry: &BucketEntry| {
        let moved = entry.last_move.as_ref().and_then(|last| last.moved);
        (entry.number, entry.deletions, entry.stage, moved.map(|moved| moved.attempt))
    };
    let (mut seen, slots) = (BTreeSet::new(), Arc::new(Semaphore::new(AT_A_TIME)));
    let (mut tasks, mut under_way) = (JoinSet::new(), BTreeMap::<_, AbortHandle>::new());
    loop {
        sleep(LOOK_EVERY).await;
        while tasks.try_join_next().is_some() {}
        under_way.retain(|_, task| !task.is_finished());
        let unsettled =
            match buckets.unsettled().context("read which buckets are being made, deleted or moved") {
                Ok(unsettled) => unsettled,
                Err(error) => {
                    warn!(error = format!("{error:#}"), "finish what was begun with buckets");
                    continue;
                }
            };
        let named = unsettled.iter().map(what).collect();
        buckets.unsettled.note_buckets(named, buckets.clock.now_ms());
        for entry in &unsettled {
            // Writers of a bucket that is settled wait, whoever led the root before: a group that hangs, and
            // has many, does not keep it waiting. Any other change that is new is left to whoever waits for
            // it.
            let is_urgent = matches!(entry.stage(), BucketStage::BucketMoved | BucketStage::BucketStays);
            if is_urgent || seen.contains(&attempt(entry)) {
                let slots = (!is_urgent).then(|| slots.clone());
                let finishing = finish_in_turn(slots, buckets.clone(), entry.clone());
                under_way.entry(attempt(entry)).or_insert_with(|| tasks.spawn(finishing));
            }
        }
        seen = unsettled.iter().map(attempt).collect();
    }
}

async fn finish_in_turn(slots: Option<Arc<Semaphore>>, buckets: Buckets, entry: BucketEntry) {
    let _slot = match &slots {
        Some(slots) => slots.acquire().await.ok(),
        None => None,
    };
    finish(buckets, entry).await;
}

/// The change of a bucket that is not at its end.
fn what(entry: &BucketEntry) -> What {
    let Bucket { volume, name, .. } = entry.bucket.clone().unwrap_or_default();
    let BucketMove { from, to, .. } =
        entry.last_move.as_ref().and_then(|last| last.moved).unwrap_or_default();
    let what = match entry.stage() {
        BucketStage::BucketLive => "is there".to_owned(),
        BucketStage::BucketMaking => format!("is being made in group {}", entry.group),
        BucketStage::BucketDropping => format!("is being deleted from group {}", entry.group),
        BucketStage::BucketMoving => format!("is being moved from group {from} to {to}"),
        BucketStage::BucketMoved => format!("has moved from group {from} to {to}, which are to hear so"),
        BucketStage::BucketStays => format!("stays in group {from}, which is to hear so, and {to} too"),
    };
    What::Bucket(entry.number, format!("bucket {volume}/{name} {what}"))
}

/// Finishes what was begun with a bucket, and answers whether that is done, or can never be.
async fn finish(buckets: Buckets, entry: BucketEntry) -> bool {
    let name = entry.bucket.as_ref().map(|bucket| &bucket.name);
    let settled = buckets.settle(&entry).await;
    // A full disk is not full for ever.
    let is_final = |failure: &Failure| failure.retry == Retry::No && failure.code != Code::DiskFull;
    let is_over = settled.as_ref().map_or_else(is_final, |_| true);
    let why = settled.as_ref().err().map(ToString::to_string).unwrap_or_default();
    buckets.unsettled.note_try(&what(&entry), why);
    match settled {
        // Nothing was to be done, or its group goes on with it.
        Ok(_) if matches!(entry.stage(), BucketStage::BucketLive | BucketStage::BucketMoving) => {}
        Ok(is_gone) => info!(name, is_gone, "finished what was begun with a bucket"),
        Err(failure) if is_final(&failure) => {
            warn!(name, %failure, "what was begun with a bucket cannot be finished")
        }
        Err(failure) => debug!(name, %failure, "finish what was begun with a bucket"),
    }
    is_over
}
