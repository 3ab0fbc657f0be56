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
    }
}
