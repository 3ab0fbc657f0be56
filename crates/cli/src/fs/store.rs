use super::failure::Failure;
use super::path::StorePath;
use bytes::Bytes;
use client::{Client, ClientError};
use proto::Code;
use proto::om::listed_key::Entry;
use proto::om::{Key, ListBucketsRequest, ListKeysRequest};

/// The store as directories and files.
pub(super) struct Store {
    pub(super) client: Client,
}

/// The thing at a path.
pub(super) enum Found {
    File(Box<Key>),
    Directory,
}

/// One line of a listing.
pub(super) struct Listed {
    pub(super) path: StorePath,
    pub(super) directory: bool,
    pub(super) size: u64,
    pub(super) modified_ms: u64,
}

const PAGE: u32 = 1000;

impl Store {
    pub(super) fn new(client: Client) -> Store {
        Store { client }
    }

    pub(super) async fn stat(&self, path: &StorePath) -> Result<Found, Failure> {
        match path {
            StorePath::Root => Ok(Found::Directory),
            StorePath::Volume(volume) => {
                self.client.head_volume(volume).await.map_err(|err| failure(path, err))?;
                Ok(Found::Directory)
            }
            StorePath::Bucket(volume, bucket) => {
                self.client.head_bucket(volume, bucket).await.map_err(|err| failure(path, err))?;
                Ok(Found::Directory)
            }
            StorePath::Key(volume, bucket, key) => {
                match self.client.lookup(volume, bucket, key.as_bytes()).await {
                    Ok(key) => Ok(Found::File(Box::new(key))),
                    Err(err) if err.code() == Some(Code::NoSuchKey) => self.stat_directory(path).await,
                    Err(err) => Err(failure(path, err)),
                }
            }
        }
    }

    /// Looks for a directory, which is there when something is below it, be it only its own marker.
    async fn stat_directory(&self, path: &StorePath) -> Result<Found, Failure> {
        let (_, entries) = self.page(path, Bytes::new(), 1).await?;
        match entries.first() {
            Some(_) => Ok(Found::Directory),
            None => Err(Failure::NotFound(path.to_string())),
        }
    }

    /// Returns everything that is directly in a directory.
    pub(super) async fn list(&self, path: &StorePath) -> Result<Vec<Listed>, Failure> {
        match path {
            StorePath::Root => {
                let volumes = self.client.list_volumes().await.map_err(|err| failure(path, err))?;
                Ok(volumes
                    .iter()
                    .map(|volume| directory(path.child(&volume.name), volume.created_ms))
                    .collect())
            }
            StorePath::Volume(volume) => self.list_buckets(path, volume).await,
            StorePath::Bucket(..) | StorePath::Key(..) => {
                let (mut all, mut after) = (Vec::new(), Bytes::new());
                loop {
                    let (next, entries) = self.page(path, after, PAGE).await?;
                    all.extend(entries.into_iter().filter_map(|entry| listed(path, entry)));
                    match next {
                        Some(next) => after = next,
                        None => return Ok(all),
                    }
                }
            }
        }
    }

    async fn list_buckets(&self, path: &StorePath, volume: &str) -> Result<Vec<Listed>, Failure> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let request =
                ListBucketsRequest { volume: volume.to_owned(), prefix: String::new(), after, limit: PAGE };
            let page = self.client.list_buckets(request).await.map_err(|err| failure(path, err))?;
            after = page.buckets.last().map(|bucket| bucket.name.clone()).unwrap_or_default();
            all.extend(
                page.buckets.iter().map(|bucket| directory(path.child(&bucket.name), bucket.created_ms)),
            );
            if !page.truncated {
                return Ok(all);
            }
        }
    }

    /// Returns one page of what is below a bucket or directory, and before it the place to go on from, if
    /// there is more.
    async fn page(
        &self,
        path: &StorePath,
        after: Bytes,
        limit: u32,
    ) -> Result<(Option<Bytes>, Vec<Entry>), Failure> {
        let (volume, bucket) = match path {
            StorePath::Bucket(volume, bucket) | StorePath::Key(volume, bucket, _) => (volume, bucket),
            StorePath::Root | StorePath::Volume(_) => unreachable!("only buckets have keys"),
        };
        let request = ListKeysRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            prefix: Bytes::from(key_prefix(path)),
            delimiter: Bytes::from_static(b"/"),
            after,
            limit,
            ..ListKeysRequest::default()
        };
        let page = self.client.list_keys(request).await.map_err(|err| failure(path, err))?;
        let next = page.truncated.then_some(page.next_after);
        Ok((next, page.entries.into_iter().filter_map(|listed| listed.entry).collect()))
    }
}

/// The prefix of all keys below a directory.
pub(super) fn key_prefix(path: &StorePath) -> String {
    match path {
        StorePath::Key(_, _, key) => format!("{key}/"),
        StorePath::Root | StorePath::Volume(_) | StorePath::Bucket(..) => String::new(),
    }
}

fn directory(path: StorePath, modified_ms: u64) -> Listed {
    Listed { path, directory: true, size: 0, modified_ms }
}

/// The line of a listing for an entry of a directory, of which its own marker is none.
fn listed(parent: &StorePath, entry: Entry) -> Option<Listed> {
    let prefix = key_prefix(parent);
    let name = |key: &[u8]| String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
    match entry {
        Entry::CommonPrefix(key) => Some(directory(parent.child(name(&key).trim_end_matches('/')), 0)),
        Entry::Key(key) if key.key.len() == prefix.len() => None,
        Entry::Key(key) => {
            let name = name(&key.key);
            let marker = name.ends_with('/');
            Some(Listed {
                path: parent.child(name.trim_end_matches('/')),
                directory: marker,
                size: key.size,
                modified_ms: key.modified_ms,
            })
        }
    }
}

/// A service's refusal, in the words of the shell.
pub(super) fn failure(path: &StorePath, error: ClientError) -> Failure {
    let path = path.to_string();
    match error.code() {
        Some(Code::NoSuchKey | Code::NoSuchBucket | Code::NoSuchVolume) => Failure::NotFound(path),
        Some(Code::BucketExists | Code::VolumeExists | Code::PreconditionFailed) => Failure::Exists(path),
        Some(_) => Failure::Refused(path, error.to_string()),
        None => match error {
            ClientError::Unavailable(_) | ClientError::OutcomeUnknown(_) => {
                Failure::Cluster(error.to_string())
            }
            ClientError::Refused(_)
            | ClientError::Unreadable { .. }
            | ClientError::Body(_)
            | ClientError::Invalid(_) => Failure::Refused(path, error.to_string()),
        },
    }
}
