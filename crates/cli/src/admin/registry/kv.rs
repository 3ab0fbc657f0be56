use super::super::args::KvCommand;
use super::refused;
use crate::answer::Answer;
use crate::table::table;
use anyhow::Context;
use proto::registry::{DeleteKeysRequest, KeyValue, PutKeyRequest, ReadKeysRequest, RenewKeyRequest};
use proto::{Code, Failure};
use registry::{RegistryClient, key_to_json};
use serde_json::json;
use std::io::Read;

/// The most characters of a value that stand in a table.
const SHOWN_CHARS_MAX: usize = 60;

pub(super) async fn run(client: &RegistryClient, command: KvCommand) -> anyhow::Result<Answer> {
    match command {
        KvCommand::Get { key } => get(client, key).await,
        KvCommand::Put { key, value, cas, ttl } => {
            let value = if value == "-" { read_stdin()? } else { value.into_bytes() };
            let ttl_ms = ttl.map_or(0, |ttl| ttl.as_millis() as u64);
            let request = PutKeyRequest { key, value: value.into(), if_mod_revision: cas, ttl_ms };
            let revision = client.put(request).await.map_err(refused)?.revision;
            Ok(Answer::new(format!("revision {revision}\n"), json!({ "revision": revision })))
        }
        KvCommand::Renew { key, revision } => {
            let request = RenewKeyRequest { key, mod_revision: revision };
            client.renew_key(request).await.map_err(refused)?;
            Ok(Answer::new("renewed\n", json!({ "renewed": true })))
        }
        KvCommand::Delete { key, prefix, cas } => {
            let request = DeleteKeysRequest { key: key.clone(), prefix, if_mod_revision: cas };
            let deleted = client.delete(request).await.map_err(refused)?;
            if deleted == 0 && !prefix {
                return Err(not_there(&key));
            }
            Ok(Answer::new(format!("deleted {deleted}\n"), json!({ "deleted": deleted })))
        }
        KvCommand::List { prefix } => list(client, &prefix).await,
        KvCommand::Watch { .. } => anyhow::bail!("a watch is no answer"),
    }
}

async fn get(client: &RegistryClient, key: String) -> anyhow::Result<Answer> {
    let request = ReadKeysRequest { key: key.clone(), ..ReadKeysRequest::default() };
    let read = client.read(request).await.map_err(refused)?;
    let entry = read.entries.first().ok_or_else(|| not_there(&key))?;
    Ok(Answer::of_data(format!("{}\n", String::from_utf8_lossy(&entry.value)), key_to_json(entry)))
}

fn not_there(key: &str) -> anyhow::Error {
    refused(Failure::new(Code::NotFound, format!("there is no key `{key}`")))
}

async fn list(client: &RegistryClient, prefix: &str) -> anyhow::Result<Answer> {
    let entries = client.read_all(prefix, false).await.map_err(refused)?;
    let rows: Vec<[String; 5]> = entries.iter().map(row).collect();
    let text = table(["KEY", "REVISION", "VERSION", "TTL", "VALUE"], &rows);
    Ok(Answer::new(text, entries.iter().map(key_to_json).collect()))
}

fn row(entry: &KeyValue) -> [String; 5] {
    let ttl = match entry.ttl_ms {
        0 => "-".to_owned(),
        ttl_ms => format!("{} s", ttl_ms as f64 / 1000.0),
    };
    [entry.key.clone(), entry.mod_revision.to_string(), entry.version.to_string(), ttl, shown(&entry.value)]
}

/// The beginning of a value, in one line.
pub(super) fn shown(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value).replace(char::is_control, " ");
    match text.chars().count() > SHOWN_CHARS_MAX {
        true => text.chars().take(SHOWN_CHARS_MAX).chain(['…']).collect(),
        false => text,
    }
}

fn read_stdin() -> anyhow::Result<Vec<u8>> {
    let mut value = Vec::new();
    std::io::stdin().lock().read_to_end(&mut value).context("read the value from standard input")?;
    Ok(value)
}
