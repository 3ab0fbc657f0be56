//! The orders of SCM to this node, and the executor that carries them out.
//!
//! SCM says an order again with each heartbeat until reports show that it is done. Of whatever kind it is:
//!
//! 1. An order is begun only where the answer to a heartbeat says it. After a restart none is known, and what
//!    a former leader of SCM gave is withdrawn by the first answer of the next that does not give it.
//! 2. One order of a key runs at a time. Another order of that key, or the same one told again after it was
//!    withdrawn, is begun once the run has ended: its replica is never ended, let go of, created or copied by
//!    two.
//! 3. A run that is withdrawn, replaced, or overtaken by the node's end is asked to stop, and never cut off:
//!    it stops where it may ([`Run`]), and the node's end waits for it. A deletion looks at that, and at the
//!    age of its order, when it has its lock. What ends or lets go of a replica finishes.
//! 4. What failed is begun again after a growing pause, and what was done and is still told after a while.
//! 5. Heartbeats wait for no order. A pipeline that is being made is spoken of (`Order::making`): SCM takes
//!    silence as proof that nothing of it is here.

mod check;
pub(crate) mod close;
mod copy;
mod delete;
mod discard;
mod kinds;
mod order;
mod same;
mod second;
mod unwanted;

use crate::inventory::Inventory;
use crate::workers::Workers;
pub(crate) use delete::finish_begun as recover_deletions;
use futures::FutureExt;
pub(crate) use kinds::Carrier;
use order::{Key, Progress, Run};
pub(crate) use order::{Means, Order};
use proto::scm::{PipelineReport, TaskKind, TaskReport};
pub(crate) use second::SecondReplicas;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::{Backoff, ContainerId};
pub(crate) use unwanted::UnwantedCopies;

/// The time after which an order that was done and is still told is done again: before, SCM may not have the
/// report yet.
const DONE_WAIT: Duration = Duration::from_secs(10);

struct Entry {
    what: &'static str,
    said: Vec<u8>,
    progress: Arc<Progress>,
    state: State,
    failed: String,
    portion: u64,
    /// Whether the last attempt did what was said.
    is_done: bool,
    retry: Backoff,
}

enum State {
    /// The order waits, and is not begun before this moment.
    Waits(Instant),
    Runs {
        stop: CancellationToken,
        /// The pipeline that the run makes.
        making: Option<PipelineReport>,
    },
}

/// All orders of a node. A cheap handle.
#[derive(Clone)]
pub(crate) struct Executor {
    entries: Arc<Mutex<BTreeMap<Key, Entry>>>,
    inventory: Inventory,
    workers: Workers,
}

impl Executor {
    pub(crate) fn new(inventory: Inventory, workers: Workers) -> Executor {
        Executor { entries: Arc::default(), inventory, workers }
    }

    /// The reports that SCM gets.
    pub(crate) fn reports(&self) -> Vec<TaskReport> {
        let entries = self.lock();
        let report = |(key, entry): (&Key, &Entry)| TaskReport {
            kind: key.kind.into(),
            pipeline: key.pipeline.0,
            container: key.container.0,
            bytes_done: entry.progress.bytes_done.load(Ordering::Relaxed),
            bytes_total: entry.progress.bytes_total.load(Ordering::Relaxed),
            failed: entry.failed.clone(),
            done_portion: if entry.is_done { entry.portion } else { 0 },
        };
        // An order that was withdrawn is not told of: a new order of SCM for the same is to hear nothing of
        // it.
        entries.iter().filter(|(_, entry)| !entry.is_stopping()).map(report).collect()
    }

    /// The numbers of orders that wait, that run, and whose last attempt failed.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 3] {
        let entries = self.lock();
        let count = |is_meant: fn(&Entry) -> bool| entries.values().filter(|entry| is_meant(entry)).count();
        let running = count(Entry::runs);
        let counts = [entries.len() - running, running, count(|entry| !entry.failed.is_empty())];
        let [waiting, running, failed] = counts.map(|count| count as u64);
        [("waiting", waiting), ("running", running), ("failed", failed)]
    }

    /// Whether a container is being copied here, or is to be.
    pub(crate) fn wants_copy(&self, container: ContainerId) -> bool {
        self.lock().contains_key(&Key::container(TaskKind::TaskCopy, container))
    }

    /// The reports of pipelines that are being made. To be asked for before those of pipelines that are
    /// there: what was made between the two is among the latter.
    pub(crate) fn making(&self) -> Vec<PipelineReport> {
        let making = |entry: &Entry| match &entry.state {
            State::Runs { making, .. } => making.clone(),
            State::Waits(_) => None,
        };
        self.lock().values().filter_map(making).collect()
    }

    /// Takes the orders that SCM told, and no others, as the answer to a heartbeat that was sent at
    /// `asked_at`. Begins what may begin, in the order of the keys, so that copies that were begun go first
    /// after a restart too.
    pub(crate) fn told(&self, orders: Vec<Order>, asked_at: Instant) {
        let told: BTreeMap<Key, Order> = orders.into_iter().map(|order| (order.key, order)).collect();
        let (now, mut entries) = (Instant::now(), self.lock());
        entries.retain(|key, entry| {
            told.get(key).is_some_and(|order| entry.is_of(order)) || entry.withdraw(key)
        });
        // A run that was asked to stop and hangs takes nobody's place; but only so many may hang.
        let mut running: BTreeMap<TaskKind, (usize, usize)> = BTreeMap::new();
        for (key, entry) in entries.iter().filter(|(_, entry)| entry.runs()) {
            let (going_on, all) = running.entry(key.kind).or_default();
            *going_on += usize::from(!entry.is_stopping());
            *all += 1;
        }
        for (key, order) in told {
            let entry = entries.entry(key).or_insert_with(|| Entry::new(&order, now));
            let (going_on, all) = running.entry(key.kind).or_default();
            let has_place = *going_on < key.at_a_time() && *all < key.at_a_time().saturating_mul(2);
            if has_place && matches!(entry.state, State::Waits(until) if until <= now) {
                (*going_on, *all) = (*going_on + 1, *all + 1);
                self.run(order, entry, asked_at);
            }
        }
    }

    fn run(&self, order: Order, entry: &mut Entry, asked_at: Instant) {
        let stop = self.workers.stop().child_token();
        entry.state = State::Runs { stop: stop.clone(), making: order.making };
        // SCM takes who has failed for idle, until it tells the order again.
        entry.failed.clear();
        let (stopping, node_ends) = (stop.clone(), self.workers.stop().clone());
        let run = Run { asked_at, stop: stopping, node_ends, progress: entry.progress.clone() };
        let (executor, key, work) = (self.clone(), order.key, order.work);
        self.workers.spawn(async move {
            let done = AssertUnwindSafe(work(run)).catch_unwind().await;
            executor.ended(key, &stop, done.unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked"))));
        });
    }

    /// Notes how a run ended. The next one's turn comes with the next heartbeat, which this wakes.
    fn ended(&self, key: Key, stop: &CancellationToken, done: anyhow::Result<()>) {
        let mut entries = self.lock();
        if stop.is_cancelled() {
            // An order that is told of this key from now on is new.
            entries.remove(&key);
        } else if let Some(entry) = entries.get_mut(&key) {
            entry.ended(key, done);
        }
        drop(entries);
        self.inventory.wake().notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.entries.lock().expect("no holder panics")
    }
}

impl Entry {
    fn new(order: &Order, now: Instant) -> Entry {
        Entry {
            what: order.what,
            said: order.said.clone(),
            progress: Arc::default(),
            state: State::Waits(now),
            failed: String::new(),
            portion: order.portion,
            is_done: false,
            retry: order.key.retry(),
        }
    }

    fn runs(&self) -> bool {
        matches!(self.state, State::Runs { .. })
    }

    fn is_of(&self, order: &Order) -> bool {
        (order.what, &order.said) == (self.what, &self.said)
    }

    /// Whether a run is to stop: it may hang with its disk, and takes nobody's place meanwhile.
    fn is_stopping(&self) -> bool {
        matches!(&self.state, State::Runs { stop, .. } if stop.is_cancelled())
    }

    /// Asks a run to stop: SCM no longer gives this order, or gives another one for its key. Answers whether
    /// the entry is kept, which is as long as it runs.
    fn withdraw(&self, key: &Key) -> bool {
        let State::Runs { stop, .. } = &self.state else { return false };
        if !stop.is_cancelled() {
            info!(?key, order = self.what, "SCM no longer wants this");
            stop.cancel();
        }
        true
    }

    fn ended(&mut self, key: Key, done: anyhow::Result<()>) {
        let failed = done.err().map_or(String::new(), |failure| format!("{failure:#}"));
        let wait = match failed.is_empty() {
            true => {
                self.retry.reset();
                DONE_WAIT
            }
            false => self.retry.pause(),
        };
        if !failed.is_empty() && failed != self.failed {
            warn!(?key, order = self.what, error = failed, "cannot do what SCM wants; it will say it again");
        }
        self.is_done = failed.is_empty();
        (self.failed, self.state) = (failed, State::Waits(Instant::now() + wait));
    }
}

#[cfg(test)]
mod tests;
