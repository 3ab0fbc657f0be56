//! The planner of replication says what is wrong with a container's replicas, and what is to be done about
//! it: a pure function of what is known of the container, of the nodes, and of what has been asked already.

use super::tasks::{Copies, Order, Tasks};
use crate::member_view::MEMBERS;
use crate::quality::{Discarded, Quality, differ, is_empty, is_shared, is_without_log, quality, shares_all};
use crate::racks::{Rack, spread, wanted};
use crate::tables::container_state;
use planted::Bug;
use proto::scm::{
    ContainerRecord, ContainerReplica, ContainerState, ContainerTrouble, DeleteReplica, NodeDuty, NodeState,
    TaskKind,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// The number of good replicas that a container should have, and that of those which must be in service while
/// one is in maintenance.
pub(crate) const REPLICAS: usize = MEMBERS;
pub(crate) const REPLICAS_BESIDES_MAINTENANCE: usize = 2;
/// The time for which it counts that all of a replica was read.
pub(super) const CHECK_COUNTS_FOR: Duration = Duration::from_secs(3600);

/// A node as the planner sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeView {
    pub(crate) state: NodeState,
    pub(crate) duty: NodeDuty,
    pub(crate) rack: Rack,
    /// Whether all replicas of the node are known.
    pub(crate) complete: bool,
    /// The capacity of the node's working disks.
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    /// The room of the disk that has most, beyond what it keeps for itself.
    pub(crate) room_bytes: u64,
}

impl NodeView {
    /// Whether the node's replicas count towards three: it stays, and it is there or will be.
    pub(crate) fn counts(&self) -> bool {
        match self.duty {
            NodeDuty::NodeInService | NodeDuty::Unspecified => self.state != NodeState::NodeDead,
            NodeDuty::NodeEnteringMaintenance | NodeDuty::NodeInMaintenance => true,
            NodeDuty::NodeDecommissioning | NodeDuty::NodeDecommissioned => false,
        }
    }

    pub(crate) fn in_service(&self) -> bool {
        self.duty == NodeDuty::NodeInService && self.state != NodeState::NodeDead
    }

    /// A firm node is in service, speaks, and has told of all its replicas: it may be relied upon when
    /// something is deleted.
    pub(crate) fn is_firm(&self) -> bool {
        self.in_service() && self.state == NodeState::NodeHealthy && self.complete
    }

    /// The space that is used, in millionths of the capacity.
    pub(crate) fn utilization(&self) -> u64 {
        let used = self.capacity_bytes.saturating_sub(self.free_bytes);
        match self.capacity_bytes {
            0 => 1_000_000,
            capacity => (u128::from(used) * 1_000_000 / u128::from(capacity)) as u64,
        }
    }

    pub(crate) fn has_room_for(&self, bytes: u64, keep_free_percent: u64) -> bool {
        let kept_free = self.capacity_bytes / 100 * keep_free_percent;
        self.room_bytes >= bytes && self.free_bytes >= bytes.saturating_add(kept_free)
    }
}

pub(crate) type NodeViews = BTreeMap<NodeId, NodeView>;

/// The number of racks in which the replicas of a container should stand.
pub(crate) fn racks_wanted(nodes: &NodeViews) -> usize {
    wanted(nodes.values().filter(|view| view.in_service()).map(|view| view.rack))
}

/// A container with what is known of it.
pub(crate) struct ContainerView<'a> {
    pub(crate) record: &'a ContainerRecord,
    /// Whether the container's pipeline is over: no log writes to its replicas.
    pub(crate) pipeline_over: bool,
    /// Whether the container is deleted, and its replicas are not needed either to tell where a log ended:
    /// all of its pipeline's containers are decided.
    pub(crate) is_dispensable: bool,
    pub(crate) replicas: Vec<(NodeId, &'a ContainerReplica)>,
    /// Nodes whose replica is on a lost disk: it may come back with the disk, so they get no other one.
    pub(crate) on_lost_disks: BTreeSet<NodeId>,
    /// Nodes with a replica on a disk that does not work at the moment: the replica counts, and nothing
    /// relies on it.
    pub(crate) on_failing_disks: BTreeSet<NodeId>,
    /// Nodes that are dead, and not in maintenance: their replicas come back with them, or never.
    pub(crate) on_dead_nodes: BTreeSet<NodeId>,
    /// Members of the pipeline that have not come to the container's end yet: their logs may still write it.
    pub(crate) behind: BTreeSet<NodeId>,
    /// The nodes of those members behind that will come to the end.
    pub(crate) coming: BTreeSet<NodeId>,
    /// Nodes whose replica has been told of for long enough as going on past the container.
    pub(crate) ahead_is_told: BTreeSet<NodeId>,
}

impl<'a> ContainerView<'a> {
    /// The quality of a replica beside the others, which [`quality`] does not look at. One that ends past the
    /// container without a block is only that of a leader that began a term there; of one with blocks it is
    /// not known whether they are those of the others. A replica whose log could not be read is as good as
    /// its end only where there is no better one: what damaged the log may have damaged its records. A
    /// replica that is not good, and knows more committed than the good ones, is the last that has it; one
    /// without its log may be, whatever it knows.
    pub(crate) fn quality(&self, replica: &ContainerReplica) -> Quality {
        let alone = match quality(self.record, replica) {
            Quality::GoodUnmarked if self.is_without_log_beside_better(replica) => Quality::Bad,
            quality => quality,
        };
        match alone {
            Quality::Ahead | Quality::Stale | Quality::Bad if self.is_shared(replica) == Some(false) => {
                Quality::Diverged
            }
            Quality::Ahead if is_empty(replica) && self.good().next().is_some() => Quality::Stale,
            Quality::Stale if self.may_have_acknowledged_more(replica) => Quality::Ahead,
            Quality::Bad if self.may_have_acknowledged_more(replica) && replica.unhealthy.is_empty() => {
                Quality::Ahead
            }
            quality => quality,
        }
    }

    fn is_without_log_beside_better(&self, replica: &ContainerReplica) -> bool {
        let has_its_log =
            |other: &ContainerReplica| quality(self.record, other).is_good() && !is_without_log(other);
        let mut there = self.replicas.iter().filter(|(node, _)| !self.on_dead_nodes.contains(node));
        is_without_log(replica) && there.any(|(_, other)| has_its_log(other))
    }

    /// Whether what the replica knows to be committed stands in a good one. Where it does not, the replica is
    /// all that is left of it, and never deleted; `None` as long as no good one has been read.
    pub(crate) fn is_shared(&self, replica: &ContainerReplica) -> Option<bool> {
        is_shared(replica, self.good())
    }

    /// Whether the replica is without its log, which alone knew how far its records are committed, and has
    /// some that no good one has; also where nobody will ever know.
    pub(crate) fn may_have_acknowledged_more(&self, replica: &ContainerReplica) -> bool {
        self.is_of_lost_log(replica)
            && shares_all(replica, self.good())
                .map_or(!self.will_be_compared(replica), |shares_all| !shares_all)
    }

    /// Whether it is not known yet what a replica without its log has, and will be.
    pub(crate) fn is_yet_to_be_compared(&self, replica: &ContainerReplica) -> bool {
        self.is_of_lost_log(replica)
            && shares_all(replica, self.good()).is_none()
            && self.will_be_compared(replica)
    }

    fn is_of_lost_log(&self, replica: &ContainerReplica) -> bool {
        let is_closed = container_state(self.record) == ContainerState::ContainerClosed;
        is_closed && is_without_log(replica) && !is_empty(replica)
    }

    /// Whether the replica, or all good ones, have yet to be read as a whole.
    fn will_be_compared(&self, replica: &ContainerReplica) -> bool {
        let is_read = |replica: &ContainerReplica| !replica.terms.is_empty();
        replica.unhealthy.is_empty() && !(is_read(replica) && self.good().any(is_read))
    }

    /// Whether a good replica has been read since it changed last: before that nothing shows that another one
    /// is of another history.
    fn is_compared(&self) -> bool {
        self.good().any(|replica| !replica.hash.is_empty())
    }

    /// The good replicas that are there, or are expected back.
    fn good(&self) -> impl Iterator<Item = &'a ContainerReplica> {
        let is_good = |replica: &ContainerReplica| {
            quality(self.record, replica).is_good() && !self.is_without_log_beside_better(replica)
        };
        let there = self.replicas.iter().copied().filter(|(node, _)| !self.on_dead_nodes.contains(node));
        there.map(|(_, replica)| replica).filter(move |replica| is_good(replica))
    }

    /// Whether good replicas, other than those of dead nodes, have other bytes. Nobody knows which of them
    /// has what was acknowledged: each is kept, and a node that leaves with one takes it along. A replica
    /// without its log may have a tail beyond its end, and is not compared where there is a better one.
    pub(crate) fn good_ones_differ(&self, nodes: &NodeViews) -> bool {
        let is_there = |node: &NodeId| nodes.get(node).is_none_or(|view| view.state != NodeState::NodeDead);
        let there = self.replicas.iter().filter(|(node, _)| is_there(node)).map(|(_, replica)| *replica);
        differ(there.filter(|replica| self.quality(replica).is_good()))
    }

    /// Whether good replicas, other than those of dead nodes, are known to be alike. Until all have discarded
    /// the same their hashes say nothing; and the one that has discarded most may be the only one that knows
    /// what OM has forgotten.
    pub(crate) fn good_ones_agree(&self, nodes: &NodeViews) -> bool {
        let is_there = |node: &NodeId| nodes.get(node).is_none_or(|view| view.state != NodeState::NodeDead);
        let there = self.replicas.iter().filter(|(node, _)| is_there(node)).map(|(_, replica)| *replica);
        let mut discarded = there.filter(|replica| self.quality(replica).is_good()).map(Discarded::of);
        let first = discarded.next();
        discarded.all(|other| Some(other) == first) && !self.good_ones_differ(nodes)
    }
}

/// The planner's limits, and what is known of the nodes.
pub(crate) struct Limits<'a> {
    pub(crate) nodes: &'a NodeViews,
    /// Whether every node that may have replicas has told of all of them, or is dead.
    pub(crate) all_known: bool,
    pub(crate) copies_per_node_max: usize,
    pub(crate) tasks_per_node_max: usize,
    pub(crate) keep_free_percent: u64,
    pub(crate) ahead_kept: Duration,
    pub(crate) now: Instant,
    pub(crate) now_ms: u64,
}

/// The planner's findings on a container.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Findings {
    pub(crate) troubles: Vec<ContainerTrouble>,
    pub(crate) orders: Vec<(NodeId, Order)>,
    /// The reason why not all lacking replicas are being copied, if they are not.
    pub(crate) wait: Option<CopyWait>,
}

/// The reason for which a container that lacks replicas waits: the first that applies, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CopyWait {
    /// A node that is not dead has not told of all it has.
    Reports,
    /// No good replica is on a node that speaks.
    Source,
    /// All nodes that may be relied upon, for a misplaced container those in other racks, have a replica
    /// already, had one, or are to get one.
    Node,
    /// The nodes without a replica have no room for one.
    Room,
    /// The nodes with room have enough to do, or failed at a copy a moment ago, or the sources are busy.
    Turn,
}

pub(crate) fn examine(
    known: &ContainerView<'_>,
    limits: &Limits<'_>,
    tasks: &Tasks,
    copies: &Copies,
) -> Findings {
    let sorted = Sorted::new(known, limits, tasks);
    let is_closed = container_state(known.record) == ContainerState::ContainerClosed;
    let orders = match container_state(known.record) {
        ContainerState::ContainerClosed => plan_closed(known, &sorted, limits, tasks, copies),
        ContainerState::ContainerDeleted if known.is_dispensable => plan_deleted(known, limits, tasks),
        _ => Vec::new(),
    };
    let targets: Vec<NodeId> =
        orders.iter().filter(|(_, order)| order.is_copy()).map(|(node, _)| *node).collect();
    let waits = is_closed && sorted.lacking(limits) > sorted.copying.len() + targets.len();
    let wait = waits.then(|| copy_wait(known, &sorted, limits, &targets));
    Findings { troubles: troubles(known, &sorted, limits), orders, wait }
}

/// The reason why those copies wait that are not going to `targets`.
fn copy_wait(
    known: &ContainerView<'_>,
    sorted: &Sorted<'_>,
    limits: &Limits<'_>,
    targets: &[NodeId],
) -> CopyWait {
    let bytes = bytes_of(known);
    let crowded: BTreeSet<Rack> = match sorted.is_misplaced(limits) {
        true => racks_of(&sorted.counted, limits).collect(),
        false => BTreeSet::new(),
    };
    let free = free_nodes(known, sorted, limits);
    let mut free =
        free.filter(|(node, view)| !targets.contains(node) && !crowded.contains(&view.rack)).peekable();
    match () {
        () if !limits.all_known => CopyWait::Reports,
        () if sorted.sources.is_empty() => CopyWait::Source,
        () if free.peek().is_none() => CopyWait::Node,
        () if !free.any(|(_, view)| view.has_room_for(bytes, limits.keep_free_percent)) => CopyWait::Room,
        () => CopyWait::Turn,
    }
}

/// A container's replicas, sorted by what they are worth.
struct Sorted<'a> {
    /// Nodes that count and have a good replica, and members that will have one.
    counted: BTreeSet<NodeId>,
    /// The number of counted nodes that are in service; the others are in maintenance.
    counted_in_service: usize,
    /// Good replicas that may be relied upon when something is deleted: none of them is going to be.
    firm: Vec<(NodeId, &'a ContainerReplica)>,
    /// Nodes that speak and have a good replica to copy from.
    sources: Vec<NodeId>,
    good: usize,
    /// Bad and stale replicas on nodes that speak; a stale one only where all that it knows committed stands
    /// in a good one, a bad one only once a good one was read, and while the good ones have the same bytes.
    worthless: Vec<(NodeId, &'a ContainerReplica)>,
    copying: Vec<NodeId>,
    deleting: Vec<NodeId>,
}

impl<'a> Sorted<'a> {
    fn new(known: &ContainerView<'a>, limits: &Limits<'_>, tasks: &Tasks) -> Sorted<'a> {
        let container = ContainerId(known.record.container);
        let deleting = tasks.nodes_with(TaskKind::TaskDelete, container);
        let view = |node: &NodeId| limits.nodes.get(node).copied();
        let mut sorted = Sorted {
            counted: known
                .coming
                .iter()
                .filter(|node| view(node).is_some_and(|view| view.counts()))
                .copied()
                .collect(),
            counted_in_service: 0,
            firm: Vec::new(),
            sources: Vec::new(),
            good: 0,
            worthless: Vec::new(),
            copying: tasks.nodes_with(TaskKind::TaskCopy, container),
            deleting,
        };
        for &(node, replica) in &known.replicas {
            let Some(of_node) = view(&node) else { continue };
            let is_readable = !known.on_failing_disks.contains(&node);
            let quality = match known.quality(replica) {
                Quality::Ahead if known.ahead_is_told.contains(&node) => Quality::Stale,
                quality => quality,
            };
            // Either may be the last that has what was acknowledged.
            let is_in_doubt = match quality {
                Quality::Stale | Quality::Bad if known.is_yet_to_be_compared(replica) => true,
                Quality::Stale => known.is_shared(replica) != Some(true),
                Quality::Bad => !known.is_compared() || known.good_ones_differ(limits.nodes),
                _ => false,
            };
            if is_in_doubt {
                continue;
            }
            sorted.sort(node, replica, of_node, quality, is_readable);
        }
        let in_service = |node: &&NodeId| view(node).is_some_and(|view| view.in_service());
        sorted.counted_in_service = sorted.counted.iter().filter(in_service).count();
        sorted
    }

    fn sort(
        &mut self,
        node: NodeId,
        replica: &'a ContainerReplica,
        view: NodeView,
        quality: Quality,
        is_readable: bool,
    ) {
        let going = self.deleting.contains(&node);
        if quality.is_good() && !going {
            self.good += usize::from(view.counts() || view.state != NodeState::NodeDead);
            if view.counts() {
                self.counted.insert(node);
            }
            if view.is_firm() && is_readable {
                self.firm.push((node, replica));
            }
            if view.state == NodeState::NodeHealthy && is_readable {
                self.sources.push(node);
            }
        }
        if matches!(quality, Quality::Bad | Quality::Stale) && !going && view.state == NodeState::NodeHealthy
        {
            self.worthless.push((node, replica));
        }
    }

    /// The number of good replicas that are still to be made.
    fn lacking(&self, limits: &Limits<'_>) -> usize {
        let in_maintenance = self.counted.len() > self.counted_in_service;
        let besides = if in_maintenance { REPLICAS_BESIDES_MAINTENANCE } else { 0 };
        let for_three = REPLICAS.saturating_sub(self.counted.len());
        let in_one_rack = usize::from(self.is_misplaced(limits));
        for_three.max(besides.saturating_sub(self.counted_in_service)).max(in_one_rack)
    }

    /// Whether there are enough good replicas, and in too few racks.
    fn is_misplaced(&self, limits: &Limits<'_>) -> bool {
        self.counted.len() >= REPLICAS && spread(racks_of(&self.counted, limits)) < racks_wanted(limits.nodes)
    }
}

fn plan_closed(
    known: &ContainerView<'_>,
    sorted: &Sorted<'_>,
    limits: &Limits<'_>,
    tasks: &Tasks,
    copies: &Copies,
) -> Vec<(NodeId, Order)> {
    let deletion = plan_deletion(known, sorted, limits, tasks);
    let mut orders = plan_marks(known, limits, tasks);
    // What is to go is not changed: its node would take it for another one that was told of as gone.
    orders.retain(|(node, _)| !sorted.deleting.contains(node) && !deletion.iter().any(|(of, _)| of == node));
    let lacking = sorted.lacking(limits).saturating_sub(sorted.copying.len());
    if lacking > 0 && limits.all_known {
        orders.extend(plan_copies(known, sorted, limits, tasks, copies, lacking));
    }
    orders.extend(deletion);
    orders
}

/// The orders to mark as closed the replicas that ended by themselves and are what the container is. One
/// without its log is that only where no other is, and those of nodes that have yet to tell may be.
fn plan_marks(known: &ContainerView<'_>, limits: &Limits<'_>, tasks: &Tasks) -> Vec<(NodeId, Order)> {
    let ContainerRecord { container, last_term, last_index, .. } = *known.record;
    let container = ContainerId(container);
    let unmarked = known.replicas.iter().filter(|(node, replica)| {
        // Until its node has let go of the log it may turn out that this is lost.
        known.quality(replica) == Quality::GoodUnmarked
            && replica.released
            && (limits.all_known || !is_without_log(replica))
            && may_ask(*node, TaskKind::TaskClose, container, limits, tasks)
    });
    unmarked.map(|(node, _)| (*node, Order::Close { container, last_term, last_index })).collect()
}

fn plan_copies(
    known: &ContainerView<'_>,
    sorted: &Sorted<'_>,
    limits: &Limits<'_>,
    tasks: &Tasks,
    copies: &Copies,
    count: usize,
) -> Vec<(NodeId, Order)> {
    let mut sources: Vec<(usize, NodeId)> =
        sorted.sources.iter().map(|node| (copies.from(*node), *node)).collect();
    let bytes = bytes_of(known);
    let container = ContainerId(known.record.container);
    let mut targets: Vec<(NodeId, NodeView)> = targets(known, sorted, limits, bytes)
        .filter(|(node, _)| !tasks.avoids(*node, TaskKind::TaskCopy, container, limits.now))
        .collect();
    let is_busy = |node: NodeId| copies.to(node) >= limits.copies_per_node_max;
    let mut racks: BTreeSet<Rack> = racks_of(sorted.counted.iter().chain(&sorted.copying), limits).collect();
    let wanted = racks_wanted(limits.nodes);
    // A misplaced container already has three good replicas: a copy goes to another rack, or nowhere.
    let only_elsewhere = sorted.is_misplaced(limits);
    let mut orders = Vec::new();
    while orders.len() < count {
        let crowds = |rack: &Rack| racks.len() < wanted && racks.contains(rack);
        // Where nodes in other racks are merely busy, their turn is waited for: a copy beside the others
        // would have to be made once more. Where there is only one replica, that is not waited for: a second
        // one anywhere comes first.
        let waits = sorted.counted.len() + orders.len() > 1
            && targets.iter().any(|(node, view)| is_busy(*node) && !crowds(&view.rack));
        let candidates = targets
            .iter()
            .filter(|(node, view)| !is_busy(*node) && !(crowds(&view.rack) && (only_elsewhere || waits)));
        let best = candidates
            .min_by_key(|(node, view)| (crowds(&view.rack), copies.to(*node), view.utilization(), *node));
        let Some(&(node, view)) = best else { break };
        targets.retain(|(other, _)| *other != node);
        racks.insert(view.rack);
        // The least busy source first; a copy counts at that one, and the others are there in case it fails.
        sources.sort_unstable();
        let Some((busy, _)) = sources.first_mut().filter(|(busy, _)| *busy < limits.copies_per_node_max)
        else {
            break;
        };
        *busy += 1;
        let in_order: Vec<NodeId> = sources.iter().map(|(_, node)| *node).collect();
        orders.push((node, copy(known, &in_order, bytes, false)));
    }
    orders
}

pub(crate) fn copy(known: &ContainerView<'_>, sources: &[NodeId], bytes: u64, to_balance: bool) -> Order {
    Order::Copy {
        container: ContainerId(known.record.container),
        pipeline: PipelineId(known.record.pipeline),
        sources: sources.to_vec(),
        hash: hash_of(known, sources),
        bytes,
        to_balance,
    }
}

/// The hash on which those of the sources agree that have been read; empty where none was, or they do not. A
/// node that is dead may have the hash of before something was discarded, which no source would have.
fn hash_of(known: &ContainerView<'_>, sources: &[NodeId]) -> String {
    let good = known.replicas.iter().filter(|(node, _)| sources.contains(node));
    let mut hashes = good.map(|(_, replica)| &replica.hash).filter(|hash| !hash.is_empty());
    match hashes.next() {
        Some(first) if hashes.all(|hash| hash == first) => first.clone(),
        _ => String::new(),
    }
}

pub(crate) fn bytes_of(known: &ContainerView<'_>) -> u64 {
    known.replicas.iter().map(|(_, replica)| replica.disk_bytes.max(replica.payload_bytes)).max().unwrap_or(0)
}

/// The nodes that may get a replica.
fn targets<'a>(
    known: &'a ContainerView<'_>,
    sorted: &'a Sorted<'_>,
    limits: &'a Limits<'_>,
    bytes: u64,
) -> impl Iterator<Item = (NodeId, NodeView)> + 'a {
    free_nodes(known, sorted, limits)
        .filter(move |(_, view)| view.has_room_for(bytes, limits.keep_free_percent))
}

/// Nodes that may be relied upon and have no replica, whether or not there is room for one.
fn free_nodes<'a>(
    known: &'a ContainerView<'_>,
    sorted: &'a Sorted<'_>,
    limits: &'a Limits<'_>,
) -> impl Iterator<Item = (NodeId, NodeView)> + 'a {
    let free = move |node: &NodeId| {
        !known.replicas.iter().any(|(holder, _)| holder == node)
            && !known.on_lost_disks.contains(node)
            && !known.behind.contains(node)
            && !sorted.counted.contains(node)
            && !sorted.copying.contains(node)
    };
    let free = move |(node, view): &(&NodeId, &NodeView)| view.is_firm() && free(node);
    limits.nodes.iter().filter(free).map(|(node, view)| (*node, *view))
}

/// Plans at most one deletion at a time, so that each is decided on what the one before has left, or the
/// checks that come before it.
fn plan_deletion(
    known: &ContainerView<'_>,
    sorted: &Sorted<'_>,
    limits: &Limits<'_>,
    tasks: &Tasks,
) -> Vec<(NodeId, Order)> {
    if !sorted.deleting.is_empty() {
        return Vec::new();
    }
    let container = ContainerId(known.record.container);
    let may = |(node, replica): &&(NodeId, &ContainerReplica)| {
        replica.released
            && !tasks.is_asked(*node, TaskKind::TaskClose, container.0)
            && may_ask(*node, TaskKind::TaskDelete, container, limits, tasks)
    };
    let utilization = |node: &NodeId| limits.nodes.get(node).map_or(0, NodeView::utilization);
    let most_utilized = |replicas: &[(NodeId, &ContainerReplica)]| {
        let candidates = replicas.iter().filter(may).map(|(node, _)| *node);
        candidates.max_by_key(|node| (utilization(node), *node))
    };
    let early = if planted::has(Bug::CopiesCountEarly) { sorted.copying.len() } else { 0 };
    let firm = sorted.firm.len() + early;
    let enough = firm >= REPLICAS;
    let worthless = || most_utilized(&sorted.worthless);
    let surplus = || {
        if !known.good_ones_agree(limits.nodes) {
            return None;
        }
        let mut spare: Vec<_> =
            sorted.firm.iter().filter(|(node, _)| is_spare(*node, sorted, limits)).copied().collect();
        // A replica that is still to be marked as closed goes first, and is waited for: its node may take
        // long over that.
        let is_unmarked =
            |(_, replica): &(NodeId, &ContainerReplica)| known.quality(replica) == Quality::GoodUnmarked;
        if spare.iter().any(is_unmarked) {
            spare.retain(is_unmarked);
        }
        (firm > REPLICAS).then(|| most_utilized(&spare))?
    };
    let makes_room = !enough && must_make_room(known, sorted, limits);
    let victim = match enough || makes_room {
        true => worthless().or_else(surplus),
        false => None,
    };
    let is_victim = |(node, _): &&(NodeId, &ContainerReplica)| Some(*node) == victim;
    let Some((victim, replica)) = known.replicas.iter().find(is_victim) else { return Vec::new() };
    let kind = TaskKind::TaskCheck;
    let unread = if makes_room { unread(sorted, limits) } else { Vec::new() };
    // One that was read proves that nothing is lost. Another one that could not be read just now, for a
    // reason that says nothing of it, is not waited for.
    let is_tried = |node: &NodeId| tasks.avoids(*node, kind, container, limits.now);
    if !unread.is_empty() && (unread.len() == sorted.firm.len() || !unread.iter().all(is_tried)) {
        let may_check = |node: &NodeId| {
            let asked = tasks.of(*node).filter(|asked| asked.order.key().kind == kind).count();
            asked < limits.copies_per_node_max
                && !tasks.is_asked(*node, kind, container.0)
                && may_ask(*node, kind, container, limits, tasks)
        };
        let check = |node: NodeId| (node, Order::Check { container, asked_ms: limits.now_ms });
        return unread.into_iter().filter(may_check).map(check).collect();
    }
    let beside = sorted.firm.len().min(REPLICAS);
    vec![(*victim, Order::Delete { replica: DeleteReplica::of(replica), beside })]
}

fn racks_of<'a>(
    nodes: impl IntoIterator<Item = &'a NodeId>,
    limits: &Limits<'_>,
) -> impl Iterator<Item = Rack> {
    nodes.into_iter().filter_map(|node| limits.nodes.get(node).map(|view| view.rack))
}

/// Whether the other replicas stand in enough racks without that of `node`, or in as many as with it.
fn is_spare(node: NodeId, sorted: &Sorted<'_>, limits: &Limits<'_>) -> bool {
    let all = || sorted.firm.iter().map(|(node, _)| node);
    let with = spread(racks_of(all(), limits));
    let without = spread(racks_of(all().filter(|other| **other != node), limits));
    without >= with.min(racks_wanted(limits.nodes))
}

/// Whether a worthless replica must go first, since a good one can only be made where it is.
fn must_make_room(known: &ContainerView<'_>, sorted: &Sorted<'_>, limits: &Limits<'_>) -> bool {
    let nothing_coming = known.coming.is_empty() && sorted.copying.is_empty();
    !sorted.firm.is_empty()
        && sorted.lacking(limits) > 0
        && limits.all_known
        && nothing_coming
        && targets(known, sorted, limits, bytes_of(known)).next().is_none()
}

/// The nodes whose good replicas were not read as a whole lately. A replica that is worthless as a whole may
/// have the one block that all good ones turn out to lack: their hashes are of the heads of records alone.
fn unread(sorted: &Sorted<'_>, limits: &Limits<'_>) -> Vec<NodeId> {
    let was_read = |replica: &ContainerReplica| {
        // What was asked for by a clock that was ahead has no age.
        let age = limits.now_ms.checked_sub(replica.checked_ms).filter(|_| replica.checked_ms != 0);
        age.is_some_and(|age| u128::from(age) < CHECK_COUNTS_FOR.as_millis())
    };
    sorted.firm.iter().filter(|(_, replica)| !was_read(replica)).map(|(node, _)| *node).collect()
}

/// The deletions of the replicas of a container that holds nothing any more.
fn plan_deleted(known: &ContainerView<'_>, limits: &Limits<'_>, tasks: &Tasks) -> Vec<(NodeId, Order)> {
    let container = ContainerId(known.record.container);
    let may_go = |node: &NodeId, replica: &ContainerReplica| match known.quality(replica) {
        Quality::Diverged => false,
        Quality::Ahead => known.ahead_is_told.contains(node),
        _ => true,
    };
    let left = known.replicas.iter().filter(|(node, replica)| {
        replica.released
            && may_go(node, replica)
            && may_ask(*node, TaskKind::TaskDelete, container, limits, tasks)
    });
    let delete =
        |replica: &ContainerReplica| Order::Delete { replica: DeleteReplica::of(replica), beside: 0 };
    left.map(|(node, replica)| (*node, delete(replica))).collect()
}

fn may_ask(node: NodeId, kind: TaskKind, container: ContainerId, limits: &Limits<'_>, tasks: &Tasks) -> bool {
    limits.nodes.get(&node).is_some_and(|view| view.state == NodeState::NodeHealthy)
        && tasks.count_of(node) < limits.tasks_per_node_max
        && !tasks.avoids(node, kind, container, limits.now)
}

fn troubles(known: &ContainerView<'_>, sorted: &Sorted<'_>, limits: &Limits<'_>) -> Vec<ContainerTrouble> {
    use ContainerTrouble::*;
    let mut troubles = Vec::new();
    let state = container_state(known.record);
    let has = |quality| known.replicas.iter().any(|(_, replica)| known.quality(replica) == quality);
    troubles.extend(has(Quality::Diverged).then_some(ContainerDiverged));
    troubles.extend(has(Quality::Ahead).then_some(ContainerAhead));
    if state == ContainerState::ContainerDeleted {
        return troubles;
    }
    let is_closed = state == ContainerState::ContainerClosed;
    let quasi_closed = state == ContainerState::ContainerQuasiClosed;
    let nothing = is_closed && sorted.good == 0 || quasi_closed && known.replicas.is_empty();
    let mut found = |is: bool, trouble: ContainerTrouble| {
        if is {
            troubles.push(trouble);
        }
    };
    let is_missing = nothing && limits.all_known && known.coming.is_empty();
    found(is_missing, ContainerMissing);
    let misplaced = is_closed && sorted.is_misplaced(limits);
    // As long as not all nodes have told what they have, a replica that is not there is merely not known.
    let is_lacking = sorted.lacking(limits) > 0 && (sorted.good > 0 || limits.all_known && !is_missing);
    // A container that is not settled is not copied: a member is to come back, or somebody accepts what is
    // left.
    let is_there = |(node, _): &&(NodeId, &ContainerReplica)| {
        limits.nodes.get(node).is_some_and(|node| node.state != NodeState::NodeDead)
    };
    let there = known.replicas.iter().filter(is_there).count();
    let waits = quasi_closed && !nothing && limits.all_known && there < REPLICAS;
    found(is_closed && is_lacking && !misplaced || waits, ContainerUnderReplicated);
    found(is_closed && sorted.firm.len() > REPLICAS, ContainerOverReplicated);
    found(misplaced, ContainerMisReplicated);
    found(known.replicas.iter().any(|(_, replica)| !replica.unhealthy.is_empty()), ContainerUnhealthy);
    found(is_different(known, limits.nodes, is_closed, quasi_closed), ContainerDifferent);
    troubles
}

fn is_different(known: &ContainerView<'_>, nodes: &NodeViews, is_closed: bool, quasi_closed: bool) -> bool {
    if quasi_closed {
        let mut ends = known.replicas.iter().map(|(_, replica)| (replica.last_term, replica.last_index));
        let first = ends.next();
        return ends.any(|end| Some(end) != first);
    }
    let stale = |(_, replica): &(NodeId, &ContainerReplica)| known.quality(replica) == Quality::Stale;
    is_closed && (known.replicas.iter().any(stale) || known.good_ones_differ(nodes))
}
