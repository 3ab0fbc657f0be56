//! Multipart uploads in progress, and the end of those that nobody goes on with.

use super::bucket::{connect, names, split};
use crate::answer::Answer;
use crate::table::table;
use anyhow::Context;
use client::{Client, ClientError};
use futures::{StreamExt, TryStreamExt, stream};
use proto::Code;
use proto::om::{AbortUploadRequest, ListUploadsRequest, Upload};
use serde_json::json;
use std::time::Duration;
use types::{Clock, SystemClock};

/// The most uploads that are ended at a time.
const ENDED_AT_ONCE: usize = 16;

struct Found {
    bucket: String,
    upload: Upload,
    age: Duration,
}

pub(super) async fn run(
    scm: &str,
    bucket: Option<String>,
    older_than: Duration,
    abort: bool,
) -> anyhow::Result<Answer> {
    let client = connect(scm);
    let buckets = match bucket {
        Some(bucket) => vec![bucket],
        None => names(&client).await?,
    };
    let mut all = Vec::new();
    for bucket in buckets {
        all.extend(
            uploads(&client, &bucket, older_than).await.with_context(|| format!("bucket `{bucket}`"))?,
        );
    }
    all.sort_by_key(|found| found.upload.created_ms);
    if abort {
        let ended = stream::iter(&all).map(|found| end(&client, found)).buffer_unordered(ENDED_AT_ONCE);
        ended.try_collect::<()>().await?;
    }
    Ok(answer(&all, abort))
}

async fn uploads(client: &Client, bucket: &str, older_than: Duration) -> anyhow::Result<Vec<Found>> {
    let mut found = Vec::new();
    let (volume, name) = split(bucket);
    let mut request =
        ListUploadsRequest { volume: volume.to_owned(), bucket: name.to_owned(), ..Default::default() };
    loop {
        let page = client.list_uploads(request.clone()).await?;
        if let Some(last) = page.uploads.last() {
            (request.after_key, request.after_upload) = (last.key.clone(), last.upload.clone());
        }
        found.extend(page.uploads.into_iter().filter_map(|upload| {
            let age = Duration::from_millis(SystemClock.now_ms().saturating_sub(upload.created_ms));
            (age >= older_than).then(|| Found { bucket: bucket.to_owned(), upload, age })
        }));
        if !page.truncated {
            return Ok(found);
        }
    }
}

/// Ends an upload; one that has come to its end meanwhile is no trouble.
async fn end(client: &Client, found: &Found) -> anyhow::Result<()> {
    let Upload { key, upload, .. } = found.upload.clone();
    let name = key.escape_ascii().to_string();
    let (volume, bucket) = split(&found.bucket);
    let request = AbortUploadRequest { volume: volume.to_owned(), bucket: bucket.to_owned(), key, upload };
    let is_over =
        |failure: &ClientError| matches!(failure.code(), Some(Code::NoSuchUpload | Code::NoSuchBucket));
    match client.abort_upload(request).await {
        Err(failure) if !is_over(&failure) => {
            Err(failure).with_context(|| format!("end an upload to {}/{name}", found.bucket))
        }
        _ => Ok(()),
    }
}

fn answer(all: &[Found], is_ended: bool) -> Answer {
    let row = |found: &Found| {
        let key = String::from_utf8_lossy(&found.upload.key).into_owned();
        [found.bucket.clone(), key, age(found.age), found.upload.upload.clone()]
    };
    let mut text = table(["BUCKET", "KEY", "AGE", "UPLOAD"], &all.iter().map(row).collect::<Vec<_>>());
    if is_ended {
        text += &format!("{} uploads are ended\n", all.len());
    }
    let upload = |found: &Found| {
        json!({
            "bucket": found.bucket,
            "key": String::from_utf8_lossy(&found.upload.key),
            "upload": found.upload.upload,
            "created_ms": found.upload.created_ms,
        })
    };
    let list: Vec<_> = all.iter().map(upload).collect();
    Answer::new(text, json!({ "uploads": list, "ended": is_ended }))
}

/// An age in the largest unit of which it has two at least.
pub(super) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_unit_that_tells_most() {
        let told = [0, 119, 120, 7199, 7200, 172_799, 172_800, 864_000];
        let told = told.map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(told, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d", "10 d"]);
    }
}
