//! The root's part in moves: it says what becomes of each attempt, and has both groups hear it.

use crate::ops::{MoveEnded, RemakeBucket, ResettleMove, SettleMove};
use crate::reach::{Reach, held};
use proto::Failure;
use proto::om::*;
use tracing::{error, warn};

/// Has the groups do what the stage of a bucket's move asks for, up to where others decide.
pub(crate) async fn go_on(reach: &impl Reach, entry: &BucketEntry) -> Result<(), Failure> {
    let moved = entry.last_move.as_ref().and_then(|last| last.moved).unwrap_or_default();
    let Bucket { volume, name: bucket, .. } = entry.bucket.clone().unwrap_or_default();
    let (number, attempt) = (moved.number, moved.attempt);
    if entry.stage() == BucketStage::BucketMoving {
        let SendBucketResponse { is_sent, is_done } = reach.send(moved).await?;
        if is_sent {
            return Ok(());
        }
        let is_done = is_done || is_only_there(reach, moved).await?;
        let why = format!("group {} has not the bucket, or has heard the end of this attempt", moved.from);
        let settle = SettleMoveRequest { volume, bucket, number, attempt, is_done, why };
        return reach.write::<SettleMove>(settle).await.map(drop);
    }
    let is_done = entry.stage() == BucketStage::BucketMoved;
    // What the group lacks of the fences it gets while the bucket can still be read where it was.
    if is_done {
        reach.bring_fences(moved.to).await?;
    }
    // The group that is to have it answers first: it may have been reset meanwhile.
    if is_resettled(reach, entry, moved).await? {
        return Ok(());
    }
    // The bucket is in one group at most: the group that had it lets go of it before the other holds it.
    reach.end_sending(moved, is_done).await?;
    if reach.end_receiving(moved, is_done).await? {
        return remake(reach, vec![entry.clone()]).await;
    }
    reach.write::<MoveEnded>(MoveEndedCommand { volume, bucket, number, attempt }).await.map(drop)
}

/// Has the buckets that are in no group made again, empty, where they were.
pub(crate) async fn remake(reach: &impl Reach, lost: Vec<BucketEntry>) -> Result<(), Failure> {
    for BucketEntry { number, epoch, group, bucket, .. } in lost {
        let Bucket { volume, name, .. } = bucket.unwrap_or_default();
        let remake = RemakeBucketCommand { volume, bucket: name.clone(), number, epoch };
        if reach.write::<RemakeBucket>(remake).await?.is_made {
            error!(
                bucket = name,
                group, "what was in a bucket is lost with a group that was reset: it is made again, empty"
            );
        }
    }
    Ok(())
}

/// Whether the group to which a bucket was sent has all of it.
pub(crate) async fn has_come(reach: &impl Reach, moved: BucketMove) -> Result<bool, Failure> {
    let held = held(reach, moved.to, moved.number, moved.number).await?.buckets;
    Ok(held.iter().any(|held| held.place.is_some_and(|place| place.epoch == moved.attempt)))
}

/// Whether the group from which a bucket is sent has it.
async fn has_it_still(reach: &impl Reach, moved: BucketMove) -> Result<bool, Failure> {
    let there = held(reach, moved.from, moved.number, moved.number).await?.buckets;
    Ok(there.iter().any(|held| held.comes.is_none()))
}

/// Whether all there is of a bucket is what has come to the group to which it was sent: the other one was
/// reset to before it had it.
async fn is_only_there(reach: &impl Reach, moved: BucketMove) -> Result<bool, Failure> {
    Ok(!has_it_still(reach, moved).await? && has_come(reach, moved).await?)
}

/// Decides an attempt anew where one of its groups was reset, and has not what was decided of it; answers
/// whether that was so. Where neither has anything it is as decided: what there was is lost.
async fn is_resettled(reach: &impl Reach, entry: &BucketEntry, moved: BucketMove) -> Result<bool, Failure> {
    let is_done = match entry.stage() {
        BucketStage::BucketMoved if !has_come(reach, moved).await? => {
            if !has_it_still(reach, moved).await? {
                return Ok(false);
            }
            false
        }
        BucketStage::BucketStays if is_only_there(reach, moved).await? => true,
        _ => return Ok(false),
    };
    let BucketMove { number, attempt, .. } = moved;
    let Bucket { volume, name: bucket, .. } = entry.bucket.clone().unwrap_or_default();
    warn!(bucket, number, attempt, is_done, "a move is decided anew: one of its groups was reset");
    let anew = ResettleMoveCommand { volume, bucket, number, attempt, is_done };
    reach.write::<ResettleMove>(anew).await.map(|_| true)
}
