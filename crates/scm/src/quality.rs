//! What a replica is worth, against what its container is.

use crate::replicas::LastRecord;
use crate::replicas::last_record;
use crate::tables::container_state;
use proto::scm::{ContainerRecord, ContainerReplica, ContainerState, ReplicaState};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quality {
    /// It is what the container is.
    Good,
    /// Good, and to be marked as closed.
    GoodUnmarked,
    /// Something is known against it.
    Bad,
    /// It ends past what the container is: its node has, or had once, what nobody else has.
    Ahead,
    /// It has what was committed, and those that are good lack it: a member lost what it had acknowledged.
    Diverged,
    /// It ends elsewhere than the container, or the container is not there any more.
    Stale,
    /// It is still written to, or what the container is has not been found out.
    Unfinished,
}

impl Quality {
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Quality::Good | Quality::GoodUnmarked)
    }
}

pub(crate) fn quality(record: &ContainerRecord, replica: &ContainerReplica) -> Quality {
    match container_state(record) {
        // Nobody can have committed what a majority never had.
        ContainerState::ContainerDeleted if replica.blocks > 0 && replica.committed_index > 0 => {
            return Quality::Diverged;
        }
        // A member's uncommitted tail, most likely. Where it is not, it is all that is left.
        ContainerState::ContainerDeleted if replica.blocks > 0 => return Quality::Ahead,
        ContainerState::ContainerDeleted => return Quality::Stale,
        ContainerState::ContainerClosed => {}
        _ => return Quality::Unfinished,
    }
    let end = LastRecord { term: record.last_term, index: record.last_index };
    match replica.state() {
        ReplicaState::Unspecified | ReplicaState::ReplicaOpen => Quality::Unfinished,
        _ if last_record(replica) > end => Quality::Ahead,
        _ if last_record(replica) != end => Quality::Stale,
        _ if !replica.unhealthy.is_empty() => Quality::Bad,
        ReplicaState::ReplicaClosed => Quality::Good,
        // All up to its last record was applied.
        ReplicaState::ReplicaQuasiClosed | ReplicaState::ReplicaWithoutLog => Quality::GoodUnmarked,
    }
}

/// Whether what the replica knows to be committed stands in a good one, too; `None` as long as none of those has been read, and where they do not
/// tell of terms that old. Two logs that have an entry of one term at one index have the same up to there.
pub(crate) fn is_shared<'a>(
    replica: &ContainerReplica,
    good: impl Iterator<Item = &'a ContainerReplica>,
) -> Option<bool> {
    let ContainerReplica { committed_term, committed_index, .. } = *replica;
    if committed_index == 0 {
        return Some(true);
    }
    let has_it = |good: &ContainerReplica| {
        good.terms.iter().any(|end| end.term == committed_term && committed_index <= end.last_index)
    };
    let tells = |good: &&ContainerReplica| {
        good.terms.first().is_some_and(|first| first.term <= committed_term || !good.lacks_earlier_terms)
    };
    let mut read = good.filter(tells).peekable();
    read.peek()?;
    Some(read.any(has_it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ContainerState::*;
    use ReplicaState::*;
    use proto::scm::TermEnd;

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
            let terms = terms.iter().map(|&(term, last_index)| TermEnd { term, last_index }).collect();
            ContainerReplica { terms, ..ContainerReplica::default() }
        };
        let check = |committed: (u64, u64), others: &[ContainerReplica], expect: Option<bool>| {
            let (committed_term, committed_index) = committed;
            let replica = ContainerReplica { committed_term, committed_index, ..ContainerReplica::default() };
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
}
