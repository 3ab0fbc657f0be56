//! All groups have the rows of the backup: each of them is founded with these, and with nothing else.

use crate::tables::TablesMut;
use proto::scm::{EndOmRestoreCommand, OmGroupRecord, OmRestore, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: EndOmRestoreCommand) -> Result<ScmReply, String> {
    let is_of = |record: &&OmGroupRecord| {
        record.restore.as_ref().is_some_and(|restore| restore.backup == command.backup)
    };
    let waiting: Vec<OmGroupRecord> = tables.om_groups().values().filter(is_of).cloned().collect();
    if waiting.is_empty() {
        return Err("no group waits for the rows of this backup".to_owned());
    }
    for record in waiting {
        let restore = record.restore.map(|restore| OmRestore { is_complete: true, ..restore });
        tables.put_om_group(OmGroupRecord { restore, ..record });
    }
    Ok(ScmReply::default())
}
