use crate::snapshot::SnapshotPolicy;
use crate::snapshot::store::SnapshotStore;
use crate::type_config::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use raftlog::Log;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::LogIndex;

/// The least time between two looks at a log that grows.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// After a snapshot could not be written (a full disk).
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How long openraft may take to note a snapshot or to purge: it waits for a follower's append under way.
const NOTE_MAX: Duration = Duration::from_secs(10);
/// While a snapshot is sent, the next one waits until the log has grown by this much more: a transfer that has to
/// begin again with every new snapshot might never end.
const PATIENCE: u64 = 4;

/// Writes snapshots of a group as its log grows, and purges the log behind them, until the group has stopped.
pub(crate) async fn keep(
    raft: Raft,
    log: Log,
    store: Arc<SnapshotStore>,
    policy: SnapshotPolicy,
    mut applied: watch::Receiver<Option<LogIndex>>,
) {
    let keeper = Keeper { raft, log, store, policy };
    loop {
        applied.mark_unchanged();
        let retry_at = match keeper.look().await {
            Ok(()) => None,
            Err(Trouble::Stopped) => return,
            Err(Trouble::Write(error)) => {
                tracing::warn!(group = %keeper.store.group(), error = format!("{error:#}"), "no snapshot");
                Some(Instant::now() + RETRY_INTERVAL)
            }
        };
        tokio::time::sleep(LOOK_INTERVAL).await;
        if let Some(retry_at) = retry_at {
            tokio::time::sleep_until(retry_at).await;
            continue;
        }
        tokio::select! {
            changed = applied.changed() => if changed.is_err() { return },
            () = keeper.store.attention.notified() => {}
        }
    }
}

struct Keeper {
    raft: Raft,
    log: Log,
    store: Arc<SnapshotStore>,
    policy: SnapshotPolicy,
}

enum Trouble {
    Stopped,
    Write(anyhow::Error),
}

impl Keeper {
    async fn look(&self) -> Result<(), Trouble> {
        if self.is_due() {
            let stored = self.store.write().await.map_err(Trouble::Write)?;
            let index = stored.id().index;
            tracing::info!(group = %self.store.group(), last = index.0, bytes = stored.manifest.bytes(), "wrote a snapshot");
            self.raft.trigger().snapshot().await.map_err(|_| Trouble::Stopped)?;
            self.until(|metrics| metrics.snapshot.as_ref().is_some_and(|id| id.index >= index.0)).await?;
        }
        self.purge().await
    }

    fn is_due(&self) -> bool {
        let Some(current) = self.store.current() else {
            return self.log.bytes_after(None) >= self.policy.log_bytes_max;
        };
        let patience = if self.store.counters.is_sending() { PATIENCE } else { 1 };
        let since_bytes = self.log.bytes_after(Some(current.id().index));
        current.is_damaged() || since_bytes >= self.policy.log_bytes_max.saturating_mul(patience)
    }

    /// Purges what is in the current snapshot and older than the tail that stays, when that is enough to be worth it.
    async fn purge(&self) -> Result<(), Trouble> {
        let Some(to) = self.purge_to() else { return Ok(()) };
        let gain_bytes = self.log.bytes_after(None) - self.log.bytes_after(Some(to));
        if gain_bytes < self.policy.log_bytes_max / 8 || gain_bytes == 0 {
            return Ok(());
        }
        self.raft.trigger().purge_log(to.0).await.map_err(|_| Trouble::Stopped)?;
        let is_purged =
            self.until(|metrics| metrics.purged.as_ref().is_some_and(|id| id.index >= to.0)).await?;
        if is_purged {
            if let Err(error) = self.log.delete_purged_segments().await {
                tracing::warn!(group = %self.store.group(), %error, "delete purged segments");
            }
            tracing::info!(group = %self.store.group(), to = to.0, gain_bytes, "purged the log");
        }
        Ok(())
    }

    /// The last entry that may go: in the snapshot, with a tail's worth of bytes after it.
    fn purge_to(&self) -> Option<LogIndex> {
        let mut may_go = self.log.state().purged.map_or(0, |purged| purged.index.0 + 1);
        let mut must_stay = self.store.current_id()?.index.0 + 1;
        while may_go < must_stay {
            let middle = may_go + (must_stay - may_go) / 2;
            if self.log.bytes_after(Some(LogIndex(middle))) >= self.policy.tail_bytes {
                may_go = middle + 1;
            } else {
                must_stay = middle;
            }
        }
        may_go.checked_sub(1).map(LogIndex)
    }

    /// Waits a while until openraft has come somewhere; whether it has.
    async fn until(
        &self,
        is_there: impl Fn(&openraft::RaftMetrics<crate::type_config::TypeConfig>) -> bool,
    ) -> Result<bool, Trouble> {
        let deadline = Instant::now() + NOTE_MAX;
        let mut metrics = self.raft.metrics();
        loop {
            if is_there(&metrics.borrow_and_update()) {
                return Ok(true);
            }
            match tokio::time::timeout_at(deadline, metrics.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Trouble::Stopped),
                Err(_) => return Ok(false),
            }
        }
    }
}
