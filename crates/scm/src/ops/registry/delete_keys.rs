//! A key goes, or all keys with a prefix, so many at a time.

use super::reply::check_mod_revision;
use crate::tables::TablesMut;
use proto::Failure;
use proto::registry::{DeleteKeysCommand, RegistryReply};

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: DeleteKeysCommand,
) -> Result<RegistryReply, Failure> {
    let DeleteKeysCommand { key, prefix, if_mod_revision, deletions_max } = command;
    check_mod_revision(tables, &key, if_mod_revision)?;
    let directory = tables.directory();
    let mut keys: Vec<String> = match prefix {
        true => {
            let found = directory.keys_with(&key, "").map(|entry| entry.key.clone());
            found.take(deletions_max as usize + 1).collect()
        }
        false => directory.key(&key).map(|entry| entry.key.clone()).into_iter().collect(),
    };
    let more = keys.len() as u64 > deletions_max;
    keys.truncate(deletions_max as usize);
    let mut reply = RegistryReply { changed: keys.len() as u64, more, ..RegistryReply::default() };
    for key in keys {
        reply.revision = tables.remove_key(key, false);
    }
    Ok(reply)
}
