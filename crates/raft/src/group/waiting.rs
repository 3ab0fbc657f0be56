//! Waiting for a group: until this replica has applied an entry, or until all members have it.

use crate::group::Group;
use crate::group::everywhere::missing;
use crate::group::parked::Awaited;
use crate::{Lag, Role};
use openraft::async_runtime::watch::WatchReceiver;
use parking::Outcome;
use std::time::Duration;
use tokio::time::Instant;
use types::LogIndex;

/// The longest that anything is waited for: past what any caller means, and far from where the sum of a clock
/// and a duration overflows.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    #[error("it did not come about in time")]
    Expired,
    #[error("{limit} operations wait on this host already")]
    Busy { limit: usize },
    #[error("the group stopped")]
    Stopped,
}

/// The reason why an entry is not known to be on all members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitAllError {
    /// The members that did not have the entry by the deadline.
    #[error("not on all members: {}", list(missing))]
    Missing { missing: Vec<Lag> },
    /// This replica does not lead: only a leader knows what its members have.
    #[error("not the leader")]
    NotLeader,
    #[error("{limit} operations wait on this host already")]
    Busy { limit: usize },
    #[error("the group stopped")]
    Stopped,
}

fn list(missing: &[Lag]) -> String {
    missing.iter().map(Lag::to_string).collect::<Vec<_>>().join(", ")
}

impl Group {
    /// Waits until this replica has applied `index`; for [`WAIT_MAX`] at most.
    pub async fn wait_applied(&self, index: LogIndex, within: Duration) -> Result<(), WaitError> {
        self.wait_applied_until(index, Instant::now() + within.min(WAIT_MAX)).await
    }

    /// Whether this replica's state machine has applied entry `index`.
    pub fn has_applied(&self, index: LogIndex) -> bool {
        *self.applied().borrow() >= Some(index)
    }

    pub(crate) async fn wait_applied_until(
        &self,
        index: LogIndex,
        deadline: Instant,
    ) -> Result<(), WaitError> {
        let has_applied = || self.has_applied(index);
        if has_applied() {
            return Ok(());
        }
        let applied = self.applied();
        // The machine drops its end when it stops, and then moves the key past every index.
        let is_over = || has_applied() || applied.has_changed().is_err();
        match self.apply_waits().wait(index, deadline, is_over).await {
            Outcome::Reached if has_applied() => Ok(()),
            Outcome::Reached => Err(WaitError::Stopped),
            Outcome::Expired => Err(WaitError::Expired),
            Outcome::Full => Err(WaitError::Busy { limit: self.waits_max() }),
        }
    }

    /// Waits until all members, learners too, have the committed entry `index` durably, or says which do not.
    /// Leader only.
    pub async fn wait_all(&self, index: LogIndex, deadline: Instant) -> Result<(), WaitAllError> {
        let metrics = self.raft().metrics();
        let missing = || missing(&metrics.borrow_watched(), index);
        let _watched = self.everywhere().enter(self.raft(), self.waits(), self.id());
        // A group that stopped moves nothing any more.
        let is_over =
            || missing().is_none_or(|missing| missing.is_empty()) || self.status().role == Role::Stopped;
        let key = Awaited::Everywhere(self.id());
        let outcome = self.waits().wait(key, index.0, deadline, is_over).await;
        if outcome == Outcome::Full {
            return Err(WaitAllError::Busy { limit: self.waits_max() });
        }
        match missing() {
            Some(missing) if missing.is_empty() => Ok(()),
            _ if self.status().role == Role::Stopped => Err(WaitAllError::Stopped),
            Some(missing) => Err(WaitAllError::Missing { missing }),
            None => Err(WaitAllError::NotLeader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timing;

    /// Without the limit, the deadline overflows.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_the_limit() {
        let site = crate::replica::beginning::tests::Site::new();
        // A day passes here, so it is one with few heartbeats.
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let timing = Timing { heartbeat: minutes(10), election_min: minutes(40), election_max: minutes(60) };
        let spec = crate::GroupSpec { timing, ..crate::replica::beginning::tests::first() };
        let group = site.open(spec).await.expect("it opens");
        let started = Instant::now();
        let waited = group.wait_applied(LogIndex(1 << 40), Duration::MAX).await;
        assert_eq!(waited, Err(WaitError::Expired));
        let late = started.elapsed() - WAIT_MAX;
        assert!(late < Duration::from_secs(1), "{late:?}");
    }
}
