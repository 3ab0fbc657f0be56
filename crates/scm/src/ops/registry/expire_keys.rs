//! Keys whose time is over go. A key that was put again meanwhile stays.

use crate::tables::TablesMut;
use proto::registry::{ExpireKeysCommand, ExpiredKey, RegistryReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: ExpireKeysCommand) -> RegistryReply {
    let mut reply = RegistryReply::default();
    for ExpiredKey { key, mod_revision } in command.keys {
        let found = tables.directory().key(&key);
        if found.is_some_and(|entry| entry.mod_revision == mod_revision && entry.ttl_ms > 0) {
            reply.revision = tables.remove_key(key, true);
            reply.changed += 1;
        }
    }
    reply
}
