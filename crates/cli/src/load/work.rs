//! One client of the load, one operation after the other.

use super::args::Kind;
use super::content::{Comparison, Version};
use super::shared::{Problem, Run};
use client::{Client, S3_VOLUME};
use futures::StreamExt;
use proto::Code;
use proto::om::Key;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The pause between an operation that had a problem and the next one.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

pub(super) struct Worker {
    pub(super) run: Arc<Run>,
    pub(super) client: Client,
    pub(super) number: u64,
}

impl Worker {
    pub(super) async fn work(self) {
        while let Some(number) = self.run.next() {
            let begun = Instant::now();
            self.note(begun, self.operate(number).await).await;
        }
    }

    pub(super) async fn note(&self, begun: Instant, done: Result<u64, Problem>) {
        let is_problem = done.is_err();
        self.run.note(begun.elapsed(), done);
        if is_problem {
            tokio::time::sleep(AFTER_FAILURE).await;
        }
    }

    /// Does one operation. Returns the bytes of the object that it wrote or read, 0 where it did neither.
    async fn operate(&self, operation: u64) -> Result<u64, Problem> {
        let content = &self.run.content;
        let drawn = || {
            let mut random = SmallRng::seed_from_u64(content.seed ^ operation.rotate_left(32));
            Version::first(random.random_range(0..self.run.written))
        };
        match self.run.kind {
            Kind::Names => self.put_name(Version::first(operation)).await,
            Kind::Objects => self.put(Version::first(operation)).await,
            Kind::Lookups => {
                let of = drawn();
                let key = self.look_up(of.number).await?;
                self.check_name(of, &key, &content.key(of)).map(|()| 0)
            }
            Kind::Read => self.read_checked(drawn()).await,
            Kind::Deletes if self.run.is_to_stay(operation) => Ok(0),
            Kind::Deletes => self.delete(operation).await,
            Kind::Check if self.run.is_to_stay(operation) => {
                self.read_checked(Version::first(operation)).await
            }
            Kind::Check => self.check_absent(operation).await,
            Kind::Mixed => unreachable!("each client of it knows what its names must be"),
        }
    }

    async fn put_name(&self, of: Version) -> Result<u64, Problem> {
        let key = self.run.content.key(of);
        self.client.commit_key(S3_VOLUME, &self.run.bucket, key, None).await?;
        Ok(0)
    }

    pub(super) async fn put(&self, of: Version) -> Result<u64, Problem> {
        let content = &self.run.content;
        let (name, attributes, body) = (content.name(of.number), content.attributes(of), content.body(of));
        let put = self.client.put(S3_VOLUME, &self.run.bucket, &name, attributes, None, body).await?;
        Ok(put.size)
    }

    pub(super) async fn look_up(&self, number: u64) -> Result<Key, Problem> {
        let name = self.run.content.name(number);
        Ok(self.client.lookup(S3_VOLUME, &self.run.bucket, &name).await?)
    }

    async fn read_checked(&self, of: Version) -> Result<u64, Problem> {
        let key = self.look_up(of.number).await?;
        self.check_attributes(of, &key)?;
        self.read(of, &key).await
    }

    pub(super) async fn delete(&self, number: u64) -> Result<u64, Problem> {
        let name = self.run.content.name(number);
        self.client.delete_keys(S3_VOLUME, &self.run.bucket, vec![name], None).await?;
        Ok(0)
    }

    async fn check_absent(&self, number: u64) -> Result<u64, Problem> {
        match self.look_up(number).await {
            Ok(key) => Err(Problem::Wrong(format!("{number} was deleted, and is {key:?}"))),
            Err(Problem::Failed(error)) if error.code() == Some(Code::NoSuchKey) => Ok(0),
            Err(problem) => Err(problem),
        }
    }

    fn check_name(&self, of: Version, key: &Key, expected: &Key) -> Result<(), Problem> {
        self.check_attributes(of, key)?;
        match key.etag == expected.etag && key.size == expected.size {
            true => Ok(()),
            false => Err(Problem::Wrong(format!("{of:?} is {key:?}, not {expected:?}"))),
        }
    }

    pub(super) fn check_attributes(&self, of: Version, key: &Key) -> Result<(), Problem> {
        let expected = self.run.content.attributes(of);
        match key.attributes.as_ref().is_some_and(|read| read.user_metadata == expected.user_metadata) {
            true => Ok(()),
            false => Err(Problem::Wrong(format!("{of:?} is {key:?}, not with {expected:?}"))),
        }
    }

    /// Reads an object whole, and compares it with what was written.
    pub(super) async fn read(&self, of: Version, key: &Key) -> Result<u64, Problem> {
        let wrong = |at: u64| Problem::Wrong(format!("{of:?} differs from byte {at} on: {key:?}"));
        let mut comparison = Comparison::with(self.run.content.pieces(of));
        let mut bytes = std::pin::pin!(self.client.read(&key.pieces, 0..key.size));
        while let Some(part) = bytes.next().await {
            comparison.compare(part?).map_err(wrong)?;
        }
        comparison.end().map_err(wrong)
    }
}
