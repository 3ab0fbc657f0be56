use super::failure::Failure;
use super::path::StorePath;
use super::store::{Found, Store, failure, key_prefix};
use crate::output;
use bytes::Bytes;
use proto::om::ListKeysRequest;
use proto::om::listed_key::Entry;

/// The most keys that are deleted in one call.
const BATCH: u32 = 1000;

/// `-rm [-f] [-r] [-skipTrash] PATH...`
pub(super) async fn run(store: &Store, force: bool, recursive: bool, paths: &[String]) -> Vec<Failure> {
    let mut failures = Vec::new();
    for path in paths {
        match rm(store, recursive, path).await {
            Ok(()) => {}
            Err(Failure::NotFound(_)) if force => {}
            Err(failure) => failures.push(failure),
        }
    }
    failures
}

async fn rm(store: &Store, recursive: bool, path: &str) -> Result<(), Failure> {
    let path = StorePath::parse(path).map_err(Failure::Usage)?;
    let found = store.stat(&path).await?;
    match (&path, found) {
        (StorePath::Key(volume, bucket, key), Found::File(_)) => {
            let keys = vec![Bytes::copy_from_slice(key.as_bytes())];
            let deleted = store.client.delete_keys(volume, bucket, keys, None).await;
            deleted.map(drop).map_err(|err| failure(&path, err))?;
            // Through S3, a file and a directory can have the same name.
            if recursive {
                rm_below(store, &path, volume, bucket).await?;
            }
        }
        (_, Found::Directory) if !recursive => return Err(Failure::IsDirectory(path.to_string())),
        (StorePath::Key(volume, bucket, _), _) => rm_below(store, &path, volume, bucket).await?,
        (StorePath::Bucket(volume, bucket), _) => {
            rm_below(store, &path, volume, bucket).await?;
            store.client.delete_bucket(volume, bucket).await.map_err(|err| failure(&path, err))?;
        }
        (StorePath::Root | StorePath::Volume(_), _) => {
            let why = "volumes are not deleted through fs; name a bucket, or use `flotilla sh volume delete`"
                .to_owned();
            return Err(Failure::Refused(path.to_string(), why));
        }
    }
    output::print(&format!("Deleted {path}\n")).map_err(|err| Failure::local("-", &err))
}

/// Deletes all keys below a directory, a batch at a time from the front, until none is left.
async fn rm_below(store: &Store, path: &StorePath, volume: &str, bucket: &str) -> Result<(), Failure> {
    loop {
        let request = ListKeysRequest {
            volume: volume.to_owned(),
            bucket: bucket.to_owned(),
            prefix: Bytes::from(key_prefix(path)),
            delimiter: Bytes::new(),
            after: Bytes::new(),
            limit: BATCH,
            ..ListKeysRequest::default()
        };
        let page = store.client.list_keys(request).await.map_err(|err| failure(path, err))?;
        let keys: Vec<Bytes> = page.entries.into_iter().filter_map(key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        store.client.delete_keys(volume, bucket, keys, None).await.map_err(|err| failure(path, err))?;
    }
}

fn key(listed: proto::om::ListedKey) -> Option<Bytes> {
    match listed.entry {
        Some(Entry::Key(key)) => Some(key.key),
        Some(Entry::CommonPrefix(_)) | None => None,
    }
}
