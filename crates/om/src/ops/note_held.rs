//! The root was reset, and groups tell it which buckets they have. A root forgets what its last entries said,
//! and nothing else changes where a bucket is: of two places the one with the higher epoch is the later one,
//! and of two buckets of one name the one with the higher number.

use super::{Apply, Fresh, Operation, wire};
use crate::rules::VOLUME;
use crate::tables::{
    BucketNumber, DOUBT_KEY, Read, Refusal, bucket_key, doubt, runs_before, unsettled_key, volume_key,
};
use prost::Message;
use proto::om::{
    Bucket, BucketEntry, BucketMove, BucketPlace, BucketStage, Doubt, HeldBucket, LastMove, NoteHeldCommand,
    NoteHeldReply, Volume,
};
use proto::{Code, Failure};

pub(crate) struct NoteHeld;

impl Operation for NoteHeld {
    type Request = NoteHeldCommand;
    type Command = NoteHeldCommand;
    type Response = NoteHeldReply;
    wire!(NoteHeld);

    fn prepare(request: NoteHeldCommand, _: Fresh) -> Result<NoteHeldCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: NoteHeldCommand) -> Result<NoteHeldReply, Refusal> {
        let history = runs_before(apply.tables)?;
        if command.history != history {
            let why = format!("the root was reset or restored: its history is {history} now");
            return Err(Refusal::Passing(Failure::new(Code::NotHere, why)));
        }
        // Another round of questions has come to its end meanwhile, and names have changed since.
        if !doubt(apply.tables)?.is_some_and(|doubt| doubt.places) {
            return Err(Refusal::Passing(Failure::new(Code::NotHere, "the root knows where buckets are")));
        }
        for held in command.held {
            note(apply, held)?;
        }
        if command.is_all {
            apply.tables.put(DOUBT_KEY.to_vec(), Doubt { places: false }.encode_to_vec());
        }
        Ok(NoteHeldReply {})
    }
}

fn note(apply: &mut Apply<'_, '_>, held: HeldBucket) -> anyhow::Result<()> {
    let (Some(place), Some(bucket)) = (held.place, held.bucket) else { return Ok(()) };
    let key = bucket_key(&bucket.volume, &bucket.name);
    let there: Option<BucketEntry> = apply.tables.message(&key)?;
    if let Some(older) = there.as_ref().filter(|there| there.number < place.number) {
        apply.tables.delete(unsettled_key(BucketNumber(older.number)));
    }
    let there = there.filter(|there| there.number >= place.number);
    let entry = match (there, held.comes) {
        (Some(there), _) if there.number > place.number => return Ok(()),
        (Some(there), None) if there.epoch < place.epoch => held_since(there, place),
        // The attempt that brought it was forgotten: it is gone on with, and its groups say what became of
        // it.
        (Some(there), Some(moved)) if last_attempt(&there) < moved.attempt => {
            moving(there, moved, apply.now_ms)
        }
        (None, None) => {
            know_volume(apply, &bucket)?;
            let BucketPlace { number, group, epoch } = place;
            BucketEntry { number, group, epoch, bucket: Some(bucket), ..BucketEntry::default() }
        }
        // Nobody has it but for what came of it.
        (None, Some(moved)) => {
            know_volume(apply, &bucket)?;
            let (number, group, bucket) = (place.number, moved.from, Some(bucket));
            moving(BucketEntry { number, group, bucket, ..BucketEntry::default() }, moved, apply.now_ms)
        }
        (Some(_), _) => return Ok(()),
    };
    let unsettled = unsettled_key(BucketNumber(entry.number));
    match entry.stage() {
        BucketStage::BucketLive => apply.tables.delete(unsettled),
        _ => apply.tables.put(unsettled, key.clone()),
    }
    apply.tables.put(key, entry.encode_to_vec());
    Ok(())
}

/// The entry of a bucket that has come to where it is by an attempt that the root has forgotten.
fn held_since(entry: BucketEntry, place: BucketPlace) -> BucketEntry {
    let BucketPlace { number, group, epoch } = place;
    let moved = BucketMove { number, attempt: epoch, from: entry.group, to: group };
    let last_move = Some(LastMove { moved: Some(moved), epoch: entry.epoch, ..LastMove::default() });
    BucketEntry { group, epoch, last_move, stage: BucketStage::BucketLive.into(), ..entry }
}

/// The last attempt to move a bucket that the root knows of.
fn last_attempt(entry: &BucketEntry) -> u64 {
    let last = entry.last_move.as_ref().and_then(|last| last.moved).unwrap_or_default();
    entry.epoch.max(last.attempt)
}

fn moving(entry: BucketEntry, moved: BucketMove, since_ms: u64) -> BucketEntry {
    let (moved, epoch) = (Some(moved), entry.epoch);
    let last_move = Some(LastMove { moved, since_ms, undone: String::new(), epoch });
    BucketEntry { last_move, stage: BucketStage::BucketMoving.into(), ..entry }
}

/// Notes the volume of a bucket that was forgotten, if that was forgotten too.
fn know_volume(apply: &mut Apply<'_, '_>, bucket: &Bucket) -> anyhow::Result<()> {
    let key = volume_key(&bucket.volume);
    if bucket.volume != VOLUME && apply.tables.get(&key)?.is_none() {
        let volume = Volume { name: bucket.volume.clone(), created_ms: bucket.created_ms };
        apply.tables.put(key, volume.encode_to_vec());
    }
    Ok(())
}
