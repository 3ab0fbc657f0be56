//! The part of the inventory that SCM has yet to hear, and how that is put into heartbeats.

use super::{Inventory, Replica, State, TERMS_TOLD_MAX};
use crate::index::records::ReplicaState;
use proto::scm::HeartbeatRequest;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound;
use types::ContainerId;

/// Replicas in one heartbeat, those that are gone included: some 150 bytes each, so 1.5 MB where 24 are
/// taken.
pub(crate) const REPORT_REPLICAS_MAX: usize = 10_000;
/// Replicas and their terms in one heartbeat, of 20 bytes each. With as many pipelines as there may be it
/// stays below the parts that a heartbeat may have (`proto/src/limits.rs`).
const REPORT_PARTS_MAX: usize = 64_000;
/// Replicas that are gone and not yet told; past it everything is told again, which says so too.
const GONE_MAX: usize = 10_000;

/// A change's number: changes are counted.
type Change = u64;

/// The changes that SCM does not know. Every change has a number, so that one that comes while a heartbeat is
/// under way is not taken for told when that is answered.
pub(super) struct Telling {
    changes: Change,
    changed: BTreeMap<ContainerId, Change>,
    gone: BTreeMap<ContainerId, Change>,
    full: Option<Full>,
}

/// A full report that is due or under way.
#[derive(Clone, Copy)]
struct Full {
    /// The count of changes when it was asked for, which tells it from the one before.
    asked: Change,
    /// The container up to which SCM has everything.
    after: Option<ContainerId>,
}

impl Default for Telling {
    /// A process begins with telling everything.
    fn default() -> Telling {
        let full = Some(Full { asked: 0, after: None });
        Telling { changes: 0, changed: BTreeMap::new(), gone: BTreeMap::new(), full }
    }
}

impl Telling {
    pub(super) fn change(&mut self, container: ContainerId) {
        self.changes += 1;
        self.changed.insert(container, self.changes);
        self.gone.remove(&container);
    }

    pub(super) fn lose(&mut self, container: ContainerId) {
        self.changes += 1;
        self.changed.remove(&container);
        self.gone.insert(container, self.changes);
        if self.gone.len() > GONE_MAX {
            self.tell_all();
        }
    }

    fn tell_all(&mut self) {
        self.changes += 1;
        self.full = Some(Full { asked: self.changes, after: None });
        // A full report begins with SCM forgetting all it knew.
        self.gone.clear();
    }
}

/// The part of one heartbeat that is about containers.
#[derive(Debug)]
pub(crate) struct Report {
    containers: Vec<ContainerId>,
    gone: Vec<ContainerId>,
    /// The last change that there was when the report was made.
    up_to: Change,
    pub begins: bool,
    ends: bool,
    /// The count of changes when a full report, if this is one, was asked for.
    full: Option<Change>,
    /// Whether more follows at once.
    pub has_more: bool,
}

impl Inventory {
    /// Begins a full report, anew if one is under way: SCM asks for everything, or forgot who we are. The
    /// size of open containers is read again for it, and told as it is found.
    pub(crate) fn report_all(&self) {
        let mut state = self.lock();
        state.telling.tell_all();
        let is_open = |replica: &Replica| replica.state == ReplicaState::Open;
        let open = state.replicas.iter().filter(|(_, replica)| is_open(replica));
        let open: Vec<_> = open.map(|(container, replica)| (replica.disk, *container)).collect();
        state.stale.extend(open);
        drop(state);
        self.inner.look.notify_one();
    }

    /// Puts the next report into a heartbeat.
    pub(crate) fn report(&self, request: &mut HeartbeatRequest) -> Report {
        let state = self.lock();
        let report = match state.telling.full {
            Some(full) => state.report_page(full),
            None => state.report_changes(),
        };
        let replica = |id: &ContainerId| state.replicas.get(id).map(|replica| replica.to_proto(*id));
        request.containers = report.containers.iter().filter_map(replica).collect();
        request.containers_gone = report.gone.iter().map(|container| container.0).collect();
        (request.report_begins, request.report_ends) = (report.begins, report.ends);
        report
    }

    /// Counts a report as told: SCM took the heartbeat with it.
    pub(crate) fn taken(&self, report: &Report) {
        let mut state = self.lock();
        let telling = &mut state.telling;
        for container in &report.containers {
            take_up_to(&mut telling.changed, container, report.up_to);
        }
        for container in &report.gone {
            take_up_to(&mut telling.gone, container, report.up_to);
        }
        // A full report goes on only when no other was asked for meanwhile.
        if let Some(full) = telling.full.filter(|full| report.full == Some(full.asked)) {
            let after = report.containers.last().copied();
            telling.full = if report.ends { None } else { Some(Full { after, ..full }) };
        }
    }
}

impl State {
    fn report_page(&self, full: Full) -> Report {
        let Full { asked, after } = full;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest =
            self.replicas.range((from, Bound::Unbounded)).map(|(container, _)| *container).peekable();
        let containers = self.page_of(&mut rest);
        let ends = rest.peek().is_none();
        let room = REPORT_REPLICAS_MAX - containers.len();
        Report {
            containers,
            // Replicas that went since the full report began: SCM may have them by an earlier part.
            gone: self.telling.gone.keys().take(room).copied().collect(),
            up_to: self.telling.changes,
            begins: after.is_none(),
            ends,
            full: Some(asked),
            has_more: !ends,
        }
    }

    fn report_changes(&self) -> Report {
        let Telling { changes, changed, gone, .. } = &self.telling;
        let mut rest = changed.keys().copied().peekable();
        let containers = self.page_of(&mut rest);
        let is_cut = rest.peek().is_some();
        let room = REPORT_REPLICAS_MAX - containers.len();
        Report {
            containers,
            gone: gone.keys().take(room).copied().collect(),
            up_to: *changes,
            begins: false,
            ends: false,
            full: None,
            has_more: is_cut || gone.len() > room,
        }
    }

    /// Takes as many containers as have room in one heartbeat.
    fn page_of(&self, rest: &mut Peekable<impl Iterator<Item = ContainerId>>) -> Vec<ContainerId> {
        let mut parts = 0;
        let mut has_room = |container: &ContainerId| {
            let terms = self.replicas.get(container).map_or(0, |it| it.terms.ends.len().min(TERMS_TOLD_MAX));
            parts += 1 + terms;
            parts <= REPORT_PARTS_MAX
        };
        std::iter::from_fn(|| rest.next_if(&mut has_room)).take(REPORT_REPLICAS_MAX).collect()
    }
}

fn take_up_to(changes: &mut BTreeMap<ContainerId, Change>, container: &ContainerId, up_to: Change) {
    if changes.get(container).is_some_and(|change| *change <= up_to) {
        changes.remove(container);
    }
}
