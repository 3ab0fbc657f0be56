//! The inventory that SCM is told of this node's containers: all replicas, in memory, and which of them SCM
//! has yet to hear of.
//!
//! Replicas come from the indexes and the segments ([`survey`] reads them, at the start and when something
//! says that one has changed), reports go out with heartbeats ([`report`]). A heartbeat that fails takes
//! nothing with it: what it carried counts as told only once SCM has answered.

mod follow;
mod report;
mod survey;

use crate::index::records::ReplicaState;
use crate::index::{Committed, TermEnd, Terms};
use proto::scm::{self, ContainerReplica};
use proto::uuid_bytes;
use raftlog::DiscardsSum;
use report::Telling;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
pub(crate) use survey::Surveyor;
use tokio::sync::{Notify, watch};
use types::{ContainerId, DiskId, LogId, PipelineId};

/// The last terms of a container that SCM hears of. One that was led by more is not compared with those that
/// end in an older one.
const TERMS_TOLD_MAX: usize = 32;

/// One replica of a container as this node holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub pipeline: PipelineId,
    pub disk: DiskId,
    pub state: ReplicaState,
    /// The container's last record here; `None` for an open one.
    pub last: Option<LogId>,
    /// The last record that is known to be committed; `None` where there is none, and of an open one.
    pub committed: Option<Committed>,
    /// Whether the replica came from another node.
    pub copied: bool,
    pub terms: Terms,
    /// The end of each term up to `committed`, where that alone was read.
    pub terms_to_committed: Vec<TermEnd>,
    pub blocks: u64,
    pub payload_bytes: u64,
    pub disk_bytes: u64,
    pub discards: DiscardsSum,
    /// The hash of docs/format/container-hash.md; `None` until it was computed.
    pub hash: Option<[u8; 32]>,
    pub unhealthy: Option<String>,
    /// The time, by SCM's clock, of the last question to read all of it, and it was right; 0: not in this
    /// process.
    pub checked_ms: u64,
    /// Whether no log reads the replica's records any more.
    pub released: bool,
}

/// A cheap handle to the one inventory of a node.
#[derive(Clone, Default)]
pub(crate) struct Inventory {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// Rings when there is something to look at.
    look: Notify,
    /// Rings when there is something that SCM should hear of at once.
    wake: Arc<Notify>,
    /// Counts changes of replicas, for those who wait for one.
    version: watch::Sender<u64>,
    /// The last round of looks that is done.
    looked: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    replicas: BTreeMap<ContainerId, Replica>,
    telling: Telling,
    removals: u64,
    /// Containers that are to be read again, each with its disk: something about them has changed. As many as
    /// there are containers, at most.
    stale: BTreeSet<(DiskId, ContainerId)>,
    /// The last round of looks that was begun; `None` while nobody looks.
    round: Option<u64>,
}

impl Inventory {
    /// Returns what rings when SCM should hear of something at once.
    pub(crate) fn wake(&self) -> Arc<Notify> {
        self.inner.wake.clone()
    }

    /// Returns a number that changes when a replica does.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.inner.version.subscribe()
    }

    pub(crate) fn get(&self, container: ContainerId) -> Option<Replica> {
        self.lock().replicas.get(&container).cloned()
    }

    /// Collects what `of` makes of the replicas, in the order of their numbers.
    pub(crate) fn select<T>(&self, of: impl FnMut((&ContainerId, &Replica)) -> Option<T>) -> Vec<T> {
        self.lock().replicas.iter().filter_map(of).collect()
    }

    /// Says that a container of this disk may have changed: it is read again soon.
    pub(crate) fn look_again(&self, disk: DiskId, container: ContainerId) {
        self.lock().stale.insert((disk, container));
        self.inner.look.notify_one();
    }

    /// Does what [`Inventory::look_again`] does for all containers of a pipeline: when its log has forgotten
    /// some of them, or is over.
    pub(crate) fn look_again_at_pipeline(&self, pipeline: PipelineId) {
        let mut state = self.lock();
        let of_it = state.replicas.iter().filter(|(_, replica)| replica.pipeline == pipeline);
        let of_it: Vec<_> = of_it.map(|(container, replica)| (replica.disk, *container)).collect();
        state.stale.extend(of_it);
        drop(state);
        self.inner.look.notify_one();
    }

    /// Waits until all has been looked at that was to be looked at again before the call. Returns at once
    /// where nobody looks: before the first report, which comes after a look at everything, and after the
    /// last.
    pub(crate) async fn looked(&self) {
        let Some(begun) = self.lock().round else { return };
        // The round under way may have been begun before.
        self.inner.look.notify_one();
        let mut looked = self.inner.looked.subscribe();
        let _ = looked.wait_for(|done| *done > begun).await;
    }

    /// Begins to serve those who wait for a look, until [`Inventory::end_rounds`].
    fn begin_rounds(&self) {
        self.lock().round = Some(0);
    }

    /// Takes the containers that are to be looked at in the next round.
    fn begin_round(&self) -> BTreeSet<(DiskId, ContainerId)> {
        let mut state = self.lock();
        state.round = state.round.map(|round| round + 1);
        std::mem::take(&mut state.stale)
    }

    fn end_round(&self) {
        let round = self.lock().round.unwrap_or(u64::MAX);
        self.inner.looked.send_replace(round);
    }

    fn end_rounds(&self) {
        self.lock().round = None;
        self.end_round();
    }

    #[cfg(test)]
    fn is_being_looked_at(&self) -> bool {
        self.lock().round > Some(*self.inner.looked.borrow())
    }

    /// Notes what is known against a replica: SCM hears of it at once.
    pub(crate) fn set_unhealthy(&self, container: ContainerId, disk: DiskId, why: &str) {
        self.update(container, disk, |replica| replica.unhealthy = Some(why.to_owned()));
    }

    /// Notes the hash of a closed replica, and the terms that were found with it.
    pub(crate) fn set_hash(&self, container: ContainerId, disk: DiskId, hash: [u8; 32], terms: Terms) {
        self.update(container, disk, |replica| {
            replica.committed =
                replica.committed.map(|it| terms.last_to(it.end().last.index).map_or(it, Committed::Read));
            (replica.hash, replica.terms) = (Some(hash), terms);
        });
    }

    /// Notes that all of a replica was read, as was asked for at this time, and found right.
    pub(crate) fn set_checked(&self, container: ContainerId, disk: DiskId, asked_ms: u64) {
        self.update(container, disk, |replica| replica.checked_ms = asked_ms);
    }

    /// Changes a replica of this disk, if it is known.
    fn update(&self, container: ContainerId, disk: DiskId, change: impl FnOnce(&mut Replica)) {
        let mut state = self.lock();
        let known = state.replicas.get_mut(&container).filter(|replica| replica.disk == disk);
        let Some(replica) = known else { return };
        let before = replica.clone();
        change(replica);
        if *replica == before {
            return;
        }
        let is_news = replica.is_news(&before);
        state.telling.change(container);
        drop(state);
        self.changed(is_news);
    }

    /// The number of replicas that were forgotten so far: to be asked before one is read.
    pub(crate) fn removals(&self) -> u64 {
        self.lock().removals
    }

    /// Puts a replica that was read since [`Inventory::removals`] said `as_of`. Where any was forgotten
    /// meanwhile it may be this one, which is read again: SCM would count a replica that is not there, and
    /// nobody would ever take it back.
    pub(crate) fn put_read(&self, container: ContainerId, mut replica: Replica, as_of: u64) {
        let mut state = self.lock();
        if as_of != state.removals {
            drop(state);
            self.look_again(replica.disk, container);
            return;
        }
        // The index does not keep it.
        let known = state.replicas.get(&container).filter(|known| known.disk == replica.disk);
        replica.checked_ms = known.map_or(replica.checked_ms, |known| known.checked_ms);
        let before = state.replicas.insert(container, replica.clone());
        if before.as_ref() == Some(&replica) {
            return;
        }
        state.telling.change(container);
        drop(state);
        self.changed(before.is_none_or(|before| replica.is_news(&before)));
    }

    #[cfg(test)]
    fn put(&self, container: ContainerId, replica: Replica) {
        self.put_read(container, replica, self.removals());
    }

    /// Forgets a replica of this disk: it is gone.
    pub(crate) fn remove(&self, container: ContainerId, disk: DiskId) {
        let mut state = self.lock();
        state.removals += 1;
        if state.replicas.get(&container).is_none_or(|replica| replica.disk != disk) {
            return;
        }
        state.replicas.remove(&container);
        state.telling.lose(container);
        drop(state);
        self.changed(true);
    }

    fn changed(&self, is_urgent: bool) {
        self.inner.version.send_modify(|version| *version += 1);
        if is_urgent {
            self.inner.wake.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().expect("no holder panics")
    }
}

impl Replica {
    /// Whether SCM decides otherwise because of what is new since `before`; sizes alone can wait for the next
    /// heartbeat.
    fn is_news(&self, before: &Replica) -> bool {
        let decisive = |it: &Replica| {
            let ends = (it.state, it.last, it.committed, it.released);
            (ends, it.hash, it.discards, it.unhealthy.clone(), it.checked_ms, it.disk)
        };
        decisive(self) != decisive(before)
    }

    pub(crate) fn to_proto(&self, container: ContainerId) -> ContainerReplica {
        let state = match self.state {
            ReplicaState::Open => scm::ReplicaState::ReplicaOpen,
            ReplicaState::Closed => scm::ReplicaState::ReplicaClosed,
            ReplicaState::QuasiClosed => scm::ReplicaState::ReplicaQuasiClosed,
            ReplicaState::WithoutLog => scm::ReplicaState::ReplicaWithoutLog,
        };
        let committed = self.committed.map(Committed::end);
        ContainerReplica {
            container: container.0,
            pipeline: self.pipeline.0,
            disk: uuid_bytes(self.disk.0),
            state: state.into(),
            last_term: self.last.map_or(0, |last| last.term.0),
            last_index: self.last.map_or(0, |last| last.index.0),
            blocks: self.blocks,
            payload_bytes: self.payload_bytes,
            disk_bytes: self.disk_bytes,
            hash: self.hash.map_or_else(String::new, |hash| crate::hash::to_hex(&hash)),
            unhealthy: self.unhealthy.clone().unwrap_or_default(),
            released: self.released,
            committed_term: committed.map_or(0, |end| end.last.term.0),
            committed_index: committed.map_or(0, |end| end.last.index.0),
            committed_mark: committed.map_or(0, |end| mark(&end)),
            committed_unread: matches!(self.committed, Some(Committed::Unread(_))),
            terms: told(&self.terms.ends),
            terms_to_committed: told(&self.terms_to_committed),
            lacks_earlier_terms: self.terms.ends.len().max(self.terms_to_committed.len()) > TERMS_TOLD_MAX,
            copied: self.copied,
            discarded_blocks: self.discards.blocks,
            discards_digest: self.discards.digest,
            discarded_bytes: self.discards.body_bytes,
            hole_bytes: self.discards.hole_bytes,
            dead_bytes: self.discards.dead_bytes,
            checked_ms: self.checked_ms,
        }
    }
}

/// The terms that SCM hears of.
fn told(ends: &[TermEnd]) -> Vec<proto::scm::TermEnd> {
    ends.iter().rev().take(TERMS_TOLD_MAX).rev().map(term_end).collect()
}

fn term_end(end: &TermEnd) -> proto::scm::TermEnd {
    proto::scm::TermEnd { term: end.last.term.0, last_index: end.last.index.0, mark: mark(end) }
}

/// The mark of a term as SCM gets it: never 0 where the term has a record with a body.
fn mark(end: &TermEnd) -> u32 {
    end.mark.map_or(0, |mark| mark.crc.max(1))
}

#[cfg(test)]
impl Replica {
    /// A closed replica that no log reads.
    pub(crate) fn of_test(disk: DiskId) -> Replica {
        Replica {
            pipeline: PipelineId(3),
            disk,
            state: ReplicaState::Closed,
            last: None,
            committed: None,
            copied: false,
            terms: Terms::default(),
            terms_to_committed: Vec::new(),
            blocks: 1,
            payload_bytes: 0,
            disk_bytes: 0,
            discards: DiscardsSum::default(),
            hash: None,
            unhealthy: None,
            checked_ms: 0,
            released: true,
        }
    }
}

#[cfg(test)]
mod tests;
