//! Clients whose keys are only their own. Each names the blocks that it writes at once, or late, when their
//! container may be closed and swept, or never; some it names twice, some names it deletes. So it is known of
//! each key what it must be.

use super::ledger::{Ledger, Written};
use super::mover::find_bucket;
use super::objects::{
    ANSWER_MAX, BUCKET, Objects, OmWay, RETRY_MS_MAX, TRIES_MAX, VOLUME, change, found_at_last, is_decided,
    piece_of, unanswered,
};
use super::sweep_plan::Sweeps;
use super::writer::Writer;
use bytes::Bytes;
use disk::sim::Random;
use proto::om::om_client::OmClient;
use proto::om::{Change, CommitKeyRequest, DeleteKeysRequest, Key};
use proto::{ChangesBucket, Code, Failure, RequestId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const THINK_MS_MAX: u64 = 600;
/// One block in so many is never named: its writer dies before.
const LEFT_ONE_IN: u64 = 4;
const LATE_ONE_IN: u64 = 2;
const SHARED_ONE_IN: u64 = 3;
const DELETED_ONE_IN: u64 = 2;
/// The time within which a name is deleted that does not stay.
const DELETED_AFTER_MS_MAX: u64 = 8000;

/// The keys and what is known of them. A cheap handle.
#[derive(Clone, Default)]
pub(super) struct Names {
    names: Arc<Mutex<BTreeMap<Bytes, Name>>>,
}

#[derive(Clone, Copy)]
struct Name {
    block: Written,
    is: Is,
}

/// The state that a key must be in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    There,
    NotThere,
    /// The outcome of the last call is unknown.
    Either,
}

impl Names {
    fn note(&self, key: &Bytes, block: Written, is: Is) {
        self.lock().insert(key.clone(), Name { block, is });
    }

    fn all(&self) -> Vec<(Bytes, Name)> {
        self.lock().iter().map(|(key, name)| (key.clone(), *name)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Bytes, Name>> {
        self.names.lock().expect("no holder of names panics")
    }
}

pub(super) struct Namer {
    pub(super) writer: Writer,
    pub(super) names: Names,
    /// The record that has the bucket's place.
    pub(super) objects: Objects,
    pub(super) oms: OmWay,
    pub(super) random: Random,
    pub(super) sweeps: Sweeps,
}

impl Namer {
    pub(super) async fn run(mut self) {
        let mut nth = 0;
        while self.writer.ledger.is_writing() {
            sleep(Duration::from_millis(1 + self.random.below(THINK_MS_MAX))).await;
            nth += 1;
            let Some(block) = self.writer.write_object(nth).await else { continue };
            if !self.random.one_in(LEFT_ONE_IN) {
                let course = self.course(block);
                self.writer.ledger.let_work(course.run());
            }
        }
    }

    fn course(&mut self, block: Written) -> Course {
        let random = &mut self.random;
        let late_ms = if random.one_in(LATE_ONE_IN) { random.below(self.sweeps.late_ms_max) } else { 0 };
        let deleted_ms = random.one_in(DELETED_ONE_IN).then(|| random.below(DELETED_AFTER_MS_MAX));
        Course {
            block,
            late: Duration::from_millis(late_ms),
            is_shared: self.sweeps.shares_blocks && random.one_in(SHARED_ONE_IN),
            deleted_after: deleted_ms.map(Duration::from_millis),
            names: self.names.clone(),
            ledger: self.writer.ledger.clone(),
            objects: self.objects.clone(),
            oms: self.oms.clone(),
            random: Random::new(random.next_u64()),
        }
    }
}

/// The fate of one block that is named.
struct Course {
    block: Written,
    /// The time after which the block is named.
    late: Duration,
    is_shared: bool,
    deleted_after: Option<Duration>,
    names: Names,
    ledger: Ledger,
    objects: Objects,
    oms: OmWay,
    random: Random,
}

impl Course {
    async fn run(mut self) {
        sleep(self.late).await;
        if self.name("first").await != Is::There {
            return;
        }
        let second = if self.is_shared { self.name("second").await } else { Is::NotThere };
        self.ledger.count(|counts| counts.names_shared += u64::from(second == Is::There));
        // A request that names a block and is so late that OM has forgotten it may find the block gone.
        if let Some(after) = self.deleted_after
            && second != Is::Either
        {
            sleep(after).await;
            self.delete("first").await;
        }
    }

    fn key(&self, which: &str) -> Bytes {
        Bytes::from(format!("named-{}-{which}", self.block.number))
    }

    async fn name(&mut self, which: &str) -> Is {
        let (name, block) = (self.key(which), self.block);
        self.names.note(&name, block, Is::Either);
        let key = Key {
            key: name.clone(),
            size: block.length,
            etag: block.number.to_string(),
            pieces: vec![piece_of(&block)],
            ..Key::default()
        };
        let (volume, bucket) = (VOLUME.to_owned(), BUCKET.to_owned());
        let commit = CommitKeyRequest { volume, bucket, key: Some(key), precondition: None };
        let is = match self.ask(commit).await {
            Some(Ok(_)) => Is::There,
            Some(Err(failure)) if failure.code == Code::GivenUp => {
                self.ledger.count(|counts| counts.objects_given_up += 1);
                Is::NotThere
            }
            Some(Err(failure)) => {
                self.ledger.fail(format!("key {name:?} is refused: {failure}"));
                Is::NotThere
            }
            None => Is::Either,
        };
        if is == Is::There {
            self.ledger.count(|counts| counts.names_given += 1);
            self.ledger.name(block);
        }
        self.names.note(&name, block, is);
        is
    }

    async fn delete(&mut self, which: &str) {
        let (name, block) = (self.key(which), self.block);
        self.names.note(&name, block, Is::Either);
        self.ledger.unname(block.block);
        let (volume, bucket, keys) = (VOLUME.to_owned(), BUCKET.to_owned(), vec![name.clone()]);
        let delete = DeleteKeysRequest { volume, bucket, keys, precondition: None };
        match self.ask(delete).await {
            Some(Ok(deleted)) if deleted.existed == [true] => {
                self.ledger.count(|counts| counts.names_deleted += 1);
                self.names.note(&name, block, Is::NotThere);
            }
            Some(answer) => self.ledger.fail(format!("key {name:?} is there, and deleting it is {answer:?}")),
            None => {}
        }
    }

    /// Asks until there is an answer, or gives up: then nobody knows the outcome.
    async fn ask<C: ChangesBucket>(&mut self, request: C) -> Option<Result<C::Answer, Failure>> {
        let id = RequestId(u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64()));
        let begun = Instant::now();
        for _ in 0..TRIES_MAX {
            let asked = timeout(ANSWER_MAX, self.ask_once(request.clone(), id, begun.elapsed())).await;
            match asked.unwrap_or_else(|_| Err(unanswered())) {
                Ok(answer) => return Some(Ok(answer)),
                Err(failure) if is_decided(failure.code) => return Some(Err(failure)),
                Err(failure) if failure.code == Code::NotHere => find_bucket(&self.oms, &self.objects).await,
                Err(failure) => self.oms.failed(&failure),
            }
            sleep(Duration::from_millis(1 + self.random.below(RETRY_MS_MAX))).await;
        }
        None
    }

    async fn ask_once<C: ChangesBucket>(
        &self,
        request: C,
        id: RequestId,
        age: Duration,
    ) -> Result<C::Answer, Failure> {
        let channel = self.oms.connector.connect(self.oms.address()).map_err(Failure::internal)?;
        let (mut om, place) = (OmClient::new(channel), Some(self.objects.place()));
        change(&mut om, &self.oms.cluster, Change::of(request, id, age, place)).await?.answer::<C>()
    }
}

/// Looks all keys up, however long OM takes: each must be what it was acknowledged to be.
pub(super) async fn look_at_last(way: &OmWay, objects: &Objects, names: &Names, ledger: &Ledger) {
    for (key, Name { block, is }) in names.all() {
        let found = found_at_last(way, objects, &key).await;
        let is_other = found.as_ref().is_some_and(|found| found.pieces != [piece_of(&block)]);
        match (is, found.is_some()) {
            (Is::There, false) => ledger.fail(format!("key {key:?} was acknowledged, and is not there")),
            (Is::NotThere, true) => ledger.fail(format!("key {key:?} was deleted or refused, and is there")),
            _ if is_other => ledger.fail(format!("key {key:?} of {block:?} is {found:?}")),
            (Is::Either, true) => ledger.name(block),
            _ => {}
        }
    }
}
