//! Resolution says what containers have become: a pure decision from one look at the world (docs/cluster.md,
//! "A container's life").

use crate::member_view::{MAJORITY, MemberView, PipelineView};
use crate::nodes::Nodes;
use crate::ops::end_pipeline::log_last;
use crate::ops::settle_containers::SETTLE_CONTAINERS_MAX;
use crate::quality;
use crate::replicas::{LastRecord, last_record};
use crate::tables::{Tables, container_state};
use crate::world::World;
use planted::Bug;
use proto::scm::{
    ContainerRecord, ContainerReplica, ContainerState, MemberEnd, PipelineMember, PipelineRecord,
    PipelineState, ReplicaState, SettledContainer,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// The time after which nobody expects ended members to report a container any more that they have lacked
/// since their pipeline was over. Nobody waits for an empty container, and one that is not empty must not be
/// taken for one because a report was late. Containers behind the end of the log are settled without any
/// report (`ops::end_pipeline`).
const DELETE_AFTER: Duration = Duration::from_secs(60);
/// The words that end a refusal to give up what a broken disk has: one failed sync makes it broken until its
/// process starts again.
pub(crate) const RESTART_OR_GIVE_UP_DISK: &str = "restart the node, or start it without that disk";

/// The moments since which this leader has seen pipelines as over.
pub(crate) struct Resolution {
    let_go_after: Duration,
    over: HashMap<PipelineId, Instant>,
}

impl Resolution {
    pub(crate) fn new(let_go_after: Duration) -> Resolution {
        Resolution { let_go_after, over: HashMap::new() }
    }

    /// Says what containers have become, as many as one command takes.
    pub(crate) fn decide(&mut self, world: &World<'_>) -> Vec<SettledContainer> {
        let World { tables, nodes, now, .. } = *world;
        let unresolved = tables.unresolved_containers();
        let pipelines = unresolved.filter_map(|record| tables.pipeline(PipelineId(record.pipeline)));
        let over = pipelines.filter(|record| record.state() == PipelineState::PipelineClosed);
        let over = over.map(|record| PipelineId(record.pipeline));
        self.over = over.map(|id| (id, self.over.get(&id).copied().unwrap_or(now))).collect();
        let over = self.over.keys().filter_map(|id| tables.pipeline(*id));
        let views: HashMap<PipelineId, PipelineView<'_>> =
            over.map(|record| (PipelineId(record.pipeline), PipelineView::of(record, nodes, now))).collect();
        let decided = tables.unresolved_containers().filter_map(|record| {
            let view = views.get(&PipelineId(record.pipeline));
            self.resolve(record, view, tables, nodes, now)
        });
        decided.take(SETTLE_CONTAINERS_MAX).collect()
    }

    fn resolve(
        &self,
        record: &ContainerRecord,
        over: Option<&PipelineView<'_>>,
        tables: &Tables,
        nodes: &Nodes,
        now: Instant,
    ) -> Option<SettledContainer> {
        let container = ContainerId(record.container);
        let closed =
            |(_, replica): &(NodeId, &ContainerReplica)| replica.state() == ReplicaState::ReplicaClosed;
        if let Some((_, replica)) = nodes.replicas().of(container).find(closed) {
            return Some(closed_at(record, last_record(replica)));
        }
        let since = *self.over.get(&PipelineId(record.pipeline))? + self.let_go_after;
        if let Some(best) = decides(container, over?, tables, nodes, since) {
            let settled = as_on(record, best.node_id(), nodes);
            let is_deleted = settled.state() == ContainerState::ContainerDeleted;
            // The members of SCM that a forced reset gave up may have closed the container, and had its
            // replicas moved.
            let may_be_elsewhere = is_deleted
                && tables.container_is_before_a_reset(container)
                && nodes.replicas().get(container, best.node_id()).is_none();
            if !may_be_elsewhere {
                return (!is_deleted || now >= since + DELETE_AFTER).then_some(settled);
            }
        }
        let is_open = container_state(record) == ContainerState::ContainerOpen;
        (is_open && now >= since + self.let_go_after)
            .then(|| with_state(record, ContainerState::ContainerQuasiClosed, LastRecord::default()))
    }
}

/// The member whose end is the container's: the highest of a majority of members that have proved all they
/// had. Whatever a majority had, a member of every other majority has, too, so two members that are whole
/// decide without one that is damaged. Where only the damaged one could, none does: the third may come, and
/// an operator may accept the loss. What a member once said of its end stays true, whatever becomes of the
/// member.
fn decides<'a>(
    container: ContainerId,
    pipeline: &'a PipelineView<'a>,
    tables: &Tables,
    nodes: &Nodes,
    since: Instant,
) -> Option<&'a MemberView<'a>> {
    let record = pipeline.record;
    let has_proved = |member: &&MemberView<'_>| has_proved_all(record, member, tables, nodes, since);
    let proved: Vec<_> = pipeline.members.iter().filter(has_proved).collect();
    // What damaged the log of a member may have damaged its replicas.
    let is_damaged = |node: NodeId| is_damaged(container, node, nodes) && !planted::has(Bug::LogsNeedNoProof);
    let whole: Vec<_> = proved.iter().copied().filter(|member| !is_damaged(member.node_id())).collect();
    let best = |members: Vec<&'a MemberView<'a>>| {
        let rank = |member: &&MemberView<'_>| {
            let node = member.node_id();
            (log_end(record, member, tables, nodes), !is_damaged(node), Reverse(node))
        };
        members.into_iter().max_by_key(rank)
    };
    match (whole.len() >= MAJORITY, proved.len() >= MAJORITY) {
        (true, _) => best(whole),
        (false, true) => best(proved).filter(|best| !is_damaged(best.node_id())),
        (false, false) => best(whole).filter(|best| outranks_the_noted(record, best, tables, nodes)),
    }
}

/// Whether SCM's log has enough ends for one member that is there to decide alone: those of a majority, its
/// own among them, or the pipeline's last roll, which is committed; and none is higher than its own.
fn outranks_the_noted(
    pipeline: &PipelineRecord,
    member: &MemberView<'_>,
    tables: &Tables,
    nodes: &Nodes,
) -> bool {
    let own = log_end(pipeline, member, tables, nodes);
    let noted = || pipeline.ended.iter().filter(|end| end.last_container != 0);
    let is_higher = |end: &MemberEnd| {
        let (term, index) = log_last(end);
        LastRecord { term, index } > own
    };
    let of_another =
        |end: &&MemberEnd| end.replica != member.member.replica && !pipeline.lost_logs.contains(&end.replica);
    !pipeline.ended.iter().any(is_higher)
        && (noted().any(|end| end.is_last_roll) || noted().filter(of_another).count() + 1 >= MAJORITY)
}

/// Resolves a pipeline that lost its majority for good: what its containers are by the member left whose log
/// ends highest, and who that is; one that shows all of its log before any other. Where that member's replica
/// is damaged, or it has none, it is the next one's. Whatever the others had acknowledged and that member
/// lacks is gone: so all must have said what they have, but those that are dead or whose disk is broken. A
/// member that has let go of the pipeline has said so if it has spoken since `since`.
pub(crate) fn accept_loss(
    pipeline: PipelineId,
    world: &World<'_>,
    since: Instant,
) -> Result<(NodeId, Vec<SettledContainer>), String> {
    let World { tables, nodes, now, .. } = *world;
    let record = tables.named_pipeline(pipeline.0)?;
    if record.state() != PipelineState::PipelineClosed {
        let state = record.state().as_str_name();
        return Err(format!("pipeline {pipeline} is {state}: close it, and wait until it is CLOSED"));
    }
    let undecided =
        |container: &&ContainerRecord| container_state(container) == ContainerState::ContainerQuasiClosed;
    let containers: Vec<_> =
        tables.containers_of(record).filter(undecided).take(SETTLE_CONTAINERS_MAX).collect();
    if containers.is_empty() {
        return Err(format!("no container of pipeline {pipeline} waits for a decision"));
    }
    let members = members_or_holders(record, tables, nodes);
    let views = members.iter().map(|member| MemberView::of(record, member, nodes, now));
    let on_broken = |member: &MemberView<'_>| {
        !member.is_dead() && nodes.disk_is_failing(member.node_id(), &member.member.disk)
    };
    if let Some(member) = views.clone().find(on_broken) {
        return Err(format!(
            "node {} has it on a disk that does not work now: {RESTART_OR_GIVE_UP_DISK}",
            member.node_id()
        ));
    }
    // A member that is gone does not decide, whatever is remembered of it.
    let is_there = |member: &MemberView<'_>| !member.is_dead() && member.disk_works != Some(false);
    let said = |member: &MemberView<'_>| has_said_all(record, member, tables, nodes, since);
    let (said, silent): (Vec<_>, Vec<_>) = views.filter(is_there).partition(said);
    if let Some(silent) = silent.first() {
        let node = silent.node_id();
        return Err(format!(
            "node {node} is not dead and has not said all that it has: wait for it, or stop it for good"
        ));
    }
    // Records that a member without its log has left may have been acknowledged.
    let rank = |member: &MemberView<'_>| {
        let node = member.node_id();
        let shows_its_end = shows_its_end(record, member, tables, nodes);
        // What is not there any more, whatever was said of it, can be made of nothing.
        let end = match shows_its_end {
            true => log_end(record, member, tables, nodes),
            false => replicas_on(record, node, tables, nodes).map(last_record).max().unwrap_or_default(),
        };
        Reverse((shows_its_end, end, has_proved_all(record, member, tables, nodes, since), Reverse(node)))
    };
    let mut members: Vec<(_, NodeId)> = said.iter().map(|member| (rank(member), member.node_id())).collect();
    members.sort();
    let members: Vec<NodeId> = members.into_iter().map(|(_, node)| node).collect();
    let best = *members.first().ok_or_else(|| format!("no member of pipeline {pipeline} is left"))?;
    let as_left = |container: &ContainerRecord| {
        let number = ContainerId(container.container);
        let has = |node: &&NodeId| nodes.replicas().get(number, **node).is_some_and(|it| !is_empty(it));
        let is_whole = |node: &&NodeId| has(node) && !is_damaged(number, **node, nodes);
        let node = members.iter().find(is_whole).or_else(|| members.iter().find(has));
        as_on(container, *node.unwrap_or(&best), nodes)
    };
    Ok((best, containers.into_iter().map(as_left).collect()))
}

/// Whether what the node has of the container is known to be damaged.
fn is_damaged(container: ContainerId, node: NodeId, nodes: &Nodes) -> bool {
    nodes.replicas().get(container, node).is_some_and(|replica| !replica.unhealthy.is_empty())
}

/// The members of a pipeline, or, where it is known by its containers alone, nodes that have some of them.
fn members_or_holders(record: &PipelineRecord, tables: &Tables, nodes: &Nodes) -> Vec<PipelineMember> {
    if !record.members.is_empty() {
        return record.members.clone();
    }
    let replicas = tables
        .containers_of(record)
        .flat_map(|container| nodes.replicas().of(ContainerId(container.container)));
    let holder = |(node, replica): (NodeId, &ContainerReplica)| {
        (node, PipelineMember { node: node.0, disk: replica.disk.clone(), ..PipelineMember::default() })
    };
    replicas.map(holder).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Whether the member has ended, and all that it ever had is known.
fn has_proved_all(
    pipeline: &PipelineRecord,
    member: &MemberView<'_>,
    tables: &Tables,
    nodes: &Nodes,
    since: Instant,
) -> bool {
    // A member without its log says what is left: it may have acknowledged more. A forced reset may have lost
    // the note that the log is lost.
    let is_without_log = |replica: &ContainerReplica| replica.state() == ReplicaState::ReplicaWithoutLog;
    let has_its_log = !pipeline.lost_logs.contains(&member.member.replica)
        && !replicas_on(pipeline, member.node_id(), tables, nodes).any(is_without_log);
    (has_its_log || planted::has(Bug::LogsNeedNoProof))
        && is_heard(pipeline, member, tables)
        && has_said_all(pipeline, member, tables, nodes, since)
        && shows_its_end(pipeline, member, tables, nodes)
}

/// Whether the member still shows all of the log that it once said it had: a disk that lost directories says
/// nothing of them. The replica of a container that is closed may have moved.
fn shows_its_end(pipeline: &PipelineRecord, member: &MemberView<'_>, tables: &Tables, nodes: &Nodes) -> bool {
    member.noted_end(pipeline).is_none_or(|noted| is_shown(noted, pipeline, member, tables, nodes))
}

/// Whether the last record of the member's log is shown, of those of which SCM is told: by the replica that
/// it stands in, or by its container's being closed, whose replicas move. A member that could not tell has
/// nothing to show.
fn is_shown(
    end: MemberEnd,
    pipeline: &PipelineRecord,
    member: &MemberView<'_>,
    tables: &Tables,
    nodes: &Nodes,
) -> bool {
    let is_closed =
        |it: &&ContainerRecord| it.emptied || container_state(it) == ContainerState::ContainerClosed;
    let mut here = replicas_on(pipeline, member.node_id(), tables, nodes);
    if end.last_index == 0 || here.any(|replica| replica.last_index >= end.last_index) {
        return true;
    }
    match end.last_container {
        // The member was of a version that did not say it.
        0 => tables.containers_of(pipeline).filter(is_closed).any(|it| it.last_index >= end.last_index),
        container => tables.container(ContainerId(container)).as_ref().is_some_and(is_closed),
    }
}

/// Whether the member's end was told to SCM as it is now. A member that has begun lets go only once its end
/// is noted: one that says nothing, and whose end is not, has lost all it had. One that let go by the word of
/// those that a forced reset gave up may have had replicas that were deleted since, by their word, too.
fn is_heard(pipeline: &PipelineRecord, member: &MemberView<'_>, tables: &Tables) -> bool {
    let has_begun = pipeline.begun.contains(&member.member.replica) && !planted::has(Bug::LogsNeedNoProof);
    let may_have_had_more = has_begun || tables.pipeline_is_before_a_reset(PipelineId(pipeline.pipeline));
    !may_have_had_more || member.noted_end(pipeline).is_some() || member.said.is_some()
}

/// Whether the member has ended, and all that it has is known.
fn has_said_all(
    pipeline: &PipelineRecord,
    member: &MemberView<'_>,
    tables: &Tables,
    nodes: &Nodes,
    since: Instant,
) -> bool {
    let node = member.node_id();
    let ended = match member.said {
        // As long as the replicas that the member shows are not all of its log, their report is late.
        Some(report) => {
            let is_shown = |end| is_shown(end, pipeline, member, tables, nodes);
            report.has_ended() && member.end_to_note().is_none_or(is_shown)
        }
        None => member.has_let_go(since),
    };
    let open = |replica: &ContainerReplica| replica.state() == ReplicaState::ReplicaOpen;
    ended && nodes.replicas().is_complete(node) && !replicas_on(pipeline, node, tables, nodes).any(open)
}

/// The end of the member's log: by what it says, what it once said, and what it shows.
fn log_end(pipeline: &PipelineRecord, member: &MemberView<'_>, tables: &Tables, nodes: &Nodes) -> LastRecord {
    let said = member.end_to_note().into_iter().chain(member.noted_end(pipeline));
    let said = said.map(|end| log_last(&end)).map(|(term, index)| LastRecord { term, index });
    let shown = replicas_on(pipeline, member.node_id(), tables, nodes).map(last_record);
    shown.chain(said).max().unwrap_or_default()
}

/// The replicas that the log of a member on the node has left. A replica that was copied there is what
/// another member had.
fn replicas_on<'a>(
    pipeline: &PipelineRecord,
    node: NodeId,
    tables: &'a Tables,
    nodes: &'a Nodes,
) -> impl Iterator<Item = &'a ContainerReplica> {
    let containers = tables.containers_of(pipeline);
    let found =
        containers.filter_map(move |container| nodes.replicas().get(ContainerId(container.container), node));
    found.filter(|replica| !replica.copied)
}

/// The container as what that node has of it.
fn as_on(record: &ContainerRecord, node: NodeId, nodes: &Nodes) -> SettledContainer {
    match nodes.replicas().get(ContainerId(record.container), node).filter(|replica| !is_empty(replica)) {
        Some(replica) => closed_at(record, last_record(replica)),
        None => with_state(record, ContainerState::ContainerDeleted, LastRecord::default()),
    }
}

/// Whether there is nothing to keep three copies of: no record, or entry 0, which says who the first members
/// are.
pub(crate) fn is_empty(replica: &ContainerReplica) -> bool {
    last_record(replica) == LastRecord::default() && quality::is_empty(replica)
}

fn closed_at(record: &ContainerRecord, last: LastRecord) -> SettledContainer {
    with_state(record, ContainerState::ContainerClosed, last)
}

fn with_state(record: &ContainerRecord, state: ContainerState, last: LastRecord) -> SettledContainer {
    SettledContainer {
        container: record.container,
        state: state as i32,
        last_term: last.term,
        last_index: last.index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::{close, create, disk, end, run, three_nodes};
    use crate::replicas::ContainersReport;
    use crate::tables::TablesMut;
    use ContainerState::{ContainerClosed, ContainerDeleted, ContainerQuasiClosed};
    use ReplicaState::{ReplicaClosed, ReplicaOpen, ReplicaQuasiClosed, ReplicaWithoutLog};
    use proto::scm::{
        AllocateContainerCommand, DiskReport, DiskState, LogEnd, MemberEnd, MemberState, NoteBegunCommand,
        NoteLostLogCommand, PipelineReplica, PipelineReport, scm_command::Command,
    };

    const LET_GO: Duration = Duration::from_secs(5);

    type Had = (u64, ReplicaState, u64, u64);

    type Decided = Vec<(u64, ContainerState, u64, u64)>;

    /// Containers 1 and 2 of pipeline 1, which is over.
    struct Fixture {
        tables: Tables,
        nodes: Nodes,
        resolution: Resolution,
        start: Instant,
    }

    impl Fixture {
        fn new() -> Fixture {
            let mut tables = three_nodes();
            run(&mut tables, create([1, 2, 3]));
            run(&mut tables, Command::AllocateContainer(AllocateContainerCommand { pipeline: 1, after: 1 }));
            run(&mut tables, close(1, ""));
            run(&mut tables, end(1));
            let start = Instant::now();
            let nodes = Nodes::new(
                Silence {
                    stale_after: LET_GO,
                    dead_after: 100 * LET_GO,
                    disk_lost_after: std::time::Duration::from_secs(30),
                },
                start,
            );
            let mut resolution = Resolution::new(LET_GO);
            resolution.decide(&World::at(&tables, &nodes, start));
            Fixture { tables, nodes, resolution, start }
        }

        fn replica_on(&self, node: u64) -> u64 {
            let record = self.tables.pipeline(PipelineId(1)).unwrap();
            record.members.iter().find(|member| member.node == node).unwrap().replica
        }

        /// A member has ended, its log with this index.
        fn member(&mut self, node: u64, had: &[Had], last_index: u64) {
            let disk = disk(node, 0);
            let told = DiskReport { disk: disk.clone(), ..DiskReport::default() };
            self.nodes.see(NodeId(node), vec![told], self.start);
            let is_all = last_index == had.iter().map(|had| had.3).max().unwrap_or(0);
            let report = PipelineReport {
                pipeline: 1,
                replica: node,
                state: MemberState::QuasiClosed as i32,
                end: Some(LogEnd {
                    container: if is_all { had.last().map_or(1, |had| had.0) } else { 2 },
                    index: last_index,
                    log_index: last_index,
                    ..LogEnd::default()
                }),
                ..PipelineReport::default()
            };
            self.nodes.report_pipelines(NodeId(node), vec![report], &Default::default());
            let replica = |&(container, state, last_term, last_index): &Had| {
                let state = state as i32;
                ContainerReplica {
                    container,
                    pipeline: 1,
                    state,
                    last_term,
                    last_index,
                    disk: disk.clone(),
                    ..ContainerReplica::default()
                }
            };
            let replicas = had.iter().map(replica).collect();
            let report = ContainersReport { replicas, gone: vec![], begins: true, ends: true };
            self.nodes.report_containers(NodeId(node), report);
        }

        /// Damages container 1 on a node.
        fn damage(&mut self, node: u64) {
            self.change(node, 1, |replica| replica.unhealthy = "a piece of a file".to_owned());
        }

        fn change(&mut self, node: u64, container: u64, change: impl FnOnce(&mut ContainerReplica)) {
            let mut replica =
                self.nodes.replicas().get(ContainerId(container), NodeId(node)).unwrap().clone();
            change(&mut replica);
            let report =
                ContainersReport { replicas: vec![replica], gone: vec![], begins: false, ends: false };
            self.nodes.report_containers(NodeId(node), report);
        }

        /// A member says nothing of the pipeline any more, and has these replicas.
        fn let_go(&mut self, node: u64, had: &[Had]) {
            self.member(node, had, 0);
            let disk = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
            self.nodes.see(NodeId(node), vec![disk], self.start + LET_GO);
            self.nodes.report_pipelines(NodeId(node), Vec::new(), &Default::default());
        }

        fn decide(&mut self, later: Duration) -> Decided {
            let decided = self.resolution.decide(&World::at(&self.tables, &self.nodes, self.start + later));
            decided.iter().map(|c| (c.container, c.state(), c.last_term, c.last_index)).collect()
        }
    }

    /// Resolves what members have: container, state, last term, last index.
    fn decide(members: &[(u64, &[Had])]) -> Decided {
        let mut fixture = Fixture::new();
        for &(node, had) in members {
            let last_index = had.iter().map(|(_, _, _, last_index)| *last_index).max().unwrap_or(0);
            fixture.member(node, had, last_index);
        }
        fixture.decide(LET_GO + DELETE_AFTER)
    }

    #[test]
    fn a_roll_that_was_applied_closes_the_container() {
        let decided = decide(&[
            (1, &[(1, ReplicaClosed, 2, 70), (2, ReplicaClosed, 3, 90)]),
            (2, &[(1, ReplicaOpen, 0, 0)]),
        ]);
        assert_eq!(decided, [(1, ContainerClosed, 2, 70), (2, ContainerClosed, 3, 90)]);
    }

    #[test]
    fn a_container_that_was_drawn_and_never_used_is_deleted() {
        let closed: &[Had] = &[(1, ReplicaClosed, 2, 70)];
        let decided = decide(&[(1, closed), (2, closed)]);
        assert_eq!(decided, [(1, ContainerClosed, 2, 70), (2, ContainerDeleted, 0, 0)]);
    }

    /// At least one member has rolled to the container, or has the pipeline's first entry, and no more.
    #[test]
    fn a_container_that_was_begun_and_never_written_to_is_deleted() {
        let begun: &[Had] = &[(1, ReplicaClosed, 2, 70), (2, ReplicaQuasiClosed, 0, 0)];
        let decided = decide(&[(1, begun), (2, begun)]);
        assert_eq!(decided, [(1, ContainerClosed, 2, 70), (2, ContainerDeleted, 0, 0)]);
        let begun: &[Had] = &[(1, ReplicaQuasiClosed, 0, 0)];
        let decided = decide(&[(1, begun), (2, begun)]);
        assert_eq!(decided, [(1, ContainerDeleted, 0, 0), (2, ContainerDeleted, 0, 0)]);
    }

    #[test]
    fn the_highest_log_of_a_majority_is_the_container() {
        let decided =
            decide(&[(1, &[(1, ReplicaQuasiClosed, 2, 60)]), (3, &[(1, ReplicaQuasiClosed, 2, 64)])]);
        assert_eq!(decided, [(1, ContainerClosed, 2, 64), (2, ContainerDeleted, 0, 0)]);
    }

    /// The example of docs/cluster.md.
    #[test]
    fn whole_logs_are_compared_not_containers() {
        let decided = decide(&[
            (1, &[(1, ReplicaQuasiClosed, 3, 51)]),
            (2, &[(1, ReplicaQuasiClosed, 2, 61), (2, ReplicaQuasiClosed, 5, 62)]),
        ]);
        assert_eq!(decided, [(1, ContainerClosed, 2, 61), (2, ContainerClosed, 5, 62)]);
    }

    #[test]
    fn less_than_a_majority_decides_nothing() {
        let quasi_closed = [(1, ContainerQuasiClosed, 0, 0), (2, ContainerQuasiClosed, 0, 0)];
        assert_eq!(decide(&[]), quasi_closed);
        assert_eq!(decide(&[(1, &[(1, ReplicaQuasiClosed, 2, 60)])]), quasi_closed);
        let decided = decide(&[(1, &[(1, ReplicaQuasiClosed, 2, 60)]), (2, &[(1, ReplicaOpen, 0, 0)])]);
        assert_eq!(decided, quasi_closed, "node 2 has not ended");
    }

    /// The member voted for what is acknowledged and cannot tell: only the third knows, or nobody.
    #[test]
    fn who_lost_its_log_decides_nothing() {
        let decide = |had_by_1: &[Had], others: &[(u64, Had)]| {
            let mut fixture = Fixture::new();
            let note = NoteLostLogCommand { pipeline: 1, replica: fixture.replica_on(1) };
            run(&mut fixture.tables, Command::NoteLostLog(note));
            fixture.member(1, had_by_1, had_by_1.first().map_or(0, |had| had.3));
            for &(node, had) in others {
                fixture.member(node, &[had], had.3);
            }
            fixture.decide(LET_GO + DELETE_AFTER)
        };
        let undecided = [(1, ContainerQuasiClosed, 0, 0), (2, ContainerQuasiClosed, 0, 0)];
        let behind = (1, ReplicaQuasiClosed, 2, 10);
        let third = (1, ReplicaQuasiClosed, 2, 64);
        // The replica that it had left may be gone since: that proves as little.
        for left in [&[(1, ReplicaWithoutLog, 2, 60)][..], &[]] {
            assert_eq!(decide(left, &[(2, behind)]), undecided, "{left:?}");
            let decided = decide(left, &[(2, behind), (3, third)]);
            assert_eq!(decided, [(1, ContainerClosed, 2, 64), (2, ContainerDeleted, 0, 0)], "{left:?}");
        }
    }

    /// The members of SCM that were given up closed container 1 at 70, by the logs of 2 and 3, and had its
    /// replicas moved to nodes that are away. Node 1 has a stale one.
    #[test]
    fn after_a_reset_who_has_let_go_proves_nothing() {
        let stale = (1, ReplicaQuasiClosed, 2, 60);
        let fixture = |is_reset: bool, ended: &[MemberEnd]| {
            let mut fixture = Fixture::new();
            let mut change = TablesMut::new(&mut fixture.tables);
            if is_reset {
                change.skip_numbers();
            }
            let record = change.pipeline(PipelineId(1)).unwrap().clone();
            change.put_pipeline(PipelineRecord { ended: ended.to_vec(), ..record });
            fixture.member(1, &[stale], 60);
            fixture.let_go(2, &[]);
            fixture
        };
        let late = LET_GO + DELETE_AFTER;
        let settled = [(1, ContainerClosed, 2, 60), (2, ContainerDeleted, 0, 0)];
        assert_eq!(fixture(false, &[]).decide(late), settled, "SCM itself had 2 let go");
        let undecided = [(1, ContainerQuasiClosed, 0, 0), (2, ContainerQuasiClosed, 0, 0)];
        assert_eq!(fixture(true, &[]).decide(late), undecided, "others had");
        // A member that said to this SCM that it had ended had all that it ever had; a container that nobody
        // has may be elsewhere all the same.
        let heard = [(1, ContainerClosed, 2, 60), (2, ContainerQuasiClosed, 0, 0)];
        assert_eq!(fixture(true, &[ended(1, 60), ended(2, 0)]).decide(late), heard);
        let mut come = fixture(true, &[]);
        come.member(3, &[(1, ReplicaClosed, 2, 70)], 70);
        assert_eq!(come.decide(late)[0], (1, ContainerClosed, 2, 70), "one that was closed says so");
    }

    /// A disk that lost directories shows less than its member once said it had: what it does not show,
    /// others may have acknowledged.
    #[test]
    fn who_shows_less_than_its_end_proves_nothing() {
        let decide = |noted: u64| {
            let mut fixture = Fixture::new();
            let mut change = TablesMut::new(&mut fixture.tables);
            let record = change.pipeline(PipelineId(1)).unwrap().clone();
            change.put_pipeline(PipelineRecord { ended: vec![ended(1, 60), ended(2, noted)], ..record });
            fixture.let_go(1, &[(1, ReplicaQuasiClosed, 2, 60)]);
            fixture.let_go(2, &[]);
            fixture.decide(LET_GO + DELETE_AFTER)[0]
        };
        assert_eq!(decide(0), (1, ContainerClosed, 2, 60));
        assert_eq!(decide(64), (1, ContainerQuasiClosed, 0, 0), "the third may come");
    }

    fn ended(replica: u64, last_index: u64) -> MemberEnd {
        MemberEnd { replica, last_index, last_term: 2, last_container: 1, ..MemberEnd::default() }
    }

    /// The others were heard, and lost their disks before the containers were decided by what they had said.
    #[test]
    fn who_has_the_highest_of_the_ends_in_scms_log_decides_alone() {
        let decide = |noted: &[MemberEnd], index: u64, is_lost: bool| {
            let mut fixture = Fixture::new();
            if is_lost {
                let note = NoteLostLogCommand { pipeline: 1, replica: 1 };
                run(&mut fixture.tables, Command::NoteLostLog(note));
            }
            let mut change = TablesMut::new(&mut fixture.tables);
            let record = change.pipeline(PipelineId(1)).unwrap().clone();
            change.put_pipeline(PipelineRecord { ended: noted.to_vec(), ..record });
            fixture.member(2, &[(1, ReplicaQuasiClosed, 2, index)], index);
            fixture.decide(2 * LET_GO)[0]
        };
        let roll = |last_index| MemberEnd { is_last_roll: true, ..ended(1, last_index) };
        let (closed, waits) = ((1, ContainerClosed, 2, 64), (1, ContainerQuasiClosed, 0, 0));
        assert_eq!(decide(&[ended(1, 60), ended(2, 64)], 64, false), closed);
        assert_eq!(decide(&[ended(1, 60)], 64, false), closed, "its own end is not noted yet");
        assert_eq!(decide(&[ended(1, 65), ended(2, 64)], 64, false), waits, "the other had more");
        assert_eq!(decide(&[ended(2, 64)], 64, false), waits, "less than a majority");
        assert_eq!(decide(&[ended(1, 60), ended(2, 64)], 64, true), waits, "its log was lost");
        assert_eq!(decide(&[roll(64)], 64, true), closed, "the last roll is committed, whoever said it");
        assert_eq!(decide(&[roll(65)], 64, true), waits);
        let unknown = MemberEnd { replica: 1, ..MemberEnd::default() };
        assert_eq!(decide(&[unknown, ended(2, 64)], 64, false), waits, "it could not tell");
        assert_eq!(decide(&[ended(1, 60), ended(2, 70)], 64, false), waits, "it shows less than it had");
    }

    /// One member led alone for a moment, and its file is damaged. The two others have all that was ever
    /// acknowledged.
    #[test]
    fn nobody_ends_a_container_where_he_is_damaged() {
        let mut fixture = Fixture::new();
        fixture.member(1, &[(1, ReplicaQuasiClosed, 2, 76)], 76);
        fixture.damage(1);
        fixture.member(2, &[(1, ReplicaQuasiClosed, 1, 59)], 59);
        assert_eq!(fixture.decide(2 * LET_GO), [(1, ContainerQuasiClosed, 0, 0)], "the third may come");
        fixture.member(3, &[(1, ReplicaQuasiClosed, 1, 74)], 74);
        assert_eq!(fixture.decide(2 * LET_GO)[0], (1, ContainerClosed, 1, 74));

        let mut behind = Fixture::new();
        behind.member(1, &[(1, ReplicaQuasiClosed, 1, 59)], 59);
        behind.damage(1);
        behind.member(2, &[(1, ReplicaQuasiClosed, 1, 74)], 74);
        assert_eq!(behind.decide(2 * LET_GO)[0], (1, ContainerClosed, 1, 74), "the other has more");
    }

    /// A closed container of the pipeline is copied to a member that lagged: the copy would pass for a log
    /// that goes on to there, and says that nothing was in the container before.
    #[test]
    fn what_was_copied_to_a_member_is_no_log_of_its_own() {
        let mut fixture = Fixture::new();
        fixture.member(1, &[(1, ReplicaQuasiClosed, 2, 150), (2, ReplicaClosed, 3, 151)], 151);
        fixture.damage(1);
        fixture.let_go(2, &[(2, ReplicaClosed, 3, 151)]);
        fixture.change(2, 2, |replica| replica.copied = true);
        assert_eq!(fixture.decide(2 * LET_GO)[0], (1, ContainerQuasiClosed, 0, 0), "the third may come");
        fixture.member(3, &[(1, ReplicaQuasiClosed, 2, 138)], 138);
        assert_eq!(fixture.decide(2 * LET_GO + DELETE_AFTER)[0], (1, ContainerClosed, 2, 138));
    }

    /// The note of the lost log was lost with the members of SCM that were given up.
    #[test]
    fn a_replica_without_its_log_proves_nothing_whoever_noted_it() {
        let decided =
            decide(&[(1, &[(1, ReplicaWithoutLog, 2, 60)]), (2, &[(1, ReplicaQuasiClosed, 2, 10)])]);
        assert_eq!(decided, [(1, ContainerQuasiClosed, 0, 0), (2, ContainerQuasiClosed, 0, 0)]);
    }

    #[test]
    fn a_pipeline_without_members_is_decided_by_an_operator_on_what_holders_have() {
        let mut fixture = Fixture::new();
        let mut change = TablesMut::new(&mut fixture.tables);
        let record = change.pipeline(PipelineId(1)).unwrap().clone();
        change.put_pipeline(PipelineRecord { members: vec![], ..record });
        fixture.let_go(1, &[(1, ReplicaQuasiClosed, 2, 60)]);
        fixture.let_go(2, &[(1, ReplicaQuasiClosed, 2, 64)]);
        let containers = fixture.resolution.decide(&World::at(
            &fixture.tables,
            &fixture.nodes,
            fixture.start + 2 * LET_GO,
        ));
        assert_eq!(containers.len(), 2);
        let undecided = proto::scm::SettleContainersCommand { containers };
        run(&mut fixture.tables, Command::SettleContainers(undecided));
        let Fixture { tables, nodes, start, .. } = &fixture;
        let (keep, kept) =
            accept_loss(PipelineId(1), &World::at(tables, nodes, *start + LET_GO), *start).unwrap();
        assert_eq!((keep, kept[0].state(), kept[0].last_index), (NodeId(2), ContainerClosed, 64));
    }

    /// Member 1 may have acknowledged what member 3 has and member 2 lacks, and its disk was emptied since.
    #[test]
    fn who_has_begun_and_says_nothing_proves_nothing() {
        let decide = |has_begun: bool| {
            let mut fixture = Fixture::new();
            if has_begun {
                let begun = PipelineReplica { pipeline: 1, replica: fixture.replica_on(1) };
                let note = NoteBegunCommand { members: vec![begun] };
                run(&mut fixture.tables, Command::NoteBegun(note));
            }
            fixture.let_go(1, &[]);
            fixture.member(2, &[(1, ReplicaQuasiClosed, 1, 10)], 10);
            fixture.decide(2 * LET_GO)
        };
        assert_eq!(decide(false)[0], (1, ContainerClosed, 1, 10), "it never had anything");
        assert_eq!(decide(true)[0], (1, ContainerQuasiClosed, 0, 0), "the third may have more");
    }

    /// All that a member without its log has left was applied, and acknowledged perhaps: the member that lags
    /// and proves it is no better.
    #[test]
    fn who_accepts_a_loss_does_not_lose_what_one_without_its_log_has_left() {
        let mut fixture = Fixture::new();
        let note = NoteLostLogCommand { pipeline: 1, replica: fixture.replica_on(1) };
        run(&mut fixture.tables, Command::NoteLostLog(note));
        fixture.member(1, &[(1, ReplicaWithoutLog, 2, 60)], 60);
        fixture.member(2, &[(1, ReplicaQuasiClosed, 2, 10)], 10);
        let containers = fixture.resolution.decide(&World::at(
            &fixture.tables,
            &fixture.nodes,
            fixture.start + 2 * LET_GO,
        ));
        assert_eq!(containers.len(), 2);
        let undecided = proto::scm::SettleContainersCommand { containers };
        run(&mut fixture.tables, Command::SettleContainers(undecided));
        let dead = fixture.start + 101 * LET_GO;
        for node in [1, 2] {
            let disk = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
            fixture.nodes.see(NodeId(node), vec![disk], dead);
        }
        let accepted =
            accept_loss(PipelineId(1), &World::at(&fixture.tables, &fixture.nodes, dead), fixture.start);
        let (keep, kept) = accepted.unwrap();
        assert_eq!((keep, kept[0].state(), kept[0].last_index), (NodeId(1), ContainerClosed, 60));
    }

    /// The container would have no replica to make copies of: the one it is decided by is damaged, or gone
    /// with the index of its disk.
    #[test]
    fn who_accepts_a_loss_keeps_what_is_there_and_whole() {
        let accept = |spoil: &dyn Fn(&mut Fixture)| {
            let mut fixture = Fixture::new();
            fixture.member(1, &[(1, ReplicaQuasiClosed, 2, 76)], 76);
            fixture.member(2, &[(1, ReplicaQuasiClosed, 1, 59)], 59);
            let state = ContainerQuasiClosed as i32;
            let undecided = SettledContainer { container: 1, state, ..SettledContainer::default() };
            let containers = vec![undecided];
            let command = proto::scm::SettleContainersCommand { containers };
            run(&mut fixture.tables, Command::SettleContainers(command));
            spoil(&mut fixture);
            let dead = fixture.start + 101 * LET_GO;
            for node in [1, 2] {
                let disk = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
                fixture.nodes.see(NodeId(node), vec![disk], dead);
            }
            let Fixture { tables, nodes, start, .. } = &fixture;
            let (keep, kept) = accept_loss(PipelineId(1), &World::at(tables, nodes, dead), *start).unwrap();
            (keep.0, kept[0].last_index)
        };
        assert_eq!(accept(&|_| ()), (1, 76));
        assert_eq!(accept(&|fixture| fixture.damage(1)), (1, 59));
        let both = |fixture: &mut Fixture| [1, 2].into_iter().for_each(|node| fixture.damage(node));
        assert_eq!(accept(&both), (1, 76));
        let loses_its_index = |fixture: &mut Fixture| {
            let mut change = TablesMut::new(&mut fixture.tables);
            let record = change.pipeline(PipelineId(1)).unwrap().clone();
            change.put_pipeline(PipelineRecord { ended: vec![ended(1, 76)], ..record });
            fixture.let_go(1, &[(1, ReplicaWithoutLog, 0, 0)]);
        };
        assert_eq!(accept(&loses_its_index), (2, 59));
    }

    #[test]
    fn who_accepts_the_loss_gets_what_the_best_member_left_has() {
        let mut fixture = Fixture::new();
        let accept = |fixture: &Fixture, later: Duration| {
            let Fixture { tables, nodes, start, .. } = fixture;
            let accepted = accept_loss(PipelineId(1), &World::at(tables, nodes, *start + later), *start);
            accepted.map(|(node, kept)| {
                (node.0, kept.iter().map(|c| (c.container, c.state(), c.last_index)).collect::<Vec<_>>())
            })
        };
        fixture.member(1, &[(1, ReplicaQuasiClosed, 2, 60)], 60);
        let undecided = accept(&fixture, LET_GO).unwrap_err();
        assert_eq!(undecided, "no container of pipeline 1 waits for a decision");
        let containers = fixture.resolution.decide(&World::at(
            &fixture.tables,
            &fixture.nodes,
            fixture.start + 2 * LET_GO,
        ));
        let quasi_close = proto::scm::SettleContainersCommand { containers };
        run(&mut fixture.tables, Command::SettleContainers(quasi_close));
        let early = accept(&fixture, LET_GO).unwrap_err();
        assert!(early.starts_with("node 2 is not dead"), "{early}");
        let dead = 101 * LET_GO;
        assert_eq!(accept(&fixture, dead).unwrap_err(), "no member of pipeline 1 is left");
        let broken = DiskReport { disk: disk(1, 0), state: DiskState::Failed as i32, ..Default::default() };
        fixture.nodes.see(NodeId(1), vec![broken], fixture.start + dead);
        let refused = accept(&fixture, dead).unwrap_err();
        assert!(refused.starts_with("node 1 has it on a disk that does not work now"), "{refused}");
        let disk = DiskReport { disk: disk(1, 0), ..DiskReport::default() };
        fixture.nodes.see(NodeId(1), vec![disk], fixture.start + dead);
        let kept = vec![(1, ContainerClosed, 60), (2, ContainerDeleted, 0)];
        assert_eq!(accept(&fixture, dead), Ok((1, kept)));
    }

    /// The report of the pipeline was quicker than that of its containers.
    #[test]
    fn a_log_that_is_half_reported_decides_nothing() {
        let mut fixture = Fixture::new();
        for node in [1, 2] {
            fixture.member(node, &[(1, ReplicaQuasiClosed, 2, 60)], 64);
        }
        let quasi_closed = [(1, ContainerQuasiClosed, 0, 0), (2, ContainerQuasiClosed, 0, 0)];
        assert_eq!(fixture.decide(LET_GO), [], "it may still come");
        assert_eq!(fixture.decide(2 * LET_GO), quasi_closed);
        for node in [1, 2] {
            fixture.member(node, &[(1, ReplicaQuasiClosed, 2, 60), (2, ReplicaQuasiClosed, 2, 64)], 64);
        }
        assert_eq!(fixture.decide(LET_GO), [(1, ContainerClosed, 2, 60), (2, ContainerClosed, 2, 64)]);
    }

    #[test]
    fn nothing_is_deleted_in_a_hurry() {
        let mut fixture = Fixture::new();
        for node in [1, 2] {
            fixture.member(node, &[(1, ReplicaClosed, 2, 70)], 70);
        }
        assert_eq!(fixture.decide(LET_GO), [(1, ContainerClosed, 2, 70)]);
        let decided = fixture.decide(LET_GO + DELETE_AFTER);
        assert_eq!(decided, [(1, ContainerClosed, 2, 70), (2, ContainerDeleted, 0, 0)]);
    }

    #[test]
    fn a_lost_disk_says_nothing() {
        // Node 2 speaks, but has another disk than the one its replica was on.
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, ""));
        run(&mut tables, end(1));
        let start = Instant::now();
        let mut nodes = Nodes::new(
            Silence {
                stale_after: LET_GO,
                dead_after: 100 * LET_GO,
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            start,
        );
        let mut resolution = Resolution::new(LET_GO);
        resolution.decide(&World::at(&tables, &nodes, start));
        let now = start + 2 * LET_GO;
        for (node, at) in [(1, 0), (2, 1)] {
            nodes.see(NodeId(node), vec![DiskReport { disk: disk(node, at), ..DiskReport::default() }], now);
            nodes.report_pipelines(NodeId(node), Vec::new(), &Default::default());
            let report = ContainersReport { replicas: vec![], gone: vec![], begins: true, ends: true };
            nodes.report_containers(NodeId(node), report);
        }
        let decided = resolution.decide(&World::at(&tables, &nodes, now));
        assert_eq!(decided.iter().map(SettledContainer::state).collect::<Vec<_>>(), [ContainerQuasiClosed]);
    }
}
