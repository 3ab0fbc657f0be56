//! SCM's metrics for Prometheus: all that its leader knows. Followers say only that they do not lead.

use crate::adoption::count_unknown_replicas;
use crate::leader::Leader;
use crate::member_view::PipelineView;
use crate::nodes::Nodes;
use crate::om_groups;
use crate::om_view::om_state;
use crate::registry::apart_clock;
use crate::replication::{CopyWait, Replication};
use crate::tables::{Tables, container_state, duty, om_duty};
use crate::world::World;
use ::metrics::{Exposition, Metric};
use proto::scm::{
    ContainerReplica, ContainerState, ContainerTrouble, DiscardState, NodeDuty, NodeState, PipelineState,
    TaskKind,
};
use std::collections::HashMap;
use tokio::time::Instant;
use types::ContainerId;

const LEADS: Metric = Metric { name: "flotilla_scm_leader", help: "1: this SCM leads and decides." };
const NODES: Metric = Metric { name: "flotilla_scm_nodes", help: "Datanodes by what their silence says." };
const DUTIES: Metric =
    Metric { name: "flotilla_scm_node_duties", help: "Datanodes by what operators want of them." };
const OMS: Metric = Metric { name: "flotilla_scm_oms", help: "OMs by what their silence says." };
const OM_DUTIES: Metric =
    Metric { name: "flotilla_scm_om_duties", help: "OMs by what operators want of them." };
const OM_GROUPS: Metric =
    Metric { name: "flotilla_scm_om_groups", help: "Groups of names that there are, or are to be." };
const OM_GROUPS_DOWN: Metric = Metric {
    name: "flotilla_scm_om_groups_down",
    help: "Groups of names that nobody leads, or that are not founded yet: nobody can change names in them.",
};
const OM_GROUPS_TROUBLED: Metric = Metric {
    name: "flotilla_scm_om_groups_troubled",
    help: "Groups of names that are not as they are to be: a member is away, does not run or does not come on, too.",
};
const CLOCKS: Metric = Metric {
    name: "flotilla_scm_clocks_apart",
    help: "Processes whose clock is too far from this SCM's: datanodes, and registered instances that tell theirs.",
};
const PIPELINES: Metric =
    Metric { name: "flotilla_scm_pipelines", help: "Pipelines that are not over, by state." };
const PIPELINES_LED: Metric = Metric {
    name: "flotilla_scm_pipelines_led",
    help: "Open pipelines whose leader speaks and can commit: where there is none, nothing can be written.",
};
const CONTAINERS: Metric = Metric { name: "flotilla_scm_containers", help: "Containers by state." };
const TROUBLES: Metric = Metric {
    name: "flotilla_scm_containers_troubled",
    help: "Containers by what is wrong with their replicas.",
};
const ADOPTED: Metric = Metric {
    name: "flotilla_scm_containers_adopted",
    help: "Containers that a forced reset had lost, and their replicas brought back.",
};
const UNKNOWN_REPLICAS: Metric = Metric {
    name: "flotilla_scm_replicas_unknown",
    help: "Replicas of containers that SCM does not know: nobody reads, copies or deletes them.",
};
const TASKS: Metric = Metric { name: "flotilla_scm_tasks", help: "What nodes are asked to do, by kind." };
const WAITS: Metric = Metric {
    name: "flotilla_scm_copies_waiting",
    help: "Containers that lack replicas of which not all are being copied, by what they wait for.",
};
const COPIES: Metric = Metric { name: "flotilla_scm_copies_total", help: "Replicas copied." };
const COPIES_FAILED: Metric = Metric {
    name: "flotilla_scm_copies_failed_total",
    help: "Copies that failed or showed no result in time.",
};
const DELETIONS: Metric = Metric { name: "flotilla_scm_deletions_total", help: "Replicas deleted." };
const RECLAIM: Metric = Metric {
    name: "flotilla_scm_reclaim_stopped",
    help: "1: an operator has stopped giving back what nobody names.",
};
const DISCARDS: Metric = Metric {
    name: "flotilla_scm_discards_waiting_blocks",
    help: "Blocks that groups of names asked for to go, by what their containers wait for.",
};
const DISCARDS_AGE: Metric = Metric {
    name: "flotilla_scm_discards_oldest_seconds",
    help: "How long ago this leader was first asked for blocks that have not gone yet.",
};
const REMEMBERED: Metric = Metric {
    name: "flotilla_scm_discards_remembered_blocks",
    help: "Blocks that SCM knows one by one, until they are gone from every replica and their groups have heard it.",
};
const GONE: Metric = Metric {
    name: "flotilla_scm_blocks_gone_total",
    help: "Blocks that were discarded in every replica of their containers.",
};
const EMPTIED: Metric = Metric {
    name: "flotilla_scm_containers_emptied",
    help: "Containers that were deleted as nothing was left in them.",
};
const REPLICA_BYTES: Metric = Metric {
    name: "flotilla_scm_replica_bytes",
    help: "Bytes of all replicas: live, discarded, given back of those, and what replicas take on disks.",
};
const MOVED: Metric =
    Metric { name: "flotilla_scm_balancer_moved_bytes_total", help: "Bytes moved for balance." };
const SAFE_MODE: Metric = Metric {
    name: "flotilla_scm_safe_mode",
    help: "1: too little is known to move or delete data, or an operator wants it so.",
};

pub(crate) fn expose(leader: Option<&Leader>, exposition: &mut Exposition) {
    exposition.gauge(LEADS, &[], u64::from(leader.is_some()));
    let Some(leader) = leader else { return };
    leader.plan(|world, replication| {
        let World { tables, nodes, now, .. } = *world;
        exposition.gauge(SAFE_MODE, &[], u64::from(world.in_safe_mode));
        expose_nodes(tables, nodes, now, exposition);
        expose_oms(world, exposition);
        exposition.gauge(CLOCKS, &[], clocks_apart(tables));
        expose_pipelines(world, exposition);
        expose_containers(tables, replication, exposition);
        let adopted = tables.containers().values().filter(|record| record.adopted).count();
        expose_space(world, replication, exposition);
        exposition.gauge(ADOPTED, &[], adopted as u64);
        exposition.gauge(UNKNOWN_REPLICAS, &[], count_unknown_replicas(tables, nodes) as u64);
        expose_waits(replication, exposition);
        expose_tasks(replication, exposition);
    });
}

/// Adds one gauge for each value of a label, also those that count nothing: an alert needs a zero to compare
/// with.
fn by_label<T: Copy + Eq + std::hash::Hash>(
    exposition: &mut Exposition,
    metric: Metric,
    label: &str,
    values: &[(T, &str)],
    found: impl Iterator<Item = T>,
) {
    let mut counts: HashMap<T, u64> = HashMap::new();
    found.for_each(|value| *counts.entry(value).or_default() += 1);
    for (value, name) in values {
        exposition.gauge(metric, &[(label, name)], counts.get(value).copied().unwrap_or(0));
    }
}

const STATES: [(NodeState, &str); 3] =
    [(NodeState::NodeHealthy, "healthy"), (NodeState::NodeStale, "stale"), (NodeState::NodeDead, "dead")];

fn expose_nodes(tables: &Tables, nodes: &Nodes, now: Instant, exposition: &mut Exposition) {
    by_label(exposition, NODES, "state", &STATES, tables.nodes().keys().map(|node| nodes.state(*node, now)));
    let duties = [
        (NodeDuty::NodeInService, "in_service"),
        (NodeDuty::NodeDecommissioning, "decommissioning"),
        (NodeDuty::NodeDecommissioned, "decommissioned"),
        (NodeDuty::NodeEnteringMaintenance, "entering_maintenance"),
        (NodeDuty::NodeInMaintenance, "in_maintenance"),
    ];
    by_label(exposition, DUTIES, "duty", &duties, tables.nodes().values().map(duty));
}

fn expose_oms(world: &World<'_>, exposition: &mut Exposition) {
    let tables = world.tables;
    by_label(exposition, OMS, "state", &STATES, tables.oms().keys().map(|om| om_state(world, *om)));
    let duties = [
        (NodeDuty::NodeInService, "in_service"),
        (NodeDuty::NodeDecommissioning, "decommissioning"),
        (NodeDuty::NodeDecommissioned, "decommissioned"),
    ];
    by_label(exposition, OM_DUTIES, "duty", &duties, tables.oms().values().map(om_duty));
    let groups = || om_groups::all(world);
    exposition.gauge(OM_GROUPS, &[], groups().len() as u64);
    let is_down = |group: &&u64| om_groups::is_down(world, tables.om_group(**group));
    exposition.gauge(OM_GROUPS_DOWN, &[], groups().iter().filter(is_down).count() as u64);
    let is_troubled = |group: &&u64| om_groups::problem(world, **group, tables.om_group(**group)).is_some();
    exposition.gauge(OM_GROUPS_TROUBLED, &[], groups().iter().filter(is_troubled).count() as u64);
}

/// The number of instances, datanodes among them, whose clocks are apart from SCM's.
fn clocks_apart(tables: &Tables) -> u64 {
    tables.directory().instances().filter(|instance| apart_clock(&instance.checks).is_some()).count() as u64
}

fn expose_pipelines(world: &World<'_>, exposition: &mut Exposition) {
    let states = [
        (PipelineState::PipelineAllocated, "allocated"),
        (PipelineState::PipelineOpen, "open"),
        (PipelineState::PipelineClosing, "closing"),
        (PipelineState::PipelineQuasiClosing, "quasi_closing"),
    ];
    by_label(
        exposition,
        PIPELINES,
        "state",
        &states,
        world.tables.unended_pipelines().map(|record| record.state()),
    );
    let takes_writes =
        |view: &&PipelineView<'_>| view.record.state() == PipelineState::PipelineOpen && view.is_led();
    let led = world.unended_pipelines().iter().filter(takes_writes).count();
    exposition.gauge(PIPELINES_LED, &[], led as u64);
}

fn expose_containers(tables: &Tables, replication: &Replication, exposition: &mut Exposition) {
    let states = [
        (ContainerState::ContainerOpen, "open"),
        (ContainerState::ContainerQuasiClosed, "quasi_closed"),
        (ContainerState::ContainerClosed, "closed"),
        (ContainerState::ContainerDeleted, "deleted"),
    ];
    by_label(exposition, CONTAINERS, "state", &states, tables.containers().values().map(container_state));
    let troubles = [
        (ContainerTrouble::ContainerMissing, "missing"),
        (ContainerTrouble::ContainerUnderReplicated, "under_replicated"),
        (ContainerTrouble::ContainerOverReplicated, "over_replicated"),
        (ContainerTrouble::ContainerMisReplicated, "mis_replicated"),
        (ContainerTrouble::ContainerUnhealthy, "unhealthy"),
        (ContainerTrouble::ContainerDifferent, "different"),
        (ContainerTrouble::ContainerAhead, "ahead"),
        (ContainerTrouble::ContainerDiverged, "diverged"),
    ];
    by_label(exposition, TROUBLES, "trouble", &troubles, replication.troubles.values().flatten().copied());
}

fn expose_waits(replication: &Replication, exposition: &mut Exposition) {
    let waits = [
        (CopyWait::Reports, "reports"),
        (CopyWait::Source, "source"),
        (CopyWait::Node, "node"),
        (CopyWait::Room, "room"),
        (CopyWait::Turn, "turn"),
    ];
    by_label(exposition, WAITS, "for", &waits, replication.waits.values().copied());
}

fn expose_space(world: &World<'_>, replication: &Replication, exposition: &mut Exposition) {
    let discards = &replication.discards;
    exposition.gauge(RECLAIM, &[], u64::from(world.tables.switches().reclaim_stopped));
    let states = [
        (DiscardState::DiscardUnderWay, "under_way"),
        (DiscardState::DiscardOpen, "open"),
        (DiscardState::DiscardHeld, "held"),
        (DiscardState::DiscardAway, "away"),
        (DiscardState::DiscardTroubled, "troubled"),
        (DiscardState::DiscardPaused, "paused"),
    ];
    for (state, name) in states {
        let waiting = || discards.waiting().filter(|waiting| waiting.progress.state == state);
        let asked = || waiting().flat_map(|waiting| waiting.asked.values());
        exposition.gauge(DISCARDS, &[("for", name)], asked().map(|asked| asked.blocks).sum());
        let ages = asked().map(|asked| world.now.saturating_duration_since(asked.since));
        exposition.gauge(DISCARDS_AGE, &[("for", name)], ages.max().unwrap_or_default().as_secs());
    }
    exposition.gauge(REMEMBERED, &[], discards.remembered() as u64);
    exposition.counter(GONE, &[], discards.blocks_gone);
    let emptied = world.tables.containers().values().filter(|record| record.emptied);
    exposition.gauge(EMPTIED, &[], emptied.count() as u64);
    // All sums in one go: a million containers have three million replicas.
    let replicas = world.nodes.replicas().in_range(ContainerId(0)..ContainerId(u64::MAX));
    let mut bytes = [0; 5];
    for (_, replica) in replicas {
        let ContainerReplica { payload_bytes, discarded_bytes, hole_bytes, dead_bytes, disk_bytes, .. } =
            replica;
        let of_replica = [payload_bytes, discarded_bytes, hole_bytes, dead_bytes, disk_bytes];
        bytes.iter_mut().zip(of_replica).for_each(|(sum, of_replica)| *sum += of_replica);
    }
    for (what, bytes) in ["live", "discarded", "given_back", "dead", "on_disk"].into_iter().zip(bytes) {
        exposition.gauge(REPLICA_BYTES, &[("what", what)], bytes);
    }
}

fn expose_tasks(replication: &Replication, exposition: &mut Exposition) {
    let kinds = [
        (TaskKind::TaskCopy, "copy"),
        (TaskKind::TaskDelete, "delete"),
        (TaskKind::TaskClose, "close"),
        (TaskKind::TaskCheck, "check"),
        (TaskKind::TaskMoveLeader, "move_leader"),
    ];
    let tasks = &replication.tasks;
    by_label(exposition, TASKS, "kind", &kinds, tasks.all().map(|(_, asked)| asked.order.key().kind));
    exposition.counter(COPIES, &[], tasks.copies_done);
    exposition.counter(COPIES_FAILED, &[], tasks.copies_failed);
    exposition.counter(DELETIONS, &[], tasks.deletions_done);
    exposition.counter(MOVED, &[], tasks.moved_bytes);
}
