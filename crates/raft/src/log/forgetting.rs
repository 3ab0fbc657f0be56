//! Forgetting the log of a group without snapshots, up to what all its members have.
//!
//! openraft purges only what a snapshot has. So it is told of one that is nothing but a position
//! ([`crate::adapter::machine`]): it holds no state, nobody is sent it ([`crate::transport::network`]) and
//! nobody installs it. No member needs it, because all have what the log forgets.

use crate::group::Group;
use crate::group::everywhere::everywhere;
use crate::snapshot::{forgettable_to, until};
use openraft::async_runtime::watch::WatchReceiver;
use types::LogIndex;

#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    #[error("the group stopped")]
    Stopped,
    #[error("entry {to} is not applied here, {applied:?} is")]
    NotApplied { to: LogIndex, applied: Option<LogIndex> },
    /// The log forgets the entries only when replication lets go of them.
    #[error("the log is still being read up to entry {to}")]
    InUse { to: LogIndex },
}

impl Group {
    /// The last entry that the log can do without: all members have it durably, this one has applied it, and
    /// `tail_bytes` of records follow it. `None` when no more can go than is forgotten, and on any replica
    /// but the leader.
    pub fn forgettable(&self, tail_bytes: u64) -> Option<LogIndex> {
        let everywhere = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            metrics.replication.as_ref()?;
            everywhere(&metrics)?
        };
        let applied = (*self.applied().borrow())?;
        forgettable_to(self.log(), tail_bytes, applied.min(LogIndex(everywhere)))
    }

    /// Forgets the log up to an entry, durably; the records stay where they are. **The caller knows that all
    /// members have the entry durably, and that this replica's state machine has applied it durably**: what
    /// it has in memory alone could not be applied again.
    pub async fn forget_log(&self, to: LogIndex) -> Result<(), ForgetError> {
        if self.log().state().purged.is_some_and(|purged| purged.index >= to) {
            return Ok(());
        }
        let applied = *self.applied().borrow();
        if applied < Some(to) {
            return Err(ForgetError::NotApplied { to, applied });
        }
        let raft = self.raft();
        let trigger = raft.trigger();
        trigger.snapshot().await.map_err(|_| ForgetError::Stopped)?;
        let is_known = until(raft, |metrics| metrics.snapshot.as_ref().is_some_and(|id| id.index >= to.0));
        if !is_known.await.map_err(|_| ForgetError::Stopped)? {
            return Err(ForgetError::InUse { to });
        }
        trigger.purge_log(to.0).await.map_err(|_| ForgetError::Stopped)?;
        let is_purged = until(raft, |metrics| metrics.purged.as_ref().is_some_and(|id| id.index >= to.0));
        match is_purged.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ForgetError::InUse { to }),
            Err(_) => Err(ForgetError::Stopped),
        }
    }
}
