//! The note, in the group's own log, that its names are founded: SCM has noted so, and nobody begins them
//! anew. From here on the group serves without SCM.
//!
//! Names that come from a backup are served from here on too: all groups have their rows. What was made since
//! the backup is gone, and none of its numbers is given out again.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{
    FOUNDED_KEY, NEXT_BUCKET_KEY, NUMBERS_SKIPPED, RESTORED_KEY, Refusal, SENDING_PREFIX, doubt_fences,
    next_bucket, restored, skip_runs,
};
use prost::Message;
use proto::om::{FoundedCommand, FoundedReply, RestoredNames};
use proto::{Code, Failure};

pub(crate) struct Founded;

impl Operation for Founded {
    type Request = FoundedCommand;
    type Command = FoundedCommand;
    type Response = FoundedReply;
    wire!(Founded);

    fn prepare(request: FoundedCommand, _: Fresh) -> Result<FoundedCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, _: FoundedCommand) -> Result<FoundedReply, Refusal> {
        if let Some(names) = restored(apply.tables)?.filter(|names| names.founded_ms == 0) {
            end_restore(apply, names)?;
        }
        apply.tables.put(FOUNDED_KEY.to_vec(), Vec::new());
        Ok(FoundedReply {})
    }
}

fn end_restore(apply: &mut Apply<'_, '_>, names: RestoredNames) -> Result<(), Refusal> {
    if !names.is_all {
        let why = format!("only {} parts of the backup's rows of this group have come", names.seq);
        return Err(Refusal::Passing(Failure::new(Code::NotYet, why)));
    }
    // A backup may be restored twice: what was made in between counts too, and no more than one number is
    // drawn a millisecond.
    if let Some(next) = next_bucket(apply.tables)? {
        let next = next.saturating_add(NUMBERS_SKIPPED).max(apply.now_ms);
        apply.tables.put(NEXT_BUCKET_KEY.to_vec(), next.to_le_bytes().to_vec());
    }
    // Only the root has given numbers out.
    let is_root = next_bucket(apply.tables)?.is_some();
    let (key, value) = doubt_fences(apply.tables, is_root)?;
    apply.tables.put(key, value);
    // Another group may have come from a later moment of the backup, and have parts of a run that is yet to
    // begin here.
    let sending: Vec<_> = apply.tables.scan(SENDING_PREFIX).collect();
    for (key, value) in skip_runs(apply.tables, sending.into_iter())? {
        apply.tables.put(key, value);
    }
    let founded_ms = apply.now_ms.max(1);
    apply.tables.put(RESTORED_KEY.to_vec(), RestoredNames { founded_ms, ..names }.encode_to_vec());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::tables::is_founded;

    #[test]
    fn a_group_is_founded_by_the_first_note_and_the_second_changes_nothing() {
        let mut namespace = Namespace::empty();
        assert!(!is_founded(&namespace.db).unwrap());
        namespace.run::<Founded>(FoundedCommand {}).unwrap();
        assert!(is_founded(&namespace.db).unwrap());
        let before = namespace.names();
        namespace.run::<Founded>(FoundedCommand {}).unwrap();
        assert_eq!(namespace.names(), before);
    }
}
