//! A key gets a value: at any rate, or only if nobody has changed it since it was read.

use super::reply::{changed, check_mod_revision};
use crate::tables::TablesMut;
use proto::registry::{KeyValue, PutKeyCommand, RegistryReply};
use proto::{Code, Failure};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: PutKeyCommand) -> Result<RegistryReply, Failure> {
    check_mod_revision(tables, &command.key, command.if_mod_revision)?;
    check_room(tables, &command)?;
    let before = tables.directory().key(&command.key);
    let (version, created) =
        before.map_or((0, None), |before| (before.version, Some(before.create_revision)));
    let revision = tables.draw_revision();
    tables.put_key(KeyValue {
        key: command.key,
        value: command.value,
        create_revision: created.unwrap_or(revision),
        mod_revision: revision,
        version: version + 1,
        ttl_ms: command.ttl_ms,
    });
    Ok(changed(revision))
}

/// Refuses a change for which there is no room. One that takes no more room than before is let through, also
/// where a limit has become lower.
fn check_room(tables: &TablesMut<'_>, command: &PutKeyCommand) -> Result<(), Failure> {
    let PutKeyCommand { keys_max, bytes_max, .. } = *command;
    let directory = tables.directory();
    let before = directory.key(&command.key);
    if before.is_none() && directory.keys_count() >= keys_max {
        return Err(Failure::new(
            Code::LimitReached,
            format!("there are {keys_max} keys, which is the limit"),
        ));
    }
    let added = (command.value.len() + before.map_or(command.key.len(), |_| 0)) as u64;
    let freed = before.map_or(0, |before| before.value.len() as u64);
    if added > freed && directory.key_bytes() + added - freed > bytes_max {
        let message = format!("keys and values are at most {bytes_max} bytes all together");
        return Err(Failure::new(Code::LimitReached, message));
    }
    Ok(())
}
