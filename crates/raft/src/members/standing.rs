//! Whether a replica takes part in elections: not while it may have forgotten a promise, and not once it was
//! removed.

use crate::adapter::machine::Raft;
use crate::adapter::type_config::{RaftLogId, RaftStoredMembership};
use crate::members::dismissal::Dismissal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;
use types::ReplicaId;

/// A replica's right to vote and to stand, as far as openraft knows nothing of it.
pub(crate) struct Standing {
    replica: ReplicaId,
    /// The moment until which the replica gives no vote and does not stand: it may have promised its vote
    /// before it was restarted.
    holds_off_until: Option<Instant>,
    /// Replicas that a forced reset gave up: what they say is not listened to.
    lost: Vec<ReplicaId>,
    /// The newest committed membership that another member knows and that is without this replica.
    dismissal: watch::Sender<Option<Dismissal>>,
    /// Whether a committed membership had this replica: those without it are then from after its time, not
    /// from before.
    was_member: AtomicBool,
    decided: Mutex<Decided>,
    /// The proof that a leader has another history. With it this replica cannot tell what it lacks, and its
    /// group stops.
    contradiction: OnceLock<String>,
    /// The lock that is held while a leader is asked whether it is of another history.
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// The last decision whether openraft may stand.
struct Decided {
    /// The newest membership that the replica knew then.
    known: Option<RaftLogId>,
    stands: bool,
    /// Whether it was made when the replica held off no more.
    was_held_off: bool,
}

impl Standing {
    pub(crate) fn new(
        replica: ReplicaId,
        holds_off_until: Option<Instant>,
        lost: Vec<ReplicaId>,
    ) -> Standing {
        let free = holds_off_until.is_none();
        Standing {
            replica,
            holds_off_until,
            lost,
            dismissal: watch::channel(None).0,
            was_member: AtomicBool::new(false),
            decided: Mutex::new(Decided { known: None, stands: free, was_held_off: free }),
            contradiction: OnceLock::new(),
            asking: Arc::default(),
        }
    }

    /// The right to ask a leader whether it is of another history, while nobody else has it.
    pub(crate) fn turn_to_ask(&self) -> Option<OwnedMutexGuard<()>> {
        self.asking.clone().try_lock_owned().ok()
    }

    /// Takes note of a contradiction; true for the first that is found.
    pub(crate) fn contradict(&self, why: String) -> bool {
        self.contradiction.set(why).is_ok()
    }

    pub(crate) fn contradiction(&self) -> Option<String> {
        self.contradiction.get().cloned()
    }

    /// Takes note that a committed membership has this replica.
    pub(crate) fn was_member(&self) {
        self.was_member.store(true, Ordering::Relaxed);
    }

    /// Whether a committed membership is without this replica, and one before it was not. A replica that
    /// joins is in none until it has caught up with the entry that added it.
    pub(crate) fn is_left_out(&self, committed: &RaftStoredMembership) -> bool {
        if committed.get_node(&self.replica.0).is_some() {
            self.was_member();
            return false;
        }
        committed.log_id().is_some() && self.was_member.load(Ordering::Relaxed)
    }

    /// Whether a forced reset gave a replica up.
    pub(crate) fn is_lost(&self, replica: u64) -> bool {
        self.lost.contains(&ReplicaId(replica))
    }

    pub(crate) fn lost(&self) -> &[ReplicaId] {
        &self.lost
    }

    /// Takes note of a committed membership that another member has; one with this replica changes nothing.
    pub(crate) fn dismissed(&self, dismissal: Dismissal) {
        self.dismissal.send_if_modified(|known| {
            let is_newer = known.as_ref().is_none_or(|known| known.at < dismissal.at);
            let is_news = is_newer && dismissal.is_of(self.replica.0);
            if is_news {
                *known = Some(dismissal);
            }
            is_news
        });
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<Dismissal>> {
        self.dismissal.subscribe()
    }

    /// Whether the replica was told of a membership without it, and knows none that is newer. It is a member
    /// again when a leader sends it a newer one.
    pub(crate) fn is_dismissed(&self, known: &Option<RaftLogId>) -> bool {
        self.dismissal_after(known).is_some()
    }

    /// Whether this replica is dismissed, as of the last decision of [`Standing::decide`]: whatever made it
    /// stand, it must not.
    pub(crate) fn must_not_stand(&self) -> bool {
        let known = self.decided.lock().expect("no holder panics").known;
        self.is_dismissed(&known)
    }

    /// The membership without this replica that it was told of, unless it knows a newer one. It may know that
    /// very one, and not that it is committed: nobody sends it more.
    pub(crate) fn dismissal_after(&self, known: &Option<RaftLogId>) -> Option<Dismissal> {
        self.dismissal.borrow().clone().filter(|told| Some(told.at) >= *known)
    }

    /// The time at which the replica may vote again, while it may not.
    pub(crate) fn holds_off(&self) -> Option<Instant> {
        self.holds_off_until.filter(|until| Instant::now() < *until)
    }

    /// Tells openraft whether to stand when no leader is heard.
    pub(crate) fn decide(&self, raft: &Raft, known: &Option<RaftLogId>) {
        let was_held_off = self.holds_off().is_none();
        let stands = was_held_off && !self.is_dismissed(known);
        let mut decided = self.decided.lock().expect("no holder panics");
        decided.known = *known;
        decided.was_held_off = was_held_off;
        if decided.stands != stands {
            decided.stands = stands;
            raft.runtime_config().elect(stands);
        }
    }

    /// Resolves when the replica may stand again; never, when that was decided already. A decision just
    /// before that time says that it may not yet, so it does not count, whatever time it is when this is
    /// asked again.
    pub(crate) async fn held_off(&self) {
        let was_held_off = self.decided.lock().expect("no holder panics").was_held_off;
        match self.holds_off_until {
            Some(until) if !was_held_off => tokio::time::sleep_until(until).await,
            _ => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::type_config::{Peer, RaftMembership};
    use futures::FutureExt;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    fn id(index: u64) -> RaftLogId {
        RaftLogId::new(1.into(), index)
    }

    fn membership(index: u64, members: &[u64]) -> RaftStoredMembership {
        let peer = |&replica: &u64| (replica, Peer { node: replica.into(), address: String::new() });
        let peers: BTreeMap<u64, Peer> = members.iter().map(peer).collect();
        let voters: BTreeSet<u64> = members.iter().copied().collect();
        RaftStoredMembership::new(Some(id(index)), RaftMembership::new(vec![voters], peers).unwrap())
    }

    #[test]
    fn a_membership_dismisses_only_who_is_not_in_it() {
        let (behind, removed) =
            (Standing::new(2.into(), None, vec![]), Standing::new(3.into(), None, vec![]));
        let now = Dismissal::by(&membership(101, &[1, 2, 4])).unwrap();
        for standing in [&behind, &removed] {
            standing.dismissed(now.clone());
        }
        assert!(!behind.is_dismissed(&Some(id(99))), "a member that lags");
        assert!(removed.is_dismissed(&Some(id(99))));
        assert_eq!(removed.dismissal_after(&Some(id(99))), Some(now.clone()));
        assert!(removed.is_dismissed(&Some(id(101))), "it knows that one, and not that it is committed");
        assert!(!removed.is_dismissed(&Some(id(102))), "it is a member again");
        assert_eq!((now.is_of(4), now.is_of(3)), (false, true), "only to the others is it passed on");
    }

    #[test]
    fn a_dismissal_counts_against_the_membership_that_is_known_and_not_against_the_logs_end() {
        let removed = Standing::new(3.into(), None, vec![]);
        removed.decided.lock().unwrap().known = Some(id(99));
        assert!(!removed.must_not_stand());
        removed.dismissed(Dismissal::by(&membership(101, &[1, 2, 4])).unwrap());
        assert!(removed.must_not_stand());
        removed.decided.lock().unwrap().known = Some(id(102));
        assert!(!removed.must_not_stand(), "it is a member again");
    }

    #[test]
    fn who_joins_is_not_left_out_by_memberships_from_before() {
        let joins = Standing::new(4.into(), None, vec![]);
        assert!(!joins.is_left_out(&membership(0, &[1, 2, 3])));
        assert!(!joins.is_left_out(&membership(50, &[1, 2, 5])));
        assert!(!joins.is_left_out(&membership(100, &[1, 2, 4])));
        assert!(joins.is_left_out(&membership(150, &[1, 2, 5])), "it was removed");
        let first = Standing::new(4.into(), None, vec![]);
        first.was_member();
        assert!(first.is_left_out(&membership(150, &[1, 2, 5])), "removed before it was opened again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_hold_off_is_not_missed() {
        let until = Instant::now() + Duration::from_millis(800);
        let standing = Standing::new(1.into(), Some(until), vec![]);
        assert!(standing.held_off().now_or_never().is_none());
        // Something else made it decide just before the time, and it asks again just after.
        tokio::time::advance(Duration::from_millis(801)).await;
        assert_eq!(standing.holds_off(), None);
        tokio::time::timeout(Duration::from_secs(1), standing.held_off()).await.expect("it may stand again");
    }
}
