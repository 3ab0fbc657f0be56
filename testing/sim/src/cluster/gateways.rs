//! Clients of whole objects by the very path that gateways take: the client crate puts, reads and deletes
//! keys. What it answered must have been so: an object that is "unavailable" was never put, and one whose
//! outcome is unknown was put whole, or not at all.

use super::ledger::{Ledger, contents};
use super::objects::{BUCKET, KEYS, Objects, VOLUME};
use bytes::Bytes;
use client::{Client, ClientError, ClientOptions};
use disk::sim::Random;
use futures::TryStreamExt;
use history::{Answer, Condition, Op};
use proto::Code;
use proto::om::{Key, KeyAttributes, Precondition};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;
use types::ContainerId;

const THINK_MS_MAX: u64 = 400;
/// The chunks are small, as the containers of a simulation are; an object has some chunks and two blocks at
/// most.
const CHUNK_BYTES: usize = 1500;
const BLOCK_CHUNKS: u64 = 3;
const OBJECT_BYTES_MAX: u64 = 8000;
/// The times after which a client gives up. Faults last for some seconds: with the first it outlasts most of
/// them, with the second it is left without an outcome.
pub(super) const DEADLINES: [Duration; 2] = [Duration::from_secs(8), Duration::from_millis(1500)];
/// A call that is not answered is repeated so often until the client gives up.
const TRIES: u32 = 4;
/// A gateway's writes have numbers from this times the gateway's own number, so no two gateways write the
/// same.
const WRITES_EACH: u64 = 1_000_000;

pub(super) fn options(scms: &[String], deadline: Duration) -> ClientOptions {
    ClientOptions {
        scm: scms.join(","),
        chunk_bytes: CHUNK_BYTES,
        block_bytes_max: BLOCK_CHUNKS * CHUNK_BYTES as u64,
        write_deadline: deadline,
        read_deadline: deadline,
        call_timeout: deadline / TRIES,
        ..ClientOptions::default()
    }
}

/// Keys that cannot be read when all is quiet, and the containers of their blocks.
pub(super) type Unreadable = Arc<Mutex<Vec<(usize, Vec<ContainerId>)>>>;

/// The names of keys whose histories are kept, apart from those of [`super::objects`].
fn name(key: usize) -> Bytes {
    Bytes::from(format!("gateway-{key}"))
}

pub(super) struct Gateway {
    pub(super) number: u64,
    pub(super) client: Client,
    pub(super) objects: Objects,
    pub(super) ledger: Ledger,
    pub(super) random: Random,
    /// The ETags of the writes that this gateway knows of.
    pub(super) etags: BTreeMap<u64, String>,
}

impl Gateway {
    pub(super) async fn run(mut self) {
        let mut written = 0;
        while self.ledger.is_writing() {
            sleep(Duration::from_millis(1 + self.random.below(THINK_MS_MAX))).await;
            let key = self.random.below(KEYS as u64) as usize;
            if self.objects.is_full(key) {
                continue;
            }
            let op = match self.random.below(100) {
                0..45 => {
                    written += 1;
                    Op::Put { write: self.number * WRITES_EACH + written, condition: self.condition(key) }
                }
                45..60 => Op::Delete,
                _ => Op::Read,
            };
            self.call(key, op).await;
        }
    }

    fn condition(&mut self, key: usize) -> Condition {
        let recent = self.objects.recent(key).filter(|write| self.etags.contains_key(write));
        match (self.random.below(4), recent) {
            (0, _) => Condition::Absent,
            (1, Some(recent)) => Condition::Is(recent),
            _ => Condition::Nothing,
        }
    }

    async fn call(&mut self, key: usize, op: Op) {
        let asked_at = self.objects.tick();
        let answer = match &op {
            Op::Put { write, condition } => self.put(key, *write, *condition).await,
            Op::Delete => {
                let deleted = self.client.delete_keys(VOLUME, BUCKET, vec![name(key)], None).await;
                deleted.map(|existed| Answer::Existed(existed == [true]))
            }
            _ => return self.read(key, asked_at).await,
        };
        match answer {
            Ok(answer) => {
                self.ledger.count(|counts| counts.gateway_changes += 1);
                self.objects.note(key, op, asked_at, Some(answer));
            }
            Err(ClientError::Refused(failure)) if is_decided(failure.code) => {
                self.objects.note(key, op, asked_at, Some(Answer::Refused(failure.code)));
            }
            Err(ClientError::OutcomeUnknown(_)) => {
                self.ledger.count(|counts| counts.gateway_unknown += 1);
                self.objects.note(key, op, asked_at, None);
            }
            // The change was not carried out, and never will be: nothing is noted, and nobody may ever see
            // it.
            Err(failure) => {
                self.ledger.count(|counts| counts.gateway_unavailable += 1);
                self.ledger.event(format_args!("{op:?} of gateway key {key} was not carried out: {failure}"));
            }
        }
    }

    async fn put(&mut self, key: usize, write: u64, condition: Condition) -> Result<Answer, ClientError> {
        let bytes = contents(write, 0..length_of(write));
        let absent = Precondition { absent: true, ..Precondition::default() };
        let precondition = match condition {
            Condition::Nothing => None,
            Condition::Absent => Some(absent),
            Condition::Is(write) => {
                Some(Precondition { etag: self.etags.get(&write).cloned(), ..Precondition::default() })
            }
        };
        let user_metadata = [("write".to_owned(), write.to_string())].into();
        let attributes = KeyAttributes { user_metadata, ..KeyAttributes::default() };
        let body = futures::stream::iter([Ok::<_, Infallible>(Bytes::from(bytes))]);
        let put = self.client.put(VOLUME, BUCKET, &name(key), attributes, precondition, body).await?;
        if put.size != length_of(write) {
            self.ledger.fail(format!("of write {write} of a gateway {} bytes were put", put.size));
        }
        self.etags.insert(write, put.etag);
        Ok(Answer::Done)
    }

    async fn read(&mut self, key: usize, asked_at: u64) {
        let Some(found) = look_up(&self.client, &self.objects, &self.ledger, key, asked_at).await else {
            return;
        };
        if let Some(write) = write_of(&found) {
            self.etags.insert(write, found.etag.clone());
        }
        match read_checked(&self.client, &self.ledger, &found).await {
            true => self.ledger.count(|counts| counts.gateway_reads += 1),
            false => self.ledger.count(|counts| counts.gateway_reads_failed += 1),
        }
    }
}

/// The number of bytes of a write: whoever reads it knows whether all of it is there.
fn length_of(write: u64) -> u64 {
    write.wrapping_mul(0x9e37_79b9_7f4a_7c15) % OBJECT_BYTES_MAX
}

/// Whether a refusal with this code is OM's last word on a request.
fn is_decided(code: Code) -> bool {
    matches!(code, Code::NoSuchKey | Code::NoSuchBucket | Code::PreconditionFailed)
}

fn write_of(found: &Key) -> Option<u64> {
    found.attributes.as_ref()?.user_metadata.get("write")?.parse().ok()
}

/// The key as OM has it now, noted; `None` where there is none, or no answer.
async fn look_up(
    client: &Client,
    objects: &Objects,
    ledger: &Ledger,
    key: usize,
    asked_at: u64,
) -> Option<Key> {
    match client.lookup(VOLUME, BUCKET, &name(key)).await {
        Ok(found) => {
            let Some(write) = write_of(&found) else {
                ledger.fail(format!("OM answers a gateway's key that nobody put so: {found:?}"));
                return None;
            };
            objects.note(key, Op::Read, asked_at, Some(Answer::Value(Some(vec![write]))));
            Some(found)
        }
        Err(ClientError::Refused(failure)) if is_decided(failure.code) => {
            objects.note(key, Op::Read, asked_at, Some(Answer::Refused(failure.code)));
            None
        }
        Err(_) => None,
    }
}

/// Reads a key's bytes, which must be right: whether they came.
async fn read_checked(client: &Client, ledger: &Ledger, found: &Key) -> bool {
    let Some(write) = write_of(found) else { return false };
    let chunks: Result<Vec<Bytes>, ClientError> =
        client.read(&found.pieces, 0..found.size).try_collect().await;
    match chunks {
        Ok(chunks) => {
            if found.size != length_of(write) || chunks.concat() != contents(write, 0..found.size) {
                ledger.fail(format!("the client crate answers other bytes than those of {found:?}"));
            }
            true
        }
        Err(failure) => {
            ledger.event(format_args!("write {write} of a gateway cannot be read: {failure}"));
            false
        }
    }
}

/// Reads every key, by a client that has seen nothing before; what cannot be read goes to `unreadable`, with
/// the containers that it is in.
pub(super) async fn read_all_at_last(
    client: &Client,
    objects: &Objects,
    ledger: &Ledger,
    unreadable: &Unreadable,
) {
    for key in 0..KEYS {
        let (mut is_answered, seen) = (false, objects.calls_of(key));
        while !is_answered {
            let asked_at = objects.tick();
            let found = look_up(client, objects, ledger, key, asked_at).await;
            is_answered = objects.calls_of(key) > seen;
            let names = found.iter().flat_map(|found| &found.pieces).filter_map(|piece| piece.block.as_ref());
            names.filter_map(|block| block.try_into().ok()).for_each(|block| ledger.name_by_gateway(block));
            match found {
                Some(found) if read_checked(client, ledger, &found).await => {
                    ledger.count(|counts| counts.gateway_reads += 1);
                }
                Some(found) => {
                    let blocks = found.pieces.iter().filter_map(|piece| piece.block.as_ref());
                    let containers = blocks.map(|block| ContainerId(block.container)).collect();
                    unreadable.lock().expect("no holder panics").push((key, containers));
                }
                None => {}
            }
        }
    }
}
