//! Waiting for a group: until a replica has applied an entry, or until all members have it. All waits of a host are in one
//! parking lot, so that their number has one limit, and one that ends leaves nothing behind until its deadline.

use crate::adapter::type_config::{Raft, TypeConfig};
use crate::group::Group;
use crate::{Lag, Role};
use openraft::RaftMetrics;
use openraft::async_runtime::watch::WatchReceiver;
use parking::{Outcome, ParkingLot};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use types::{GroupId, LogIndex, ReplicaId};

/// What operations wait for; the value is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    Applied(GroupId),
    Everywhere(GroupId),
}

pub(crate) type Waits = ParkingLot<Awaited>;

/// Nothing is waited for longer. Past what any caller means, and far from where the sum of a clock and a duration overflows.
pub const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Past every index: whoever waits looks for itself what became of it.
pub(crate) const OVER: u64 = u64::MAX;

/// The waits for what one replica applies. Most of the time there are none, and then applying leaves the host's lot, whose one
/// lock is everybody's, alone.
#[derive(Clone)]
pub(crate) struct ApplyWaits {
    lot: Waits,
    group: GroupId,
    waiting: Arc<AtomicUsize>,
}

impl ApplyWaits {
    pub(crate) fn new(lot: Waits, group: GroupId) -> ApplyWaits {
        ApplyWaits { lot, group, waiting: Arc::default() }
    }

    /// Waits for an index; `is_over` is asked once everybody who applies sees that somebody waits.
    ///
    /// ```text
    ///  who waits              who applies
    ///  waiting += 1           publish the index
    ///  fence                  fence
    ///  is_over: the index?    waiting > 0?
    /// ```
    /// One of the two sees what the other did before its fence, so nobody waits for what is there.
    async fn wait(&self, index: LogIndex, deadline: Instant, is_over: impl FnOnce() -> bool) -> Outcome {
        let _counted = Counted::new(&self.waiting);
        fence(Ordering::SeqCst);
        self.lot.wait(Awaited::Applied(self.group), index.0, deadline, is_over).await
    }

    /// To be called after `index` is to be seen by `is_over` of those who wait.
    fn reach(&self, index: LogIndex) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.lot.reach(&Awaited::Applied(self.group), index.0);
        }
    }

    /// Nothing will be applied any more.
    fn end(&self) {
        self.lot.reach(&Awaited::Applied(self.group), OVER);
    }
}

/// One more, as long as it is kept.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    fn new(count: &AtomicUsize) -> Counted<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How far a state machine has applied; whoever waits for it is told.
pub(crate) struct AppliedMark {
    /// Gone first when the machine goes, so that nobody begins to wait after the others were told.
    sender: Option<watch::Sender<Option<LogIndex>>>,
    waits: ApplyWaits,
}

impl AppliedMark {
    pub(crate) fn new(
        applied: Option<LogIndex>,
        waits: ApplyWaits,
    ) -> (AppliedMark, watch::Receiver<Option<LogIndex>>) {
        let (sender, view) = watch::channel(applied);
        (AppliedMark { sender: Some(sender), waits }, view)
    }

    pub(crate) fn set(&self, applied: Option<LogIndex>) {
        if let Some(sender) = &self.sender {
            sender.send_replace(applied);
        }
        if let Some(applied) = applied {
            self.waits.reach(applied);
        }
    }
}

impl Drop for AppliedMark {
    fn drop(&mut self) {
        drop(self.sender.take());
        self.waits.end();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    #[error("it did not come about in time")]
    Expired,
    #[error("{limit} operations wait on this host already")]
    Busy { limit: usize },
    #[error("the group stopped")]
    Stopped,
}

/// Why an entry is not known to be on all members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitAllError {
    /// These did not have it by the deadline.
    #[error("not on all members: {}", list(missing))]
    Missing { missing: Vec<Lag> },
    /// Only a leader knows what its members have.
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

    /// Waits until all members, learners too, have the committed entry `index` durably, or says which do not. On the leader.
    pub async fn wait_all(&self, index: LogIndex, deadline: Instant) -> Result<(), WaitAllError> {
        let metrics = self.raft().metrics();
        let missing = || missing(&metrics.borrow_watched(), index);
        let _watched = self.everywhere().enter(self);
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

/// The members that are not known to have `index`; `None` when this replica does not lead.
fn missing(metrics: &RaftMetrics<TypeConfig>, index: LogIndex) -> Option<Vec<Lag>> {
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

/// Up to where all members have everything; [`OVER`] when this replica does not lead.
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
    /// Of the task that watches the replication; it ends when nobody waits.
    watcher: Option<JoinHandle<()>>,
}

impl Everywhere {
    fn enter(&self, group: &Group) -> Watched {
        let mut state = self.lock();
        state.waiting += 1;
        if state.watcher.is_none() {
            let (raft, waits) = (group.raft().clone(), group.waits().clone());
            state.watcher = Some(tokio::spawn(watch(self.clone(), raft, waits, group.id())));
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

/// Somebody waits.
struct Watched {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Timing;

    fn parts() -> (Waits, ApplyWaits, AppliedMark, watch::Receiver<Option<LogIndex>>) {
        let lot = Waits::new(100);
        let waits = ApplyWaits::new(lot.clone(), GroupId::om(1));
        let (mark, applied) = AppliedMark::new(None, waits.clone());
        (lot, waits, mark, applied)
    }

    /// Without the limit, the deadline overflows.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_the_limit() {
        let site = crate::replica::beginning::tests::Site::new();
        // A day passes here: one with few heartbeats.
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

    #[tokio::test]
    async fn applying_leaves_the_lot_alone_while_nobody_waits() {
        let (lot, waits, mark, applied) = parts();
        for index in 1..=1000 {
            mark.set(Some(LogIndex(index)));
        }
        assert_eq!(lot.counts().reaches, 0);
        let deadline = Instant::now() + Timing::METADATA.election_max;
        let mut wait = std::pin::pin!(waits.wait(LogIndex(1001), deadline, || false));
        assert!(futures::poll!(&mut wait).is_pending());
        mark.set(Some(LogIndex(1001)));
        assert_eq!((wait.await, lot.counts().reaches), (Outcome::Reached, 1));
        // The finished future is still there; what it counted is not.
        mark.set(Some(LogIndex(1002)));
        assert_eq!((lot.counts().reaches, *applied.borrow()), (1, Some(LogIndex(1002))));
    }

    /// The one who applies and the one who waits are two threads that meet at each index.
    #[test]
    fn no_wait_is_missed_that_begins_while_its_entry_is_applied() {
        const ENTRIES: u64 = 20_000;
        let (_lot, waits, mark, applied) = parts();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let to_apply = asked.clone();
        let applier = std::thread::spawn(move || {
            for index in 1..=ENTRIES {
                while to_apply.load(Ordering::Acquire) < index {
                    std::hint::spin_loop();
                }
                mark.set(Some(LogIndex(index)));
            }
            mark
        });
        runtime.block_on(async {
            for index in (1..=ENTRIES).map(LogIndex) {
                asked.store(index.0, Ordering::Release);
                let deadline = Instant::now() + Duration::from_secs(30);
                let is_over = || *applied.borrow() >= Some(index);
                assert_eq!(waits.wait(index, deadline, is_over).await, Outcome::Reached, "entry {index}");
            }
        });
        drop(applier.join().unwrap());
    }
}
