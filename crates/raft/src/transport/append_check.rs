//! A check of what openraft and the log take for granted of a leader's message, and what would otherwise stop
//! the group.

use crate::COMMAND_BYTES_MAX;
use crate::adapter::encoding::INDEX_MAX;
use crate::adapter::type_config::RaftEntry;
use openraft::EntryPayload;
use proto::{Code, Failure, raft as wire};
use types::LogId;

/// The refusal of a message that no elected leader can have sent, whatever this replica knows.
pub(crate) fn append_check(message: &wire::AppendRequest) -> Result<(), Failure> {
    let leader = message.vote.as_ref().filter(|vote| vote.committed);
    let leader = leader.ok_or_else(|| Failure::invalid("entries come from an elected leader only"))?;
    check_sender(leader.replica, message.to.as_ref())?;
    for (term, index) in ids(message) {
        if index > INDEX_MAX {
            return Err(Failure::invalid(format!("index {index} is above {INDEX_MAX}")));
        }
        if term > leader.term {
            let why = format!("entry {index} is of term {term}, its leader of term {}", leader.term);
            return Err(Failure::invalid(why));
        }
    }
    let entries = message.entries.iter().map(|entry| (entry.term, entry.index));
    check_order(message.prev.map(|prev| (prev.term, prev.index)), entries)?;
    for entry in &message.entries {
        let bytes = entry.meta.len() + entry.body.len();
        if bytes > COMMAND_BYTES_MAX {
            let why = format!("entry {} has {bytes} bytes, the limit is {COMMAND_BYTES_MAX}", entry.index);
            return Err(Failure::new(Code::TooLarge, why));
        }
    }
    Ok(())
}

/// The refusal of other members than a group of fixed ones has: these stand in its first entry, which each of
/// them wrote by itself.
pub(crate) fn check_fixed_members(entries: &[RaftEntry]) -> Result<(), Failure> {
    let is_change =
        |entry: &&RaftEntry| matches!(entry.payload, EntryPayload::Membership(_)) && entry.log_id.index > 0;
    match entries.iter().find(is_change) {
        Some(entry) => {
            let why = format!(
                "entry {} names other members, and those of a pipeline are fixed",
                entry.log_id.index
            );
            Err(Failure::invalid(why))
        }
        None => Ok(()),
    }
}

/// Refuses a message that a replica has from itself: it has a double, a copy of its disk or one that was
/// given its id.
pub(crate) fn check_sender(from: u64, to: Option<&wire::Address>) -> Result<(), Failure> {
    match to {
        Some(to) if to.replica == from => Err(Failure::invalid(format!(
            "the message comes from replica {from}, which is this one: there are two of them"
        ))),
        _ => Ok(()),
    }
}

/// The entry of a message that contradicts what is committed, in words: every leader has that, so its entries
/// stand on the same side of it by their terms as by their indexes. A leader that was deposed may not have
/// heard of it.
pub(crate) fn contradiction(message: &wire::AppendRequest, committed: Option<LogId>) -> Option<String> {
    let LogId { term, index } = committed?;
    let (settled_term, settled_index) = (term.0, index.0);
    let agrees = |&(term, index): &(u64, u64)| match index.cmp(&settled_index) {
        std::cmp::Ordering::Less => term <= settled_term,
        std::cmp::Ordering::Equal => term == settled_term,
        std::cmp::Ordering::Greater => term >= settled_term,
    };
    let (term, index) = ids(message).find(|id| !agrees(id))?;
    Some(format!(
        "entry {index} of term {term} contradicts entry {settled_index} of term {settled_term}, which is committed: \
         the sender has lost its log, or is of another group"
    ))
}

/// Term and index of all that a message names.
fn ids(message: &wire::AppendRequest) -> impl Iterator<Item = (u64, u64)> {
    let ids = message.prev.iter().chain(&message.committed).map(|id| (id.term, id.index));
    ids.chain(message.entries.iter().map(|entry| (entry.term, entry.index)))
}

/// Refuses entries out of order: terms never fall along a log, and entries follow each other and `prev`.
fn check_order(prev: Option<(u64, u64)>, entries: impl Iterator<Item = (u64, u64)>) -> Result<(), Failure> {
    let (mut least_term, mut expected) = prev.map_or((0, 0), |(term, index)| (term, index + 1));
    for (term, index) in entries {
        if index != expected {
            return Err(Failure::invalid(format!("entry {index} stands where entry {expected} belongs")));
        }
        if term < least_term {
            let why = format!("entry {index} is of term {term}, the one before it of term {least_term}");
            return Err(Failure::invalid(why));
        }
        (least_term, expected) = (term, index + 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{LogIndex, Term};

    fn check_to(
        to: u64,

        prev: Option<(u64, u64)>,
        committed: Option<(u64, u64)>,
        entries: &[(u64, u64)],
    ) -> Result<(), String> {
        let id = |(term, index)| wire::LogId { term, index };
        let entry = |&(term, index)| wire::Entry { term, index, ..wire::Entry::default() };
        let message = wire::AppendRequest {
            vote: Some(wire::Vote { term: 7, replica: 1, committed: true }),
            prev: prev.map(id),
            committed: committed.map(id),
            entries: entries.iter().map(entry).collect(),
            to: Some(wire::Address { replica: to, ..wire::Address::default() }),
        };
        let settled = LogId { term: Term(3), index: LogIndex(10) };
        append_check(&message).map_err(|failure| failure.message)?;
        contradiction(&message, Some(settled)).map_or(Ok(()), Err)
    }

    fn check(
        prev: Option<(u64, u64)>,
        committed: Option<(u64, u64)>,
        entries: &[(u64, u64)],
    ) -> Result<(), String> {
        check_to(2, prev, committed, entries)
    }

    #[test]
    fn what_a_leader_sends_passes() {
        assert_eq!(check(None, None, &[]), Ok(()));
        assert_eq!(check(Some((3, 10)), Some((3, 10)), &[(3, 11), (7, 12)]), Ok(()));
        assert_eq!(check(Some((1, 4)), Some((7, 12)), &[(2, 5), (3, 6)]), Ok(()), "again, from the start");
    }

    #[test]
    fn what_no_leader_sends_is_refused() {
        let refused = |result: Result<(), String>, why: &str| {
            let message = result.unwrap_err();
            assert!(message.contains(why), "{message}");
        };
        refused(check(Some((4, 10)), None, &[]), "contradicts entry 10");
        refused(check(Some((4, 9)), None, &[]), "contradicts entry 10");
        refused(check(Some((2, 11)), None, &[]), "contradicts entry 10");
        refused(check(None, Some((2, 10)), &[]), "contradicts entry 10");
        refused(check(Some((8, 12)), None, &[]), "its leader of term 7");
        refused(check(Some((3, 11)), None, &[(3, 13)]), "stands where entry 12 belongs");
        refused(check(Some((5, 11)), None, &[(4, 12)]), "the one before it of term 5");
        refused(check(Some((5, u64::MAX)), None, &[]), "above");
        refused(check_to(1, None, None, &[]), "there are two of them");
    }
}
