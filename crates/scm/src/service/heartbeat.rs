//! A datanode says each second how it is, and learns which pipelines it should have and where their members are.

use crate::adoption::is_to_be_described;
use crate::leader::Leader;
use crate::nodes::{ClockApart, DESCRIBED_MAX, Nodes};
use crate::replicas::{ContainersReport, check_replica};
use crate::replication::Replication;
use crate::tables::Tables;
use crate::view;
use proto::Failure;
use proto::scm::{
    DiskReport, HeartbeatRequest, HeartbeatResponse, NodeRecord, NoteLostLogCommand, PipelineRecord,
    PipelineReport, PipelineState, Task, scm_command::Command,
};
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::warn;
use types::{NodeId, PipelineId};

/// How long the answer to a node without pipelines waits for rounds of pipeline creation: a node that just joined
/// hears of its pipelines as soon as they exist, not at its next heartbeat.
const FIRST_PIPELINES_WAIT: Duration = Duration::from_millis(500);
/// Reports of one heartbeat.
const PIPELINE_REPORTS_MAX: usize = 10_000;
/// Replicas and lost replicas of one heartbeat; a full report of more comes in parts. Two to three megabytes.
const CONTAINER_REPORTS_MAX: usize = 10_000;

pub(crate) async fn heartbeat(
    leader: &Leader,
    request: HeartbeatRequest,
) -> Result<HeartbeatResponse, Failure> {
    leader.check_cluster(&request.cluster)?;
    super::register::check_disks(&request.disks)?;
    check_counts(&request)?;
    let node = NodeId(request.node);
    let as_registered = leader.read(|tables, _| {
        tables.node(node).is_some_and(|record| registered_like_this(record, &request.address, &request.disks))
    });
    if !as_registered {
        return Ok(HeartbeatResponse { register_again: true, ..HeartbeatResponse::default() });
    }
    note_lost_logs(leader, node, &request.pipelines).await?;
    let strangers = strangers(leader, node, &request.pipelines);
    let mut round = leader.rounds.subscribe();
    let containers = ContainersReport {
        replicas: request.containers,
        gone: request.containers_gone,
        begins: request.report_begins,
        ends: request.report_ends,
    };
    let clock = ClockApart::of(request.clock_ms, leader.clock.now_ms());
    let (places_changed, reports_changed) = leader.change_nodes(|nodes| {
        let places = nodes.see(node, request.disks, Instant::now());
        // 0: a node of a version that does not say it.
        if request.clock_ms != 0 && nodes.see_clock(node, clock) {
            warn!(%node, problem = clock.problem(), "clocks are apart");
        }
        let pipelines = nodes.report_pipelines(node, request.pipelines, &strangers);
        nodes.describe(node, request.described);
        (places, nodes.report_containers(node, containers) || pipelines)
    });
    leader.plan(|_, _, replication| replication.tasks.report(node, request.tasks, Instant::now()));
    if places_changed {
        leader.places_changed.notify_one();
    }
    if reports_changed {
        leader.reports_changed.send_modify(|changes| *changes += 1);
    }
    let has_pipelines = || leader.read(|tables, _| tables.live_pipelines_on(node).next().is_some());
    let first_pipelines = async { while !has_pipelines() && round.changed().await.is_ok() {} };
    let _ = timeout(FIRST_PIPELINES_WAIT, first_pipelines).await;
    Ok(answer(leader, node))
}

/// In SCM's log before the node hears anything: it waits for that before it lets go of what is left.
async fn note_lost_logs(leader: &Leader, node: NodeId, reports: &[PipelineReport]) -> Result<(), Failure> {
    for report in reports.iter().filter(|report| report.log_lost) {
        let (pipeline, replica) = (report.pipeline, report.replica);
        let is_news = leader.read(|tables, _| {
            let record = tables.pipeline(PipelineId(pipeline));
            record
                .is_some_and(|record| is_member(record, node, report) && !record.lost_logs.contains(&replica))
        });
        if is_news {
            warn!(%node, pipeline, replica, "a member has lost its log: it counts in no decision on the pipeline's containers");
            leader.propose(Command::NoteLostLog(NoteLostLogCommand { pipeline, replica })).await?;
        }
    }
    Ok(())
}

fn is_member(record: &PipelineRecord, node: NodeId, report: &PipelineReport) -> bool {
    record.members.iter().any(|member| member.node == node.0 && member.replica == report.replica)
}

/// Pipelines of which the node speaks and that it is no member of.
fn strangers(leader: &Leader, node: NodeId, reports: &[PipelineReport]) -> HashSet<PipelineId> {
    leader.read(|tables, _| {
        let is_strange = |report: &&PipelineReport| {
            let record = tables.pipeline(PipelineId(report.pipeline));
            !record.is_some_and(|record| is_member(record, node, report))
        };
        reports.iter().filter(is_strange).map(|report| PipelineId(report.pipeline)).collect()
    })
}

/// A node that moved, or whose disks are not those it registered with, goes into the log again.
fn registered_like_this(record: &NodeRecord, address: &str, disks: &[DiskReport]) -> bool {
    record.address == address
        && record.disks.len() == disks.len()
        && disks.iter().all(|disk| record.disks.contains(&disk.disk))
}

fn check_counts(request: &HeartbeatRequest) -> Result<(), Failure> {
    if request.pipelines.len() > PIPELINE_REPORTS_MAX {
        return Err(Failure::invalid(format!("more than {PIPELINE_REPORTS_MAX} pipelines on one node")));
    }
    if request.containers.len() + request.containers_gone.len() > CONTAINER_REPORTS_MAX {
        let message = format!("more than {CONTAINER_REPORTS_MAX} containers in one heartbeat");
        return Err(Failure::invalid(message));
    }
    if request.described.len() > DESCRIBED_MAX {
        return Err(Failure::invalid(format!("more than {DESCRIBED_MAX} pipelines described at once")));
    }
    if request.tasks.len() > CONTAINER_REPORTS_MAX {
        return Err(Failure::invalid(format!("more than {CONTAINER_REPORTS_MAX} tasks in one heartbeat")));
    }
    request.containers.iter().try_for_each(check_replica).map_err(Failure::invalid)
}

/// What the node should have and do, and the addresses of those it has to do with.
fn answer(leader: &Leader, node: NodeId) -> HeartbeatResponse {
    let (may_move_data, now) = (leader.may_move_data(), Instant::now());
    leader.plan(|tables, nodes, replication| {
        let records = answer_pipelines(tables, nodes, node);
        let members = records.iter().flat_map(|record| &record.members);
        let peers: BTreeSet<NodeId> = members.map(|member| NodeId(member.node)).collect();
        HeartbeatResponse {
            pipelines: records.into_iter().map(|record| view::pipeline(record, tables, nodes, now)).collect(),
            addresses: view::node_addresses(tables, peers),
            report_all: nodes.replicas().wants_full_report(node),
            tasks: answer_tasks(leader, tables, nodes, replication, node, may_move_data),
            describe: answer_describe(tables, nodes, node),
            register_again: false,
        }
    })
}

/// Pipelines that it has and a forced reset has lost.
fn answer_describe(tables: &Tables, nodes: &Nodes, node: NodeId) -> Vec<u64> {
    let lost = nodes.pipelines_on(node).filter(|pipeline| is_to_be_described(tables, *pipeline));
    // In the same order each time: who is asked for others than before answers at once.
    let lost: BTreeSet<PipelineId> = lost.collect();
    lost.into_iter().take(DESCRIBED_MAX).map(|pipeline| pipeline.0).collect()
}

/// What the node is asked to do; while data is not to be moved, only what moves none.
fn answer_tasks(
    leader: &Leader,
    tables: &Tables,
    nodes: &Nodes,
    replication: &Replication,
    node: NodeId,
    may_move_data: bool,
) -> Vec<Task> {
    let told = replication.tasks.of(node).map(|asked| &asked.order);
    let told = told.filter(|order| may_move_data || !order.moves_data());
    let orders = told.map(|order| order.to_task(|node| view::address(tables, node)));
    orders.chain(leader.rolls_for(node, tables, nodes)).collect()
}

/// All that are not over, and those that are over and the node still has something of: it is to let go of them. Where a creation was
/// interrupted, that is an open container alone.
fn answer_pipelines<'a>(tables: &'a Tables, nodes: &Nodes, node: NodeId) -> Vec<&'a PipelineRecord> {
    let found: BTreeSet<PipelineId> =
        nodes.pipelines_on(node).chain(nodes.replicas().open_pipelines_on(node)).collect();
    let over = found.into_iter().filter_map(|pipeline| tables.pipeline(pipeline)).filter(|record| {
        record.state() == PipelineState::PipelineClosed
            && record.members.iter().any(|member| member.node == node.0)
    });
    tables.unended_pipelines_on(node).chain(over).collect()
}
