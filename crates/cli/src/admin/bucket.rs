//! Buckets, as their groups of names have them.

use super::answer::Answer;
use super::args::BucketCommand;
use super::bucket_move;
use crate::table::{human_bytes, table};
use anyhow::Context;
use client::{Client, ClientOptions, S3_VOLUME};
use futures::{StreamExt, TryStreamExt, stream};
use proto::om::{BucketMove, BucketStage, HeadBucketResponse, ListBucketsRequest, StatBucketResponse};
use serde_json::{Value, json};
use std::time::Duration;
use types::{Clock, SystemClock};

/// Somebody waits at a terminal.
const PATIENCE: Duration = Duration::from_secs(10);
/// Buckets that are asked about at a time.
const ASKED_MAX: usize = 32;

/// A bucket, where it is, and what is in it.
pub(super) struct Seen {
    pub(super) found: HeadBucketResponse,
    pub(super) stat: StatBucketResponse,
}

impl Seen {
    /// The move that is under way.
    pub(super) fn moves(&self) -> Option<BucketMove> {
        let stages = [BucketStage::BucketMoving, BucketStage::BucketMoved, BucketStage::BucketStays];
        let last = self.found.last_move.as_ref().filter(|_| stages.contains(&self.found.stage()));
        last.and_then(|last| last.moved)
    }

    fn since_ms(&self) -> u64 {
        self.found.last_move.as_ref().map_or(0, |last| last.since_ms)
    }
}

pub(super) async fn run(scm: &str, command: BucketCommand) -> anyhow::Result<Answer> {
    let options = ClientOptions {
        scm: scm.to_owned(),
        write_deadline: PATIENCE,
        read_deadline: PATIENCE,
        ..ClientOptions::default()
    };
    let client = Client::connect(options);
    match command {
        BucketCommand::List => {
            let names = names(&client).await?;
            let all = stream::iter(names).map(|name| look_at(&client, name)).buffered(ASKED_MAX);
            // One that was deleted meanwhile is none.
            let all: Vec<Seen> = all.try_filter_map(async |seen| Ok(seen)).try_collect().await?;
            let json: Vec<Value> = all.iter().map(to_json).collect();
            Ok(Answer::new(to_table(&all), json!(json)))
        }
        BucketCommand::Info { bucket } => {
            let seen = look_at(&client, bucket.clone()).await?;
            Ok(answer(&seen.with_context(|| format!("no bucket `{bucket}`"))?))
        }
        BucketCommand::Create { bucket, group } => {
            client.create_bucket_in(S3_VOLUME, &bucket, group).await?;
            let seen = look_at(&client, bucket.clone()).await?;
            Ok(answer(&seen.with_context(|| format!("bucket `{bucket}` was deleted meanwhile"))?))
        }
        BucketCommand::Move { bucket, to: Some(to), .. } => bucket_move::run(&client, &bucket, to).await,
        BucketCommand::Move { bucket, to: None, .. } => bucket_move::give_up(&client, &bucket).await,
    }
}

async fn names(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    loop {
        let after = names.last().cloned().unwrap_or_default();
        let request = ListBucketsRequest { volume: S3_VOLUME.to_owned(), after, ..Default::default() };
        let page = client.list_buckets(request).await?;
        names.extend(page.buckets.into_iter().map(|bucket| bucket.name));
        if !page.truncated {
            return Ok(names);
        }
    }
}

/// `None`: there is no such bucket.
pub(super) async fn look_at(client: &Client, name: String) -> anyhow::Result<Option<Seen>> {
    let seen = async {
        let found = client.find_bucket(S3_VOLUME, &name).await?;
        let stat = client.stat_bucket(S3_VOLUME, &name).await?;
        Ok(Seen { found, stat })
    };
    match seen.await {
        Ok(seen) => Ok(Some(seen)),
        Err(failure) => match client::ClientError::code(&failure) {
            Some(proto::Code::NoSuchBucket) => Ok(None),
            _ => Err(failure.into()),
        },
    }
}

pub(super) fn answer(seen: &Seen) -> Answer {
    Answer::new(to_table(std::slice::from_ref(seen)), to_json(seen))
}

fn to_table(all: &[Seen]) -> String {
    let row = |seen: &Seen| {
        let StatBucketResponse { keys, bytes, .. } = seen.stat;
        let name = seen.found.bucket.as_ref().map(|bucket| bucket.name.clone()).unwrap_or_default();
        let moves = seen.moves().map(|moved| whither(seen, moved)).unwrap_or_default();
        [name, group(seen).to_string(), keys.to_string(), human_bytes(bytes), moves]
    };
    table(["BUCKET", "GROUP", "KEYS", "BYTES", "MOVES"], &all.iter().map(row).collect::<Vec<_>>())
}

fn whither(seen: &Seen, moved: BucketMove) -> String {
    let since = SystemClock.now_ms().saturating_sub(seen.since_ms()) / 1000;
    match seen.found.stage() {
        BucketStage::BucketStays => format!("stays: its move to {} is being undone", moved.to),
        _ => format!("from {} to {}, for {since} s", moved.from, moved.to),
    }
}

fn group(seen: &Seen) -> u64 {
    seen.found.place.map_or(0, |place| place.group)
}

fn to_json(seen: &Seen) -> Value {
    let bucket = seen.found.bucket.clone().unwrap_or_default();
    let moves = seen.moves().map(|moved| {
        json!({
            "from": moved.from,
            "to": moved.to,
            "since_ms": seen.since_ms(),
            "is_being_undone": seen.found.stage() == BucketStage::BucketStays,
            "sent_rows": seen.stat.sent_rows,
            "sent_bytes": seen.stat.sent_bytes,
        })
    });
    json!({
        "bucket": bucket.name,
        "group": group(seen),
        "keys": seen.stat.keys,
        "bytes": seen.stat.bytes,
        "created_ms": bucket.created_ms,
        "moves": moves,
    })
}
