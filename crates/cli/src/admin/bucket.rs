//! Buckets, as their groups of names have them.

use super::args::BucketCommand;
use super::bucket_move;
use crate::answer::Answer;
use crate::table::{human_bytes, table};
use anyhow::Context;
use client::{Client, ClientError, ClientOptions, S3_VOLUME};
use futures::{StreamExt, TryStreamExt, stream};
use proto::Code;
use proto::om::{
    Bucket, BucketMove, BucketStage, HeadBucketResponse, ListBucketsRequest, StatBucketResponse,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use types::{Clock, SystemClock};

/// The time for which a client goes on trying: somebody waits at a terminal.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most buckets that are asked about at a time.
const ASKED_MAX: usize = 32;

/// A bucket, where it is, and what its group says of it.
pub(super) struct Seen {
    pub(super) found: HeadBucketResponse,
    pub(super) stat: Result<StatBucketResponse, String>,
}

/// The groups that have not answered, and why: nobody waits twice for one.
pub(super) type Away = Mutex<BTreeMap<u64, String>>;

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

/// Volume and name of a bucket as people write it: of S3's the name alone, of others VOLUME/NAME.
pub(super) fn split(bucket: &str) -> (&str, &str) {
    bucket.split_once('/').unwrap_or((S3_VOLUME, bucket))
}

fn written(bucket: &Bucket) -> String {
    match bucket.volume.as_str() {
        S3_VOLUME | "" => bucket.name.clone(),
        volume => format!("{volume}/{}", bucket.name),
    }
}

/// Returns a client for somebody who waits at a terminal.
pub(super) fn connect(scm: &str) -> Client {
    let options = ClientOptions {
        scm: scm.to_owned(),
        write_deadline: PATIENCE,
        read_deadline: PATIENCE,
        ..ClientOptions::default()
    };
    Client::connect(options)
}

pub(super) async fn run(scm: &str, command: BucketCommand) -> anyhow::Result<Answer> {
    let client = connect(scm);
    match command {
        BucketCommand::List => {
            let names = names(&client).await?;
            let away = Away::default();
            let all = stream::iter(names).map(|name| look_at(&client, name, &away)).buffered(ASKED_MAX);
            // A bucket that was deleted meanwhile is left out.
            let all: Vec<Seen> = all.try_filter_map(async |seen| Ok(seen)).try_collect().await?;
            let json: Vec<Value> = all.iter().map(to_json).collect();
            Ok(Answer::new(to_table(&all), json!(json)))
        }
        BucketCommand::Info { bucket } => {
            let seen = look_at(&client, bucket.clone(), &Away::default()).await?;
            Ok(answer(&seen.with_context(|| format!("no bucket `{bucket}`"))?))
        }
        BucketCommand::Create { bucket, group } => {
            let (volume, name) = split(&bucket);
            client.create_bucket_in(volume, name, group).await?;
            let seen = look_at(&client, bucket.clone(), &Away::default()).await?;
            Ok(answer(&seen.with_context(|| format!("bucket `{bucket}` was deleted meanwhile"))?))
        }
        BucketCommand::Move { bucket, to: Some(to), .. } => bucket_move::run(&client, &bucket, to).await,
        BucketCommand::Move { bucket, to: None, .. } => bucket_move::give_up(&client, &bucket).await,
    }
}

/// Returns the names of the buckets of all volumes.
pub(super) async fn names(client: &Client) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for volume in client.list_volumes().await? {
        let mut after = String::new();
        loop {
            let request = ListBucketsRequest { volume: volume.name.clone(), after, ..Default::default() };
            let page = match client.list_buckets(request).await {
                // The volume was deleted meanwhile.
                Err(failure) if failure.code() == Some(Code::NoSuchVolume) => break,
                page => page?,
            };
            names.extend(page.buckets.iter().map(written));
            after = page.buckets.last().map(|last| last.name.clone()).unwrap_or_default();
            if !page.truncated {
                break;
            }
        }
    }
    Ok(names)
}

/// Looks at a bucket; `None`: there is no such bucket. The root says where it is, whether its group answers
/// or not.
pub(super) async fn look_at(client: &Client, name: String, away: &Away) -> anyhow::Result<Option<Seen>> {
    let is_none =
        |failure: &ClientError| matches!(failure.code(), Some(Code::NoSuchBucket | Code::NoSuchVolume));
    let (volume, name) = split(&name);
    let found = match client.find_bucket(volume, name).await {
        Err(failure) if is_none(&failure) => return Ok(None),
        found => found?,
    };
    let group = group(&found);
    let known = away.lock().expect("no holder panics").get(&group).cloned();
    if let Some(why) = known {
        return Ok(Some(Seen { found, stat: Err(why) }));
    }
    let stat = match client.stat_bucket(volume, name).await {
        Err(failure) if is_none(&failure) => return Ok(None),
        Err(failure) => {
            let why = format!("group {group} of names does not say: {failure}");
            away.lock().expect("no holder panics").insert(group, why.clone());
            Err(why)
        }
        Ok(stat) => Ok(stat),
    };
    Ok(Some(Seen { found, stat }))
}

pub(super) fn answer(seen: &Seen) -> Answer {
    Answer::new(to_table(std::slice::from_ref(seen)), to_json(seen))
}

fn to_table(all: &[Seen]) -> String {
    let row = |seen: &Seen| {
        let name = seen.found.bucket.as_ref().map(written).unwrap_or_default();
        let moves = seen.moves().map(|moved| whither(seen, moved)).unwrap_or_default();
        let (keys, bytes, problem) = match &seen.stat {
            Ok(stat) => (stat.keys.to_string(), human_bytes(stat.bytes), String::new()),
            Err(why) => ("?".to_owned(), "?".to_owned(), why.clone()),
        };
        [name, group(&seen.found).to_string(), keys, bytes, moves, problem]
    };
    table(["BUCKET", "GROUP", "KEYS", "BYTES", "MOVES", "PROBLEM"], &all.iter().map(row).collect::<Vec<_>>())
}

fn whither(seen: &Seen, moved: BucketMove) -> String {
    let since = SystemClock.now_ms().saturating_sub(seen.since_ms()) / 1000;
    match seen.found.stage() {
        BucketStage::BucketStays => format!("stays: its move to {} is being undone", moved.to),
        _ => format!("from {} to {}, for {since} s", moved.from, moved.to),
    }
}

fn group(found: &HeadBucketResponse) -> u64 {
    found.place.map_or(0, |place| place.group)
}

fn to_json(seen: &Seen) -> Value {
    let (bucket, stat) = (seen.found.bucket.clone().unwrap_or_default(), seen.stat.as_ref().ok());
    let moves = seen.moves().map(|moved| {
        json!({
            "from": moved.from,
            "to": moved.to,
            "since_ms": seen.since_ms(),
            "is_being_undone": seen.found.stage() == BucketStage::BucketStays,
            "sent_rows": stat.map(|stat| stat.sent_rows),
            "sent_bytes": stat.map(|stat| stat.sent_bytes),
        })
    });
    json!({
        "volume": bucket.volume,
        "bucket": bucket.name,
        "group": group(&seen.found),
        "keys": stat.map(|stat| stat.keys),
        "bytes": stat.map(|stat| stat.bytes),
        "created_ms": bucket.created_ms,
        "moves": moves,
        "problem": seen.stat.as_ref().err(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::om::BucketPlace;

    #[test]
    fn a_bucket_whose_group_does_not_answer_is_shown_with_what_the_root_knows() {
        let seen = |name: &str, stat| {
            let bucket = Some(Bucket { name: name.to_owned(), ..Bucket::default() });
            let place = Some(BucketPlace { group: 3, number: 7, epoch: 0 });
            Seen { found: HeadBucketResponse { bucket, place, ..HeadBucketResponse::default() }, stat }
        };
        let stat = StatBucketResponse { keys: 5, bytes: 9, ..StatBucketResponse::default() };
        let all = [seen("there", Ok(stat)), seen("away", Err("nobody leads group 3".to_owned()))];
        let table = to_table(&all);
        let row = |name: &str| {
            let row = table.lines().find(|line| line.starts_with(name)).unwrap();
            row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("there")[..3], ["there", "3", "5"]);
        assert_eq!(row("away")[..], ["away", "3", "?", "?", "nobody", "leads", "group", "3"]);
        let json: Vec<Value> = all.iter().map(to_json).collect();
        assert_eq!((&json[0]["keys"], &json[0]["problem"]), (&json!(5), &Value::Null));
        assert_eq!((&json[1]["keys"], &json[1]["problem"]), (&Value::Null, &json!("nobody leads group 3")));
    }
}
