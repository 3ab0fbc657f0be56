//! Blocks that nobody names any more, from when a group of names says so until they are gone from every
//! replica: docs/space.md. All that is known of them stands in the leader's memory, within limits, and
//! nothing in SCM's log: a group asks again until it hears that they are gone, and so it does where another
//! leader knows nothing.

mod obstacle;
mod progress;
#[cfg(test)]
mod tests;
mod waiting;

use crate::options::ScmOptions;
use crate::quality::Discarded;
use crate::replication::{ContainerView, Tasks};
use crate::tables::container_state;
use crate::view;
use crate::world::World;
use obstacle::{Clear, clear, counted, deleted, is_dead};
use parking::Rate;
use planted::Bug;
pub(crate) use progress::ContainerProgress;
use proto::scm::{
    ContainerState, DiscardPortion, DiscardProgress, DiscardState, EmptiedContainer, NodeAddress,
    TakeDiscards, Task, TaskKind, TaskReport, task,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{BlockName, ContainerId, NodeId, PipelineId, Term};
use waiting::Portion;
pub(crate) use waiting::{Asked, Waiting};

/// The most blocks that are remembered at a time because they are to go: with as many again that are gone,
/// and those of portions that are told, some fifty bytes each, 30 MB. More wait where they are filed.
const BLOCKS_MAX: usize = 200_000;
/// The most containers that are remembered at a time, some hundred bytes each beside their blocks.
const CONTAINERS_MAX: usize = 20_000;
/// One in so many of the waiting containers that have no blocks remembered, be it as gone, is looked at with
/// each look: a look takes some microseconds for each, and holds up heartbeats.
const LOOKS: u64 = 8;
/// The most containers with unequal replicas that one look takes up, besides those that nodes were told of.
const UNEQUAL_LOOKS: usize = 256;
/// The most orders that a node is told with one heartbeat when it is told to take discards. It carries out as
/// many of a kind at a time.
const ORDERS_PER_NODE_MAX: usize = 8;
/// The most portions that a node is told with one heartbeat: 1 MB. Replicas that lack discards have places,
/// too.
const PORTIONS_PER_NODE_MAX: usize = 6;
/// A node that failed at a container is not told the same again for this long.
const AVOID_FOR: Duration = Duration::from_secs(60);
/// The time after which a container that no group has asked about is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// A pipeline goes on to another container for the sake of dead blocks at most once in this time.
const ROLL_INTERVAL: Duration = Duration::from_secs(60);
/// An open container is not closed for the sake of fewer dead bytes, before they have waited for long.
const ROLL_BYTES_MIN: u64 = 1 << 20;
/// An open container is closed for the sake of so many dead blocks, whatever their share of it: a group asks
/// for no more of one container at a time.
const ROLL_BLOCKS: u64 = 8192;

/// Blocks of one container that a group has filed as unused.
pub(crate) struct Unused {
    pub(crate) container: ContainerId,
    pub(crate) blocks: Vec<BlockName>,
    /// The bytes of the blocks; 0: not known.
    pub(crate) bytes: u64,
}

/// The answer to a group about the blocks of one container that it asked to discard.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) progress: ContainerProgress,
    /// Whether each block is gone, in the order of the request; empty: none is, or, where the progress says
    /// so, all are.
    gone: Vec<bool>,
}

impl Answer {
    fn of(progress: ContainerProgress) -> Answer {
        Answer { progress, gone: Vec::new() }
    }

    pub(crate) fn to_proto(&self, container: ContainerId) -> DiscardProgress {
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        let is_some = self.gone.contains(&true);
        let gone = self.gone.chunks(8).filter(|_| is_some).map(byte).collect::<Vec<u8>>().into();
        DiscardProgress { gone, ..self.progress.to_proto(container) }
    }
}

/// An order that a node is told until the next look.
#[derive(Clone)]
enum Told {
    Discard { container: ContainerId, number: u64, blocks: Arc<[BlockName]> },
    Take { container: ContainerId, from: NodeId },
}

/// The last attempt of a node that failed.
struct Failed {
    why: String,
    at: Instant,
}

/// The most containers that one look has closed for having been open for long: a leader has known of all of
/// them for the same time, and there are places for a thousand orders.
const OPEN_ROLLED_AT_ONCE: usize = 4;

pub(crate) struct Discards {
    /// The term of this leader: numbers of portions begin with it, so those of another leader are other ones.
    term: Term,
    portions: u64,
    /// The container of the last portion: the next one is of one after it.
    last_begun: ContainerId,
    waiting: BTreeMap<ContainerId, Waiting>,
    /// Containers whose good replicas have not discarded the same.
    unequal: BTreeSet<ContainerId>,
    /// The container after which the next look at unequal ones begins.
    unequal_from: ContainerId,
    looks: u64,
    /// Containers in which nothing is left, as all good replicas say.
    emptied: BTreeSet<ContainerId>,
    /// Open containers with blocks, and since when this leader has known of these.
    open: BTreeMap<ContainerId, Instant>,
    told: BTreeMap<NodeId, Vec<Told>>,
    failed: BTreeMap<(ContainerId, NodeId), Failed>,
    rolled: BTreeMap<PipelineId, Instant>,
    /// The number of blocks that are gone since this leader began.
    pub(crate) blocks_gone: u64,
    pub(crate) gone: Rate,
}

impl Discards {
    pub(crate) fn new(term: Term) -> Discards {
        Discards {
            term,
            portions: 0,
            last_begun: ContainerId(0),
            waiting: BTreeMap::new(),
            unequal: BTreeSet::new(),
            unequal_from: ContainerId(0),
            looks: 0,
            emptied: BTreeSet::new(),
            open: BTreeMap::new(),
            told: BTreeMap::new(),
            failed: BTreeMap::new(),
            rolled: BTreeMap::new(),
            blocks_gone: 0,
            gone: Rate::default(),
        }
    }

    /// Takes in the word of a group that nobody names these blocks any more, and answers how far they have
    /// come.
    pub(crate) fn ask(
        &mut self,
        group: u64,
        unused: &[Unused],
        world: &World<'_>,
        tasks: &Tasks,
    ) -> Vec<Answer> {
        let mut room = BLOCKS_MAX.saturating_sub(self.remembered());
        unused.iter().map(|unused| self.ask_of(group, unused, &mut room, world, tasks)).collect()
    }

    fn ask_of(
        &mut self,
        group: u64,
        unused: &Unused,
        room: &mut usize,
        world: &World<'_>,
        tasks: &Tasks,
    ) -> Answer {
        let container = unused.container;
        let Some(record) = world.tables.container(container) else {
            return Answer::of(ContainerProgress::of(DiscardState::DiscardUnknown));
        };
        if container_state(record) == ContainerState::ContainerDeleted {
            self.waiting.remove(&container);
            return Answer::of(deleted(container, world));
        }
        if !self.waiting.contains_key(&container) && self.waiting.len() >= CONTAINERS_MAX {
            return Answer::of(busy(format!("{CONTAINERS_MAX} containers wait at SCM already")));
        }
        let count = unused.blocks.len() as u64;
        let waiting = self.waiting.entry(container).or_insert_with(|| Waiting::new(container));
        waiting.note(group, count, unused.bytes, world.now);
        let answer = match look_at(waiting, world, tasks) {
            Err(progress) => Answer::of(progress),
            Ok(clear) => self.take_in(group, unused, room, &clear),
        };
        if let Some(waiting) = self.waiting.get_mut(&container) {
            waiting.progress = answer.progress.clone();
        }
        answer
    }

    fn take_in(&mut self, group: u64, unused: &Unused, room: &mut usize, clear: &Clear<'_>) -> Answer {
        let waiting = self.waiting.get_mut(&unused.container).expect("noted above");
        let names = &unused.blocks;
        let is_equal = clear.is_equal() || planted::has(Bug::GoneEarly);
        let gone = if is_equal { waiting.take_gone(names) } else { vec![false; names.len()] };
        if !gone.contains(&false) {
            waiting.forget(group);
            if waiting.asked.is_empty() {
                self.waiting.remove(&unused.container);
            }
            return Answer::of(ContainerProgress::of(DiscardState::DiscardGone));
        }
        let rest = names.iter().zip(&gone).filter(|(_, is_gone)| !**is_gone).map(|(name, _)| name);
        let progress = match waiting.remember(rest, room) {
            // A trouble that was in the way is told until the next look.
            true if waiting.progress.state == DiscardState::DiscardTroubled => waiting.progress.clone(),
            true => ContainerProgress::of(DiscardState::DiscardUnderWay),
            false => busy(format!("{BLOCKS_MAX} blocks wait at SCM already")),
        };
        Answer { progress, gone }
    }

    /// Forgets blocks that something is in the way of where they would take the place of others: a group asks
    /// again.
    fn forget_held(&mut self) {
        if self.remembered() < BLOCKS_MAX / 2 {
            return;
        }
        let is_held = |waiting: &&mut Waiting| waiting.progress.state != DiscardState::DiscardUnderWay;
        self.waiting.values_mut().filter(is_held).for_each(Waiting::forget_blocks);
    }

    /// Keeps at most [`BLOCKS_MAX`] blocks as gone that no group has heard of: a group that asks for
    /// forgotten ones again has them discarded again.
    fn forget_unheard(&mut self) {
        let mut unheard: usize = self.waiting.values().map(Waiting::unheard).sum();
        for waiting in self.waiting.values_mut() {
            if unheard <= BLOCKS_MAX {
                break;
            }
            unheard -= waiting.unheard();
            waiting.forget_gone();
        }
    }

    /// Forgets all that groups have asked for.
    pub(crate) fn forget_asked(&mut self) {
        self.waiting.clear();
        self.told.clear();
    }

    /// Takes in what a node says of what it was told.
    pub(crate) fn report(&mut self, node: NodeId, reports: &[TaskReport], now: Instant) {
        let is_ours = |report: &&TaskReport| {
            matches!(report.kind(), TaskKind::TaskDiscard | TaskKind::TaskTakeDiscards)
        };
        for report in reports.iter().filter(is_ours) {
            let container = ContainerId(report.container);
            if !report.failed.is_empty() {
                let why = report.failed.clone();
                self.failed.entry((container, node)).or_insert(Failed { why, at: now });
                continue;
            }
            let portion = self.waiting.get_mut(&container).and_then(|waiting| waiting.portion.as_mut());
            if let Some(portion) = portion.filter(|portion| portion.number == report.done_portion) {
                portion.acked.insert(node);
            }
        }
    }

    /// Takes in what a look at a container has shown.
    pub(crate) fn look(&mut self, known: &ContainerView<'_>, world: &World<'_>) {
        let container = ContainerId(known.record.container);
        let is_closed = container_state(known.record) == ContainerState::ContainerClosed;
        let there = || known.replicas.iter().filter(|(node, _)| !is_dead(*node, world));
        let good = || there().map(|(_, it)| *it).filter(|it| known.quality(it).is_good());
        let first = good().next().map(Discarded::of);
        let is_unequal = is_closed && good().any(|replica| Some(Discarded::of(replica)) != first);
        let is_emptied = is_closed
            && good().all(|replica| replica.blocks == 0)
            && good().any(|replica| replica.discarded_blocks > 0);
        for (set, is_in) in [(&mut self.unequal, is_unequal), (&mut self.emptied, is_emptied)] {
            match is_in {
                true => set.insert(container),
                false => set.remove(&container),
            };
        }
        let is_open = container_state(known.record) == ContainerState::ContainerOpen;
        match is_open && there().any(|(_, replica)| replica.blocks > 0) {
            true => _ = self.open.entry(container).or_insert(world.now),
            false => _ = self.open.remove(&container),
        }
    }

    /// Decides what each node is told until the next look. Answers the open containers that are to be closed,
    /// so that what is dead in them can go.
    pub(crate) fn plan(
        &mut self,
        world: &World<'_>,
        tasks: &Tasks,
        options: &ScmOptions,
    ) -> Vec<ContainerId> {
        let told = std::mem::take(&mut self.told);
        self.looks += 1;
        self.gone.note(world.now, self.blocks_gone);
        self.failed.retain(|_, failed| world.now.saturating_duration_since(failed.at) < AVOID_FOR);
        self.rolled.retain(|_, at| world.now.saturating_duration_since(*at) < ROLL_INTERVAL);
        if let Some(since) = world.now.checked_sub(FORGOTTEN_AFTER) {
            self.waiting.retain(|_, waiting| waiting.expire(since));
        }
        let (mut rolls, mut ready) = (Vec::new(), BTreeMap::new());
        let mut waiting = std::mem::take(&mut self.waiting);
        for waiting in waiting.values_mut() {
            let is_at_rest = waiting.remembered() == 0 && waiting.unheard() == 0;
            if is_at_rest && waiting.container.0 % LOOKS != self.looks % LOOKS {
                continue;
            }
            waiting.progress = match look_at(waiting, world, tasks) {
                Ok(clear) => {
                    let progress = self.advance(waiting, &clear);
                    let awaits_copy = tasks.awaits_copy(waiting.container, world.now);
                    if waiting.portion.is_none() && !awaits_copy {
                        ready.insert(waiting.container, clear);
                    }
                    if awaits_copy { awaits() } else { progress }
                }
                Err(progress) => progress,
            };
            if waiting.progress.state == DiscardState::DiscardOpen
                && self.is_roll_due(waiting, world, options)
            {
                rolls.push(waiting.container);
            }
        }
        self.begin_portions(&mut waiting, &ready);
        for container in self.unequal_now(&told) {
            let has_portion = waiting.get(&container).is_some_and(|waiting| waiting.portion.is_some());
            if let Some(clear) = clear(container, world, tasks).ok().filter(|_| !has_portion) {
                self.even_out(container, &clear);
            }
        }
        self.waiting = waiting;
        self.forget_held();
        self.forget_unheard();
        rolls.extend(self.open_for_long(world, options));
        rolls
    }

    /// Returns containers that have been open for so long that they are to be closed for the sake of blocks
    /// that nobody asks to go: those that no name ever had are found in closed ones alone.
    fn open_for_long(&mut self, world: &World<'_>, options: &ScmOptions) -> Vec<ContainerId> {
        let is_due = |since: Instant| world.now.saturating_duration_since(since) >= options.roll_open_after;
        let mut due = Vec::new();
        for (&container, _) in self.open.iter().filter(|(_, since)| is_due(**since)) {
            if due.len() == OPEN_ROLLED_AT_ONCE {
                break;
            }
            let Some(record) = world.tables.container(container) else { continue };
            // Where its pipeline has rolled a moment ago, its turn is later.
            if let Entry::Vacant(place) = self.rolled.entry(PipelineId(record.pipeline)) {
                place.insert(world.now);
                due.push(container);
            }
        }
        due.iter().for_each(|container| _ = self.open.remove(container));
        due
    }

    /// Returns containers whose replicas have not discarded the same: those that nodes were told of before,
    /// so that they go on with it, and the next ones.
    fn unequal_now(&mut self, told: &BTreeMap<NodeId, Vec<Told>>) -> BTreeSet<ContainerId> {
        let above = (Bound::Excluded(self.unequal_from), Bound::Unbounded);
        let next: Vec<ContainerId> = self.unequal.range(above).take(UNEQUAL_LOOKS).copied().collect();
        self.unequal_from = match next.last() {
            Some(last) if next.len() == UNEQUAL_LOOKS => *last,
            _ => ContainerId(0),
        };
        let takes = told.values().flatten().filter_map(|told| match told {
            Told::Take { container, .. } => Some(*container),
            Told::Discard { .. } => None,
        });
        takes.filter(|container| self.unequal.contains(container)).chain(next).collect()
    }

    /// Begins portions of containers that are ready for one, as many as nodes may be told. Each container has
    /// its turn, however many blocks others have.
    fn begin_portions(
        &mut self,
        waiting: &mut BTreeMap<ContainerId, Waiting>,
        ready: &BTreeMap<ContainerId, Clear<'_>>,
    ) {
        let begun = self.last_begun;
        let after = ready.range((Bound::Excluded(begun), Bound::Unbounded));
        for (&container, clear) in after.chain(ready.range(..=begun)) {
            let Some(waiting) = waiting.get_mut(&container).filter(|waiting| waiting.remembered() > 0) else {
                continue;
            };
            let has_failed = |(node, _): &(NodeId, _)| self.failed.contains_key(&(container, *node));
            if !clear.is_equal() || !self.has_room(clear) || clear.replicas.iter().any(has_failed) {
                continue;
            }
            self.portions += 1;
            self.last_begun = container;
            let number = (self.term.0 << 32) + self.portions;
            let portion = Portion { number, blocks: waiting.next(), acked: BTreeSet::new() };
            self.tell_portion(container, waiting.portion.insert(portion), clear);
        }
    }

    /// Goes on with a container that nothing is in the way of.
    fn advance(&mut self, waiting: &mut Waiting, clear: &Clear<'_>) -> ContainerProgress {
        let container = waiting.container;
        let is_acked = |portion: &Portion| {
            let acked = clear.replicas.iter().filter(|(node, _)| portion.acked.contains(node)).count();
            acked == clear.replicas.len() || planted::has(Bug::GoneEarly) && acked > 0
        };
        let is_done = waiting.portion.as_ref().is_some_and(is_acked);
        if is_done && (clear.is_equal() || planted::has(Bug::GoneEarly)) {
            self.blocks_gone += waiting.finish_portion();
        } else if is_done {
            self.even_out(container, clear);
        }
        if let Some(portion) = &waiting.portion {
            self.tell_portion(container, portion, clear);
        }
        let failed =
            clear.replicas.iter().find_map(|(node, _)| Some((node, self.failed.get(&(container, *node))?)));
        match failed {
            Some((node, failed)) => ContainerProgress::troubled(failed.why.clone(), *node),
            None => ContainerProgress::of(DiscardState::DiscardUnderWay),
        }
    }

    fn tell_portion(&mut self, container: ContainerId, portion: &Portion, clear: &Clear<'_>) {
        for (node, _) in clear.replicas.iter().filter(|(node, _)| !portion.acked.contains(node)) {
            let (number, blocks) = (portion.number, portion.blocks.clone());
            self.tell(*node, Told::Discard { container, number, blocks });
        }
    }

    /// Tells those that lack discards of the one that has most to take them from it. Where the one with most
    /// lacks some, another has more afterwards: they come to the union of all.
    fn even_out(&mut self, container: ContainerId, clear: &Clear<'_>) {
        if planted::has(Bug::DiscardsNotTaken) {
            return;
        }
        let (from, others) = clear.behind_the_first();
        for node in others {
            self.tell(node, Told::Take { container, from });
        }
    }

    fn tell(&mut self, node: NodeId, order: Told) {
        let container = match &order {
            Told::Discard { container, .. } | Told::Take { container, .. } => *container,
        };
        let may_tell = match &order {
            Told::Discard { .. } => self.has_place(node),
            Told::Take { .. } => self.told.get(&node).map_or(0, Vec::len) < ORDERS_PER_NODE_MAX,
        };
        if may_tell && !self.failed.contains_key(&(container, node)) {
            self.told.entry(node).or_default().push(order);
        }
    }

    /// Whether the node may be told another portion.
    fn has_place(&self, node: NodeId) -> bool {
        let told = self.told.get(&node).into_iter().flatten();
        told.filter(|told| matches!(told, Told::Discard { .. })).count() < PORTIONS_PER_NODE_MAX
    }

    fn has_room(&self, clear: &Clear<'_>) -> bool {
        clear.replicas.iter().all(|(node, _)| self.has_place(*node))
    }

    /// Whether an open container is to be closed for the sake of the blocks that are dead in it: they are
    /// much of it, or many, or have waited for long.
    fn is_roll_due(&mut self, waiting: &Waiting, world: &World<'_>, options: &ScmOptions) -> bool {
        let Some(record) = world.tables.container(waiting.container) else { return false };
        let pipeline = PipelineId(record.pipeline);
        if self.rolled.contains_key(&pipeline) {
            return false;
        }
        let replicas = world.nodes.replicas().of(waiting.container).map(|(_, replica)| replica);
        let Some(all) = replicas.max_by_key(|replica| replica.blocks) else { return false };
        let of_one = all.payload_bytes / all.blocks.max(1);
        let dead = |asked: &Asked| if asked.bytes > 0 { asked.bytes } else { asked.blocks * of_one };
        let dead_bytes: u64 = waiting.asked.values().map(dead).sum();
        let dead_blocks: u64 = waiting.asked.values().map(|asked| asked.blocks).sum();
        let since = waiting.asked.values().map(|asked| asked.since).min().unwrap_or(world.now);
        let is_share = dead_bytes >= all.payload_bytes / 4;
        let is_due = dead_bytes >= ROLL_BYTES_MIN && is_share
            || dead_blocks >= ROLL_BLOCKS
            || world.now.saturating_duration_since(since) >= options.roll_dead_after;
        if is_due {
            self.rolled.insert(pipeline, world.now);
        }
        is_due
    }

    /// The containers in which nothing is left, for SCM's log.
    pub(crate) fn to_delete(
        &self,
        world: &World<'_>,
        tasks: &Tasks,
        count_max: usize,
    ) -> Vec<EmptiedContainer> {
        let emptied = |container: &ContainerId| clear(*container, world, tasks).ok()?.emptied();
        self.emptied.iter().filter_map(emptied).take(count_max).collect()
    }

    /// The tasks of a node: its orders as they go into the answer to its heartbeat.
    pub(crate) fn of<'a>(&'a self, node: NodeId, world: &'a World<'_>) -> impl Iterator<Item = Task> + 'a {
        let told = self.told.get(&node).into_iter().flatten().filter(|_| world.may_reclaim());
        told.map(|told| {
            let task = match told {
                Told::Discard { container, number, blocks } => {
                    let blocks = blocks.iter().map(|name| (*name).into()).collect();
                    task::Task::Discard(DiscardPortion { container: container.0, portion: *number, blocks })
                }
                Told::Take { container, from } => {
                    let address = view::address(world.tables, *from);
                    let from = Some(NodeAddress { node: from.0, address });
                    task::Task::TakeDiscards(TakeDiscards { container: container.0, from })
                }
            };
            Task { task: Some(task) }
        })
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.values()
    }

    /// The progress of a container's discards: what is in their way now, or how far they have come.
    pub(crate) fn progress(
        &self,
        container: ContainerId,
        world: &World<'_>,
        tasks: &Tasks,
    ) -> ContainerProgress {
        let known = || self.waiting.get(&container).map(|waiting| waiting.progress.clone());
        let clear = clear(container, world, tasks).map(drop);
        clear.err().or_else(known).unwrap_or_else(|| ContainerProgress::of(DiscardState::DiscardUnderWay))
    }

    pub(crate) fn of_container(&self, container: ContainerId) -> Option<&Waiting> {
        self.waiting.get(&container)
    }

    pub(crate) fn remembered(&self) -> usize {
        self.waiting.values().map(Waiting::remembered).sum()
    }
}

/// The outcome of [`clear`] for a container that waits, which forgets what other replicas have said than
/// those that count now.
fn look_at<'a>(
    waiting: &mut Waiting,
    world: &World<'a>,
    tasks: &Tasks,
) -> Result<Clear<'a>, ContainerProgress> {
    waiting.take_counted(&counted(waiting.container, world, tasks));
    clear(waiting.container, world, tasks)
}

fn awaits() -> ContainerProgress {
    let why = "a copy of it has failed, and is to be made first";
    ContainerProgress::because(DiscardState::DiscardTroubled, why)
}

fn busy(why: String) -> ContainerProgress {
    ContainerProgress::because(DiscardState::DiscardPaused, why)
}
