//! Moves of buckets from one group of names to another, as an operator waits for them.

use super::bucket::{Away, Seen, answer, look_at, split};
use crate::answer::Answer;
use crate::table::human_bytes;
use anyhow::{Context, bail};
use client::Client;
use proto::om::{BucketMove, BucketStage, HeadBucketResponse};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LOOK_EVERY: Duration = Duration::from_millis(100);
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Begins a move, or finds the one that is under way, and waits for its end.
pub(super) async fn run(client: &Client, bucket: &str, to: u64) -> anyhow::Result<Answer> {
    let (volume, name) = split(bucket);
    let begun = client.move_bucket(volume, name, to).await?;
    if begun.is_there {
        eprintln!("bucket `{bucket}` is in group {to} already");
    } else {
        let moved = begun.moved.context("OM's answer lacks the move")?;
        until_settled(client, bucket, moved).await?;
    }
    let seen = look_at(client, bucket.to_owned(), &Away::default()).await?;
    Ok(answer(&seen.with_context(|| format!("bucket `{bucket}` was deleted meanwhile"))?))
}

/// Gives up the move that is under way, and waits until it is undone.
pub(super) async fn give_up(client: &Client, bucket: &str) -> anyhow::Result<Answer> {
    let seen = look_at(client, bucket.to_owned(), &Away::default()).await?;
    let seen = seen.with_context(|| format!("no bucket `{bucket}`"))?;
    let Some(moved) = seen.moves() else { bail!("bucket `{bucket}` does not move") };
    let (volume, name) = split(bucket);
    if client.give_up_move(volume, name, moved).await? {
        bail!("it is too late: bucket `{bucket}` has moved to group {}", moved.to);
    }
    while client.find_bucket(volume, name).await?.stage() == BucketStage::BucketStays {
        sleep(LOOK_EVERY).await;
    }
    let seen = look_at(client, bucket.to_owned(), &Away::default()).await?;
    Ok(answer(&seen.with_context(|| format!("bucket `{bucket}` was deleted meanwhile"))?))
}

async fn until_settled(client: &Client, bucket: &str, moved: BucketMove) -> anyhow::Result<()> {
    let (mut told, (volume, name)) = (Instant::now(), split(bucket));
    loop {
        // An OM that does not answer now is no end of the wait: it may have been killed, and its successor
        // goes on with the move.
        let found = client.find_bucket(volume, name).await;
        match found.as_ref().map(|found| outcome(found, moved)) {
            Ok(Some(Ok(()))) => return Ok(()),
            Ok(Some(Err(why))) => bail!("bucket `{bucket}` {why}"),
            Ok(None) => {}
            Err(client::ClientError::Refused(_)) => {
                found?;
            }
            Err(failure) => eprintln!("{failure}"),
        }
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            if let Ok(Some(seen)) = look_at(client, bucket.to_owned(), &Away::default()).await {
                eprintln!("{}", progress(&seen, moved));
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The outcome of an attempt to move a bucket, once it is known to all: an answer that names no place says
/// nothing. An error says what became of the bucket instead.
fn outcome(found: &HeadBucketResponse, moved: BucketMove) -> Option<Result<(), String>> {
    let place = found.place?;
    if place.number != moved.number {
        return Some(Err("was deleted meanwhile, and made again".to_owned()));
    }
    let last = found.last_move.clone().unwrap_or_default();
    let is_of_last = last.moved.is_some_and(|last| last.attempt == moved.attempt);
    if found.stage() != BucketStage::BucketLive && is_of_last {
        return None;
    }
    if place.epoch == moved.attempt {
        return Some(Ok(()));
    }
    Some(Err(match is_of_last {
        true => format!("stays in group {}: {}", moved.from, last.undone),
        false => "was to be moved again meanwhile, and what became of this attempt is not known".to_owned(),
    }))
}

fn progress(seen: &Seen, moved: BucketMove) -> String {
    let stat = match &seen.stat {
        Ok(stat) => stat,
        Err(why) => return format!("to group {}: {why}", moved.to),
    };
    let (rows, bytes) = (stat.sent_rows, human_bytes(stat.sent_bytes));
    format!("to group {}: {rows} rows sent, {bytes}; the bucket has {} keys", moved.to, stat.keys)
}
