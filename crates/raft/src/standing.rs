//! Whether a replica takes part in elections: not while it may have forgotten a promise, and not once it was removed.

use crate::type_config::{Raft, RaftLogId};
use std::sync::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use types::ReplicaId;

/// What openraft does not know about a replica's right to vote and to stand.
pub(crate) struct Standing {
    /// Until then the replica gives no vote and does not stand: it may have promised its vote before it was restarted.
    holds_off_until: Option<Instant>,
    /// Replicas that a forced reset gave up: what they say is not listened to.
    lost: Vec<ReplicaId>,
    /// Newest committed membership, by its entry, that another member knows and that is without this replica.
    dismissed_at: watch::Sender<Option<RaftLogId>>,
    /// Of the last decision whether openraft may stand.
    stands: Mutex<bool>,
}

impl Standing {
    pub(crate) fn new(holds_off_until: Option<Instant>, lost: Vec<ReplicaId>) -> Standing {
        let dismissed_at = watch::channel(None).0;
        Standing { holds_off_until, lost, dismissed_at, stands: Mutex::new(holds_off_until.is_none()) }
    }

    /// Whether a forced reset gave a replica up.
    pub(crate) fn is_lost(&self, replica: u64) -> bool {
        self.lost.contains(&ReplicaId(replica))
    }

    /// Another member has a committed membership without this replica.
    pub(crate) fn dismissed(&self, at: RaftLogId) {
        self.dismissed_at.send_if_modified(|known| {
            let is_news = *known < Some(at);
            if is_news {
                *known = Some(at);
            }
            is_news
        });
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<RaftLogId>> {
        self.dismissed_at.subscribe()
    }

    /// Whether the replica was told of a membership without it that is newer than the one it knows. It is a member again
    /// when a leader sends it a newer one.
    pub(crate) fn is_dismissed(&self, known: &Option<RaftLogId>) -> bool {
        self.dismissed_after(known).is_some()
    }

    /// The membership without this replica that it was told of, if that is newer than the one it knows.
    pub(crate) fn dismissed_after(&self, known: &Option<RaftLogId>) -> Option<RaftLogId> {
        (*self.dismissed_at.borrow()).filter(|at| Some(*at) > *known)
    }

    /// When it may vote again, while it may not.
    pub(crate) fn holds_off(&self) -> Option<Instant> {
        self.holds_off_until.filter(|until| Instant::now() < *until)
    }

    /// Tells openraft whether to stand when no leader is heard.
    pub(crate) fn decide(&self, raft: &Raft, known: &Option<RaftLogId>) {
        let stands = self.holds_off().is_none() && !self.is_dismissed(known);
        let mut decided = self.stands.lock().expect("no holder panics");
        if *decided != stands {
            *decided = stands;
            raft.runtime_config().elect(stands);
        }
    }

    /// Resolves when the replica may stand again; never, when it may already.
    pub(crate) async fn held_off(&self) {
        match self.holds_off_until {
            Some(until) if Instant::now() < until => tokio::time::sleep_until(until).await,
            _ => std::future::pending().await,
        }
    }
}
