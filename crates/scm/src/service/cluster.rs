//! The cluster as a whole: how it is, and what operators want of SCM and of nodes.

use crate::adoption;
use crate::balancer;
use crate::departures;
use crate::full_disk;
use crate::leader::Leader;
use crate::replication::{CopyWait, Replication};
use crate::safe_mode;
use crate::tables::{Tables, container_state, duty};
use crate::world::World;
use proto::scm::{
    BalancerStatus, ClusterStatus, ContainerRecord, ContainerState, ContainerTrouble, CopiesWaiting,
    DatanodeInfo, NodeDuty, NodeRecord, PipelineRecord, PipelineState, SetNodeDutyCommand,
    SetNodeDutyRequest, SetSwitchesCommand, SetSwitchesRequest, TaskKind, scm_command::Command,
};
use proto::{Code, Failure};
use tracing::info;
use types::{NodeId, PipelineId};

/// The most tasks of one answer.
const TASKS_MAX: usize = 1000;

pub(super) fn status(leader: &Leader) -> ClusterStatus {
    let term = leader.group.status().term.0;
    leader.plan(|world, replication| {
        let World { tables, nodes, now, in_safe_mode: safe_mode, .. } = *world;
        let tasks = &replication.tasks;
        let troubled =
            |trouble| replication.troubles.values().filter(|all| all.contains(&trouble)).count() as u64;
        let waiting = |wait| replication.waits.values().filter(|of| **of == wait).count() as u64;
        let unresolved = |state| {
            tables.unresolved_containers().filter(|record| container_state(record) == state).count() as u64
        };
        let is_undecided = |record: &&ContainerRecord| {
            let pipeline = tables.pipeline(PipelineId(record.pipeline));
            container_state(record) == ContainerState::ContainerOpen
                && pipeline.is_some_and(|pipeline| pipeline.state() == PipelineState::PipelineClosed)
        };
        ClusterStatus {
            full_disk: full_disk::of(&leader.group).unwrap_or_default(),
            cluster: tables.cluster().to_owned(),
            safe_mode,
            safe_mode_waits: if safe_mode { safe_mode_waits(leader, world) } else { Vec::new() },
            switches: Some(tables.switches()),
            containers: tables.containers().len() as u64,
            containers_open: unresolved(ContainerState::ContainerOpen),
            missing: troubled(ContainerTrouble::ContainerMissing),
            under_replicated: troubled(ContainerTrouble::ContainerUnderReplicated),
            over_replicated: troubled(ContainerTrouble::ContainerOverReplicated),
            mis_replicated: troubled(ContainerTrouble::ContainerMisReplicated),
            unhealthy: troubled(ContainerTrouble::ContainerUnhealthy),
            different: troubled(ContainerTrouble::ContainerDifferent),
            ahead: troubled(ContainerTrouble::ContainerAhead),
            diverged: troubled(ContainerTrouble::ContainerDiverged),
            adopted: tables.containers().values().filter(|record| record.adopted).count() as u64,
            unknown_replicas: adoption::count_unknown_replicas(tables, nodes) as u64,
            undecided: tables.unresolved_containers().filter(is_undecided).count() as u64,
            quasi_closed: unresolved(ContainerState::ContainerQuasiClosed),
            copies_under_way: tasks.count(TaskKind::TaskCopy) as u64,
            copies_failed: tasks.copies_failed_lately(now) as u64,
            deletions_under_way: tasks.count(TaskKind::TaskDelete) as u64,
            tasks: tasks.infos(now, TASKS_MAX),
            balancer: Some(balancer_status(world, replication)),
            leader_node_term: term,
            copies_waiting: Some(CopiesWaiting {
                for_reports: waiting(CopyWait::Reports),
                for_source: waiting(CopyWait::Source),
                for_node: waiting(CopyWait::Node),
                for_room: waiting(CopyWait::Room),
                for_turn: waiting(CopyWait::Turn),
                keep_free_percent: leader.options.keep_free_percent,
            }),
        }
    })
}

fn safe_mode_waits(leader: &Leader, world: &World<'_>) -> Vec<String> {
    let mut waits = match leader.has_left_safe_mode() {
        true => Vec::new(),
        false => safe_mode::waits(world),
    };
    if !world.tables.switches().leave_safe_mode {
        waits.push("an operator to leave it".to_owned());
    }
    waits
}

fn balancer_status(world: &World<'_>, replication: &Replication) -> BalancerStatus {
    let spread = balancer::spread(world.node_views());
    let fraction = |millionths: u64| millionths as f64 / 1e6;
    BalancerStatus {
        utilization_min: fraction(spread.min),
        utilization_max: fraction(spread.max),
        utilization_mean: fraction(spread.mean),
        moves_under_way: balancer::moves_under_way(&replication.tasks) as u64,
        moved_containers: replication.tasks.moved_containers,
        moved_bytes: replication.tasks.moved_bytes,
    }
}

pub(super) async fn set_switches(
    leader: &Leader,
    request: SetSwitchesRequest,
) -> Result<ClusterStatus, Failure> {
    let SetSwitchesRequest { replication, balancer, safe_mode, reclaim } = request;
    let mut switches = leader.tables.read(Tables::switches);
    switches.replication = replication.unwrap_or(switches.replication);
    switches.balancer = balancer.unwrap_or(switches.balancer);
    switches.reclaim_stopped = reclaim.map_or(switches.reclaim_stopped, |reclaim| !reclaim);
    switches.leave_safe_mode = safe_mode.map_or(switches.leave_safe_mode, |enter| !enter);
    info!(?switches, "an operator sets switches");
    leader.propose(Command::SetSwitches(SetSwitchesCommand { switches: Some(switches) })).await?;
    if safe_mode == Some(false) {
        leader.set_left_safe_mode();
    }
    Ok(status(leader))
}

pub(super) async fn set_node_duty(leader: &Leader, request: SetNodeDutyRequest) -> Result<(), Failure> {
    let (node, wanted) = (NodeId(request.node), request.duty());
    let before = leader.tables.read(|tables| tables.node(node).map(duty));
    let before = before.ok_or_else(|| Failure::new(Code::NotFound, format!("no node {node}")))?;
    let leaves = match wanted {
        NodeDuty::NodeInService => false,
        NodeDuty::NodeDecommissioning | NodeDuty::NodeEnteringMaintenance => true,
        _ => {
            return Err(Failure::invalid(
                "a node is put in service, decommissioned or sent into maintenance",
            ));
        }
    };
    if leaves && before == NodeDuty::NodeInService && !request.force {
        leader.read(|world| departures::check_enough_left(node, world))?;
    }
    let until_ms = match request.for_ms {
        0 => 0,
        for_ms => leader.clock.now_ms().saturating_add(for_ms),
    };
    let command = SetNodeDutyCommand { node: node.0, duty: wanted as i32, until_ms };
    let reply = leader.propose(Command::SetNodeDuty(command)).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::invalid(reply.refused));
    }
    info!(%node, duty = wanted.as_str_name(), "an operator sets the node's duty");
    leader.note_places_changed();
    Ok(())
}

pub(super) fn datanodes(leader: &Leader) -> Vec<DatanodeInfo> {
    leader.plan(|world, replication| {
        let World { tables, nodes, now, .. } = *world;
        let info = |(&node, record): (&NodeId, &NodeRecord)| {
            let waiting = departures::waiting(node, world, &replication.tasks);
            let problem = nodes.problem(node, now);
            let leads = |record: &&PipelineRecord| nodes.pipeline_seen(record, now).leader == Some(node);
            DatanodeInfo {
                node: node.0,
                uuid: record.uuid.clone(),
                address: record.address.clone(),
                state: nodes.state(node, now) as i32,
                last_heartbeat_age_ms: nodes.age(node, now).as_millis() as u64,
                disks: nodes.disks(node).to_vec(),
                pipelines: tables.live_pipelines_on(node).count() as u32,
                leaders: tables.live_pipelines_on(node).filter(leads).count() as u32,
                duty: duty(record) as i32,
                containers: nodes.replicas().count_on(node) as u64,
                containers_waiting: waiting.containers as u64,
                pipelines_waiting: waiting.pipelines as u64,
                rack: tables.racks().of(record).to_owned(),
                duty_until_ms: record.duty_until_ms,
                clock_apart: problem.is_some() && problem == nodes.clock(node).problem(),
                problem: problem.unwrap_or_default(),
                version: nodes.version(node).to_owned(),
            }
        };
        tables.nodes().iter().map(info).collect()
    })
}
