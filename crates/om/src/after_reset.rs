//! The places of buckets after a forced reset.
//!
//! A group that was reset may have forgotten that a bucket has left it, and a root where one went to. What
//! was acknowledged in the one place must not be answered for by the other, so that a group that was reset
//! serves none of its buckets before the root has said that they are in it:
//!
//! ```text
//! the group, reset          the root                          all groups, if the root was reset
//! which are mine? ────────► where is each? ─────────────────► these are here, by these epochs
//! keeps, or lets go ◄────── by its entries, since then ◄─────
//! ```
//!
//! The leader of the group asks until all of its buckets are certain; each step may be repeated.

#[cfg(test)]
mod model;

use crate::buckets::Buckets;
use crate::moves::root::{has_come, remake};
use crate::ops::{KEPT_AT_ONCE, NoteHeld, SettleMove};
use crate::reach::{Held, Reach, held};
use crate::tables::{
    NAMES_PREFIX, ROOT, Read, bucket_key, decode, doubt, first_bucket, next_bucket, runs_before,
};
use crate::unsettled::What;
use crate::upgrade::rows;
use proto::om::*;
use proto::{Code, Failure};
use statedb::Db;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;
use tracing::{debug, info, warn};

/// The time after which a group that doubts its buckets asks again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Asks for the places of buckets wherever a group that was reset is led from here.
pub(crate) async fn settle_always(buckets: Buckets) {
    loop {
        sleep(LOOK_EVERY).await;
        let led = buckets.replicas.led(&buckets.addresses);
        let doubting = led.filter(|replica| match doubt(&*replica.dbs.current()) {
            Ok(doubt) => doubt.is_some(),
            Err(error) => {
                let group = replica.group.id();
                warn!(%group, error = format!("{error:#}"), "read whether the group was reset");
                false
            }
        });
        let asked = doubting.map(|replica| ask(&buckets, replica.group.id().number));
        futures::future::join_all(asked).await;
    }
}

async fn ask(buckets: &Buckets, group: u64) {
    let place = PlaceBucketsRequest { group };
    let asked = buckets.others.ask(ROOT, place, |mut om, place| async move { om.place_buckets(place).await });
    match asked.await {
        Ok(_) => info!(group, "knows again which buckets it has, since it was reset"),
        Err(failure) => debug!(group, %failure, "ask which buckets a group has, since it was reset"),
    }
}

/// The root's word on a bucket that a group has.
#[derive(Clone, PartialEq, Debug)]
enum Word {
    Keep(BucketPlace),
    /// The bucket is elsewhere, or was deleted.
    LetGo(BucketPlace),
    /// The bucket has come by this move, and the group is to hold it.
    Hold(BucketMove),
    /// Another step comes first.
    Later(Step),
    Nothing,
}

#[derive(Clone, PartialEq, Debug)]
enum Step {
    /// The attempt to move it from here is settled. What the other group has of it, if it has all, was all
    /// that there was when changes waited, and so no less than the group has now; but for a bucket that has
    /// stayed and changed since.
    Settle {
        entry: BucketEntry,
        has_stayed: bool,
    },
    Wait(String),
}

impl Buckets {
    /// Has a group that was reset hear which of its buckets are its own. It may take longer than anybody
    /// waits for an answer: who asks again meanwhile hears that it goes on.
    pub(crate) async fn place(&self, group: u64) -> Result<(), Failure> {
        self.root()?;
        self.others.groups.check_is_there(group)?;
        let Ok(alone) = self.placing.clone().try_lock_owned() else {
            self.unsettled.note(What::Group(group), self.clock.now_ms(), String::new());
            return Err(Failure::new(Code::NotYet, "the root asks groups which buckets they have"));
        };
        let buckets = self.clone();
        let placing = tokio::spawn(async move {
            let _alone = alone;
            buckets.unsettled.note(What::Group(group), buckets.clock.now_ms(), String::new());
            let placed = place(&buckets, group).await;
            match &placed {
                Ok(()) => buckets.unsettled.end(&What::Group(group)),
                Err(failure) => {
                    let why = failure.to_string();
                    buckets.unsettled.note(What::Group(group), buckets.clock.now_ms(), why);
                }
            }
            placed
        });
        placing.await.map_err(|ended| Failure::new(Code::NotYet, ended.to_string()))?
    }
}

/// Has a group that was reset hear which of its buckets are its own, as far as that is certain now.
async fn place(reach: &impl Reach, group: u64) -> Result<(), Failure> {
    let is_doubted = reach.look(|root| Ok(doubt(root)?.is_some_and(|doubt| doubt.places))).await?;
    if is_doubted {
        hear_all(reach).await?;
    }
    // Which of its buckets were there is read before it is asked: what comes meanwhile is none of these.
    let there = reach.look(placed).await?.into_iter().filter(|entry| entry.group == group).collect();
    let Held { history, buckets } = held(reach, group, 0, u64::MAX).await?;
    let lost = lost(there, &buckets);
    // What has left before the group asked stands in these tables.
    reach.catch_up().await?;
    let mut words = reach.look(move |root| words(root, group, &buckets)).await?;
    let (lost, moving): (Vec<_>, Vec<_>) =
        lost.into_iter().partition(|entry| entry.stage() == BucketStage::BucketLive);
    words.extend(moving.into_iter().map(not_here));
    say(reach, group, history, words).await?;
    remake(reach, lost).await?;
    reach.keep(KeepBucketsRequest { group, history, is_all: true, ..KeepBucketsRequest::default() }).await
}

async fn say(reach: &impl Reach, group: u64, history: u64, words: Vec<Word>) -> Result<(), Failure> {
    let (mut kept, mut left, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for word in words {
        match word {
            Word::Keep(place) => kept.push(place),
            Word::LetGo(place) => {
                let bucket = place.number;
                info!(bucket, group, "a group that was reset had forgotten that a bucket left");
                left.push(place);
            }
            Word::Hold(moved) => reach.end_receiving(moved, true).await.map(drop)?,
            Word::Later(Step::Settle { entry, has_stayed }) => {
                waits.push("the group that sent it was reset by force".to_owned());
                settle(reach, entry, has_stayed).await?;
            }
            Word::Later(Step::Wait(why)) => waits.push(why),
            Word::Nothing => {}
        }
    }
    let portions = kept.chunks(KEPT_AT_ONCE).map(|kept| (kept, &[][..]));
    let portions = portions.chain(left.chunks(KEPT_AT_ONCE).map(|left| (&[][..], left)));
    for (kept, left) in portions {
        let (kept, left) = (kept.into(), left.into());
        reach.keep(KeepBucketsRequest { group, history, kept, left, is_all: false }).await?;
    }
    match waits.first() {
        None => Ok(()),
        Some(why) => Err(Failure::new(Code::NotYet, format!("{} buckets wait: {why}", waits.len()))),
    }
}

async fn settle(reach: &impl Reach, entry: BucketEntry, has_stayed: bool) -> Result<(), Failure> {
    let Bucket { volume, name: bucket, .. } = entry.bucket.unwrap_or_default();
    let moved = entry.last_move.and_then(|last| last.moved).unwrap_or_default();
    let (is_done, attempt) = (!has_stayed && has_come(reach, moved).await?, moved.attempt);
    let why = "the group that sent it was reset by force".to_owned();
    let settle = SettleMoveRequest { volume, bucket, number: entry.number, attempt, is_done, why };
    reach.write::<SettleMove>(settle).await.map(drop)
}

/// Has the root, which was reset, note what all groups have.
async fn hear_all(reach: &impl Reach) -> Result<(), Failure> {
    let history = reach.look(runs_before).await?;
    let (mut here, mut coming) = (Vec::new(), Vec::new());
    let there = reach.look(placed).await?;
    for group in reach.groups().await? {
        let held = held(reach, group, 0, u64::MAX).await?;
        let (comes, holds): (Vec<_>, Vec<_>) =
            held.buckets.into_iter().partition(|held| held.comes.is_some());
        (here, coming) = ([here, holds].concat(), [coming, comes].concat());
    }
    info!(buckets = here.len(), "all groups have told the root, which was reset, which buckets they have");
    let all = [&here[..], &coming[..]].concat();
    // What comes is noted behind all that is there: it may have come long ago.
    for some in here.chunks(KEPT_AT_ONCE).chain(coming.chunks(KEPT_AT_ONCE)) {
        reach.write::<NoteHeld>(NoteHeldCommand { history, held: some.to_vec(), is_all: false }).await?;
    }
    // Of a bucket that moves the group that sent it has an earlier epoch: what becomes of it, whoever goes on
    // with its move finds out.
    let lost = lost(there, &all).into_iter().filter(|entry| entry.stage() == BucketStage::BucketLive);
    remake(reach, lost.collect()).await?;
    reach.write::<NoteHeld>(NoteHeldCommand { history, held: Vec::new(), is_all: true }).await.map(drop)
}

/// The root's words on all that a group has.
fn words(root: &impl Read, group: u64, held: &[HeldBucket]) -> anyhow::Result<Vec<Word>> {
    held.iter().map(|held| word(root, group, held)).collect()
}

/// The buckets that are somewhere, or move, as the root has it.
fn placed(root: &Db) -> anyhow::Result<Vec<BucketEntry>> {
    let entries = rows(root, NAMES_PREFIX).map(|row| {
        let (key, value) = row?;
        decode::<BucketEntry>(&key, &value)
    });
    let is_placed = |entry: &anyhow::Result<BucketEntry>| {
        let is_settling = |entry: &BucketEntry| {
            matches!(entry.stage(), BucketStage::BucketMaking | BucketStage::BucketDropping)
        };
        !entry.as_ref().is_ok_and(is_settling)
    };
    entries.filter(is_placed).collect()
}

/// Those of these buckets that nobody has as they were, or that come to nobody.
fn lost(there: Vec<BucketEntry>, held: &[HeldBucket]) -> Vec<BucketEntry> {
    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
    for BucketPlace { number, epoch, .. } in held.iter().filter_map(|held| held.place) {
        latest.entry(number).and_modify(|latest| *latest = epoch.max(*latest)).or_insert(epoch);
    }
    let is_lost = |entry: &BucketEntry| latest.get(&entry.number).is_none_or(|latest| *latest < entry.epoch);
    there.into_iter().filter(is_lost).collect()
}

/// The root's word on a bucket that moves and that the group should have, and has not.
fn not_here(entry: BucketEntry) -> Word {
    let name = entry.bucket.unwrap_or_default().name;
    Word::Later(Step::Wait(format!("bucket `{name}`, which the group has lost, is being moved")))
}

/// The root's word on one bucket that a group has. The group lets go of one only where the root's entries
/// prove that it is elsewhere, or was deleted.
fn word(root: &impl Read, group: u64, held: &HeldBucket) -> anyhow::Result<Word> {
    let (Some(place), Some(bucket)) = (held.place, &held.bucket) else { return Ok(Word::Nothing) };
    let entry: Option<BucketEntry> = root.message(&bucket_key(&bucket.volume, &bucket.name))?;
    let entry = entry.filter(|entry| entry.number == place.number);
    let settle = |entry, has_stayed| Word::Later(Step::Settle { entry, has_stayed });
    if let Some(moved) = held.comes {
        let is_its = |entry: &BucketEntry| (entry.group, entry.epoch) == (group, moved.attempt);
        let Some(entry) = entry.filter(is_its) else { return Ok(Word::Nothing) };
        return Ok(match entry.stage() {
            // The one that sent it may have it still.
            BucketStage::BucketMoved | BucketStage::BucketMaking => Word::Nothing,
            BucketStage::BucketMoving => settle(entry, false),
            // The group had held it before it was reset, and the one that sent it has let go.
            BucketStage::BucketLive | BucketStage::BucketStays | BucketStage::BucketDropping => {
                Word::Hold(moved)
            }
        });
    }
    if !held.doubted {
        return Ok(Word::Nothing);
    }
    let wait = |why: &str| Word::Later(Step::Wait(format!("bucket `{}` {why}", bucket.name)));
    let Some(entry) = entry else {
        // A number that this root has given out, and whose bucket it does not know, was deleted since.
        let given_out = first_bucket(root)?.zip(next_bucket(root)?);
        return Ok(match given_out.is_some_and(|(first, next)| (first..next).contains(&place.number)) {
            true => Word::LetGo(place),
            false => {
                wait("is none that this root of names has made: it is an older copy, or was founded anew")
            }
        });
    };
    let last = entry.last_move.as_ref().and_then(|last| last.moved).unwrap_or_default();
    Ok(match entry.stage() {
        BucketStage::BucketMoved if last.from == group => {
            wait("has moved, and its new group is to answer first")
        }
        BucketStage::BucketMoving if last.from == group => {
            let has_stayed = held.stayed >= last.attempt;
            settle(entry, has_stayed)
        }
        BucketStage::BucketMoving if entry.group == group => wait("is being moved from another group"),
        _ if (entry.group, entry.epoch) == (group, place.epoch) => Word::Keep(place),
        _ if entry.epoch > place.epoch => Word::LetGo(place),
        _ => wait("has come here by a move that the root of names does not know"),
    })
}
