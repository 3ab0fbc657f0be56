//! The replication manager: sees to it that each closed container has three good replicas.
//!
//! [`planner`] decides for one container, [`tasks`] remembers what was asked. [`Replication`] goes through
//! all containers in slices, so that a look never holds up heartbeats for long, and looks first at those that
//! reports have changed.

mod planner;
#[cfg(test)]
mod planner_tests;
mod tasks;

pub(crate) use planner::{
    ContainerView, CopyWait, Findings, Limits, NodeView, NodeViews, REPLICAS, REPLICAS_BESIDES_MAINTENANCE,
    bytes_of, copy, examine, racks_wanted,
};
pub(crate) use tasks::{Copies, Order, OrderKey, Tasks};

use crate::discards::Discards;
use crate::member_view::MemberView;
use crate::nodes::Nodes;
use crate::options::ScmOptions;
use crate::quality::Quality;
use crate::rolls::Rolls;
use crate::tables::{Tables, container_state};
use crate::world::World;
use planted::Bug;
use proto::scm::{
    ContainerRecord, ContainerReplica, ContainerState, ContainerTrouble, DeleteReplica, NodeRecord,
    NodeState, PipelineRecord, PipelineState, ReplicaState, TaskKind,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId, Term};

/// The most containers of one look, which take about five milliseconds. A million is gone through in less
/// than a minute.
pub(crate) const SLICE: usize = 5_000;

/// The time for which a container must lack replicas before copies are made. SCM hears at one moment that a
/// container is closed and that all its members have applied its end, and of their closed replicas a second
/// or two later: copies would be made of what is there.
const COPY_AFTER: Duration = Duration::from_secs(5);

/// The time after which a member that is behind without coming on is not waited for, and one that still comes
/// on is told of as trouble.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// The leader's knowledge of containers beyond tables and reports.
pub(crate) struct Replication {
    pub(crate) tasks: Tasks,
    pub(crate) discards: Discards,
    /// The troubles of containers when they were last looked at.
    pub(crate) troubles: BTreeMap<ContainerId, Vec<ContainerTrouble>>,
    /// Containers that lack replicas of which not all are being copied, with what they wait for.
    pub(crate) waits: BTreeMap<ContainerId, CopyWait>,
    /// The moments since which containers lack replicas.
    lacking: BTreeMap<ContainerId, Instant>,
    /// The moments since which a node that speaks has had a replica that goes on past its container.
    ahead: BTreeMap<(ContainerId, NodeId), (DeleteReplica, Instant)>,
    /// The moments since which members have been coming to containers.
    coming: BTreeMap<ContainerId, Instant>,
    /// The container at which the next slice begins.
    cursor: ContainerId,
    pub(crate) rolls: Rolls,
}

impl Replication {
    pub(crate) fn new(term: Term) -> Replication {
        let (tasks, troubles, waits, lacking, ahead, coming, cursor, rolls) = Default::default();
        let discards = Discards::new(term);
        Replication { tasks, discards, troubles, waits, lacking, ahead, coming, cursor, rolls }
    }
}

/// Notes silent nodes at whose address another one speaks.
pub(crate) fn note_replaced(tables: &Tables, nodes: &mut Nodes, now: Instant) {
    let speaks = |node: &NodeId| nodes.state(*node, now) == NodeState::NodeHealthy;
    let (speak, silent): (Vec<_>, Vec<_>) = tables.nodes().iter().partition(|(node, _)| speaks(node));
    if silent.is_empty() {
        return;
    }
    let at: BTreeMap<&str, NodeId> =
        speak.into_iter().map(|(node, record)| (record.address.as_str(), *node)).collect();
    let by = |(node, record): (&NodeId, &NodeRecord)| Some((*node, *at.get(record.address.as_str())?));
    let replaced: Vec<(NodeId, NodeId)> = silent.into_iter().filter_map(by).collect();
    replaced.into_iter().for_each(|(node, by)| nodes.replace(node, by, now));
}

impl Replication {
    /// Looks at `changed` and at the next containers in their order, and asks nodes for what is missing.
    pub(crate) fn look(&mut self, changed: Vec<ContainerId>, world: &World<'_>, options: &ScmOptions) {
        let limits = Limits {
            all_known: all_known(world.node_views()),
            nodes: world.node_views(),
            copies_per_node_max: options.copies_per_node_max,
            tasks_per_node_max: options.tasks_per_node_max,
            keep_free_percent: options.keep_free_percent,
            ahead_kept: options.ahead_kept,
            now: world.now,
            now_ms: world.now_ms,
        };
        self.rolls.drop_done(world, options.task_within);
        self.drop_done(world, options.task_within);
        let mut copies = self.tasks.copies();
        let slice = self.take_slice(world.tables);
        for container in changed.into_iter().chain(slice) {
            self.look_at(container, world, &limits, &mut copies);
        }
        for container in self.discards.plan(world, &self.tasks, options) {
            tracing::info!(%container, "an open container is closed for what is dead in it, or has no name");
            if let Err(failure) = self.rolls.want(container, world) {
                tracing::info!(%container, %failure, "it is not closed yet");
            }
        }
    }

    /// Takes the next containers in the order of their numbers; after the last one the first comes again.
    fn take_slice(&mut self, tables: &Tables) -> Vec<ContainerId> {
        let rest = tables.containers().range((Bound::Excluded(self.cursor), Bound::Unbounded));
        let slice: Vec<ContainerId> = rest.map(|(container, _)| *container).take(SLICE).collect();
        self.cursor = if slice.len() < SLICE { ContainerId(0) } else { slice[SLICE - 1] };
        slice
    }

    fn drop_done(&mut self, world: &World<'_>, within: Duration) {
        let is_done = |node: NodeId, order: &Order| is_done(node, order, world);
        let views = world.node_views();
        let gone = |node: NodeId| views.get(&node).is_none_or(|view| view.state == NodeState::NodeDead);
        let is_void = |node: NodeId, order: &Order| gone(node) || is_void(order, world);
        self.tasks.drop_done(world.now, within, is_done, is_void);
    }

    fn look_at(
        &mut self,
        container: ContainerId,
        world: &World<'_>,
        limits: &Limits<'_>,
        copies: &mut Copies,
    ) {
        let Some(mut known) = known(container, world) else {
            self.ahead.retain(|(of, _), _| *of != container);
            self.coming.remove(&container);
            return;
        };
        known.ahead_is_told = self.ahead_is_told(container, &known, limits);
        self.discards.look(&known, world);
        let Findings { mut troubles, mut orders, wait } = examine(&known, limits, &self.tasks, copies);
        let is_told = troubles.contains(&ContainerTrouble::ContainerUnderReplicated);
        if self.is_late(container, &known, limits.now) && !is_told {
            troubles.push(ContainerTrouble::ContainerUnderReplicated);
        }
        match wait {
            None => self.waits.remove(&container),
            Some(wait) => self.waits.insert(container, wait),
        };
        match troubles.is_empty() {
            true => self.troubles.remove(&container),
            false => self.troubles.insert(container, troubles),
        };
        let lacks = wait.is_some() || orders.iter().any(|(_, order)| order.is_copy());
        if !lacks {
            self.lacking.remove(&container);
        } else if limits.now - *self.lacking.entry(container).or_insert(limits.now) < COPY_AFTER {
            orders.retain(|(_, order)| !order.is_copy());
        }
        // A replica that ended by itself is read to its end once it is marked, and nothing moves by that.
        let may_ask =
            |(_, order): &(NodeId, Order)| world.may_move_data() || order.is_close() && !world.in_safe_mode;
        for (node, order) in orders.into_iter().filter(may_ask) {
            tracing::info!(%container, %node, ?order, "ask");
            if let Order::Copy { sources, .. } = &order {
                copies.add(node, sources.first().copied());
            }
            self.tasks.ask(node, order, limits.now);
        }
    }
}

impl Replication {
    /// Whether a member has been coming to the container for long. Such a member is waited for, and a person
    /// should know that a replica is lacking.
    fn is_late(&mut self, container: ContainerId, known: &ContainerView<'_>, now: Instant) -> bool {
        if known.coming.is_empty() {
            self.coming.remove(&container);
            return false;
        }
        now - *self.coming.entry(container).or_insert(now) >= COMES_WITHIN
    }

    /// The nodes whose replica has been told of as going on past its container for long enough.
    fn ahead_is_told(
        &mut self,
        container: ContainerId,
        known: &ContainerView<'_>,
        limits: &Limits<'_>,
    ) -> BTreeSet<NodeId> {
        let speaks =
            |node: &NodeId| limits.nodes.get(node).is_some_and(|view| view.state == NodeState::NodeHealthy);
        let ahead = known
            .replicas
            .iter()
            .filter(|(node, replica)| known.quality(replica) == Quality::Ahead && speaks(node));
        let ahead: BTreeMap<NodeId, DeleteReplica> =
            ahead.map(|(node, replica)| (*node, DeleteReplica::of(replica))).collect();
        // Another replica of the same node has an hour of its own.
        self.ahead.retain(|(of, node), (replica, _)| *of != container || ahead.get(node) == Some(replica));
        let is_told = |(node, replica): &(NodeId, DeleteReplica)| {
            let since = self.ahead.entry((container, *node)).or_insert_with(|| (replica.clone(), limits.now));
            limits.now - since.1 >= limits.ahead_kept
        };
        ahead.into_iter().filter(is_told).map(|(node, _)| node).collect()
    }
}

/// Whether reports show that an order was carried out.
fn is_done(node: NodeId, order: &Order, world: &World<'_>) -> bool {
    let World { tables, nodes, now, .. } = *world;
    match order {
        Order::Copy { container, .. } => {
            let replica = nodes.replicas().get(*container, node);
            replica.is_some_and(|replica| replica.state() != ReplicaState::ReplicaOpen)
        }
        // Another one may come in its place, of which nobody has said that it goes.
        Order::Delete { replica, .. } => {
            let there = nodes.replicas().get(ContainerId(replica.container), node);
            there.is_none_or(|there| !replica.means(there))
        }
        Order::Close { container, .. } => {
            let replica = nodes.replicas().get(*container, node);
            replica.is_none_or(|replica| replica.state() == ReplicaState::ReplicaClosed)
        }
        Order::Check { container, asked_ms } => {
            let replica = nodes.replicas().get(*container, node);
            replica.is_none_or(|replica| replica.checked_ms == *asked_ms || !replica.unhealthy.is_empty())
        }
        Order::MoveLeader { pipeline, to_replica } => {
            let Some(record) = tables.pipeline(*pipeline) else { return true };
            let leader = nodes.pipeline_seen(record, now).leader;
            record
                .members
                .iter()
                .any(|member| member.replica == *to_replica && Some(NodeId(member.node)) == leader)
        }
    }
}

/// Whether nobody wants the order any more, or it is to be decided on anew.
fn is_void(order: &Order, world: &World<'_>) -> bool {
    let tables = world.tables;
    match order {
        Order::Copy { container, .. } | Order::Close { container, .. } | Order::Check { container, .. } => {
            let record = tables.container(*container);
            record.is_none_or(|record| container_state(record) == ContainerState::ContainerDeleted)
        }
        // The deletion may be carried out as long as its node was told a moment ago.
        Order::Delete { .. } => false,
        Order::MoveLeader { pipeline, .. } => {
            tables.pipeline(*pipeline).is_none_or(|record| record.state() != PipelineState::PipelineOpen)
        }
    }
}

/// Whether every node that is not dead has told of all its replicas. Replicas that a node may have and has
/// not told of are not made up for: they are not known to be lost.
pub(crate) fn all_known(views: &NodeViews) -> bool {
    views.values().all(|view| view.complete || view.state == NodeState::NodeDead)
}

/// All that is known of a container.
pub(crate) fn known<'a>(container: ContainerId, world: &World<'a>) -> Option<ContainerView<'a>> {
    let World { tables, nodes, now, .. } = *world;
    let record = tables.container(container)?;
    let pipeline = tables.pipeline(PipelineId(record.pipeline))?;
    let pipeline_over = pipeline.state() == PipelineState::PipelineClosed;
    let is_decided = |record: &ContainerRecord| {
        matches!(container_state(record), ContainerState::ContainerClosed | ContainerState::ContainerDeleted)
    };
    // Of each container of the pipeline it is looked at for those alone that are deleted.
    let is_dispensable = container_state(record) == ContainerState::ContainerDeleted
        && (record.emptied || pipeline_over && tables.containers_of(pipeline).all(is_decided));
    let behind = match pipeline_over {
        true => Vec::new(),
        false => behind(record, pipeline, nodes, now),
    };
    let coming = coming(container, &behind, nodes);
    let behind = behind.iter().map(MemberView::node_id).collect();
    let is_there =
        |(node, replica): &(NodeId, &ContainerReplica)| !nodes.disk_is_lost(*node, &replica.disk, now);
    let (replicas, on_lost_disks): (Vec<_>, Vec<_>) = nodes.replicas().of(container).partition(is_there);
    let on_lost_disks = on_lost_disks.into_iter().map(|(node, _)| node).collect();
    let fails = |(node, replica): &&(NodeId, &ContainerReplica)| nodes.disk_is_failing(*node, &replica.disk);
    let on_failing_disks = replicas.iter().filter(fails).map(|(node, _)| *node).collect();
    let is_dead = |(node, _): &&(NodeId, &ContainerReplica)| {
        let is_expected = world.node_views().get(node).is_some_and(|view| view.counts());
        nodes.state(*node, now) == NodeState::NodeDead && !is_expected
    };
    let on_dead_nodes = replicas.iter().filter(is_dead).map(|(node, _)| *node).collect();
    let ahead_is_told = BTreeSet::new();
    Some(ContainerView {
        record,
        pipeline_over,
        is_dispensable,
        replicas,
        on_lost_disks,
        on_failing_disks,
        on_dead_nodes,
        behind,
        coming,
        ahead_is_told,
    })
}

/// The members that have not applied the container's last record yet, and may. One that says nothing may be
/// about to begin.
fn behind<'a>(
    record: &ContainerRecord,
    pipeline: &'a PipelineRecord,
    nodes: &'a Nodes,
    now: Instant,
) -> Vec<MemberView<'a>> {
    let views = pipeline.members.iter().map(|member| MemberView::of(pipeline, member, nodes, now));
    let is_behind = |member: &MemberView<'_>| {
        !member.has_ended() && member.said.is_none_or(|report| report.applied_index < record.last_index)
    };
    views.filter(is_behind).collect()
}

/// The nodes of members that are behind, run or will, and come on.
fn coming(container: ContainerId, behind: &[MemberView<'_>], nodes: &Nodes) -> BTreeSet<NodeId> {
    let comes = behind.iter().filter(|member| {
        let replica = nodes.replicas().get(container, member.node_id());
        let open = replica.is_none_or(|replica| replica.state() == ReplicaState::ReplicaOpen);
        open && (member.runs() || member.is_opening())
            && member.stands_still < COMES_WITHIN
            && !member.is_dead()
            && member.disk_works == Some(true)
    });
    comes.map(MemberView::node_id).collect()
}

/// Whether a node is to be told of an order at this moment. What was decided a while ago, while data may have
/// stood still or a node's other orders took long, counts only as far as it still rests on what it rested on.
pub(crate) fn may_tell(node: NodeId, order: &Order, world: &World<'_>, tasks: &Tasks) -> bool {
    if order.moves_data() && !world.may_move_data() {
        return false;
    }
    match order {
        Order::Delete { replica, beside } if *beside > 0 => {
            let container = ContainerId(replica.container);
            known(container, world).is_some_and(|known| {
                let early = planted::has(Bug::CopiesCountEarly);
                let early = if early { tasks.nodes_with(TaskKind::TaskCopy, container).len() } else { 0 };
                firm_elsewhere(&known, world.node_views(), tasks, node) + early >= *beside
            })
        }
        _ => true,
    }
}

/// Nodes other than `besides` with a good replica that stays: it is not about to be deleted.
fn staying<'a>(
    known: &'a ContainerView<'_>,
    tasks: &'a Tasks,
    besides: NodeId,
) -> impl Iterator<Item = NodeId> + 'a {
    let is_going = move |node: NodeId| tasks.is_asked(node, TaskKind::TaskDelete, known.record.container);
    let good = known.replicas.iter().filter(|(_, replica)| known.quality(replica).is_good());
    good.map(|(node, _)| *node).filter(move |node| *node != besides && !is_going(*node))
}

/// Whether `besides` may leave so many good replicas behind, on nodes that stay: two of them in service,
/// which speak and can read them, for those in maintenance may be switched off together.
pub(crate) fn are_good_elsewhere(
    needed: usize,
    known: &ContainerView<'_>,
    views: &NodeViews,
    tasks: &Tasks,
    besides: NodeId,
) -> bool {
    let staying = staying(known, tasks, besides).filter(|node| !known.on_failing_disks.contains(node));
    let staying = staying.filter_map(|node| views.get(&node));
    let counts = |view: &&NodeView| view.is_firm() || view.counts() && view.complete && !view.in_service();
    let counted: Vec<&NodeView> = staying.filter(counts).collect();
    let in_service = counted.iter().filter(|view| view.is_firm()).count();
    counted.len() >= needed && in_service >= REPLICAS_BESIDES_MAINTENANCE
}

/// Counts the good replicas that may be relied upon when that of `besides` goes: their disks work, and their
/// nodes speak.
pub(crate) fn firm_elsewhere(
    known: &ContainerView<'_>,
    views: &NodeViews,
    tasks: &Tasks,
    besides: NodeId,
) -> usize {
    let is_firm = |node: &NodeId| {
        !known.on_failing_disks.contains(node) && views.get(node).is_some_and(NodeView::is_firm)
    };
    staying(known, tasks, besides).filter(is_firm).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::{close, create, end, good_replica, one_closed_container, run, three_nodes};
    use proto::scm::{
        AllocateContainerCommand, SetSwitchesCommand, SettleContainersCommand, SettledContainer, Switches,
        scm_command::Command,
    };

    /// Four nodes with a good replica each of container 1, which is closed.
    fn one_too_many(now: Instant) -> (Tables, Nodes) {
        let second = Duration::from_secs(1);
        let silence =
            Silence { stale_after: 10 * second, dead_after: 600 * second, disk_lost_after: 30 * second };
        let mut nodes = Nodes::new(silence, now);
        (1..=4).for_each(|node| nodes.tell(node, vec![good_replica()], now));
        (one_closed_container(), nodes)
    }

    fn look(replication: &mut Replication, world: &World<'_>) -> Option<(NodeId, Order)> {
        replication.look(vec![ContainerId(1)], world, &ScmOptions::default());
        let mut asked = replication.tasks.all().map(|(node, asked)| (node, asked.order.clone()));
        asked.find(|(_, order)| matches!(order, Order::Delete { .. }))
    }

    /// Withheld while replication was off, or behind others in its node's queue, it took the last good
    /// replica.
    #[test]
    fn a_deletion_is_told_only_while_what_it_counted_on_is_there() {
        let start = Instant::now();
        let (mut tables, mut nodes) = one_too_many(start);
        let mut replication = Replication::new(Term(1));
        let (victim, order) = look(&mut replication, &World::at(&tables, &nodes, start)).unwrap();
        let may = |tables: &Tables, nodes: &Nodes, at: Instant| {
            may_tell(victim, &order, &World::at(tables, nodes, at), &replication.tasks)
        };
        assert!(may(&tables, &nodes, start));
        for replication in [false, true] {
            let switches = Some(Switches { replication, ..tables.switches() });
            run(&mut tables, Command::SetSwitches(SetSwitchesCommand { switches }));
            assert_eq!(may(&tables, &nodes, start), replication);
        }
        assert!(may(&tables, &nodes, start));
        // One of the three others falls silent.
        let later = start + Duration::from_secs(20);
        let silent = (1..=4).map(NodeId).find(|node| *node != victim).unwrap();
        for node in (1..=4).map(NodeId).filter(|node| *node != silent) {
            nodes.see(node, vec![], later);
        }
        assert!(!may(&tables, &nodes, later));
        nodes.see(silent, vec![], later);
        assert!(may(&tables, &nodes, later));
    }

    /// Readers get no more of one that ended by itself than it knows committed, before it is marked.
    #[test]
    fn what_ended_by_itself_is_marked_also_while_nothing_may_move() {
        let now = Instant::now();
        let (mut tables, mut nodes) = one_too_many(now);
        let switches = Some(Switches { replication: false, ..tables.switches() });
        run(&mut tables, Command::SetSwitches(SetSwitchesCommand { switches }));
        let state = ReplicaState::ReplicaQuasiClosed as i32;
        nodes.tell(2, vec![ContainerReplica { state, ..good_replica() }], now);
        (3..=4).for_each(|node| nodes.tell(node, vec![], now));
        let mut replication = Replication::new(Term(1));
        assert_eq!(look(&mut replication, &World::at(&tables, &nodes, now)), None);
        let asked: Vec<_> = replication.tasks.all().map(|(node, it)| (node, it.order.is_close())).collect();
        assert_eq!(asked, [(NodeId(2), true)], "and no copy is made");
    }

    /// Each goes on past the container, one on each disk of a node.
    #[test]
    fn another_replica_of_a_node_is_kept_for_an_hour_of_its_own() {
        let (start, kept) = (Instant::now(), ScmOptions::default().ahead_kept);
        let (tables, mut nodes) = one_too_many(start);
        let mut replication = Replication::new(Term(1));
        let mut goes = |last_index: u64, at: Instant| {
            let ahead = ContainerReplica { last_index, blocks: 9, ..good_replica() };
            (1..=3).for_each(|node| nodes.tell(node, vec![good_replica()], at));
            nodes.tell(4, vec![ahead], at);
            look(&mut replication, &World::at(&tables, &nodes, at)).map(|(node, _)| node)
        };
        let past = good_replica().last_index + 1;
        assert_eq!(goes(past, start), None);
        assert_eq!(goes(past + 1, start + kept), None, "it came a moment ago");
        assert_eq!(goes(past + 1, start + 2 * kept), Some(NodeId(4)));
    }

    #[test]
    fn a_deletion_told_to_a_node_that_fell_silent_is_decided_anew() {
        let start = Instant::now();
        let (tables, mut nodes) = one_too_many(start);
        let mut replication = Replication::new(Term(1));
        let (victim, _) = look(&mut replication, &World::at(&tables, &nodes, start)).unwrap();
        let speak = |nodes: &mut Nodes, at: Instant| {
            (1..=4)
                .map(NodeId)
                .filter(|node| *node != victim)
                .for_each(|node| _ = nodes.see(node, vec![], at));
        };
        // It may still carry out what it was told: no other is asked.
        let soon = start + Duration::from_secs(30);
        speak(&mut nodes, soon);
        let asked = look(&mut replication, &World::at(&tables, &nodes, soon));
        assert_eq!(asked.map(|(node, _)| node), Some(victim));
        let late = start + Duration::from_secs(60);
        speak(&mut nodes, late);
        let asked = look(&mut replication, &World::at(&tables, &nodes, late));
        assert_eq!(asked, None, "three are left that speak");
    }

    /// A disk that was away has the last replica with what the container lacks, and is told of when the other
    /// one on its node is gone.
    #[test]
    fn a_deletion_is_of_the_replica_that_it_was_decided_on() {
        let now = Instant::now();
        let (tables, mut nodes) = one_too_many(now);
        let mut replication = Replication::new(Term(1));
        let (victim, _) = look(&mut replication, &World::at(&tables, &nodes, now)).unwrap();
        let good = good_replica();
        let ahead = ContainerReplica {
            disk: vec![9; 16].into(),
            state: ReplicaState::ReplicaQuasiClosed.into(),
            last_index: good.last_index + 40,
            committed_term: good.last_term,
            committed_index: good.last_index + 40,
            ..good
        };
        nodes.tell(victim.0, vec![ahead], now);
        assert_eq!(look(&mut replication, &World::at(&tables, &nodes, now)), None);
        assert_eq!(replication.tasks.deletions_done, 1);
    }

    /// A member's replica of a container that others never came to was deleted, and with it the proof that
    /// its log was whole: the container before waited for ever.
    #[test]
    fn what_a_deleted_container_shows_stays_until_its_pipeline_is_decided() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, Command::AllocateContainer(AllocateContainerCommand { pipeline: 1, after: 1 }));
        run(&mut tables, close(1, ""));
        let now = Instant::now();
        let silence =
            Silence { stale_after: Duration::MAX, dead_after: Duration::MAX, disk_lost_after: Duration::MAX };
        let nodes = Nodes::new(silence, now);
        let settle = |tables: &mut Tables, container, state: ContainerState| {
            let closed = SettledContainer { container, state: state as i32, last_term: 1, last_index: 7 };
            run(tables, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }));
        };
        let is_dispensable = |tables: &Tables| {
            known(ContainerId(2), &World::at(tables, &nodes, now)).expect("it is there").is_dispensable
        };
        settle(&mut tables, 2, ContainerState::ContainerDeleted);
        assert!(!is_dispensable(&tables), "the pipeline is not over");
        run(&mut tables, end(1));
        assert!(!is_dispensable(&tables));
        settle(&mut tables, 1, ContainerState::ContainerQuasiClosed);
        assert!(!is_dispensable(&tables));
        settle(&mut tables, 1, ContainerState::ContainerClosed);
        assert!(is_dispensable(&tables));
    }
}
