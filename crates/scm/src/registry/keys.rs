//! The key-value space.

use super::leases::{Holder, Leases, TooLate};
use super::limits::{self, check_key, check_ttl, check_value};
use crate::leader::Leader;
use crate::tables::Tables;
use proto::registry::registry_command::Command;
use proto::registry::*;
use proto::{Code, Failure};
use std::time::Duration;
use tokio::time::Instant;

/// The most entries in one answer.
const ENTRIES_MAX: usize = 1000;
/// The bytes at which a page of entries ends: well below the message limit.
const ENTRIES_BYTES_MAX: usize = 4 << 20;

pub(super) fn check_read(request: &ReadKeysRequest) -> Result<(), Failure> {
    check_key(&request.key, request.prefix)?;
    check_key(&request.from, true)
}

pub(super) fn read(tables: &Tables, request: &ReadKeysRequest) -> ReadKeysResponse {
    let directory = tables.directory();
    let mut response = ReadKeysResponse { revision: tables.revision(), ..ReadKeysResponse::default() };
    if !request.prefix {
        response.entries =
            directory.key(&request.key).map(|entry| entry_of(entry, request)).into_iter().collect();
        return response;
    }
    let limit = match request.limit as usize {
        0 => ENTRIES_MAX,
        limit => limit.min(ENTRIES_MAX),
    };
    let mut bytes = 0;
    for entry in directory.keys_with(&request.key, &request.from) {
        if response.entries.len() >= limit || bytes > ENTRIES_BYTES_MAX {
            response.next = entry.key.clone();
            break;
        }
        let entry = entry_of(entry, request);
        bytes += entry.key.len() + entry.value.len();
        response.entries.push(entry);
    }
    response
}

fn entry_of(entry: &KeyValue, request: &ReadKeysRequest) -> KeyValue {
    let mut entry = entry.clone();
    if request.keys_only {
        entry.value.clear();
    }
    entry
}

pub(super) async fn put(leader: &Leader, request: PutKeyRequest) -> Result<PutKeyResponse, Failure> {
    let PutKeyRequest { key, value, if_mod_revision, ttl_ms } = request;
    check_key(&key, false)?;
    check_value(&value)?;
    if ttl_ms > 0 {
        check_ttl(ttl_ms)?;
    }
    let command = PutKeyCommand {
        key,
        value,
        if_mod_revision,
        ttl_ms,
        keys_max: limits::KEYS_MAX,
        bytes_max: limits::KEYS_BYTES_MAX,
    };
    let reply = leader.propose_registry(Command::PutKey(command)).await?;
    Ok(PutKeyResponse { revision: reply.revision })
}

pub(super) async fn delete(
    leader: &Leader,
    request: DeleteKeysRequest,
) -> Result<DeleteKeysResponse, Failure> {
    let DeleteKeysRequest { key, prefix, if_mod_revision } = request;
    check_key(&key, prefix)?;
    if prefix && if_mod_revision.is_some() {
        return Err(Failure::invalid("many keys have many revisions: compare with one key only"));
    }
    let deletions_max = limits::DELETIONS_MAX;
    let command = DeleteKeysCommand { key, prefix, if_mod_revision, deletions_max };
    let reply = leader.propose_registry(Command::DeleteKeys(command)).await?;
    Ok(DeleteKeysResponse { deleted: reply.changed, revision: reply.revision, more: reply.more })
}

pub(super) async fn renew(leader: &Leader, request: &RenewKeyRequest) -> Result<(), Failure> {
    leader
        .tables
        .read(|tables| leader.leases(|leases| renew_held(tables, leases, request, Instant::now())))?;
    leader.confirm().await?;
    // Where this process lost its leadership and has it again, the leader in between may have ended what was
    // renewed here.
    leader.tables.read(|tables| ttl_of(tables, request)).map(|_| ())
}

/// Renews a key's lease in one step under both locks: between two, the key could be put again, and its lease
/// be that of a value that is gone.
pub(super) fn renew_held(
    tables: &Tables,
    leases: &mut Leases,
    request: &RenewKeyRequest,
    now: Instant,
) -> Result<(), Failure> {
    let ttl = ttl_of(tables, request)?;
    leases.check_complete()?;
    let holder = Holder::Key(request.key.clone());
    leases.renew(holder, request.mod_revision, ttl, now).map_err(|TooLate| {
        let message = format!("the time of key `{}` is over: it is being deleted", request.key);
        Failure::new(Code::NotFound, message)
    })
}

/// The time to live of the very value that is renewed.
fn ttl_of(tables: &Tables, request: &RenewKeyRequest) -> Result<Duration, Failure> {
    let RenewKeyRequest { key, mod_revision } = request;
    match tables.directory().key(key).filter(|entry| entry.mod_revision == *mod_revision) {
        Some(entry) if entry.ttl_ms == 0 => Err(Failure::invalid(format!("key `{key}` has no time to live"))),
        Some(entry) => Ok(Duration::from_millis(entry.ttl_ms)),
        None => {
            let message = format!("there is no key `{key}` at revision {mod_revision}");
            Err(Failure::new(Code::NotFound, message))
        }
    }
}
