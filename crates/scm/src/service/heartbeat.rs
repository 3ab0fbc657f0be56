//! A datanode says each second how it is, and learns which pipelines it should have and where their members
//! are.

use crate::adoption::is_to_be_described;
use crate::clock_apart::ClockApart;
use crate::leader::Leader;
use crate::member_view::PipelineView;
use crate::nodes::{DESCRIBED_MAX, Nodes};
use crate::ops::end_pipeline::reach;
use crate::replicas::{ContainersReport, check_replica};
use crate::replication::{self, OrderKey, Replication};
use crate::tables::Tables;
use crate::view;
use crate::world::World;
use planted::Bug;
use proto::Failure;
use proto::scm::{
    DiskReport, EndPipelineCommand, HeartbeatRequest, HeartbeatResponse, MemberState, NodeRecord,
    NoteBegunCommand, NoteLostLogCommand, Pipeline, PipelineMember, PipelineRecord, PipelineReplica,
    PipelineReport, PipelineState, Task, scm_command::Command,
};
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};
use types::{NodeId, PipelineId};

/// The time that the answer to a node without pipelines waits for rounds of pipeline creation: a node that
/// just joined hears of its pipelines as soon as they exist, not at its next heartbeat.
const FIRST_PIPELINES_WAIT: Duration = Duration::from_millis(500);
/// The time that an answer waits for SCM's log to have which members have begun. They say it again.
const BEGUN_NOTED_WITHIN: Duration = Duration::from_secs(1);
/// The most reports on pipelines in one heartbeat.
const PIPELINE_REPORTS_MAX: usize = 10_000;
/// The most replicas and lost replicas in one heartbeat, two to three megabytes; a full report of more comes
/// in parts.
const CONTAINER_REPORTS_MAX: usize = 10_000;

pub(crate) async fn heartbeat(
    leader: &Leader,
    request: HeartbeatRequest,
) -> Result<HeartbeatResponse, Failure> {
    leader.check_cluster(&request.cluster)?;
    super::register::check_disks(&request.disks)?;
    check_counts(&request)?;
    let node = NodeId(request.node);
    let as_registered = leader.tables.read(|tables| {
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
    let changed = leader.change_nodes(|_, nodes| {
        // Under the same lock as what it says.
        if !nodes.note_heartbeat(node, request.process, request.number) {
            return None;
        }
        let places = nodes.see(node, request.disks, Instant::now());
        // A node of a version that does not tell its clock says 0.
        if request.clock_ms != 0 && nodes.see_clock(node, clock) {
            warn!(%node, problem = clock.problem(), "clocks are apart");
        }
        nodes.see_version(node, &request.version);
        let pipelines = nodes.report_pipelines(node, request.pipelines, &strangers);
        nodes.describe(node, request.described);
        Some((places, nodes.report_containers(node, containers) || pipelines))
    });
    let Some((places_changed, reports_changed)) = changed else {
        // Nobody hears the answer to one that was held up. Where it is not that, the node is another process
        // of the same name, and begins again.
        return Ok(HeartbeatResponse { register_again: true, ..HeartbeatResponse::default() });
    };
    leader.plan(|world, replication| {
        replication.discards.report(node, &request.tasks, world.now);
        replication.tasks.report(node, request.tasks, world.now);
    });
    if places_changed {
        leader.note_places_changed();
    }
    if reports_changed {
        leader.reports_changed.send_modify(|changes| *changes += 1);
    }
    // An SCM without room for it says what it has said before.
    match timeout(BEGUN_NOTED_WITHIN, note_begun(leader, node)).await {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => debug!(%node, %failure, "cannot note which members have begun"),
        Err(_) => debug!(%node, "it takes long to note which members have begun"),
    }
    note_late_ends(leader, node).await?;
    let has_pipelines = || leader.tables.read(|tables| tables.live_pipelines_on(node).next().is_some());
    let first_pipelines = async { while !has_pipelines() && round.changed().await.is_ok() {} };
    let _ = timeout(FIRST_PIPELINES_WAIT, first_pipelines).await;
    Ok(answer(leader, node))
}

/// Notes in SCM's log which members have logs, before their node hears anything: one that was here a moment
/// ago and has none is not to begin anew.
async fn note_begun(leader: &Leader, node: NodeId) -> Result<(), Failure> {
    let members = leader.read(|world| begun(node, world));
    if !members.is_empty() {
        leader.propose(Command::NoteBegun(NoteBegunCommand { members })).await?;
    }
    Ok(())
}

/// The node's members that say that they have, or had, a log, and of which the pipeline's record does not say
/// so. One that stands still is remembered by its disk, which is told of a pipeline once that has a log.
fn begun(node: NodeId, world: &World<'_>) -> Vec<PipelineReplica> {
    use MemberState::{Ended, LogLost, QuasiClosed, Runs, Stopped};
    let has_begun =
        |report: &PipelineReport| matches!(report.state(), Runs | Ended | QuasiClosed | Stopped | LogLost);
    let is_news = |report: &&PipelineReport| {
        let record = world.tables.pipeline(PipelineId(report.pipeline));
        has_begun(report)
            && record.is_some_and(|record| {
                is_member(record, node, report) && !record.begun.contains(&report.replica)
            })
    };
    let news = world.nodes.pipeline_reports(node).filter(is_news);
    let news = news.filter(|_| !planted::has(Bug::BegunIsForgotten));
    news.map(|report| PipelineReplica { pipeline: report.pipeline, replica: report.replica }).collect()
}

/// Notes in SCM's log which members have lost their logs, before anybody decides by what they report besides.
async fn note_lost_logs(leader: &Leader, node: NodeId, reports: &[PipelineReport]) -> Result<(), Failure> {
    let lost = |tables: &Tables| -> Vec<Command> {
        reports.iter().filter_map(|report| lost_log(tables, node, report)).collect()
    };
    for command in leader.tables.read(lost) {
        leader.propose(command).await?;
    }
    Ok(())
}

/// The command that notes what a report says of its log and the pipeline's record does not.
fn lost_log(tables: &Tables, node: NodeId, report: &PipelineReport) -> Option<Command> {
    let (pipeline, replica) = (report.pipeline, report.replica);
    let record =
        (report.state() == MemberState::LogLost).then(|| tables.pipeline(PipelineId(pipeline)))??;
    if !is_member(record, node, report) || record.lost_logs.contains(&replica) {
        return None;
    }
    warn!(
        %node,
        pipeline,
        replica,
        "a member has lost its log: it counts in no decision on the pipeline's containers"
    );
    Some(Command::NoteLostLog(NoteLostLogCommand { pipeline, replica }))
}

/// Notes in SCM's log which members have ended late, by all that their node has told now, before the node
/// hears anything: it waits for that before it lets go of what is left.
async fn note_late_ends(leader: &Leader, node: NodeId) -> Result<(), Failure> {
    for command in leader.read(|world| late_ends(node, world)) {
        leader.propose(command).await?;
    }
    Ok(())
}

fn late_ends(node: NodeId, world: &World<'_>) -> Vec<Command> {
    let ended = world.nodes.pipeline_reports(node).filter(|report| report.has_ended());
    let records = ended.filter_map(|report| world.tables.pipeline(PipelineId(report.pipeline)));
    let over = records.filter(|record| record.state() == PipelineState::PipelineClosed);
    let late = over.filter_map(|record| {
        let view = PipelineView::of(record, world.nodes, world.now);
        let member = view.member_on(node)?;
        let end = member.end_to_note()?;
        let is_news = member.noted_end(record).is_none_or(|noted| reach(&noted) < reach(&end));
        let command = EndPipelineCommand { pipeline: record.pipeline, ended: vec![end] };
        is_news.then_some(Command::EndPipeline(command))
    });
    late.collect()
}

/// Whether SCM's log says that the replica has told of its end.
fn is_noted(record: &PipelineRecord, replica: u64) -> bool {
    record.ended.iter().any(|end| end.replica == replica)
}

fn is_member(record: &PipelineRecord, node: NodeId, report: &PipelineReport) -> bool {
    record.members.iter().any(|member| member.node == node.0 && member.replica == report.replica)
}

/// Pipelines of which the node speaks and that it is no member of.
fn strangers(leader: &Leader, node: NodeId, reports: &[PipelineReport]) -> HashSet<PipelineId> {
    leader.tables.read(|tables| {
        let is_strange = |report: &&PipelineReport| {
            let record = tables.pipeline(PipelineId(report.pipeline));
            !record.is_some_and(|record| is_member(record, node, report))
        };
        reports.iter().filter(is_strange).map(|report| PipelineId(report.pipeline)).collect()
    })
}

/// Whether the node is registered with this address and these disks: one that moved, or has other disks, goes
/// into the log again.
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

/// The answer to a node: what it should have and do, and the addresses of those it has to do with.
fn answer(leader: &Leader, node: NodeId) -> HeartbeatResponse {
    leader.plan(|world, replication| {
        let World { tables, nodes, .. } = *world;
        let records = answer_pipelines(tables, nodes, node);
        let members = records.iter().flat_map(|record| &record.members);
        let peers: BTreeSet<NodeId> = members.map(|member| NodeId(member.node)).collect();
        HeartbeatResponse {
            pipelines: records.into_iter().map(|record| as_told(record, world, node)).collect(),
            addresses: view::node_addresses(tables, peers),
            report_all: nodes.replicas().wants_full_report(node),
            tasks: answer_tasks(world, replication, node),
            describe: answer_describe(tables, nodes, node),
            register_again: false,
            may_reclaim: world.may_reclaim(),
        }
    })
}

/// The pipelines that the node has and is to describe: a forced reset has lost them, or they are known by
/// their containers alone.
fn answer_describe(tables: &Tables, nodes: &Nodes, node: NodeId) -> Vec<u64> {
    let lost = nodes.pipelines_on(node).filter(|pipeline| is_to_be_described(tables, *pipeline));
    // Their order is the same each time: a node that is asked for others than before answers at once.
    let lost: BTreeSet<PipelineId> = lost.collect();
    lost.into_iter().take(DESCRIBED_MAX).map(|pipeline| pipeline.0).collect()
}

/// The tasks that the node is given, as far as they are to be told at this moment.
fn answer_tasks(world: &World<'_>, replication: &mut Replication, node: NodeId) -> Vec<Task> {
    let tasks = &replication.tasks;
    let asked = tasks.of(node).map(|asked| &asked.order);
    let told = asked.filter(|order| replication::may_tell(node, order, world, tasks));
    let (keys, orders): (Vec<OrderKey>, Vec<Task>) =
        told.map(|order| (order.key(), order.to_task(|node| view::address(world.tables, node)))).unzip();
    replication.tasks.note_told(node, &keys, world.now);
    let orders = orders.into_iter();
    orders.chain(replication.rolls.of(node, world)).chain(replication.discards.of(node, world)).collect()
}

/// The pipeline as the node is told of it: also whether its replica has begun, and is not to be made anew.
/// One that is over is still to be ended on a node that comes late: what the node has counts only once SCM
/// has heard it, and it says nothing of a log that it has let go of.
fn as_told(record: &PipelineRecord, world: &World<'_>, node: NodeId) -> Pipeline {
    let is_unheard = |member: &PipelineMember| {
        world.nodes.member_report(record, member).is_some()
            && !is_noted(record, member.replica)
            && !record.lost_logs.contains(&member.replica)
    };
    let comes_late = record.state() == PipelineState::PipelineClosed
        && record.members.iter().any(|member| member.node == node.0 && is_unheard(member));
    let its = |member: &PipelineMember| member.node == node.0 && record.begun.contains(&member.replica);
    // A forced reset may have lost the note.
    let may_have = world.tables.pipeline_is_before_a_reset(PipelineId(record.pipeline));
    let pipeline = view::pipeline(record, world);
    let state = if comes_late { PipelineState::PipelineQuasiClosing } else { pipeline.state() };
    let has_begun = may_have || record.members.iter().any(its);
    Pipeline { state: state as i32, has_begun, ..pipeline }
}

/// The pipelines that a node is told of: those that are not over, and those that are over and that it still
/// has something of, which it is to let go of. Where a creation was interrupted, that is an open container
/// alone.
fn answer_pipelines<'a>(tables: &'a Tables, nodes: &Nodes, node: NodeId) -> Vec<&'a PipelineRecord> {
    let found: BTreeSet<PipelineId> =
        nodes.pipelines_on(node).chain(nodes.replicas().open_pipelines_on(node)).collect();
    let over = found.into_iter().filter_map(|pipeline| tables.pipeline(pipeline)).filter(|record| {
        record.state() == PipelineState::PipelineClosed
            && record.members.iter().any(|member| member.node == node.0)
    });
    tables.unended_pipelines_on(node).chain(over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::{close, create, disk, run, three_nodes};
    use proto::scm::MemberEnd;

    const WITHIN: Duration = Duration::from_secs(5);

    /// Pipeline 1, which is over; nodes 1 and 2 said that they ended it.
    fn over() -> Tables {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, ""));
        let ended = EndPipelineCommand {
            pipeline: 1,
            ended: [1, 2].map(|replica| MemberEnd { replica, ..MemberEnd::default() }).into(),
        };
        run(&mut tables, Command::EndPipeline(ended));
        tables
    }

    /// A node that has said this of one pipeline.
    fn speaking(node: u64, report: Option<PipelineReport>, now: Instant) -> Nodes {
        let silence = Silence { stale_after: WITHIN, dead_after: 100 * WITHIN, disk_lost_after: 6 * WITHIN };
        let mut nodes = Nodes::new(silence, now);
        let of_disk = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
        nodes.see(NodeId(node), vec![of_disk], now);
        nodes.report_pipelines(NodeId(node), report.into_iter().collect(), &HashSet::new());
        nodes
    }

    /// The part of the answer that is about one pipeline, and what is noted of its report.
    fn told(
        tables: &Tables,
        node: u64,
        report: Option<PipelineReport>,
    ) -> (Option<Pipeline>, Option<Command>) {
        let now = Instant::now();
        let nodes = speaking(node, report.clone(), now);
        let answered = answer_pipelines(tables, &nodes, NodeId(node)).into_iter().next();
        let world = World::at(tables, &nodes, now);
        let pipeline = answered.map(|record| as_told(record, &world, NodeId(node)));
        let ends = late_ends(NodeId(node), &World::at(tables, &nodes, now));
        (
            pipeline,
            report.and_then(|report| lost_log(tables, NodeId(node), &report)).or(ends.into_iter().next()),
        )
    }

    /// A disk that was emptied, and has its name still, would get the replica of before anew, with a vote.
    #[test]
    fn a_member_that_has_begun_is_not_made_anew() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let has_begun = |tables: &Tables, node| told(tables, node, None).0.unwrap().has_begun;
        assert!(!has_begun(&tables, 1));
        let news = |tables: &Tables, node, replica, state: MemberState| {
            let report =
                PipelineReport { pipeline: 1, replica, state: state as i32, ..PipelineReport::default() };
            let now = Instant::now();
            let nodes = speaking(node, Some(report), now);
            begun(NodeId(node), &World::at(tables, &nodes, now))
        };
        assert_eq!(news(&tables, 1, 1, MemberState::Opening), [], "it may have no log");
        assert_eq!(news(&tables, 2, 1, MemberState::Runs), [], "that is no member there");
        let members = news(&tables, 1, 1, MemberState::Stopped);
        assert_eq!(
            members,
            news(&tables, 1, 1, MemberState::Runs),
            "it is remembered, and was never in a term"
        );
        assert_eq!(members, [PipelineReplica { pipeline: 1, replica: 1 }]);
        run(&mut tables, Command::NoteBegun(NoteBegunCommand { members }));
        assert_eq!(news(&tables, 1, 1, MemberState::Runs), []);
        assert!(has_begun(&tables, 1));
        assert!(!has_begun(&tables, 3), "its node was away, and has it to make");
    }

    #[test]
    fn who_comes_late_ends_and_is_noted_before_it_lets_go() {
        let mut tables = over();
        let state = MemberState::Runs as i32;
        let report = PipelineReport { pipeline: 1, replica: 3, state, ..PipelineReport::default() };
        let (pipeline, noted) = told(&tables, 3, Some(report.clone()));
        let pipeline = pipeline.unwrap();
        assert_eq!(pipeline.state(), PipelineState::PipelineQuasiClosing);
        assert_eq!(noted, None);
        let ended = PipelineReport { state: MemberState::Ended as i32, ..report };
        let (_, noted) = told(&tables, 3, Some(ended.clone()));
        run(&mut tables, noted.unwrap());
        let (pipeline, noted) = told(&tables, 3, Some(ended));
        assert_eq!((pipeline.unwrap().state(), noted), (PipelineState::PipelineClosed, None));
        assert_eq!(told(&tables, 3, None), (None, None));
    }

    #[test]
    fn who_has_ended_or_cannot_lets_go_at_once() {
        let mut tables = over();
        let state = MemberState::Runs as i32;
        let report = |replica| PipelineReport { pipeline: 1, replica, state, ..PipelineReport::default() };
        let (pipeline, _) = told(&tables, 2, Some(report(2)));
        assert_eq!(pipeline.unwrap().state(), PipelineState::PipelineClosed);
        let lost = PipelineReport { state: MemberState::LogLost as i32, ..report(3) };
        let (_, noted) = told(&tables, 3, Some(lost.clone()));
        run(&mut tables, noted.unwrap());
        let (pipeline, noted) = told(&tables, 3, Some(lost));
        assert_eq!((pipeline.unwrap().state(), noted), (PipelineState::PipelineClosed, None));
    }
}
