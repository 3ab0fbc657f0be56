//! Tasks that SCM's leader has asked of the nodes and not yet seen done.

use proto::scm::task::Task as Kind;
use proto::scm::{
    CheckReplica, CloseReplica, CopyContainer, DeleteReplica, MoveLeader, NodeAddress, Task, TaskInfo,
    TaskKind, TaskReport,
};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// The time for which a node that failed at a container is not asked for the same again: then, what was wrong
/// may have passed.
const AVOID_FOR: Duration = Duration::from_secs(60);

/// The time for which a container that lacks a replica is left as it is when a copy of it has failed. Another
/// one is asked for within that, most times: what is discarded meanwhile takes its source's hash away, and
/// the copy would fail again.
const COPY_AWAITED_FOR: Duration = Duration::from_secs(120);

/// The time after which a deletion that a node is not told of any more is over: a node follows no order that
/// was asked of it more than half of this ago.
const DELETION_ENDS_AFTER: Duration = Duration::from_secs(60);

/// An order that a node may be given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Copies the container from one of the sources, the best of which is first.
    Copy {
        container: ContainerId,
        pipeline: PipelineId,
        sources: Vec<NodeId>,
        hash: String,
        bytes: u64,
        to_balance: bool,
    },
    /// Deletes this replica as long as so many good ones are `beside` it, on nodes that may be relied upon:
    /// those that the decision counted on.
    Delete {
        replica: DeleteReplica,
        beside: usize,
    },
    Close {
        container: ContainerId,
        last_term: u64,
        last_index: u64,
    },
    /// Reads all of the replica, before another one is deleted that may have what it lacks.
    Check {
        container: ContainerId,
        asked_ms: u64,
    },
    MoveLeader {
        pipeline: PipelineId,
        to_replica: u64,
    },
}

/// The kind and the subject of an order. A node is asked for one thing of a kind and a container, or
/// pipeline, at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OrderKey {
    pub(crate) kind: TaskKind,
    /// The number of the container, or, for a leader's move, of the pipeline.
    pub(crate) number: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) order: Order,
    since: Instant,
    /// The time at which the node was last told.
    told: Instant,
    /// The time at which the task was last seen to come on.
    progress: Instant,
    report: Option<TaskReport>,
}

#[derive(Default)]
pub(crate) struct Tasks {
    asked: BTreeMap<NodeId, BTreeMap<OrderKey, Asked>>,
    /// The moments until which a node is not asked for the same again.
    avoid: HashMap<(NodeId, OrderKey), Instant>,
    /// Containers of which a copy has failed, and the moments until which another one is waited for.
    awaited: HashMap<ContainerId, Instant>,
    /// Since this leader began.
    pub(crate) copies_failed: u64,
    pub(crate) copies_done: u64,
    pub(crate) deletions_done: u64,
    pub(crate) moved_containers: u64,
    pub(crate) moved_bytes: u64,
}

impl Order {
    pub(crate) fn key(&self) -> OrderKey {
        let (kind, number) = match self {
            Order::Copy { container, .. } => (TaskKind::TaskCopy, container.0),
            Order::Delete { replica, .. } => (TaskKind::TaskDelete, replica.container),
            Order::Close { container, .. } => (TaskKind::TaskClose, container.0),
            Order::Check { container, .. } => (TaskKind::TaskCheck, container.0),
            Order::MoveLeader { pipeline, .. } => (TaskKind::TaskMoveLeader, pipeline.0),
        };
        OrderKey { kind, number }
    }

    pub(crate) fn is_copy(&self) -> bool {
        matches!(self, Order::Copy { .. })
    }

    pub(crate) fn is_close(&self) -> bool {
        matches!(self, Order::Close { .. })
    }

    /// Whether replicas come or go by the order.
    pub(crate) fn moves_data(&self) -> bool {
        matches!(self, Order::Copy { .. } | Order::Delete { .. })
    }

    /// The task as a node is told it, with the addresses that `locate` finds.
    pub(crate) fn to_task(&self, locate: impl Fn(NodeId) -> String) -> Task {
        let address = |node: &NodeId| NodeAddress { node: node.0, address: locate(*node) };
        let task = match self {
            Order::Copy { container, pipeline, sources, hash, .. } => Kind::Copy(CopyContainer {
                container: container.0,
                pipeline: pipeline.0,
                sources: sources.iter().map(address).collect(),
                hash: hash.clone(),
            }),
            Order::Delete { replica, .. } => Kind::Delete(replica.clone()),
            Order::Close { container, last_term, last_index } => Kind::Close(CloseReplica {
                container: container.0,
                last_term: *last_term,
                last_index: *last_index,
            }),
            Order::Check { container, asked_ms } => {
                Kind::Check(CheckReplica { container: container.0, asked_ms: *asked_ms })
            }
            Order::MoveLeader { pipeline, to_replica } => {
                Kind::MoveLeader(MoveLeader { pipeline: pipeline.0, to_replica: *to_replica })
            }
        };
        Task { task: Some(task) }
    }
}

impl Tasks {
    /// Asks the node, which is told so from now on. Asking again for what is asked already changes nothing,
    /// unless another replica is to be deleted than was, or it is to go beside fewer good ones: then an
    /// operator wants it.
    pub(crate) fn ask(&mut self, node: NodeId, order: Order, now: Instant) {
        let asked = Asked { order, since: now, told: now, progress: now, report: None };
        let is_another = |before: &Order| match (before, &asked.order) {
            (Order::Delete { replica: before, beside: firm }, Order::Delete { replica, beside }) => {
                before != replica || beside < firm
            }
            _ => false,
        };
        let of_node = self.asked.entry(node).or_default();
        let key = asked.order.key();
        if of_node.get(&key).is_none_or(|before| is_another(&before.order)) {
            of_node.insert(key, asked);
        }
    }

    pub(crate) fn of(&self, node: NodeId) -> impl Iterator<Item = &Asked> {
        self.asked.get(&node).into_iter().flat_map(BTreeMap::values)
    }

    /// Notes that the node is told these.
    pub(crate) fn note_told(&mut self, node: NodeId, told: &[OrderKey], now: Instant) {
        let Some(of_node) = self.asked.get_mut(&node) else { return };
        for key in told {
            of_node.get_mut(key).into_iter().for_each(|asked| asked.told = now);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (NodeId, &Asked)> {
        self.asked.iter().flat_map(|(node, asked)| asked.values().map(|asked| (*node, asked)))
    }

    pub(crate) fn is_asked(&self, node: NodeId, kind: TaskKind, number: u64) -> bool {
        self.asked.get(&node).is_some_and(|asked| asked.contains_key(&OrderKey { kind, number }))
    }

    /// The nodes that were asked to do this with a container.
    pub(crate) fn nodes_with(&self, kind: TaskKind, container: ContainerId) -> Vec<NodeId> {
        let has = |node: &&NodeId| self.is_asked(**node, kind, container.0);
        self.asked.keys().filter(has).copied().collect()
    }

    pub(crate) fn count(&self, kind: TaskKind) -> usize {
        self.all().filter(|(_, asked)| asked.order.key().kind == kind).count()
    }

    pub(crate) fn count_of(&self, node: NodeId) -> usize {
        self.asked.get(&node).map_or(0, BTreeMap::len)
    }

    /// Counts the copies under way to each node, and from each that is first among a copy's sources.
    pub(crate) fn copies(&self) -> Copies {
        let mut copies = Copies::default();
        for (node, asked) in self.all() {
            if let Order::Copy { sources, .. } = &asked.order {
                copies.add(node, sources.first().copied());
            }
        }
        copies
    }

    /// Whether the node has failed at this lately.
    pub(crate) fn avoids(&self, node: NodeId, kind: TaskKind, container: ContainerId, now: Instant) -> bool {
        self.avoid.get(&(node, OrderKey { kind, number: container.0 })).is_some_and(|until| *until > now)
    }

    /// Whether a copy of the container has failed lately, and no other one was made since.
    pub(crate) fn awaits_copy(&self, container: ContainerId, now: Instant) -> bool {
        self.awaited.get(&container).is_some_and(|until| *until > now)
    }

    /// Takes in what a node says of its tasks. A task that has failed is not asked of it again for a while.
    pub(crate) fn report(&mut self, node: NodeId, reports: Vec<TaskReport>, now: Instant) {
        for report in reports {
            let number = if report.container == 0 { report.pipeline } else { report.container };
            let key = OrderKey { kind: report.kind(), number };
            let of_node = self.asked.entry(node).or_default();
            let Some(asked) = of_node.get_mut(&key) else { continue };
            if !report.failed.is_empty() {
                tracing::info!(%node, kind = key.kind.as_str_name(), number, why = report.failed, "task failed");
                let order = asked.order.clone();
                of_node.remove(&key);
                self.failed(node, &order, now);
                continue;
            }
            if asked.report.as_ref().is_none_or(|before| before.bytes_done != report.bytes_done) {
                asked.progress = now;
            }
            asked.report = Some(report);
        }
    }

    /// The copies that failed lately and were not begun again: they are again after a while.
    pub(crate) fn copies_failed_lately(&self, now: Instant) -> usize {
        let is_copy = |((_, key), until): &(&(NodeId, OrderKey), &Instant)| {
            key.kind == TaskKind::TaskCopy && **until > now
        };
        self.avoid.iter().filter(is_copy).count()
    }

    fn failed(&mut self, node: NodeId, order: &Order, now: Instant) {
        if let Order::Copy { container, to_balance, .. } = order {
            self.copies_failed += 1;
            if !to_balance {
                self.awaited.insert(*container, now + COPY_AWAITED_FOR);
            }
        }
        if !matches!(order, Order::MoveLeader { .. }) {
            self.avoid.insert((node, order.key()), now + AVOID_FOR);
        }
    }

    /// Takes off the tasks that are done, that are void, and that have not come on for `within`. A deletion
    /// that was told stays until the node says something, or has not been told for a while: it may be carried
    /// out at any moment, and the replica must not be counted on.
    pub(crate) fn drop_done(
        &mut self,
        now: Instant,
        within: Duration,
        is_done: impl Fn(NodeId, &Order) -> bool,
        is_void: impl Fn(NodeId, &Order) -> bool,
    ) {
        let mut late = Vec::new();
        let mut done = Vec::new();
        for (node, of_node) in &mut self.asked {
            of_node.retain(|key, asked| {
                if is_done(*node, &asked.order) {
                    done.push(asked.order.clone());
                    return false;
                }
                let is_deletion = key.kind == TaskKind::TaskDelete;
                let is_over = is_deletion && now.saturating_duration_since(asked.told) >= DELETION_ENDS_AFTER;
                if is_over || is_void(*node, &asked.order) {
                    return false;
                }
                let is_late = !is_deletion && now.saturating_duration_since(asked.progress) >= within;
                if is_late {
                    late.push((*node, asked.order.clone()));
                }
                !is_late
            });
        }
        self.asked.retain(|_, of_node| !of_node.is_empty());
        self.avoid.retain(|_, until| *until > now);
        self.awaited.retain(|_, until| *until > now);
        for (node, order) in late {
            let OrderKey { kind, number } = order.key();
            tracing::info!(%node, kind = kind.as_str_name(), number, "task shows no result");
            self.failed(node, &order, now);
        }
        done.iter().for_each(|order| self.count_done(order));
    }

    fn count_done(&mut self, order: &Order) {
        match order {
            Order::Copy { container, bytes, to_balance, .. } => {
                self.awaited.remove(container);
                self.copies_done += 1;
                self.moved_containers += u64::from(*to_balance);
                self.moved_bytes += if *to_balance { *bytes } else { 0 };
            }
            Order::Delete { .. } => self.deletions_done += 1,
            Order::Close { .. } | Order::Check { .. } | Order::MoveLeader { .. } => {}
        }
    }

    /// Forgets what was asked of a node that registers again, but for deletions: the same process may be
    /// carrying one out, and what goes counts as gone.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        if let Some(of_node) = self.asked.get_mut(&node) {
            of_node.retain(|_, asked| matches!(asked.order, Order::Delete { .. }));
        }
    }

    pub(crate) fn infos(&self, now: Instant, count_max: usize) -> Vec<TaskInfo> {
        let info = |(node, asked): (NodeId, &Asked)| {
            let key = asked.order.key();
            let (container, pipeline) = match key.kind {
                TaskKind::TaskMoveLeader => (0, key.number),
                _ => (key.number, 0),
            };
            let told = TaskReport { container, pipeline, kind: key.kind as i32, ..TaskReport::default() };
            let age_ms = now.saturating_duration_since(asked.since).as_millis() as u64;
            TaskInfo { node: node.0, report: Some(asked.report.clone().unwrap_or(told)), age_ms }
        };
        self.all().map(info).take(count_max).collect()
    }
}

/// The number of copies that go on at each node.
#[derive(Default)]
pub(crate) struct Copies {
    to: HashMap<NodeId, usize>,
    from: HashMap<NodeId, usize>,
}

impl Copies {
    pub(crate) fn add(&mut self, to: NodeId, from: Option<NodeId>) {
        *self.to.entry(to).or_default() += 1;
        if let Some(from) = from {
            *self.from.entry(from).or_default() += 1;
        }
    }

    pub(crate) fn to(&self, node: NodeId) -> usize {
        self.to.get(&node).copied().unwrap_or(0)
    }

    pub(crate) fn from(&self, node: NodeId) -> usize {
        self.from.get(&node).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);
    const WITHIN: Duration = Duration::from_secs(120);

    /// A copy to balance if the number is even.
    fn copy(container: u64) -> Order {
        Order::Copy {
            container: ContainerId(container),
            pipeline: PipelineId(1),
            sources: vec![NodeId(2)],
            hash: String::new(),
            bytes: 7,
            to_balance: container.is_multiple_of(2),
        }
    }

    fn report(container: u64, bytes_done: u64, failed: &str) -> Vec<TaskReport> {
        let kind = TaskKind::TaskCopy as i32;
        vec![TaskReport { container, kind, bytes_done, failed: failed.into(), ..TaskReport::default() }]
    }

    fn drop_done(tasks: &mut Tasks, now: Instant, done: bool) {
        tasks.drop_done(now, WITHIN, |_, _| done, |_, _| false);
    }

    #[test]
    fn a_task_that_comes_on_is_not_late() {
        let start = Instant::now();
        let mut tasks = Tasks::default();
        tasks.ask(NODE, copy(1), start);
        for minute in 1..10 {
            let now = start + Duration::from_secs(60 * minute);
            tasks.report(NODE, report(1, minute, ""), now);
            drop_done(&mut tasks, now, false);
            assert!(tasks.is_asked(NODE, TaskKind::TaskCopy, 1), "minute {minute}");
        }
        let now = start + Duration::from_secs(60 * 11);
        drop_done(&mut tasks, now, false);
        assert_eq!((tasks.count_of(NODE), tasks.copies_failed), (0, 1));
        let avoids = |kind, at| tasks.avoids(NODE, kind, ContainerId(1), at);
        assert!(avoids(TaskKind::TaskCopy, now) && !avoids(TaskKind::TaskCopy, now + AVOID_FOR));
        assert!(!avoids(TaskKind::TaskClose, now), "that is something else");
        assert_eq!([now, now + AVOID_FOR].map(|at| tasks.copies_failed_lately(at)), [1, 0]);
    }

    #[test]
    fn a_failed_task_is_taken_off_and_a_done_one_counts() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        tasks.ask(NODE, copy(1), now);
        tasks.ask(NODE, copy(2), now);
        tasks.report(NODE, report(1, 0, "no route"), now);
        assert_eq!((tasks.count_of(NODE), tasks.copies().from(NodeId(2))), (1, 1));
        let awaits =
            |tasks: &Tasks, at| [1, 2].map(|container| tasks.awaits_copy(ContainerId(container), at));
        assert_eq!(awaits(&tasks, now + AVOID_FOR), [true, false], "it is to be asked for again");
        assert_eq!(awaits(&tasks, now + COPY_AWAITED_FOR), [false, false]);
        drop_done(&mut tasks, now, true);
        assert_eq!((tasks.copies_done, tasks.moved_containers, tasks.moved_bytes), (1, 1, 7));
        tasks.ask(NODE, copy(1), now);
        drop_done(&mut tasks, now, true);
        assert_eq!((tasks.copies_done, tasks.moved_containers), (2, 1));
        assert_eq!(awaits(&tasks, now), [false, false], "it is made");
        tasks.ask(NODE, copy(2), now);
        tasks.report(NODE, report(2, 0, "no hash"), now);
        assert_eq!(awaits(&tasks, now), [false, false], "nobody waits for one that balances");
    }

    #[test]
    fn a_deletion_of_another_replica_takes_the_place_of_one() {
        let now = Instant::now();
        let mut tasks = Tasks::default();
        let delete = |last_index, beside| Order::Delete {
            replica: DeleteReplica { container: 1, last_index, ..Default::default() },
            beside,
        };
        let mut ask = |order: Order| {
            tasks.ask(NODE, order, now);
            tasks.of(NODE).map(|asked| asked.order.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ask(delete(7, 3)), [delete(7, 3)]);
        assert_eq!(ask(delete(9, 3)), [delete(9, 3)]);
        assert_eq!(ask(delete(9, 1)), [delete(9, 1)], "an operator's");
        assert_eq!(ask(delete(9, 3)), [delete(9, 1)]);
    }

    #[test]
    fn a_deletion_is_not_forgotten_as_long_as_its_node_is_told() {
        let start = Instant::now();
        let mut tasks = Tasks::default();
        let order =
            Order::Delete { replica: DeleteReplica { container: 1, ..Default::default() }, beside: 3 };
        let key = order.key();
        tasks.ask(NODE, order, start);
        let mut now = start;
        for _ in 0..100 {
            now += DELETION_ENDS_AFTER / 2;
            tasks.note_told(NODE, &[key], now);
            drop_done(&mut tasks, now, false);
            assert_eq!(tasks.nodes_with(TaskKind::TaskDelete, ContainerId(1)), [NODE]);
        }
        // What it was told last it may carry out.
        drop_done(&mut tasks, now + DELETION_ENDS_AFTER / 2, false);
        assert_eq!(tasks.nodes_with(TaskKind::TaskDelete, ContainerId(1)), [NODE]);
        drop_done(&mut tasks, now + DELETION_ENDS_AFTER, false);
        assert_eq!(tasks.count_of(NODE), 0, "it is decided on anew");
    }
}
