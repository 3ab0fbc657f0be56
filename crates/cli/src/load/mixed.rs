//! A client that knows what its names must be: nobody else writes them.

use super::content::Version;
use super::shared::Problem;
use super::work::Worker;
use bytes::Bytes;
use client::{ClientError, S3_VOLUME};
use proto::Code;
use proto::om::listed_key::Entry;
use proto::om::{Key, ListKeysRequest};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// The number of a client's names.
const NAMES: u64 = 32;

/// A state of a name: the version that it has, or none.
type State = Option<u64>;

pub(super) struct Mixed {
    worker: Worker,
    random: SmallRng,
    names: Vec<Name>,
}

struct Name {
    number: u64,
    /// The state that was acknowledged last.
    known: State,
    /// Changes whose outcome nobody told: they may have taken effect, or do so yet.
    unsure: Vec<State>,
    versions: u64,
}

impl Name {
    fn may_be(&self, state: State) -> bool {
        self.known == state || self.unsure.contains(&state)
    }

    fn changed(&mut self, to: State, done: &Result<u64, Problem>) {
        match done {
            Ok(_) => self.known = to,
            Err(Problem::Failed(ClientError::OutcomeUnknown(_))) => self.unsure.push(to),
            Err(_) => {}
        }
    }
}

impl Mixed {
    pub(super) fn new(worker: Worker) -> Mixed {
        let random = SmallRng::seed_from_u64(worker.run.content.seed ^ worker.number.rotate_left(32));
        // The names' numbers are far from those of other kinds of load, and of other runs.
        let first = (1 << 63) | (u64::from(worker.run.drawn) << 31) | (worker.number * NAMES);
        let name = |number| Name { number, known: None, unsure: Vec::new(), versions: 0 };
        let names = (first..first + NAMES).map(name).collect();
        Mixed { worker, random, names }
    }

    pub(super) async fn work(mut self) {
        while self.worker.run.next().is_some() {
            let at = self.random.random_range(0..self.names.len());
            let begun = Instant::now();
            let done = match self.random.random_range(0..10) {
                0..4 => self.read(at).await,
                4..8 => self.put(at).await,
                8 => self.delete(at).await,
                _ => self.list(at).await,
            };
            self.worker.note(begun, done).await;
        }
    }

    async fn put(&mut self, at: usize) -> Result<u64, Problem> {
        let name = &mut self.names[at];
        let version = name.versions;
        name.versions += 1;
        let done = self.worker.put(Version { number: name.number, version }).await;
        name.changed(Some(version), &done);
        done
    }

    async fn delete(&mut self, at: usize) -> Result<u64, Problem> {
        let name = &mut self.names[at];
        let done = self.worker.delete(name.number).await;
        name.changed(None, &done);
        done
    }

    async fn read(&self, at: usize) -> Result<u64, Problem> {
        let name = &self.names[at];
        match self.worker.look_up(name.number).await {
            Ok(key) => self.worker.read(self.which(name, &key)?, &key).await,
            Err(Problem::Failed(error)) if error.code() == Some(Code::NoSuchKey) => self.absent(name),
            Err(problem) => Err(problem),
        }
    }

    /// Lists a page that begins with the name, and checks what it says of it.
    async fn list(&self, at: usize) -> Result<u64, Problem> {
        let name = &self.names[at];
        let key = self.worker.run.content.name(name.number);
        let request = ListKeysRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: self.worker.run.bucket.clone(),
            prefix: key.clone(),
            delimiter: Bytes::new(),
            after: Bytes::new(),
            limit: 2,
            ..ListKeysRequest::default()
        };
        let page = self.worker.client.list_keys(request).await?;
        let listed = page.entries.into_iter().filter_map(|listed| listed.entry);
        let found = listed.into_iter().find_map(|entry| match entry {
            Entry::Key(found) if found.key == key => Some(found),
            Entry::Key(_) | Entry::CommonPrefix(_) => None,
        });
        match found {
            Some(found) => self.which(name, &found).map(|_| 0),
            None => self.absent(name),
        }
    }

    fn absent(&self, name: &Name) -> Result<u64, Problem> {
        match name.may_be(None) {
            true => Ok(0),
            false => Err(Problem::Wrong(format!("{} is not there, {:?} is", name.number, name.known))),
        }
    }

    /// The version that `key` is of: one that the name may have.
    fn which(&self, name: &Name, key: &Key) -> Result<Version, Problem> {
        let may_be = std::iter::once(&name.known).chain(&name.unsure).flatten();
        let mut versions = may_be.map(|version| Version { number: name.number, version: *version });
        let is_it = |of: &Version| self.worker.check_attributes(*of, key).is_ok();
        let found = versions.find(is_it);
        let wrong = || Problem::Wrong(format!("{} is {key:?}, not {:?}", name.number, name.known));
        found.ok_or_else(wrong)
    }
}
