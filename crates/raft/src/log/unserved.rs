//! Members that the leader's log can no longer bring up to date, in a group that has no snapshots: they are
//! lost to it.

use crate::adapter::type_config::TypeConfig;
use openraft::{RaftMetrics, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use types::{ReplicaId, Term};

/// The members that this replica found lost while it led, each with the last term in which it did.
#[derive(Default)]
pub(crate) struct Unserved {
    found: Mutex<BTreeMap<ReplicaId, Term>>,
}

impl Unserved {
    /// Notes a member as lost; answers whether it was not known to be so before.
    pub(crate) fn found(&self, member: ReplicaId, term: Term) -> bool {
        self.found.lock().expect("no holder panics").insert(member, term).is_none()
    }

    /// The members that are lost at this moment: one that was removed is none of them, and neither is one
    /// that has by now what it needs, from another leader's longer log or from its own restored files. A
    /// replica that does not lead knows of none.
    pub(crate) fn now(&self, metrics: &RaftMetrics<TypeConfig>) -> BTreeSet<ReplicaId> {
        let Some(replication) = metrics.replication.as_ref().filter(|_| metrics.state == ServerState::Leader)
        else {
            return BTreeSet::new();
        };
        let purged = metrics.purged.as_ref().map(|purged| purged.index);
        let mut found = self.found.lock().expect("no holder panics");
        found.retain(|member, _| {
            let matched = replication.get(&member.0);
            matched.is_some_and(|matched| matched.as_ref().map(|matched| matched.index) < purged)
        });
        let of_this_term = found.iter().filter(|(_, term)| term.0 == metrics.current_term);
        of_this_term.map(|(member, _)| *member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::type_config::RaftLogId;

    fn id(index: u64) -> RaftLogId {
        RaftLogId::new(1.into(), index)
    }

    fn leading(term: u64, purged: u64, matched: &[(u64, Option<u64>)]) -> RaftMetrics<TypeConfig> {
        let mut metrics = RaftMetrics::new_initial(1);
        metrics.state = ServerState::Leader;
        metrics.current_term = term;
        metrics.purged = Some(id(purged));
        metrics.replication = Some(matched.iter().map(|(member, at)| (*member, at.map(id))).collect());
        metrics
    }

    #[test]
    fn a_member_is_lost_as_long_as_the_log_cannot_serve_it() {
        let (unserved, lost, other) = (Unserved::default(), ReplicaId(3), ReplicaId(4));
        assert!(unserved.found(lost, Term(5)));
        assert!(!unserved.found(lost, Term(5)), "it is told once");
        let behind = [(2, Some(100)), (3, Some(10)), (4, None)];
        assert_eq!(unserved.now(&leading(5, 50, &behind)), BTreeSet::from([lost]));
        let mut following = leading(5, 50, &behind);
        following.state = ServerState::Follower;
        assert!(unserved.now(&following).is_empty(), "only a leader serves others");
        assert!(unserved.now(&leading(6, 50, &behind)).is_empty(), "not found in this term yet");
        assert!(!unserved.found(lost, Term(6)), "it was told of already");

        assert!(unserved.found(other, Term(6)));
        let caught_up = [(2, Some(100)), (3, Some(50)), (4, None)];
        assert_eq!(unserved.now(&leading(6, 50, &caught_up)), BTreeSet::from([other]));
        assert!(unserved.now(&leading(6, 50, &[(2, Some(100))])).is_empty(), "it was removed");
        assert!(unserved.found(lost, Term(6)), "lost anew");
    }
}
