//! The obstacles to discarding blocks of a container: a function of what is known of it. In doubt nothing is
//! discarded.

use super::progress::ContainerProgress;
use crate::member_view::MAJORITY;
use crate::quality::{Discarded, Quality};
use crate::replication::{ContainerView, NodeView, Tasks, known};
use crate::tables::container_state;
use crate::world::World;
use planted::Bug;
use proto::scm::{ContainerReplica, ContainerState, DiscardState, EmptiedContainer, NodeState, TaskKind};
use types::{ContainerId, NodeId};

/// A closed container with nothing in the way: two replicas count at least, and each that does is good,
/// closed, released, and on a node that speaks.
pub(super) struct Clear<'a> {
    pub(super) replicas: Vec<(NodeId, &'a ContainerReplica)>,
}

impl Clear<'_> {
    /// Whether all replicas have discarded the same.
    pub(super) fn is_equal(&self) -> bool {
        let mut discarded = self.replicas.iter().map(|(_, replica)| Discarded::of(replica));
        let first = discarded.next();
        discarded.all(|of| Some(of) == first)
    }

    /// The node whose replica has discarded most, and those that have not discarded the same.
    pub(super) fn behind_the_first(&self) -> (NodeId, Vec<NodeId>) {
        let most = self.replicas.iter().max_by_key(|(node, replica)| (Discarded::of(replica), *node));
        let (first, most) = most.expect("a clear container has a replica");
        let others = self.replicas.iter().filter(|(_, it)| Discarded::of(it) != Discarded::of(most));
        (*first, others.map(|(node, _)| *node).collect())
    }

    /// The note for SCM's log that nothing is left in the container, once one of its replicas has been read
    /// since.
    pub(super) fn emptied(&self) -> Option<EmptiedContainer> {
        let is_empty = |(_, replica): &(NodeId, &ContainerReplica)| {
            replica.blocks == 0 && replica.payload_bytes == 0 && replica.discarded_blocks > 0
        };
        if !self.is_equal() || !self.replicas.iter().all(is_empty) {
            return None;
        }
        let (_, read) = self.replicas.iter().find(|(_, replica)| !replica.terms.is_empty())?;
        let ContainerReplica { container, terms, lacks_earlier_terms, .. } = *read;
        let (terms, lacks_earlier_terms) = (terms.clone(), *lacks_earlier_terms);
        Some(EmptiedContainer { container: *container, terms, lacks_earlier_terms })
    }
}

/// The progress of discards in a container that SCM has as deleted: whether a replica is left.
pub(super) fn deleted(container: ContainerId, world: &World<'_>) -> ContainerProgress {
    let left = world.nodes.replicas().of(container).map(|(node, _)| node).find(|node| !is_dead(*node, world));
    match (left, silent(world)) {
        (Some(node), _) => {
            ContainerProgress::because(DiscardState::DiscardUnderWay, "its last replicas go").at(node)
        }
        (None, Some(away)) => away,
        (None, None) => ContainerProgress::of(DiscardState::DiscardGone),
    }
}

/// The container, if blocks of it may be discarded now, or what is in the way.
pub(super) fn clear<'a>(
    container: ContainerId,
    world: &World<'a>,
    tasks: &Tasks,
) -> Result<Clear<'a>, ContainerProgress> {
    let Some(known) = known(container, world) else {
        return Err(ContainerProgress::of(DiscardState::DiscardUnknown));
    };
    paused(world).map_or(Ok(()), Err)?;
    match container_state(known.record) {
        ContainerState::ContainerOpen | ContainerState::Unspecified => {
            return Err(ContainerProgress::of(DiscardState::DiscardOpen));
        }
        ContainerState::ContainerQuasiClosed => {
            let why = "its pipeline lost its majority: what the container is has not been settled";
            return Err(ContainerProgress::because(DiscardState::DiscardTroubled, why));
        }
        ContainerState::ContainerDeleted => return Err(deleted(container, world)),
        ContainerState::ContainerClosed => {}
    }
    silent(world).map_or(Ok(()), Err)?;
    moving(&known, tasks).map_or(Ok(()), Err)?;
    let there = known.replicas.iter().filter(|(node, _)| !is_dead(*node, world));
    let replicas: Vec<(NodeId, &ContainerReplica)> = there.copied().collect();
    // A dead node may come back with blocks that were discarded meanwhile. They are discarded there, too, as
    // long as a replica is left that knows of them: one alone may be lost like any other.
    if replicas.len() < MAJORITY {
        let why = "fewer than two replicas of it are on nodes that are not dead";
        return Err(ContainerProgress::because(DiscardState::DiscardTroubled, why));
    }
    replicas
        .iter()
        .find_map(|(node, replica)| of_replica(*node, replica, &known, world))
        .map_or(Ok(()), Err)?;
    if known.good_ones_differ(world.node_views()) {
        let why = "its replicas have other bytes than each other";
        return Err(ContainerProgress::because(DiscardState::DiscardTroubled, why));
    }
    Ok(Clear { replicas })
}

/// The replicas that count, each by its node and disk: those on nodes that are not dead, whatever else is in
/// the way. None while one is copied or deleted: another may take its place on that disk.
pub(super) fn counted<'a>(
    container: ContainerId,
    world: &'a World<'_>,
    tasks: &Tasks,
) -> Vec<(NodeId, &'a [u8])> {
    let moves = |kind| !tasks.nodes_with(kind, container).is_empty();
    if moves(TaskKind::TaskCopy) || moves(TaskKind::TaskDelete) {
        return Vec::new();
    }
    let replicas = world.nodes.replicas().of(container);
    let there = replicas.filter(|(node, _)| !is_dead(*node, world));
    there.map(|(node, replica)| (node, &replica.disk[..])).collect()
}

/// The reason why nothing is discarded at all, if there is one.
fn paused(world: &World<'_>) -> Option<ContainerProgress> {
    let why = match (world.in_safe_mode, world.tables.switches().reclaim_stopped) {
        (true, _) => "SCM is in safe mode",
        (false, true) => "an operator has stopped it: flotilla admin reclaim start",
        (false, false) => return None,
    };
    Some(ContainerProgress::because(DiscardState::DiscardPaused, why))
}

/// The obstacle of a silent node: it may have replicas that this leader has not heard of.
fn silent(world: &World<'_>) -> Option<ContainerProgress> {
    if planted::has(Bug::GoneEarly) {
        return None;
    }
    let has_told = |view: &NodeView| view.complete || view.state == NodeState::NodeDead;
    let (node, _) = world.node_views().iter().find(|(_, view)| !has_told(view))?;
    let why = "it has not told this SCM of all that it has";
    Some(ContainerProgress::because(DiscardState::DiscardAway, why).at(*node))
}

/// The obstacle of replicas that come or go.
fn moving(known: &ContainerView<'_>, tasks: &Tasks) -> Option<ContainerProgress> {
    let container = ContainerId(known.record.container);
    if let Some(node) = known.behind.first() {
        let why = "its log has not come to the end of the container";
        return Some(ContainerProgress::because(DiscardState::DiscardHeld, why).at(*node));
    }
    let asked = |kind| tasks.nodes_with(kind, container).first().copied();
    let copied =
        asked(TaskKind::TaskCopy).map(|node| ContainerProgress::troubled("it is being copied there", node));
    let deleted = || {
        asked(TaskKind::TaskDelete)
            .map(|node| ContainerProgress::troubled("its replica there is being deleted", node))
    };
    copied.or_else(deleted)
}

/// The obstacle on one node, if there is one.
fn of_replica(
    node: NodeId,
    replica: &ContainerReplica,
    known: &ContainerView<'_>,
    world: &World<'_>,
) -> Option<ContainerProgress> {
    let state = world.node_views().get(&node).map_or(NodeState::NodeStale, |view| view.state);
    if state != NodeState::NodeHealthy && !planted::has(Bug::GoneEarly) {
        return Some(
            ContainerProgress::because(DiscardState::DiscardAway, "it is silent, and has a replica").at(node),
        );
    }
    if known.on_failing_disks.contains(&node) {
        return Some(ContainerProgress::troubled("the disk of its replica there has failed or hangs", node));
    }
    let why = match known.quality(replica) {
        Quality::Good if replica.released => return None,
        Quality::Good => {
            let why = "a log there still reads it, until all members of its pipeline have what it has";
            return Some(ContainerProgress::because(DiscardState::DiscardHeld, why).at(node));
        }
        Quality::GoodUnmarked => "its replica there is yet to be marked as closed",
        Quality::Bad => "its replica there is unhealthy",
        Quality::Ahead => "its replica there goes on past its end",
        Quality::Diverged => "its replica there has what was committed and the others lack",
        Quality::Stale => "its replica there ends elsewhere than it does",
        Quality::Unfinished => "its replica there is not closed",
    };
    Some(ContainerProgress::troubled(why, node))
}

pub(super) fn is_dead(node: NodeId, world: &World<'_>) -> bool {
    world.node_views().get(&node).is_none_or(|view| view.state == NodeState::NodeDead)
}
