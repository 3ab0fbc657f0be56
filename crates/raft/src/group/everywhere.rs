//! The part of the log that all members have, as the leader sees it.

use crate::Lag;
use crate::adapter::machine::Raft;
use crate::adapter::type_config::TypeConfig;
use crate::group::parked::{Awaited, OVER, Waits};
use openraft::RaftMetrics;
use openraft::async_runtime::watch::WatchReceiver;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use types::{GroupId, LogIndex, ReplicaId};

/// The members that are not known to have `index`; `None` when this replica does not lead.
pub(crate) fn missing(metrics: &RaftMetrics<TypeConfig>, index: LogIndex) -> Option<Vec<Lag>> {
    let replication = metrics.replication.as_ref()?;
    let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
    let members = metrics.membership_config.nodes().map(|(&replica, _)| replica);
    let missing = members.filter_map(|replica| {
        let matched = replication.get(&replica).and_then(|matched| *matched);
        let entries = index.next().0.saturating_sub(next(matched.map(|id| id.index)));
        (entries > 0).then_some(Lag { replica: ReplicaId(replica), entries })
    });
    Some(missing.collect())
}

/// The last entry that all members have, with all before it; [`OVER`] when this replica does not lead.
pub(crate) fn everywhere(metrics: &RaftMetrics<TypeConfig>) -> Option<u64> {
    let Some(replication) = &metrics.replication else { return Some(OVER) };
    let members = metrics.membership_config.nodes();
    let matched = members.map(|(replica, _)| replication.get(replica).and_then(|matched| *matched));
    matched.map(|matched| matched.map(|id| id.index)).min().flatten()
}

/// Moves the key [`Awaited::Everywhere`] of a group, while somebody waits for it.
#[derive(Clone, Default)]
pub(crate) struct Everywhere {
    shared: Arc<EverywhereShared>,
}

#[derive(Default)]
struct EverywhereShared {
    state: Mutex<EverywhereState>,
    nobody_waits: Notify,
}

#[derive(Default)]
struct EverywhereState {
    waiting: usize,
    /// The task that watches the replication; it ends when nobody waits.
    watcher: Option<JoinHandle<()>>,
}

impl Everywhere {
    /// Has the key of `group` moved as long as the answer is kept: somebody waits in `waits` for what all
    /// members have.
    pub(crate) fn enter(&self, raft: &Raft, waits: &Waits, group: GroupId) -> Watched {
        let mut state = self.lock();
        state.waiting += 1;
        if state.watcher.is_none() {
            state.watcher = Some(tokio::spawn(watch(self.clone(), raft.clone(), waits.clone(), group)));
        }
        Watched { everywhere: self.clone() }
    }

    /// The watching task, to be ended by whoever closes the group.
    pub(crate) fn take_watcher(&self) -> Option<JoinHandle<()>> {
        self.lock().watcher.take()
    }

    fn lock(&self) -> MutexGuard<'_, EverywhereState> {
        self.shared.state.lock().expect("no holder panics")
    }
}

/// A sign that somebody waits, as long as it is kept.
pub(crate) struct Watched {
    everywhere: Everywhere,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.everywhere.lock();
        state.waiting -= 1;
        if state.waiting == 0 {
            self.everywhere.shared.nobody_waits.notify_one();
        }
    }
}

async fn watch(everywhere_of: Everywhere, raft: Raft, waits: Waits, group: GroupId) {
    let mut metrics = raft.metrics();
    loop {
        let reached = everywhere(&metrics.borrow_and_update());
        if let Some(reached) = reached {
            waits.reach(&Awaited::Everywhere(group), reached);
        }
        {
            let mut state = everywhere_of.lock();
            if state.waiting == 0 {
                state.watcher = None;
                return;
            }
        }
        let is_over = tokio::select! {
            changed = metrics.changed() => changed.is_err(),
            () = everywhere_of.shared.nobody_waits.notified() => false,
        };
        if is_over {
            everywhere_of.lock().watcher = None;
            waits.reach(&Awaited::Everywhere(group), OVER);
            return;
        }
    }
}
