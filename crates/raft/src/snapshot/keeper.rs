use crate::adapter::machine::Raft;
use crate::snapshot::SnapshotPolicy;
use crate::snapshot::store::SnapshotStore;
use futures::FutureExt;
use openraft::async_runtime::watch::WatchReceiver;
use raftlog::Log;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::LogIndex;

/// The least time between two looks at a log that grows.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The time before the next attempt after a snapshot could not be written (a full disk).
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// The time that openraft may take to note a snapshot or to purge: it waits for a follower's append under
/// way.
const NOTE_MAX: Duration = Duration::from_secs(10);
/// The factor by which the log grows more before the next snapshot is written while one is sent, or somebody
/// who has a part of it may come back for the rest: a transfer that has to begin again with every new
/// snapshot might never end.
const PATIENCE: u64 = 4;

/// Writes snapshots of a group as its log grows, purges the log behind them, and removes those that are old,
/// until the group has stopped.
pub(crate) async fn keep(
    raft: Raft,
    log: Log,
    store: Arc<SnapshotStore>,
    policy: SnapshotPolicy,
    applied: watch::Receiver<Option<LogIndex>>,
) {
    let group = store.group();
    let keeping = async {
        tokio::select! {
            biased;
            () = keep_looking(raft, log, store.clone(), policy, applied) => {}
            // Nobody waits for it: the next snapshot does not, nor does a log that is to be purged.
            () = sweep_always(&store) => {}
        }
    };
    // Nobody joins the task before the group is closed: without a line, a log that grows for ever says
    // nothing.
    match AssertUnwindSafe(keeping).catch_unwind().await {
        Ok(()) => tracing::debug!(%group, "its snapshots are kept no more: it stopped"),
        Err(_) => {
            tracing::error!(%group, "what writes its snapshots and purges its log panicked: open it again")
        }
    }
}

async fn keep_looking(
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

async fn sweep_always(store: &SnapshotStore) {
    loop {
        store.let_go.notified().await;
        store.sweep_unused().await;
    }
}

struct Keeper {
    raft: Raft,
    log: Log,
    store: Arc<SnapshotStore>,
    policy: SnapshotPolicy,
}

pub(crate) enum Trouble {
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
            let is_noted =
                until(&self.raft, |metrics| metrics.snapshot.as_ref().is_some_and(|id| id.index >= index.0));
            is_noted.await?;
        }
        self.store.let_go.notify_one();
        self.purge().await
    }

    fn is_due(&self) -> bool {
        let Some(current) = self.store.current() else {
            return self.log.bytes_after(None) >= self.policy.log_bytes_max;
        };
        let patience = if self.store.counters.is_awaited() { PATIENCE } else { 1 };
        let since_bytes = self.log.bytes_after(Some(current.id().index));
        current.needs_next() || since_bytes >= self.policy.log_bytes_max.saturating_mul(patience)
    }

    /// Purges what is in the current snapshot and older than the tail that stays, when that is enough to be
    /// worth it.
    async fn purge(&self) -> Result<(), Trouble> {
        let Some(current) = self.store.current_id() else { return Ok(()) };
        let Some((to, gain_bytes)) = due_purge(&self.log, &self.policy, current.index) else { return Ok(()) };
        self.raft.trigger().purge_log(to.0).await.map_err(|_| Trouble::Stopped)?;
        let is_purged =
            until(&self.raft, |metrics| metrics.purged.as_ref().is_some_and(|id| id.index >= to.0));
        if is_purged.await? {
            if let Err(error) = self.log.delete_purged_segments().await {
                tracing::warn!(group = %self.store.group(), %error, "delete purged segments");
            }
            tracing::info!(group = %self.store.group(), to = to.0, gain_bytes, "purged the log");
        }
        Ok(())
    }
}

/// Waits a while until openraft has come somewhere; answers whether it has.
pub(crate) async fn until(
    raft: &Raft,
    is_there: impl Fn(&openraft::RaftMetrics<crate::adapter::type_config::TypeConfig>) -> bool,
) -> Result<bool, Trouble> {
    let deadline = Instant::now() + NOTE_MAX;
    let mut metrics = raft.metrics();
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

/// The entry to purge to and the bytes that that frees, when they are enough to be worth it.
fn due_purge(log: &Log, policy: &SnapshotPolicy, current: LogIndex) -> Option<(LogIndex, u64)> {
    let to = forgettable_to(log, policy.tail_bytes, current)?;
    let gain_bytes = log.bytes_up_to(to);
    (gain_bytes > 0 && gain_bytes >= policy.log_bytes_max / 8).then_some((to, gain_bytes))
}

/// The last entry that may go: up to `current`, with a tail's worth of bytes after it. `None` when no more
/// may go than is purged.
pub(crate) fn forgettable_to(log: &Log, tail_bytes: u64, current: LogIndex) -> Option<LogIndex> {
    let first = log.state().purged.map_or(0, |purged| purged.index.0 + 1);
    let (mut may_go, mut must_stay) = (first, current.0 + 1);
    while may_go < must_stay {
        let middle = may_go + (must_stay - may_go) / 2;
        if log.bytes_after(Some(LogIndex(middle))) >= tail_bytes {
            may_go = middle + 1;
        } else {
            must_stay = middle;
        }
    }
    (may_go > first).then(|| LogIndex(may_go - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::sim::{SimDisk, SimOptions};
    use raftlog::{Entry, LogSpace, LogSpaceOptions, LogSpec};
    use std::sync::atomic::{AtomicBool, Ordering};
    use types::{LogId, OwnerId, Payload};

    fn entry(index: u64) -> Entry {
        let id = LogId { index: LogIndex(index), ..LogId::default() };
        Entry { id, kind: 1, meta: vec![7; 1000].into(), body: Payload::default(), roll_to: None }
    }

    /// Appends between its looks at the log must not confuse the keeper, least of all when there is nothing
    /// to purge.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_purge_frees_is_known_while_the_log_grows() {
        let options =
            LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 1 << 20, ..LogSpaceOptions::default() };
        let space = LogSpace::new(Arc::new(SimDisk::new(SimOptions::default())), options);
        let (dir, owners_dir) = ("groups/om".to_owned(), "meta/om".to_owned());
        let log = space.open(LogSpec { log: 1, dir, owners_dir, first_owner: OwnerId(0) }).await.unwrap();
        log.append((0..10).map(entry).collect()).unwrap().durable().await.unwrap();
        log.purge(LogId { index: LogIndex(5), ..LogId::default() }).await.unwrap();

        let is_looked_at = Arc::new(AtomicBool::new(false));
        let appending = tokio::spawn({
            let (log, is_looked_at) = (log.clone(), is_looked_at.clone());
            async move {
                // For as long as it takes to look at the log often enough.
                let mut index = 10;
                while index < 20_000 || (index < 2_000_000 && !is_looked_at.load(Ordering::Relaxed)) {
                    let token = log.append(vec![entry(index)]).unwrap();
                    if index % 64 == 0 {
                        token.durable().await.unwrap();
                    }
                    index += 1;
                }
            }
        });
        let (mut looks, mut gains) = (0u64, 0u64);
        while !appending.is_finished() {
            for current in [5, 7] {
                // Nothing may go with a whole tail wanted; with none, the entries up to `current`.
                for tail_bytes in [1 << 40, 0] {
                    let policy = SnapshotPolicy { log_bytes_max: 8, tail_bytes };
                    let due = due_purge(&log, &policy, LogIndex(current));
                    let expected = (tail_bytes == 0 && current == 7).then_some(LogIndex(7));
                    assert_eq!(due.map(|(to, _)| to), expected);
                    if let Some((_, bytes)) = due {
                        assert!((2000..3000).contains(&bytes), "two entries of a thousand bytes: {bytes}");
                        gains += 1;
                    }
                    looks += 1;
                }
            }
            is_looked_at.store(looks > 100 && gains > 25, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        appending.await.unwrap();
        assert!(looks > 100 && gains > 25, "{looks} looks, {gains} gains while the log grew");
    }
}
