use super::*;
use crate::nodes::{Nodes, Silence};
use crate::ops::testing::{close, create, disk, end, run, three_nodes};
use crate::replicas::ContainersReport;
use crate::replication::{Order, known};
use crate::tables::Tables;
use proto::scm::scm_command::Command;
use proto::scm::{
    AllocateContainerCommand, ContainerReplica, DeleteContainersCommand, DeleteReplica, DiskReport,
    DiskState, EmptiedContainer, ReplicaState, SetSwitchesCommand, SettleContainersCommand, SettledContainer,
    Switches, TermEnd,
};
use types::Nonce;

const CONTAINER: ContainerId = ContainerId(1);
const GROUP: u64 = 4;

/// A container on three nodes, as SCM's leader sees it.
struct Played {
    tables: Tables,
    nodes: Nodes,
    tasks: Tasks,
    discards: Discards,
    now: Instant,
}

/// An order that a node was told of the container.
#[derive(Debug, PartialEq)]
enum Heard {
    Discard(u64, usize),
    Take(u64),
}

fn good() -> ContainerReplica {
    ContainerReplica {
        container: CONTAINER.0,
        pipeline: 1,
        state: ReplicaState::ReplicaClosed as i32,
        last_term: 2,
        last_index: 9,
        blocks: 10,
        payload_bytes: 100,
        released: true,
        ..ContainerReplica::default()
    }
}

/// A replica in which so many blocks were discarded, of its ten.
fn discarded(blocks: u64, digest: u64) -> ContainerReplica {
    let left = 10 - blocks;
    let (discarded_blocks, discards_digest) = (blocks, digest);
    ContainerReplica { blocks: left, payload_bytes: 10 * left, discarded_blocks, discards_digest, ..good() }
}

fn deletion() -> Order {
    Order::Delete { replica: DeleteReplica::of(&good()), beside: 0 }
}

fn names(locals: std::ops::Range<u64>) -> Vec<BlockName> {
    let name = |local| BlockName { container: CONTAINER, local, nonce: Nonce(7) };
    locals.map(name).collect()
}

impl Played {
    /// The container is open.
    fn open() -> Played {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let silence = Silence { stale_after: second, dead_after: 9 * second, disk_lost_after: 30 * second };
        let (nodes, discards) = (Nodes::new(silence, now), Discards::new(Term(3)));
        Played { tables, nodes, tasks: Tasks::default(), discards, now }
    }

    /// The container is closed, its pipeline over, and each node has told of a good replica.
    fn closed() -> Played {
        Played::closed_all(1)
    }

    /// So many containers of the pipeline are as [`Played::closed`] says.
    fn closed_all(count: u64) -> Played {
        let mut played = Played::open();
        for after in 1..count {
            let next = AllocateContainerCommand { pipeline: 1, after };
            run(&mut played.tables, Command::AllocateContainer(next));
        }
        run(&mut played.tables, close(1, "test"));
        run(&mut played.tables, end(1));
        let state = ContainerState::ContainerClosed as i32;
        let closed = |container| SettledContainer { container, state, last_term: 2, last_index: 9 };
        let command = SettleContainersCommand { containers: (1..=count).map(closed).collect() };
        run(&mut played.tables, Command::SettleContainers(command));
        let replicas = (1..=count).map(|container| ContainerReplica { container, ..good() });
        (1..=3).for_each(|node| played.hear(node, replicas.clone()));
        played
    }

    /// A node tells of all it has.
    fn hear(&mut self, node: u64, replicas: impl IntoIterator<Item = ContainerReplica>) {
        let of_disk = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
        self.nodes.see(NodeId(node), vec![of_disk], self.now);
        let replicas = replicas.into_iter();
        let replicas = replicas.map(|replica| ContainerReplica { disk: disk(node, 0), ..replica }).collect();
        let report = ContainersReport { replicas, gone: vec![], begins: true, ends: true };
        self.nodes.report_containers(NodeId(node), report);
    }

    fn ask(&mut self, blocks: &[BlockName]) -> Answer {
        let Played { tables, nodes, tasks, discards, now } = self;
        let unused = [Unused { container: CONTAINER, blocks: blocks.to_vec(), bytes: 0 }];
        discards.ask(GROUP, &unused, &World::at(tables, nodes, *now), tasks).remove(0)
    }

    fn state(&mut self, blocks: &[BlockName]) -> DiscardState {
        self.ask(blocks).progress.state
    }

    /// Looks at everything, and returns the containers that are to be closed. One of so many looks gets to a
    /// container of which nothing is known.
    fn look(&mut self) -> Vec<ContainerId> {
        (0..LOOKS).flat_map(|_| self.look_once()).collect()
    }

    fn look_once(&mut self) -> Vec<ContainerId> {
        let Played { tables, nodes, tasks, discards, now } = self;
        let world = World::at(tables, nodes, *now);
        if let Some(known) = known(CONTAINER, &world) {
            discards.look(&known, &world);
        }
        discards.plan(&world, tasks, &ScmOptions::default())
    }

    fn heard(&self, node: u64) -> Vec<Heard> {
        let world = World::at(&self.tables, &self.nodes, self.now);
        let heard = |task: Task| match task.task {
            Some(task::Task::Discard(it)) => Heard::Discard(it.portion, it.blocks.len()),
            Some(task::Task::TakeDiscards(it)) => Heard::Take(it.from.unwrap().node),
            other => panic!("{other:?}"),
        };
        self.discards.of(NodeId(node), &world).map(heard).collect()
    }

    /// A node says that it has done a portion.
    fn done(&mut self, node: u64, done_portion: u64) {
        let kind = TaskKind::TaskDiscard as i32;
        let report = TaskReport { container: CONTAINER.0, kind, done_portion, ..TaskReport::default() };
        self.discards.report(NodeId(node), &[report], self.now);
    }

    fn to_delete(&self) -> Vec<ContainerId> {
        let world = World::at(&self.tables, &self.nodes, self.now);
        let emptied = self.discards.to_delete(&world, &self.tasks, 10);
        emptied.into_iter().map(|emptied| ContainerId(emptied.container)).collect()
    }
}

#[test]
fn blocks_are_gone_once_each_replica_has_said_so_and_all_have_discarded_the_same() {
    let mut played = Played::closed();
    let blocks = names(1..4);
    assert_eq!(played.state(&blocks), DiscardState::DiscardUnderWay);
    assert_eq!(played.heard(1), [], "before a look");
    played.look();
    let [Heard::Discard(portion, 3)] = played.heard(1)[..] else { panic!("{:?}", played.heard(1)) };
    assert_eq!(portion >> 32, 3, "the leader's term");
    for node in [1, 2] {
        played.hear(node, Some(discarded(3, 5)));
        played.done(node, portion);
    }
    played.done(3, portion - 1);
    played.look();
    assert_eq!((played.heard(1), played.heard(3)), (vec![], vec![Heard::Discard(portion, 3)]));
    assert_eq!(played.state(&blocks), DiscardState::DiscardUnderWay, "one has yet to do it");
    // Node 3 says that it has done the portion, and not that it has discarded the same.
    played.done(3, portion);
    played.look();
    assert_eq!(played.state(&blocks), DiscardState::DiscardUnderWay);
    played.hear(3, Some(discarded(3, 5)));
    played.look();
    assert_eq!(played.state(&blocks), DiscardState::DiscardGone);
    // The answer was heard, and is forgotten: a group that asks again is heard again.
    assert_eq!(played.state(&blocks), DiscardState::DiscardUnderWay);
}

/// A group that asks for one block more each time hears of those before.
#[test]
fn what_is_gone_of_a_request_is_said_though_more_is_asked_for() {
    let mut played = Played::closed();
    for asked in 1..4 {
        let answer = played.ask(&names(asked - 1..asked + 1));
        assert_eq!(answer.progress.state, DiscardState::DiscardUnderWay);
        let expect: &[u8] = if asked == 1 { &[] } else { &[0b01] };
        assert_eq!(&answer.to_proto(CONTAINER).gone[..], expect, "{asked}");
        played.look();
        let [Heard::Discard(portion, _)] = played.heard(1)[..] else { panic!("{:?}", played.heard(1)) };
        for node in 1..=3 {
            played.hear(node, Some(discarded(asked + 1, 5)));
            played.done(node, portion);
        }
        played.look();
    }
}

#[test]
fn what_is_gone_and_not_heard_of_takes_no_room_for_ever() {
    let mut played = Played::closed();
    let waiting = Waiting::new(CONTAINER);
    let waiting = played.discards.waiting.entry(CONTAINER).or_insert(waiting);
    let mut room = usize::MAX;
    waiting.remember(names(0..BLOCKS_MAX as u64 + 1).iter(), &mut room);
    for _ in 0..=BLOCKS_MAX / waiting::PORTION_BLOCKS_MAX {
        let blocks = waiting.next();
        waiting.portion = Some(Portion { number: 1, blocks, acked: BTreeSet::new() });
        waiting.finish_portion();
    }
    assert_eq!((waiting.remembered(), waiting.unheard()), (0, BLOCKS_MAX + 1));
    played.discards.forget_unheard();
    assert_eq!(played.discards.waiting[&CONTAINER].unheard(), 0);
}

#[test]
fn in_doubt_nothing_is_discarded() {
    let check = |change: &dyn Fn(&mut Played), expect: DiscardState| {
        let mut played = Played::closed();
        change(&mut played);
        let progress = played.ask(&names(1..4)).progress;
        assert_eq!(progress.state, expect, "{progress:?}");
        played.look();
        assert_eq!(played.heard(1), [], "{expect:?}");
        assert_eq!(played.state(&names(1..4)), expect);
    };
    use DiscardState::*;
    let second = Duration::from_secs(1);
    check(&|played| played.tables = Tables::default(), DiscardUnknown);
    check(&|played| *played = Played::open(), DiscardOpen);
    check(&|played| played.hear(2, Some(ContainerReplica { released: false, ..good() })), DiscardHeld);
    check(
        &|played| played.hear(2, Some(ContainerReplica { unhealthy: "bad".into(), ..good() })),
        DiscardTroubled,
    );
    check(&|played| played.hear(2, Some(ContainerReplica { last_index: 8, ..good() })), DiscardTroubled);
    check(&|played| played.hear(2, Some(ContainerReplica { last_index: 10, ..good() })), DiscardTroubled);
    let state = ReplicaState::ReplicaQuasiClosed as i32;
    check(&|played| played.hear(2, Some(ContainerReplica { state, ..good() })), DiscardTroubled);
    let hashed = |hash: &str| Some(ContainerReplica { hash: hash.into(), ..good() });
    check(
        &|played| {
            played.hear(1, hashed("a"));
            played.hear(2, hashed("b"));
        },
        DiscardTroubled,
    );
    check(&|played| (1..=3).for_each(|node| played.hear(node, None)), DiscardTroubled);
    check(&|played| played.tasks.ask(NodeId(2), deletion(), played.now), DiscardTroubled);
    check(&|played| played.nodes.replicas_mut().expect_full_report(NodeId(2)), DiscardAway);
    let silent = |played: &mut Played| {
        played.now += 2 * second;
        (1..=2).for_each(|node| played.hear(node, Some(good())));
    };
    check(&silent, DiscardAway);
    let dead = |played: &mut Played| {
        played.now += 10 * second;
        played.hear(1, Some(good()));
    };
    check(&dead, DiscardTroubled);
    let broken = |played: &mut Played| {
        let state = DiskState::Failed as i32;
        let broken = DiskReport { disk: disk(3, 0), state, ..DiskReport::default() };
        played.nodes.see(NodeId(3), vec![broken], played.now);
    };
    check(&broken, DiscardTroubled);
    let stopped = |played: &mut Played| {
        let switches = Switches { reclaim_stopped: true, ..played.tables.switches() };
        let command = SetSwitchesCommand { switches: Some(switches) };
        run(&mut played.tables, Command::SetSwitches(command));
    };
    check(&stopped, DiscardPaused);
}

#[test]
fn the_dead_are_not_waited_for_and_take_what_was_discarded_when_they_come_back() {
    let blocks = names(1..4);
    let mut played = gone_unheard(&blocks);
    assert_eq!(played.state(&blocks), DiscardState::DiscardGone);

    played.hear(3, Some(good()));
    played.look();
    assert_eq!(played.heard(1), []);
    assert_eq!(played.heard(3), [Heard::Take(2)]);
    assert_eq!(
        played.state(&blocks),
        DiscardState::DiscardUnderWay,
        "nobody asked is told so until it has them"
    );
    played.hear(3, Some(discarded(3, 5)));
    played.look();
    assert!(matches!(played.heard(3)[..], [Heard::Discard(_, 3)]), "asked again, it is done again");
}

/// A container of which two replicas have said that these blocks are gone, which no group has heard yet; the
/// third is on a dead node.
fn gone_unheard(blocks: &[BlockName]) -> Played {
    let mut played = Played::closed();
    played.now += Duration::from_secs(10);
    (1..=2).for_each(|node| played.hear(node, Some(good())));
    played.ask(blocks);
    played.look();
    let [Heard::Discard(portion, 3)] = played.heard(1)[..] else { panic!("{:?}", played.heard(1)) };
    for node in [1, 2] {
        played.hear(node, Some(discarded(3, 5)));
        played.done(node, portion);
    }
    played.look();
    played
}

/// The third replica comes back with all blocks, and is copied, or takes the place of the two.
#[test]
fn what_was_said_by_replicas_that_left_is_not_said_of_others() {
    let blocks = names(1..4);
    let check = |change: &dyn Fn(&mut Played)| {
        let mut played = gone_unheard(&blocks);
        change(&mut played);
        assert_ne!(played.state(&blocks), DiscardState::DiscardGone);
        played.look();
        assert!(matches!(played.heard(2)[..], [Heard::Discard(_, 3)]), "{:?}", played.heard(2));
    };
    check(&|played| {
        (1..=2).for_each(|node| played.hear(node, None));
        played.hear(3, Some(good()));
        played.look();
        played.hear(2, Some(good()));
    });
    check(&|played| {
        // One look alone gets to it, though it has no blocks that are to go.
        played.look_once();
        played.tasks.ask(NodeId(2), deletion(), played.now);
        played.look_once();
        played.tasks = Tasks::default();
        (1..=2).for_each(|node| played.hear(node, Some(good())));
    });
    check(&|played| {
        let of_disk = |disk: u8| DiskReport { disk: self::disk(2, disk), ..DiskReport::default() };
        played.nodes.see(NodeId(2), vec![of_disk(0), of_disk(1)], played.now);
        let elsewhere = ContainerReplica { disk: disk(2, 1), ..good() };
        let report = ContainersReport { replicas: vec![elsewhere], gone: vec![], begins: true, ends: true };
        played.nodes.report_containers(NodeId(2), report);
        played.hear(1, Some(good()));
    });
}

/// A node that is silent for a while, or has yet to tell of all it has, is none that left.
#[test]
fn what_is_gone_stays_so_while_a_replica_is_only_silent() {
    let blocks = names(1..4);
    let mut played = gone_unheard(&blocks);
    played.now += Duration::from_secs(2);
    played.hear(1, Some(discarded(3, 5)));
    assert_eq!(played.state(&blocks), DiscardState::DiscardAway);
    played.look();
    played.nodes.replicas_mut().expect_full_report(NodeId(2));
    played.look();
    played.hear(2, Some(discarded(3, 5)));
    assert_eq!(played.state(&blocks), DiscardState::DiscardGone);
}

#[test]
fn replicas_come_to_the_union_of_what_each_has_discarded() {
    let mut played = Played::closed();
    played.hear(1, Some(discarded(2, 5)));
    played.hear(2, Some(discarded(2, 6)));
    played.look();
    assert_eq!(
        (played.heard(1), played.heard(2), played.heard(3)),
        (vec![Heard::Take(2)], vec![], vec![Heard::Take(2)])
    );
    played.hear(1, Some(discarded(4, 11)));
    played.look();
    assert_eq!(
        (played.heard(1), played.heard(2), played.heard(3)),
        (vec![], vec![Heard::Take(1)], vec![Heard::Take(1)])
    );
}

#[test]
fn a_node_that_failed_is_not_told_the_same_for_a_while() {
    let mut played = Played::closed();
    let blocks = names(1..4);
    played.ask(&blocks);
    played.look();
    let (kind, failed) = (TaskKind::TaskDiscard as i32, "no route".to_owned());
    let report = TaskReport { container: CONTAINER.0, kind, failed, ..TaskReport::default() };
    played.discards.report(NodeId(2), &[report], played.now);
    played.look();
    let progress = played.ask(&blocks).progress;
    assert_eq!(
        (progress.state, progress.node),
        (DiscardState::DiscardTroubled, Some(NodeId(2))),
        "{progress:?}"
    );
    assert_eq!((played.heard(1).len(), played.heard(2).len()), (1, 0));
    played.now += AVOID_FOR;
    (1..=3).for_each(|node| played.hear(node, Some(good())));
    played.look();
    assert_eq!((played.heard(1).len(), played.heard(2).len()), (1, 1));
}

#[test]
fn only_a_container_in_which_nothing_is_left_is_deleted_and_then_all_of_it_is_gone() {
    let mut played = Played::closed();
    let check = |played: &mut Played, replicas: [ContainerReplica; 3], is_emptied: bool| {
        for (node, replica) in (1..).zip(replicas) {
            played.hear(node, Some(replica));
        }
        played.look();
        assert_eq!(played.to_delete(), Vec::from_iter(is_emptied.then_some(CONTAINER)));
    };
    let unread = || discarded(10, 5);
    let terms = vec![TermEnd { term: 2, last_index: 9, mark: 7 }];
    let all = || ContainerReplica { terms: terms.clone(), ..unread() };
    check(&mut played, [all(), all(), discarded(9, 4)], false);
    check(&mut played, [all(), all(), discarded(10, 6)], false);
    check(&mut played, [all(), all(), ContainerReplica { released: false, ..all() }], false);
    let never = || ContainerReplica { blocks: 0, payload_bytes: 0, ..good() };
    check(&mut played, [never(), never(), never()], false);
    check(&mut played, [unread(), unread(), unread()], false);
    check(&mut played, [unread(), all(), unread()], true);

    let emptied = EmptiedContainer { container: CONTAINER.0, ..EmptiedContainer::default() };
    let delete = DeleteContainersCommand { containers: vec![emptied] };
    run(&mut played.tables, Command::DeleteContainers(delete));
    assert_eq!(played.state(&names(1..4)), DiscardState::DiscardUnderWay, "replicas are left");
    (1..=3).for_each(|node| played.hear(node, None));
    assert_eq!(played.state(&names(1..4)), DiscardState::DiscardGone);
    played.nodes.replicas_mut().expect_full_report(NodeId(2));
    assert_eq!(played.state(&names(1..4)), DiscardState::DiscardAway, "it may have one");
}

#[test]
fn an_open_container_is_closed_when_much_of_it_is_dead_or_something_for_long() {
    let open = |blocks| {
        let state = ReplicaState::ReplicaOpen as i32;
        ContainerReplica { state, blocks, payload_bytes: blocks << 20, last_index: 0, last_term: 0, ..good() }
    };
    let check = |dead: u64, later: Duration, expect: &[ContainerId]| {
        let mut played = Played::open();
        (1..=3).for_each(|node| played.hear(node, Some(open(40))));
        assert_eq!(played.state(&names(0..dead)), DiscardState::DiscardOpen);
        played.now += later;
        assert_eq!(played.state(&names(0..dead)), DiscardState::DiscardOpen);
        assert_eq!(played.look(), expect, "{dead} dead, {later:?} later");
        assert_eq!(played.look(), [], "once in a while");
    };
    let (day, hour) = (Duration::from_secs(24 * 3600), Duration::from_secs(300));
    check(9, hour, &[]);
    check(10, hour, &[CONTAINER]);
    check(1, day, &[CONTAINER]);
}

#[test]
fn only_so_many_blocks_are_remembered() {
    let mut played = Played::closed();
    assert_eq!(played.state(&names(0..BLOCKS_MAX as u64 + 7)), DiscardState::DiscardUnderWay);
    assert_eq!(played.discards.remembered(), BLOCKS_MAX);
    assert_eq!(played.state(&names(1 << 20..1 << 20 | 9)), DiscardState::DiscardPaused);
    played.look();
    assert!(matches!(played.heard(1)[..], [Heard::Discard(_, 4096)]), "in portions");
    // Nobody asks any more.
    played.now += FORGOTTEN_AFTER + Duration::from_secs(1);
    played.look();
    assert_eq!(played.discards.remembered(), 0);
}

/// Each discard takes a source's hash away, without which it is not copied.
#[test]
fn where_a_copy_has_failed_another_one_is_made_before_anything_is_discarded() {
    let mut played = Played::closed();
    let (container, pipeline, hash) = (CONTAINER, PipelineId(1), String::new());
    let copy = Order::Copy { container, pipeline, sources: vec![], hash, bytes: 1, to_balance: false };
    played.tasks.ask(NodeId(4), copy.clone(), played.now);
    let (kind, failed) = (TaskKind::TaskCopy as i32, "its hash is not computed yet".to_owned());
    let report = TaskReport { container: CONTAINER.0, kind, failed, ..TaskReport::default() };
    played.tasks.report(NodeId(4), vec![report], played.now);
    played.ask(&names(0..9));
    played.look();
    assert_eq!(played.heard(1), []);
    assert_eq!(played.state(&names(0..9)), DiscardState::DiscardTroubled);
    played.tasks.ask(NodeId(4), copy, played.now);
    played.tasks.drop_done(played.now, Duration::MAX, |_, _| true, |_, _| false);
    played.look();
    assert!(matches!(played.heard(1)[..], [Heard::Discard(_, 9)]), "{:?}", played.heard(1));
}

/// Blocks that had to wait took the place of all others.
#[test]
fn what_something_is_in_the_way_of_makes_room() {
    let mut played = Played::closed();
    let bad = || ContainerReplica { unhealthy: "bad".into(), ..good() };
    for (count, left) in [(BLOCKS_MAX / 2 - 1, BLOCKS_MAX / 2 - 1), (BLOCKS_MAX, 0)] {
        assert_eq!(played.state(&names(0..count as u64)), DiscardState::DiscardUnderWay);
        played.hear(2, [bad()]);
        played.look();
        assert_eq!(played.discards.remembered(), left);
        played.hear(2, [good()]);
        played.look();
    }
    assert_eq!(played.state(&names(0..9)), DiscardState::DiscardUnderWay);
    assert_eq!(played.discards.remembered(), 9);
}

#[test]
fn each_container_has_its_turn() {
    const COUNT: u64 = 20;
    let mut played = Played::closed_all(COUNT);
    let mut begun = BTreeSet::new();
    for look in 0..COUNT {
        for container in (1..=COUNT).map(ContainerId) {
            let Played { tables, nodes, tasks, discards, now } = &mut played;
            let from = 1 << 20 | look << 10;
            let blocks = names(from..from + 10).into_iter().map(|name| BlockName { container, ..name });
            let unused = [Unused { container, blocks: blocks.collect(), bytes: 0 }];
            discards.ask(GROUP, &unused, &World::at(tables, nodes, *now), tasks);
        }
        played.look_once();
        let world = World::at(&played.tables, &played.nodes, played.now);
        let told: Vec<Task> = played.discards.of(NodeId(1), &world).collect();
        assert_eq!(told.len(), PORTIONS_PER_NODE_MAX);
        for task in told {
            let Some(task::Task::Discard(DiscardPortion { container, portion, .. })) = task.task else {
                panic!("{task:?}");
            };
            begun.insert(container);
            let kind = TaskKind::TaskDiscard as i32;
            let done = TaskReport { container, kind, done_portion: portion, ..TaskReport::default() };
            (1..=3).for_each(|node| {
                played.discards.report(NodeId(node), std::slice::from_ref(&done), played.now)
            });
        }
        if begun.len() == COUNT as usize {
            return;
        }
    }
    panic!("{} of {COUNT} containers had a turn", begun.len());
}

/// Where one node failed at all of them, portions of all containers were remembered.
#[test]
fn a_node_that_fails_at_everything_has_few_portions_begun_and_leaves_places_for_takes() {
    const COUNT: u64 = 40;
    let mut played = Played::closed_all(COUNT);
    for _ in 0..COUNT {
        for container in (1..=COUNT).map(ContainerId) {
            let Played { tables, nodes, tasks, discards, now } = &mut played;
            let blocks = names(0..10).into_iter().map(|name| BlockName { container, ..name });
            let unused = [Unused { container, blocks: blocks.collect(), bytes: 0 }];
            discards.ask(GROUP, &unused, &World::at(tables, nodes, *now), tasks);
        }
        played.look_once();
        for container in 1..=COUNT {
            let (kind, failed) = (TaskKind::TaskDiscard as i32, "no index".to_owned());
            let report = TaskReport { container, kind, failed, ..TaskReport::default() };
            played.discards.report(NodeId(2), &[report], played.now);
        }
    }
    let has_portion = |waiting: &&Waiting| waiting.portion.is_some();
    assert_eq!(played.discards.waiting().filter(has_portion).count(), PORTIONS_PER_NODE_MAX);
    // All replicas on node 2 lack something.
    played.now += AVOID_FOR;
    let more = (1..=COUNT).map(|container| ContainerReplica { container, ..discarded(1, 1) });
    let less = (1..=COUNT).map(|container| ContainerReplica { container, ..good() });
    [1, 3].into_iter().for_each(|node| played.hear(node, more.clone()));
    played.hear(2, less);
    let Played { tables, nodes, discards, now, .. } = &mut played;
    let world = World::at(tables, nodes, *now);
    for container in (1..=COUNT).map(ContainerId) {
        discards.look(&known(container, &world).expect("it is there"), &world);
    }
    played.look_once();
    let heard = played.heard(2);
    let takes = heard.iter().filter(|heard| matches!(heard, Heard::Take(_))).count();
    assert_eq!((heard.len(), takes), (ORDERS_PER_NODE_MAX, ORDERS_PER_NODE_MAX - PORTIONS_PER_NODE_MAX));
}

/// What no name ever had is found in closed containers alone.
#[test]
fn an_open_container_with_blocks_is_closed_after_a_day() {
    let mut played = Played::open();
    let replica = |blocks| ContainerReplica { blocks, state: ReplicaState::ReplicaOpen as i32, ..good() };
    let day = ScmOptions::default().roll_open_after;
    let hour = day / 24;
    let later = |played: &mut Played, after, blocks| {
        played.now += after;
        (1..=3).for_each(|node| played.hear(node, Some(replica(blocks))));
        played.look()
    };
    assert_eq!(later(&mut played, hour, 0), []);
    assert_eq!(later(&mut played, day, 5), [], "it was empty until now");
    assert_eq!(later(&mut played, day - hour, 6), []);
    assert_eq!(later(&mut played, hour, 6), [CONTAINER]);
    assert_eq!(later(&mut played, hour, 6), [], "a day begins anew where it was not closed");
}
