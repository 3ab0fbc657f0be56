use super::failure::Failure;
use super::path::StorePath;
use super::store::{Found, Store, failure, key_prefix};
use bytes::Bytes;
use proto::om::KeyAttributes;

/// `-mkdir [-p] PATH...`: a volume, a bucket, or an empty object whose name ends in `/`, as S3 consoles make
/// directories.
pub(super) async fn run(store: &Store, parents: bool, paths: &[String]) -> Vec<Failure> {
    let mut failures = Vec::new();
    for path in paths {
        if let Err(failure) = mkdir(store, parents, path).await {
            failures.push(failure);
        }
    }
    failures
}

async fn mkdir(store: &Store, parents: bool, path: &str) -> Result<(), Failure> {
    let path = StorePath::parse(path).map_err(Failure::Usage)?;
    match store.stat(&path).await {
        Ok(Found::Directory) if parents => return Ok(()),
        Ok(_) => return Err(Failure::Exists(path.to_string())),
        Err(Failure::NotFound(_)) => {}
        Err(failure) => return Err(failure),
    }
    match &path {
        StorePath::Root => Err(Failure::Exists(path.to_string())),
        StorePath::Volume(volume) => make_volume(store, &path, volume).await,
        StorePath::Bucket(volume, bucket) => make_bucket(store, parents, &path, volume, bucket).await,
        StorePath::Key(volume, bucket, _) => {
            let bucket_path = StorePath::Bucket(volume.clone(), bucket.clone());
            match store.stat(&bucket_path).await {
                Ok(_) => {}
                Err(Failure::NotFound(_)) if parents => {
                    make_bucket(store, parents, &bucket_path, volume, bucket).await?
                }
                Err(failure) => return Err(failure),
            }
            let empty = futures::stream::empty::<std::io::Result<Bytes>>();
            let marker = key_prefix(&path);
            let attributes = KeyAttributes::default();
            let put = store.client.put(volume, bucket, marker.as_bytes(), attributes, None, empty).await;
            put.map(drop).map_err(|err| failure(&path, err))
        }
    }
}

async fn make_volume(store: &Store, path: &StorePath, volume: &str) -> Result<(), Failure> {
    store.client.create_volume(volume).await.map(drop).map_err(|err| failure(path, err))
}

async fn make_bucket(
    store: &Store,
    parents: bool,
    path: &StorePath,
    volume: &str,
    bucket: &str,
) -> Result<(), Failure> {
    let above = StorePath::Volume(volume.to_owned());
    match store.stat(&above).await {
        Err(Failure::NotFound(_)) if parents => make_volume(store, &above, volume).await?,
        found => drop(found?),
    }
    store.client.create_bucket(volume, bucket).await.map(drop).map_err(|err| failure(path, err))
}
