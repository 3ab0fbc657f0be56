//! Buckets, as their groups of names have them.

use super::answer::Answer;
use super::args::BucketCommand;
use crate::table::{human_bytes, table};
use anyhow::Context;
use client::{Client, ClientOptions, S3_VOLUME};
use futures::{StreamExt, TryStreamExt, stream};
use proto::om::{Bucket, ListBucketsRequest, StatBucketResponse};
use serde_json::{Value, json};
use std::time::Duration;

/// Somebody waits at a terminal.
const PATIENCE: Duration = Duration::from_secs(10);
/// Buckets that are asked about at a time.
const ASKED_MAX: usize = 32;

/// A bucket, its group, and what is in it.
struct Seen {
    bucket: Bucket,
    group: u64,
    stat: StatBucketResponse,
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
            let seen = seen.with_context(|| format!("no bucket `{bucket}`"))?;
            Ok(Answer::new(to_table(std::slice::from_ref(&seen)), to_json(&seen)))
        }
        BucketCommand::Create { bucket, group } => {
            client.create_bucket_in(S3_VOLUME, &bucket, group).await?;
            let seen = look_at(&client, bucket.clone()).await?;
            let seen = seen.with_context(|| format!("bucket `{bucket}` was deleted meanwhile"))?;
            Ok(Answer::new(to_table(std::slice::from_ref(&seen)), to_json(&seen)))
        }
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
async fn look_at(client: &Client, name: String) -> anyhow::Result<Option<Seen>> {
    let seen = async {
        let (bucket, group) = client.find_bucket(S3_VOLUME, &name).await?;
        let stat = client.stat_bucket(S3_VOLUME, &name).await?;
        Ok(Seen { bucket, group, stat })
    };
    match seen.await {
        Ok(seen) => Ok(Some(seen)),
        Err(failure) => match client::ClientError::code(&failure) {
            Some(proto::Code::NoSuchBucket) => Ok(None),
            _ => Err(failure.into()),
        },
    }
}

fn to_table(all: &[Seen]) -> String {
    let row = |seen: &Seen| {
        let StatBucketResponse { keys, bytes } = seen.stat;
        [seen.bucket.name.clone(), seen.group.to_string(), keys.to_string(), human_bytes(bytes)]
    };
    table(["BUCKET", "GROUP", "KEYS", "BYTES"], &all.iter().map(row).collect::<Vec<_>>())
}

fn to_json(seen: &Seen) -> Value {
    json!({
        "bucket": seen.bucket.name,
        "group": seen.group,
        "keys": seen.stat.keys,
        "bytes": seen.stat.bytes,
        "created_ms": seen.bucket.created_ms,
    })
}
