//! A leader that does not come on though the others do lets one of them lead: its disk hangs, and whoever
//! waits for what it applies waits for as long. Its heartbeats go out all the while, so that nobody else
//! would stand.

use crate::Role;
use crate::group::Group;
use openraft::async_runtime::watch::WatchReceiver;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;
use types::LogIndex;

/// The time after which a leader that does not come on hands over. Longer than a disk in order ever takes.
const HANDS_OVER_AFTER: Duration = Duration::from_secs(10);

/// The entry that is applied, and since when others have had more.
pub(crate) struct Standstill(Mutex<(Option<LogIndex>, Instant)>);

impl Default for Standstill {
    fn default() -> Standstill {
        Standstill(Mutex::new((None, Instant::now())))
    }
}

impl Standstill {
    /// Whether a leader stands still, for so long that it is time for another one; then it is not for as long
    /// again.
    fn is_due(&self, applied: Option<LogIndex>, others_have_more: bool) -> bool {
        let mut seen = self.0.lock().expect("no holder panics");
        let is_due = others_have_more && applied == seen.0 && seen.1.elapsed() >= HANDS_OVER_AFTER;
        if is_due || !others_have_more || applied != seen.0 {
            *seen = (applied, Instant::now());
        }
        is_due
    }
}

impl Group {
    /// Looks whether this leader stands still, from time to time. One that waits for room on a full disk
    /// stays: where nobody has any the lead would go round, and SCM moves it where somebody has.
    pub(crate) fn look_whether_it_stands(&self) {
        let applied = *self.inner.applied.borrow();
        let is_due = self.inner.standstill.is_due(applied, self.others_have_more_than(applied));
        if is_due && self.log().space().check_space(1).is_ok() {
            warn!(group = %self.id(), ?applied, "the others have what is not applied here: one of them is to lead");
            let group = self.clone();
            tokio::spawn(async move { group.hand_over(2 * group.election_max()).await });
        }
    }

    /// Whether this replica leads, and a majority has more without it.
    fn others_have_more_than(&self, applied: Option<LogIndex>) -> bool {
        if self.inner.statuses.borrow().role != Role::Leader {
            return false;
        }
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let has_more = |replica: &u64, matched: Option<u64>| {
            voters.contains(replica)
                && *replica != self.replica().0
                && matched > applied.map(|applied| applied.0)
        };
        let others = metrics.replication.iter().flatten();
        let with_more =
            others.filter(|(replica, matched)| has_more(replica, matched.as_ref().map(|id| id.index)));
        with_more.count() > voters.len() / 2
    }
}
