use super::failure::Failure;
use super::path::StorePath;
use super::store::{Found, Store, failure};
use crate::output::unless_unread;
use bytes::Bytes;
use futures::StreamExt;
use proto::om::Key;
use std::io::{self, Write};

/// `-cat PATH...`
pub(super) async fn run(store: &Store, paths: &[String]) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut stdout = io::stdout().lock();
    for path in paths {
        if let Err(failure) = cat(store, path, &mut stdout).await {
            failures.push(failure);
        }
    }
    failures
}

async fn cat(store: &Store, path: &str, stdout: &mut impl Write) -> Result<(), Failure> {
    let path = StorePath::parse(path).map_err(Failure::Usage)?;
    let key = file(store, &path).await?;
    let written = read(store, &path, &key, |bytes| stdout.write_all(&bytes)).await;
    unless_unread(written?.and_then(|()| stdout.flush())).map_err(|err| Failure::local("-", &err))
}

/// The file at a path; a directory is an error.
pub(super) async fn file(store: &Store, path: &StorePath) -> Result<Key, Failure> {
    match store.stat(path).await? {
        Found::File(key) => Ok(*key),
        Found::Directory => Err(Failure::IsDirectory(path.to_string())),
    }
}

/// Hands a file's bytes to `sink`, verified, in order; stops at its first error and hands that back.
pub(super) async fn read(
    store: &Store,
    path: &StorePath,
    key: &Key,
    mut sink: impl FnMut(Bytes) -> io::Result<()>,
) -> Result<io::Result<()>, Failure> {
    let mut stream = std::pin::pin!(store.client.read(&key.pieces, 0..key.size));
    while let Some(bytes) = stream.next().await {
        let bytes = bytes.map_err(|err| failure(path, err))?;
        if let Err(error) = sink(bytes) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}
