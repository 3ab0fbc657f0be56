//! Whether a snapshot that is offered can be of this group, as this replica knows it. openraft takes that for
//! granted, and would stop the group where it is not so.

use crate::adapter::encoding::{INDEX_MAX, log_id_from, log_id_of};
use crate::adapter::machine::Raft;
use crate::adapter::type_config::{RaftLogId, RaftStoredMembership, RaftVote, TypeConfig};
use openraft::RaftState;
use openraft::errors::{Fatal, RaftError};
use openraft::raft::AppendEntriesRequest;
use std::cmp::Ordering;
use types::LogId;

/// The highest index that a snapshot which is taken may have. A snapshot is the one thing that takes a log
/// forward without the entries in between: it leaves as many numbers as it passes over.
const OFFERED_INDEX_MAX: u64 = INDEX_MAX / 2;

/// The position that a snapshot's state has come to, and the membership there.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    pub(crate) id: LogId,
    pub(crate) membership: RaftStoredMembership,
}

/// The state of a replica that a snapshot must agree with.
struct OwnState {
    committed: Option<LogId>,
    membership: RaftStoredMembership,
    /// The first entry that a leader with the snapshot cannot have: it is of a newer term.
    contradicting: Option<u64>,
}

impl Position {
    /// Whether a leader of `vote` can have such a state at all.
    pub(crate) fn check(&self, vote: &RaftVote) -> Result<(), String> {
        let LogId { term, index } = self.id;
        if index.0 > OFFERED_INDEX_MAX {
            return Err(format!("index {index} is above {OFFERED_INDEX_MAX}"));
        }
        if !vote.committed || term.0 > vote.leader_id.term {
            return Err(
                "a snapshot from one who cannot have it: it leads no term, or an earlier one".to_owned()
            );
        }
        let Some(at) = self.membership.log_id().as_ref().map(log_id_of) else {
            return Err("a snapshot of a group that had no members yet".to_owned());
        };
        if at.index > index || at.term > term {
            return Err(format!("a snapshot up to {:?} with the members of {at:?}, which is later", self.id));
        }
        Ok(())
    }

    /// Whether the position agrees with what is committed here. Asked again right before the snapshot is
    /// installed: what is committed goes on.
    pub(crate) async fn check_here(&self, raft: &Raft) -> Result<Result<(), String>, Fatal<TypeConfig>> {
        let id = self.id;
        let own = raft.with_raft_state(move |state| OwnState::new(state, id)).await?;
        Ok(self.check_known(&own))
    }

    fn check_known(&self, own: &OwnState) -> Result<(), String> {
        let Some(committed) = own.committed else { return Ok(()) };
        let contradiction = |what: &str| {
            Err(format!("a snapshot up to {:?} contradicts {what} here, up to {committed:?}", self.id))
        };
        let (terms, indexes) = (self.id.term.cmp(&committed.term), self.id.index.cmp(&committed.index));
        match (indexes, terms) {
            (Ordering::Less, Ordering::Greater)
            | (Ordering::Equal, Ordering::Less | Ordering::Greater)
            | (Ordering::Greater, Ordering::Less) => return contradiction("what is committed"),
            // An older snapshot, which changes nothing.
            (Ordering::Less | Ordering::Equal, _) => return Ok(()),
            (Ordering::Greater, _) => {}
        }
        let (offered, here) = (self.membership.log_id(), own.membership.log_id());
        // What openraft takes for committed may be so only as far as it can tell from the log.
        let is_settled = here.as_ref().is_some_and(|here| here.index <= committed.index.0);
        let are_others = offered == here && self.membership.membership() != own.membership.membership();
        if are_others || (is_settled && offered < here) {
            return contradiction("the committed members");
        }
        Ok(())
    }

    /// Has openraft cut off what the log has of newer terms than the snapshot, which were never committed,
    /// where the log ends before the snapshot does: it counts on a log's end to be older than what takes its
    /// place. For openraft it is a word of the leader that names an entry which this log does not have.
    pub(crate) async fn make_way(&self, raft: &Raft, vote: RaftVote) -> Result<(), RaftError<TypeConfig>> {
        let id = self.id;
        let own =
            raft.with_raft_state(move |state| OwnState::new(state, id)).await.map_err(RaftError::Fatal)?;
        let Some(index) = own.contradicting else { return Ok(()) };
        let prev = RaftLogId { index, ..log_id_from(id) };
        let word =
            AppendEntriesRequest { vote, prev_log_id: Some(prev), leader_commit: None, entries: Vec::new() };
        raft.append_entries(word).await.map(drop)
    }
}

impl OwnState {
    fn new(state: &RaftState<TypeConfig>, offered: LogId) -> OwnState {
        let membership = (**state.membership_state.committed()).clone();
        let committed = state.local_committed().map(log_id_of);
        let contradicting = contradicting(state, committed, offered);
        OwnState { committed, membership, contradicting }
    }
}

/// The first entry of a newer term than the snapshot's: terms never fall along a log, so entries that are too
/// new are its end.
fn contradicting(state: &RaftState<TypeConfig>, committed: Option<LogId>, offered: LogId) -> Option<u64> {
    let is_too_new =
        |index: u64| state.log_ids.get(index).is_some_and(|id| id.leader_id.term > offered.term.0);
    let last = state.log_ids.last()?.index;
    if last >= offered.index.0 || !is_too_new(last) {
        return None;
    }
    let mut first = committed.map_or(0, |committed| committed.index.0 + 1);
    let mut too_new = last;
    while first < too_new {
        let middle = first + (too_new - first) / 2;
        if is_too_new(middle) {
            too_new = middle;
        } else {
            first = middle + 1;
        }
    }
    Some(too_new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::encoding::{applied_from, first_membership};
    use crate::adapter::type_config::RaftEntry;
    use crate::replica::beginning::tests::{Site, first, id};
    use crate::snapshot::testing::{FileState, GROUP, applied_at, carry, members};
    use openraft::EntryPayload;
    use std::time::Duration;
    use types::LogIndex;

    fn membership(at: (u64, u64), count: usize) -> RaftStoredMembership {
        let members = first_membership(&members()[..count]).unwrap();
        RaftStoredMembership::new(Some(log_id_from(id(at.0, at.1))), members)
    }

    fn position(at: (u64, u64), members_at: (u64, u64)) -> Position {
        Position { id: id(at.0, at.1), membership: membership(members_at, 3) }
    }

    #[test]
    fn what_no_leader_of_the_group_can_have_is_told() {
        let own =
            OwnState { committed: Some(id(4, 100)), membership: membership((3, 50), 3), contradicting: None };
        let agrees = |at, members_at| position(at, members_at).check_known(&own).is_ok();
        assert!(agrees((4, 101), (3, 50)) && agrees((7, 200), (7, 150)), "newer");
        assert!(agrees((4, 100), (3, 50)) && agrees((2, 10), (0, 0)), "of a state from before");
        assert!(!agrees((5, 100), (3, 50)), "another entry where one is committed");
        assert!(!agrees((5, 20), (3, 10)), "newer by its term, older by its index");
        assert!(!agrees((3, 101), (3, 50)), "older by its term, newer by its index");
        assert!(!agrees((4, 101), (3, 49)), "without the committed members");
        let others = Position { id: id(4, 101), membership: membership((3, 50), 2) };
        assert!(others.check_known(&own).is_err(), "with other members in the same entry");

        let vote = RaftVote::new_committed(6, 2);
        assert!(position((6, 9), (1, 3)).check(&vote).is_ok());
        assert!(position((7, 9), (1, 3)).check(&vote).is_err(), "of a later term than the leader's");
        assert!(position((6, 9), (1, 10)).check(&vote).is_err(), "with later members");
        assert!(position((6, u64::MAX), (1, 3)).check(&vote).is_err());
        assert!(position((6, 9), (1, 3)).check(&RaftVote::new(6, 2)).is_err(), "of no leader");
        let nobody = RaftStoredMembership::new(None, first_membership(&members()).unwrap());
        assert!(Position { id: id(6, 9), membership: nobody }.check(&vote).is_err());
    }

    /// The leader of term 6 ships what was proposed in term 4; what this replica has from the leader of term
    /// 5 was never committed. openraft, built with its own checks, would stop here.
    #[tokio::test]
    async fn a_snapshot_of_an_older_term_than_the_logs_end_is_installed() {
        let site = Site::new();
        let group = site.open(first()).await.unwrap();
        let entry = |index| RaftEntry { log_id: log_id_from(id(5, index)), payload: EntryPayload::Blank };
        let append = AppendEntriesRequest {
            vote: RaftVote::new_committed(5, 3),
            prev_log_id: Some(log_id_from(LogId::default())),
            leader_commit: None,
            entries: (1..=100).map(entry).collect(),
        };
        group.raft().append_entries(append).await.unwrap();

        let other = Site::new();
        let state = FileState::open(&other.disk, 10_000).await.unwrap();
        state.set(id(4, 5000));
        let stored = state.store().await.unwrap().write().await.unwrap();
        let received = carry(&stored, &group.snapshot_store().unwrap()).await;
        let offered =
            Position { id: stored.id(), membership: applied_from(&applied_at(stored.id())).unwrap() };
        let vote = RaftVote::new_committed(6, 2);
        assert_eq!(offered.check_here(group.raft()).await.unwrap(), Ok(()));
        offered.make_way(group.raft(), vote).await.unwrap();
        group.raft().install_full_snapshot(vote, received.into_openraft()).await.unwrap();
        group.wait_applied(LogIndex(5000), Duration::from_secs(30)).await.unwrap();
        assert_eq!(group.status().failure, None);
        assert_eq!(group.log().state().purged, Some(id(4, 5000)));
        drop(group);
        site.host.close(GROUP).await;
    }
}
