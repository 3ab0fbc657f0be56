//! The quality of a replica: its worth, against what its container is.

use crate::replicas::LastRecord;
use crate::replicas::last_record;
use crate::tables::container_state;
use proto::scm::{ContainerRecord, ContainerReplica, ContainerState, ReplicaState, TermEnd};
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quality {
    /// The replica is what the container is.
    Good,
    /// Good, and to be marked as closed.
    GoodUnmarked,
    /// Something is known against the replica.
    Bad,
    /// The replica ends past what the container is, or is of a log of its own with more records: its node
    /// has, or had once, what nobody else has.
    Ahead,
    /// The replica has what was committed, and the good ones lack it: a member lost what it had acknowledged.
    Diverged,
    /// The replica ends elsewhere than the container, or the container is not there any more.
    Stale,
    /// The replica is still written to, or it has not been found out what the container is.
    Unfinished,
}

impl Quality {
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Quality::Good | Quality::GoodUnmarked)
    }
}

pub(crate) fn quality(record: &ContainerRecord, replica: &ContainerReplica) -> Quality {
    let end = LastRecord { term: record.last_term, index: record.last_index };
    match container_state(record) {
        ContainerState::ContainerDeleted if record.emptied => return of_emptied(record, replica),
        // Nobody can have committed what a majority never had.
        ContainerState::ContainerDeleted if !is_empty(replica) && replica.committed_index > 0 => {
            return Quality::Diverged;
        }
        // Such a replica is a member's uncommitted tail, most likely. Where it is not, it is all that is
        // left.
        ContainerState::ContainerDeleted if !is_empty(replica) => return Quality::Ahead,
        ContainerState::ContainerDeleted => return Quality::Stale,
        ContainerState::ContainerClosed => {}
        _ => return Quality::Unfinished,
    }
    match replica.state() {
        ReplicaState::Unspecified | ReplicaState::ReplicaOpen => Quality::Unfinished,
        _ if last_record(replica) > end => Quality::Ahead,
        // The replica has a tail of an older term, which a majority may have acknowledged and lost since.
        _ if replica.last_index > record.last_index && !replica.copied => Quality::Ahead,
        _ if last_record(replica) != end => Quality::Stale,
        _ if !replica.unhealthy.is_empty() => Quality::Bad,
        ReplicaState::ReplicaClosed => Quality::Good,
        // All records up to the replica's last one were applied.
        ReplicaState::ReplicaQuasiClosed | ReplicaState::ReplicaWithoutLog => Quality::GoodUnmarked,
    }
}

/// The quality of a replica that comes late, of a container from which all was discarded: whatever part of it
/// the replica has, nothing in that is wanted. What it knows to be committed beyond that is told first, as of
/// a container that is closed: the others are gone, and this is the last that has it.
fn of_emptied(record: &ContainerRecord, replica: &ContainerReplica) -> Quality {
    let end = LastRecord { term: record.last_term, index: record.last_index };
    let (terms, lacks_earlier_terms) = (record.terms.clone(), record.lacks_earlier_terms);
    let container = ContainerReplica { terms, lacks_earlier_terms, ..ContainerReplica::default() };
    match replica.state() {
        _ if is_empty(replica) => Quality::Stale,
        ReplicaState::Unspecified | ReplicaState::ReplicaOpen => Quality::Unfinished,
        _ if is_shared(replica, [&container].into_iter()) != Some(true) => Quality::Diverged,
        _ if last_record(replica) > end => Quality::Ahead,
        _ if replica.last_index > record.last_index && !replica.copied => Quality::Ahead,
        // How far its records are committed only its log knew.
        _ if is_without_log(replica) && shares_all(replica, [&container].into_iter()) != Some(true) => {
            Quality::Ahead
        }
        _ => Quality::Stale,
    }
}

/// Whether there is no block in the replica. A replica that something is known against may have blocks that
/// it does not know of.
pub(crate) fn is_empty(replica: &ContainerReplica) -> bool {
    replica.blocks == 0 && replica.unhealthy.is_empty()
}

/// Whether what the replica knows to be committed stands in a good one, too; `None` as long as no good one
/// has been read, and where those that have do not tell of terms that old. What was not read of the replica
/// proves nothing: `None`.
pub(crate) fn is_shared<'a>(
    replica: &ContainerReplica,
    good: impl Iterator<Item = &'a ContainerReplica>,
) -> Option<bool> {
    let (term, last_index) = (replica.committed_term, replica.committed_index);
    if last_index == 0 {
        return Some(true);
    }
    let shared = stands_in(TermEnd { term, last_index, mark: replica.committed_mark }, replica, good);
    // The term is that of the replica's last record; that of the committed entry is not known.
    shared.filter(|_| !replica.committed_unread)
}

/// Whether all that the replica has stands in a good one, too; `None` as long as that is not known, also
/// where the replica was not read as a whole.
pub(crate) fn shares_all<'a>(
    replica: &ContainerReplica,
    good: impl Iterator<Item = &'a ContainerReplica>,
) -> Option<bool> {
    if last_record(replica) == LastRecord::default() && replica.unhealthy.is_empty() {
        return Some(true);
    }
    let last = replica.terms.last()?;
    let is_whole = LastRecord { term: last.term, index: last.last_index } == last_record(replica);
    stands_in(*last, replica, good).filter(|_| is_whole)
}

pub(crate) fn is_without_log(replica: &ContainerReplica) -> bool {
    replica.state() == ReplicaState::ReplicaWithoutLog
}

/// Whether an entry of the replica stands in a good one; `None` where that cannot be told. Two logs that have
/// an entry of one term and one leader at one index have the same up to there. A term has one leader, unless
/// a disk came back with old votes: so the terms before it must be the same as well, and each have the same
/// first record with a body.
fn stands_in<'a>(
    entry: TermEnd,
    replica: &ContainerReplica,
    good: impl Iterator<Item = &'a ContainerReplica>,
) -> Option<bool> {
    let tells = |good: &&ContainerReplica| {
        good.terms.first().is_some_and(|first| first.term <= entry.term || !good.lacks_earlier_terms)
    };
    let found: Vec<_> = good.filter(tells).map(|good| stands_in_one(entry, replica, good)).collect();
    match found.contains(&Some(true)) {
        true => Some(true),
        false if found.is_empty() || found.contains(&None) => None,
        false => Some(false),
    }
}

fn stands_in_one(entry: TermEnd, replica: &ContainerReplica, good: &ContainerReplica) -> Option<bool> {
    let is_it = |end: &TermEnd| {
        end.term == entry.term
            && entry.last_index <= end.last_index
            && (entry.mark == 0 || entry.mark == end.mark)
    };
    if !good.terms.iter().any(is_it) {
        return Some(false);
    }
    let (mine, theirs) = (terms(replica), terms(good));
    // A list that does not begin with its first term tells nothing of those before.
    let first = |replica: &ContainerReplica| match replica.lacks_earlier_terms {
        true => terms(replica).first().map_or(entry.term, |first| first.term),
        false => 0,
    };
    let from = first(replica).max(first(good));
    let before = |terms: &[TermEnd]| -> Vec<TermEnd> {
        terms.iter().filter(|end| (from..entry.term).contains(&end.term)).copied().collect()
    };
    let (before_mine, before_theirs) = (before(mine), before(theirs));
    // Nothing shows that two are of one history but a mark, of the term itself or of one before it, or that
    // both tell of all terms there are.
    let is_compared = entry.mark != 0 || from == 0 || before_mine.iter().any(|end| end.mark != 0);
    match before_mine == before_theirs {
        _ if mine.is_empty() => None,
        true if !is_compared => None,
        is_same => Some(is_same),
    }
}

/// The terms of a replica, as far as it was read.
fn terms(replica: &ContainerReplica) -> &[TermEnd] {
    if replica.terms.is_empty() { &replica.terms_to_committed } else { &replica.terms }
}

/// Whether two good replicas have other bytes than each other. Either may have what was acknowledged. Hashes
/// are of what is not discarded: those of replicas that have not discarded the same say nothing.
pub(crate) fn differ<'a>(good: impl Iterator<Item = &'a ContainerReplica>) -> bool {
    let mut hashes: HashMap<Discarded, &String> = HashMap::new();
    let mut good = good.filter(|replica| !replica.hash.is_empty());
    good.any(|replica| *hashes.entry(Discarded::of(replica)).or_insert(&replica.hash) != &replica.hash)
}

/// The discards of a replica: two replicas where they are equal have discarded the same blocks. Ordered by
/// how many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Discarded {
    pub(crate) blocks: u64,
    digest: u64,
}

impl Discarded {
    pub(crate) fn of(replica: &ContainerReplica) -> Discarded {
        Discarded { blocks: replica.discarded_blocks, digest: replica.discards_digest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContainerState::*;
    use ReplicaState::*;

    fn check(
        container: ContainerState,
        replica: ReplicaState,
        last_index: u64,
        unhealthy: &str,
        expect: Quality,
    ) {
        let record = ContainerRecord {
            container: 1,
            state: container as i32,
            last_term: 2,
            last_index: 70,
            ..ContainerRecord::default()
        };
        let replica = ContainerReplica {
            container: 1,
            state: replica as i32,
            last_term: 2,
            last_index,
            unhealthy: unhealthy.to_owned(),
            ..ContainerReplica::default()
        };
        assert_eq!(quality(&record, &replica), expect);
    }

    #[test]
    fn good_is_what_ends_where_the_container_ends() {
        check(ContainerClosed, ReplicaClosed, 70, "", Quality::Good);
        check(ContainerClosed, ReplicaQuasiClosed, 70, "", Quality::GoodUnmarked);
        check(ContainerClosed, ReplicaQuasiClosed, 69, "", Quality::Stale);
        check(ContainerClosed, ReplicaClosed, 71, "", Quality::Ahead);
        check(ContainerClosed, ReplicaQuasiClosed, 71, "", Quality::Ahead);
        let closed = ContainerRecord { last_term: 2, last_index: 70, ..ContainerRecord::default() };
        let closed = ContainerRecord { state: ContainerClosed as i32, ..closed };
        let (state, last_term) = (ReplicaQuasiClosed as i32, 1);
        let older = ContainerReplica { state, last_term, last_index: 71, ..ContainerReplica::default() };
        assert_eq!(quality(&closed, &older), Quality::Ahead);
        assert_eq!(quality(&closed, &ContainerReplica { last_index: 70, ..older.clone() }), Quality::Stale);
        assert_eq!(quality(&closed, &ContainerReplica { copied: true, ..older }), Quality::Stale);
        check(ContainerClosed, ReplicaWithoutLog, 70, "", Quality::GoodUnmarked);
        check(ContainerClosed, ReplicaWithoutLog, 69, "", Quality::Stale);
        check(ContainerClosed, ReplicaClosed, 70, "checksum of block 7", Quality::Bad);
        check(ContainerClosed, ReplicaOpen, 0, "", Quality::Unfinished);
        check(ContainerOpen, ReplicaOpen, 0, "", Quality::Unfinished);
        check(ContainerQuasiClosed, ReplicaQuasiClosed, 70, "", Quality::Unfinished);
        check(ContainerDeleted, ReplicaClosed, 70, "", Quality::Stale);
        let record =
            ContainerRecord { state: ContainerDeleted as i32, container: 1, ..ContainerRecord::default() };
        let full = ContainerReplica { blocks: 3, last_index: 70, ..ContainerReplica::default() };
        assert_eq!(quality(&record, &full), Quality::Ahead);
        let committed = ContainerReplica { committed_term: 1, committed_index: 9, ..full };
        assert_eq!(quality(&record, &committed), Quality::Diverged);
    }

    #[test]
    fn what_is_committed_is_shared_where_a_good_one_has_its_entry() {
        let good = |terms: &[(u64, u64)]| {
            let terms =
                terms.iter().map(|&(term, last_index)| TermEnd { term, last_index, mark: 0 }).collect();
            ContainerReplica { terms, ..ContainerReplica::default() }
        };
        let check = |committed: (u64, u64), others: &[ContainerReplica], expect: Option<bool>| {
            let (committed_term, committed_index) = committed;
            let last = TermEnd { term: committed_term, last_index: committed_index, mark: 0 };
            let before = others.iter().flat_map(|other| &other.terms).filter(|end| end.term < committed_term);
            let terms = before.copied().chain([last]).collect();
            let replica =
                ContainerReplica { committed_term, committed_index, terms, ..ContainerReplica::default() };
            assert_eq!(is_shared(&replica, others.iter()), expect, "{committed:?}");
        };
        let both = [good(&[]), good(&[(1, 11), (3, 70)])];
        check((1, 41), &both[..1], None);
        check((0, 0), &both[..1], Some(true));
        check((1, 41), &both, Some(false));
        check((1, 11), &both, Some(true));
        check((2, 11), &both, Some(false));
        check((3, 70), &both, Some(true));
        check((3, 71), &both, Some(false));
        let recent = [ContainerReplica { lacks_earlier_terms: true, ..good(&[(5, 60), (6, 70)]) }];
        check((4, 41), &recent, None);
        check((5, 61), &recent, Some(false));
    }

    /// A disk that came back from an old copy votes again in a term that had a leader: the next one has the
    /// same number.
    #[test]
    fn a_term_that_came_twice_is_not_shared() {
        let terms = |of: &[(u64, u64, u32)]| {
            let end = |&(term, last_index, mark): &(u64, u64, u32)| TermEnd { term, last_index, mark };
            of.iter().map(end).collect::<Vec<_>>()
        };
        let good = ContainerReplica { terms: terms(&[(1, 9, 7), (2, 70, 8)]), ..ContainerReplica::default() };
        let check = |committed_mark, before: &[(u64, u64, u32)], expect: bool| {
            let (committed_term, committed_index, terms) = (2, 40, terms(before));
            let replica = ContainerReplica {
                committed_term,
                committed_index,
                committed_mark,
                terms,
                ..ContainerReplica::default()
            };
            assert_eq!(is_shared(&replica, [&good].into_iter()), Some(expect), "{replica:?}");
        };
        check(8, &[(1, 9, 7), (2, 44, 8)], true);
        check(5, &[(1, 9, 7), (2, 44, 5)], false);
        check(5, &[], false);
        // No entry of that term with a body is committed: the terms before it decide.
        check(0, &[(1, 9, 7), (2, 41, 0)], true);
        check(0, &[(1, 30, 7), (2, 41, 0)], false);
        check(0, &[(1, 9, 6), (2, 41, 0)], false);
        // It begins where the good one has long begun.
        check(8, &[(2, 44, 8)], false);
        // Damage hides whose entry it is: another history's, of the same term, looks like this.
        for (committed_term, committed_unread) in [(3, true), (2, true), (2, false)] {
            let unread = ContainerReplica {
                committed_term,
                committed_index: 40,
                committed_unread,
                ..ContainerReplica::default()
            };
            assert_eq!(is_shared(&unread, [&good].into_iter()), None, "{unread:?}");
        }
    }

    /// An old copy of a member came back: it led again in a term that had begun, and rolled to the same
    /// container elsewhere. What that container has of the term before stands in the one that was away alone.
    #[test]
    fn terms_that_the_others_never_had_are_not_shared_though_theirs_begin_later() {
        let terms = |of: &[(u64, u64, u32)]| {
            let end = |&(term, last_index, mark): &(u64, u64, u32)| TermEnd { term, last_index, mark };
            of.iter().map(end).collect::<Vec<_>>()
        };
        let of = |list: &[(u64, u64, u32)], lacks_earlier_terms| {
            let (term, index, mark) = *list.last().unwrap();
            ContainerReplica {
                last_term: term,
                last_index: index,
                committed_term: term,
                committed_index: index,
                committed_mark: mark,
                terms: terms(list),
                lacks_earlier_terms,
                ..ContainerReplica::default()
            }
        };
        let check = |late: &ContainerReplica, good: &ContainerReplica, expect: Option<bool>| {
            assert_eq!(is_shared(late, [good].into_iter()), expect, "{late:?}");
            assert_eq!(shares_all(late, [good].into_iter()), expect, "{late:?}");
        };
        let late = of(&[(1, 45, 7), (2, 46, 0)], false);
        check(&late, &of(&[(2, 91, 8)], false), Some(false));
        check(&late, &of(&[(1, 45, 7), (2, 91, 8)], false), Some(true));
        // A list that is cut tells nothing of the terms before it.
        check(&late, &of(&[(2, 91, 8)], true), None);
        let cut = of(&[(1, 45, 7), (2, 46, 0)], true);
        check(&cut, &of(&[(0, 9, 3), (1, 45, 7), (2, 91, 8)], false), Some(true));
        check(&cut, &of(&[(2, 91, 8)], false), Some(false));
        check(&of(&[(1, 45, 7), (2, 50, 8)], false), &of(&[(2, 91, 8)], true), Some(true));
        // Leaders that wrote nothing began their terms at the same entries.
        check(&of(&[(4, 50, 0), (5, 51, 0)], true), &of(&[(4, 50, 0), (5, 91, 8)], true), None);
    }

    /// Only the log knew how far the records of a replica without it are committed.
    #[test]
    fn all_of_a_replica_is_shared_only_where_its_last_record_is() {
        let end = |term, last_index, mark| TermEnd { term, last_index, mark };
        let good =
            ContainerReplica { terms: vec![end(1, 30, 7), end(3, 91, 8)], ..ContainerReplica::default() };
        let check = |last: TermEnd, expect: Option<bool>| {
            let without_log = ContainerReplica {
                state: ReplicaWithoutLog as i32,
                last_term: 2,
                last_index: 45,
                committed_term: 1,
                committed_index: 20,
                committed_mark: 7,
                terms: vec![end(1, 30, 7), last],
                ..ContainerReplica::default()
            };
            assert_eq!(is_shared(&without_log, [&good].into_iter()), Some(true));
            assert_eq!(shares_all(&without_log, [&good].into_iter()), expect, "{last:?}");
        };
        check(end(2, 45, 6), Some(false));
        // It was not read to its end.
        check(end(2, 44, 6), None);
        let mut short = ContainerReplica { last_term: 1, last_index: 25, ..ContainerReplica::default() };
        short.terms = vec![end(1, 25, 7)];
        assert_eq!(shares_all(&short, [&good].into_iter()), Some(true));
        assert_eq!(shares_all(&ContainerReplica::default(), [&good].into_iter()), Some(true));
    }

    /// A replica whose damage lies behind what it knows to be committed, before which there is nothing with a
    /// body, was kept for ever where a good one could only be made in its place.
    #[test]
    fn what_stands_before_damage_tells_whether_it_is_shared() {
        let terms = |of: &[(u64, u64, u32)]| {
            let end = |&(term, last_index, mark): &(u64, u64, u32)| TermEnd { term, last_index, mark };
            of.iter().map(end).collect::<Vec<_>>()
        };
        let check = |good: &[(u64, u64, u32)], damaged: &[(u64, u64, u32)], expect: bool| {
            let good = ContainerReplica { terms: terms(good), ..ContainerReplica::default() };
            let &(committed_term, committed_index, committed_mark) = damaged.last().unwrap();
            let damaged = ContainerReplica {
                committed_term,
                committed_index,
                committed_mark,
                unhealthy: "a record is damaged".to_owned(),
                terms_to_committed: terms(damaged),
                ..ContainerReplica::default()
            };
            assert_eq!(is_shared(&damaged, [&good].into_iter()), Some(expect), "{damaged:?}");
        };
        check(&[(0, 0, 0), (1, 30, 7)], &[(0, 0, 0), (1, 1, 0)], true);
        check(&[(1, 9, 7), (2, 70, 8)], &[(1, 9, 7), (2, 40, 0)], true);
        check(&[(1, 9, 7), (2, 70, 8)], &[(1, 9, 6), (2, 40, 0)], false);
        check(&[(1, 9, 7), (2, 70, 8)], &[(1, 30, 7), (2, 40, 0)], false);
    }

    #[test]
    fn good_ones_differ_by_their_hashes_once_they_have_been_read() {
        let check = |hashes: &[&str], expect: bool| {
            let replicas: Vec<_> = hashes
                .iter()
                .map(|hash| ContainerReplica { hash: (*hash).to_owned(), ..ContainerReplica::default() })
                .collect();
            assert_eq!(differ(replicas.iter()), expect, "{hashes:?}");
        };
        check(&["", "a", "a"], false);
        check(&["", "a", "b"], true);
        check(&[], false);
    }

    #[test]
    fn hashes_are_compared_of_replicas_that_have_discarded_the_same() {
        let of = |hash: &str, discarded_blocks, discards_digest| {
            let hash = hash.to_owned();
            ContainerReplica { hash, discarded_blocks, discards_digest, ..ContainerReplica::default() }
        };
        let (before, after, other) = (of("a", 0, 0), of("b", 2, 7), of("c", 2, 8));
        assert!(!differ([&before, &after, &other].into_iter()));
        assert!(differ([&before, &after, &of("c", 2, 7)].into_iter()));
    }

    /// A node was away while all was discarded, and all other replicas were deleted.
    #[test]
    fn what_comes_late_of_an_emptied_container_goes_unless_it_is_no_part_of_it() {
        let record = ContainerRecord {
            state: ContainerDeleted as i32,
            last_term: 2,
            last_index: 70,
            emptied: true,
            terms: vec![
                TermEnd { term: 1, last_index: 30, mark: 6 },
                TermEnd { term: 2, last_index: 70, mark: 5 },
            ],
            ..ContainerRecord::default()
        };
        let check = |last: (u64, u64), committed: (u64, u64, u32), expect: Quality| {
            let here = TermEnd { term: committed.0, last_index: committed.1, mark: committed.2 };
            let before = record.terms.iter().filter(|end| end.term < committed.0).copied();
            let late = ContainerReplica {
                terms_to_committed: before.chain([here]).collect(),
                blocks: 3,
                state: ReplicaQuasiClosed as i32,
                last_term: last.0,
                last_index: last.1,
                committed_term: committed.0,
                committed_index: committed.1,
                committed_mark: committed.2,
                ..ContainerReplica::default()
            };
            assert_eq!(quality(&record, &late), expect, "{late:?}");
        };
        check((2, 70), (2, 70, 5), Quality::Stale);
        check((2, 50), (2, 50, 5), Quality::Stale);
        check((1, 40), (1, 20, 6), Quality::Stale);
        check((1, 40), (1, 40, 6), Quality::Diverged);
        check((2, 50), (2, 50, 9), Quality::Diverged);
        check((2, 71), (2, 70, 5), Quality::Ahead);
        check((2, 71), (2, 71, 5), Quality::Diverged);
        // It rolled at the same entry in a term that came twice.
        check((2, 70), (2, 70, 9), Quality::Diverged);
        check((3, 60), (2, 50, 5), Quality::Ahead);
        let open = ContainerReplica { blocks: 3, state: ReplicaOpen as i32, ..ContainerReplica::default() };
        assert_eq!(quality(&record, &open), Quality::Unfinished);
        assert_eq!(quality(&record, &ContainerReplica { blocks: 0, ..open }), Quality::Stale);
    }
}
