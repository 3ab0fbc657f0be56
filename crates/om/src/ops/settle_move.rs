//! The root decides what becomes of an attempt to move a bucket: the first word on it counts, whoever says
//! it. From a decision on the attempt is only finished: both groups hear of it, and then the root notes that
//! they have. A decision is taken back only where one of the groups was reset by force, and has not what the
//! decision was about.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{
    BucketNumber, FENCES_KEY, Read, Refusal, bucket_key, check_places_known, fences, unsettled_key,
};
use prost::Message;
use proto::Failure;
use proto::om::{
    BucketEntry, BucketMove, BucketStage, Fences, MoveEndedCommand, MoveEndedReply, ResettleMoveCommand,
    ResettleMoveReply, SettleMoveRequest, SettleMoveResponse,
};

pub(crate) struct SettleMove;

impl Operation for SettleMove {
    type Request = SettleMoveRequest;
    type Command = SettleMoveRequest;
    type Response = SettleMoveResponse;
    wire!(SettleMove);

    fn prepare(request: SettleMoveRequest, _: Fresh) -> Result<SettleMoveRequest, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: SettleMoveRequest) -> Result<SettleMoveResponse, Refusal> {
        let SettleMoveRequest { volume, bucket, number, attempt, is_done, why } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let Some(mut entry) = entry.filter(|entry| entry.number == number) else {
            return Ok(SettleMoveResponse { is_done: false });
        };
        check_places_known(apply.tables)?;
        if !is_at(&entry, BucketStage::BucketMoving, attempt) {
            // A later attempt took it on from where this one had brought it, or back to where this one began:
            // there the word is late.
            return Ok(SettleMoveResponse { is_done: entry.epoch >= attempt });
        }
        let mut last = entry.last_move.take().unwrap_or_default();
        if is_done {
            (entry.group, entry.epoch) = (last.moved.unwrap_or_default().to, attempt);
            entry.set_stage(BucketStage::BucketMoved);
            count_move(apply)?;
        } else {
            last.undone = why;
            entry.set_stage(BucketStage::BucketStays);
        }
        entry.last_move = Some(last);
        apply.tables.put(key, entry.encode_to_vec());
        Ok(SettleMoveResponse { is_done })
    }
}

/// Counts a move, by which whoever asks all groups for names sees that a bucket may have gone past the
/// question.
fn count_move(apply: &mut Apply<'_, '_>) -> anyhow::Result<()> {
    let before = fences(apply.tables)?;
    let after = Fences { moves: before.moves + 1, ..before };
    apply.tables.put(FENCES_KEY.to_vec(), after.encode_to_vec());
    Ok(())
}

fn is_at(entry: &BucketEntry, stage: BucketStage, attempt: u64) -> bool {
    let moved = entry.last_move.as_ref().and_then(|last| last.moved);
    entry.stage() == stage && moved.is_some_and(|moved| moved.attempt == attempt)
}

/// Notes that both groups know what became of an attempt.
pub(crate) struct MoveEnded;

impl Operation for MoveEnded {
    type Request = MoveEndedCommand;
    type Command = MoveEndedCommand;
    type Response = MoveEndedReply;
    wire!(MoveEnded);

    fn prepare(request: MoveEndedCommand, _: Fresh) -> Result<MoveEndedCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: MoveEndedCommand) -> Result<MoveEndedReply, Refusal> {
        let MoveEndedCommand { volume, bucket, number, attempt } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let is_settled = |entry: &BucketEntry| {
            let stages = [BucketStage::BucketMoved, BucketStage::BucketStays];
            entry.number == number && stages.into_iter().any(|stage| is_at(entry, stage, attempt))
        };
        if let Some(mut entry) = entry.filter(is_settled) {
            entry.set_stage(BucketStage::BucketLive);
            apply.tables.delete(unsettled_key(BucketNumber(number)));
            apply.tables.put(key, entry.encode_to_vec());
        }
        Ok(MoveEndedReply {})
    }
}

/// Takes back what was decided of an attempt, where a group that was reset has not what the decision was
/// about, and the other one has all.
pub(crate) struct ResettleMove;

impl Operation for ResettleMove {
    type Request = ResettleMoveCommand;
    type Command = ResettleMoveCommand;
    type Response = ResettleMoveReply;
    wire!(ResettleMove);

    fn prepare(request: ResettleMoveCommand, _: Fresh) -> Result<ResettleMoveCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: ResettleMoveCommand) -> Result<ResettleMoveReply, Refusal> {
        let ResettleMoveCommand { volume, bucket, number, attempt, is_done } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let before = if is_done { BucketStage::BucketStays } else { BucketStage::BucketMoved };
        let is_decided = |entry: &BucketEntry| entry.number == number && is_at(entry, before, attempt);
        let Some(mut entry) = entry.filter(is_decided) else { return Ok(ResettleMoveReply {}) };
        let mut last = entry.last_move.take().unwrap_or_default();
        let BucketMove { from, to, .. } = last.moved.unwrap_or_default();
        if is_done {
            (entry.group, entry.epoch, last.undone) = (to, attempt, String::new());
            entry.set_stage(BucketStage::BucketMoved);
        } else {
            (entry.group, entry.epoch) = (from, last.epoch);
            last.undone = "its group was reset by force before it held the bucket".to_owned();
            entry.set_stage(BucketStage::BucketStays);
        }
        entry.last_move = Some(last);
        count_move(apply)?;
        apply.tables.put(key, entry.encode_to_vec());
        Ok(ResettleMoveReply {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::ops::{CreateBucket, DeleteBucket, MoveBucket, SettleBucket, settle_id};
    use crate::queries::{HeadBucket, Query};
    use proto::Code;
    use proto::om::*;

    const HERE: u64 = 3;
    const THERE: u64 = 5;

    fn far() -> (String, String) {
        ("s3v".to_owned(), "far".to_owned())
    }

    /// A root with a bucket in another group.
    fn root() -> Namespace {
        let mut root = Namespace::new();
        let (volume, bucket) = far();
        let create = CreateBucketRequest { volume, bucket, group: Some(HERE) };
        let number = root.run::<CreateBucket>(create).unwrap().place.unwrap().number;
        let (volume, bucket) = far();
        let settle = SettleBucketCommand { volume, bucket, number, ..SettleBucketCommand::default() };
        root.run_as::<SettleBucket>(settle_id(number, 0).0, settle).unwrap();
        root
    }

    fn begin(root: &mut Namespace, to: u64) -> Result<MoveBucketResponse, Failure> {
        let (volume, bucket) = far();
        root.run::<MoveBucket>(MoveBucketRequest { volume, bucket, to })
    }

    fn settle(root: &mut Namespace, moved: BucketMove, is_done: bool) -> bool {
        let ((volume, bucket), why) = (far(), "a test".to_owned());
        let BucketMove { number, attempt, .. } = moved;
        let settle = SettleMoveRequest { volume, bucket, number, attempt, is_done, why };
        root.run::<SettleMove>(settle).unwrap().is_done
    }

    fn end(root: &mut Namespace, moved: BucketMove) {
        let (volume, bucket) = far();
        let BucketMove { number, attempt, .. } = moved;
        root.run::<MoveEnded>(MoveEndedCommand { volume, bucket, number, attempt }).unwrap();
    }

    fn head(root: &Namespace) -> HeadBucketResponse {
        let (volume, bucket) = far();
        HeadBucket::read(&root.db, None, HeadBucketRequest { volume, bucket }).unwrap()
    }

    fn group(root: &Namespace) -> u64 {
        head(root).place.unwrap().group
    }

    #[test]
    fn of_an_attempt_the_first_word_counts() {
        for is_done in [true, false] {
            let mut root = root();
            let moved = begin(&mut root, THERE).unwrap().moved.unwrap();
            assert_eq!((moved.from, moved.to, group(&root)), (HERE, THERE, HERE));
            assert_eq!(begin(&mut root, THERE).unwrap().moved, Some(moved), "it goes on");
            end(&mut root, moved);
            assert_eq!(head(&root).stage(), BucketStage::BucketMoving, "it is not settled");
            for word in [is_done, !is_done, is_done] {
                assert_eq!(settle(&mut root, moved, word), is_done);
            }
            let at = if is_done { THERE } else { HERE };
            assert_eq!(group(&root), at);
            end(&mut root, moved);
            assert_eq!(head(&root).stage(), BucketStage::BucketLive);
            assert_eq!(head(&root).last_move.unwrap().undone.is_empty(), is_done);
            assert_eq!((settle(&mut root, moved, !is_done), group(&root)), (is_done, at));
            let there = begin(&mut root, at).unwrap();
            assert!(there.is_there);
            let next = begin(&mut root, HERE + THERE - at).unwrap().moved.unwrap();
            assert!(next.attempt > moved.attempt, "a number comes once");
            settle(&mut root, moved, true);
            end(&mut root, moved);
            assert_eq!(head(&root).stage(), BucketStage::BucketMoving, "what is late says nothing of it");
        }
    }

    #[test]
    fn a_bucket_that_moves_is_neither_deleted_nor_made_nor_moved_elsewhere() {
        let mut root = root();
        let moved = begin(&mut root, THERE).unwrap().moved.unwrap();
        for is_settled in [false, true] {
            if is_settled {
                settle(&mut root, moved, true);
            }
            let (volume, bucket) = far();
            let delete = DeleteBucketRequest { volume: volume.clone(), bucket: bucket.clone() };
            root.check_refused::<DeleteBucket>(delete, Code::NotYet);
            let create = CreateBucketRequest { volume: volume.clone(), bucket: bucket.clone(), group: None };
            root.check_refused::<CreateBucket>(create, Code::BucketExists);
            root.check_refused::<MoveBucket>(MoveBucketRequest { volume, bucket, to: 9 }, Code::Invalid);
        }
        end(&mut root, moved);
        let (volume, bucket) = far();
        root.run::<DeleteBucket>(DeleteBucketRequest { volume, bucket }).unwrap();
    }

    #[test]
    fn a_bucket_that_is_being_made_or_deleted_is_not_moved() {
        let mut root = Namespace::new();
        let create = CreateBucketRequest { volume: "s3v".into(), bucket: "far".into(), group: Some(HERE) };
        root.run::<CreateBucket>(create).unwrap();
        assert_eq!(begin(&mut root, THERE).unwrap_err().code, Code::NoSuchBucket, "it is not there yet");
        let mut root = self::root();
        let (volume, bucket) = far();
        root.run::<DeleteBucket>(DeleteBucketRequest { volume, bucket }).unwrap();
        assert_eq!(begin(&mut root, THERE).unwrap_err().code, Code::Unavailable);
    }
}
