//! New pipelines: created where there is room, open once they have a leader.

use crate::leader::Leader;
use crate::member_view::{MAJORITY, MEMBERS};
use crate::placement::{self, DiskLoad, Existing, MemberPlace, NodeLoad};
use crate::tables::duty;
use crate::world::{RoomyNode, World};
use bytes::Bytes;
use planted::Bug;
use proto::Failure;
use proto::scm::{
    CreatePipelineCommand, NodeDuty, NodeRecord, NodeState, PipelinePlace, PipelineState,
    scm_command::Command,
};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use tracing::info;
use types::{NodeId, PipelineId};

/// The time after which a round comes without a change, for what a failed proposal left undone.
const LOOK_AGAIN_INTERVAL: Duration = Duration::from_secs(5);
/// The time between a round that had more to do and the next.
const FULL_ROUND_INTERVAL: Duration = Duration::from_millis(250);
/// The most pipelines of one round, which bounds the proposals in flight at once.
const ROUND_PIPELINES_MAX: usize = 256;
/// The number of placement delays after which a round starts, however many nodes keep appearing.
const PLACEMENT_DELAYS_MAX: u32 = 10;

/// The timing of rounds: pipelines are placed once no node or disk has appeared for a moment, so that the
/// pipelines of those that start together spread over all of them.
pub(crate) struct Placing {
    delay: Duration,
    per_disk: u32,
    /// The number of changes of places that were seen.
    seen: u64,
    /// The moment at which the first change since the last round was seen.
    first: Option<Instant>,
    /// The moment at which the next round is due.
    due: Instant,
}

impl Placing {
    pub(crate) fn new(delay: Duration, per_disk: u32, now: Instant) -> Placing {
        Placing { delay, per_disk, seen: 0, first: None, due: now + LOOK_AGAIN_INTERVAL }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// The places of new pipelines, `changes` being how often places have changed; `None` while no round is
    /// due.
    pub(crate) fn plan(&mut self, changes: u64, world: &World<'_>) -> Option<Vec<[MemberPlace; MEMBERS]>> {
        let now = world.now;
        if self.seen != changes {
            self.seen = changes;
            let first = *self.first.get_or_insert(now);
            self.due = (now + self.delay).min(first + self.delay * PLACEMENT_DELAYS_MAX);
        }
        if now < self.due {
            return None;
        }
        let (loads, existing) = match world.has_good_places() {
            true => loads(world, world.good_places()),
            false => loads(world, world.places()),
        };
        let planned = placement::plan(loads, &existing, self.per_disk, ROUND_PIPELINES_MAX);
        self.first = None;
        // These are all that there is room for, unless the round was full. A pipeline that could not be
        // created is not tried again at once.
        let is_full = planned.len() == ROUND_PIPELINES_MAX;
        self.due = now + if is_full { FULL_ROUND_INTERVAL } else { LOOK_AGAIN_INTERVAL };
        Some(planned)
    }
}

/// Creates one more pipeline, on three of the `wanted` nodes or, when none are named, wherever there is most
/// room; the limit per disk does not count.
pub(crate) async fn create_one(leader: &Leader, wanted: &BTreeSet<NodeId>) -> Result<PipelineId, Failure> {
    /// More than a disk will ever carry.
    const PER_DISK: u32 = 1_000_000;
    let planned = leader.read(|world| {
        let (mut loads, existing) = loads(world, world.places());
        loads.retain(|load| wanted.is_empty() || wanted.contains(&load.node));
        placement::plan(loads, &existing, PER_DISK, 1)
    });
    let places = planned.into_iter().next();
    let places = places.ok_or_else(|| {
        Failure::invalid("not three of these nodes are healthy, in service and have a working disk")
    })?;
    create(leader, places).await
}

async fn create(leader: &Leader, places: [MemberPlace; MEMBERS]) -> Result<PipelineId, Failure> {
    let reply = leader.propose(Command::CreatePipeline(creation(places))).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::internal(format!("a planned pipeline was refused: {}", reply.refused)));
    }
    info!(pipeline = reply.pipeline, "created pipeline");
    Ok(PipelineId(reply.pipeline))
}

pub(crate) fn creation(places: [MemberPlace; MEMBERS]) -> CreatePipelineCommand {
    let places = places.map(|place| PipelinePlace { node: place.node.0, disk: place.disk });
    CreatePipelineCommand { places: places.into() }
}

/// The nodes that new pipelines may go to, with the pipelines that their disks carry. Where two have
/// `places`, a third one that is dead, or has no disk that works, is a member beside them: two take what is
/// written, and it may come back. While any other is silent, and not dead yet, that one is waited for.
fn loads<'a>(world: &World<'a>, places: impl Iterator<Item = RoomyNode<'a>>) -> (Vec<NodeLoad>, Existing) {
    let World { tables, nodes, now, .. } = *world;
    let mut per_disk: HashMap<&Bytes, u32> = HashMap::new();
    let mut existing = Existing::new();
    for record in tables.live_pipelines() {
        existing.push(record.members.iter().map(|member| NodeId(member.node)).collect());
        for member in &record.members {
            *per_disk.entry(&member.disk).or_default() += 1;
        }
    }
    let racks = tables.racks().numbers();
    let load = |node: NodeId, record: &NodeRecord, disks: Vec<(&Bytes, u64)>| {
        let disks = disks.into_iter().map(|(disk, free_bytes)| DiskLoad {
            disk: disk.clone(),
            pipelines: per_disk.get(disk).copied().unwrap_or(0),
            free_bytes,
        });
        NodeLoad { node, is_away: false, rack: racks[tables.racks().of(record)], disks: disks.collect() }
    };
    let places = places.map(|RoomyNode { node, record, disks }| {
        load(node, record, disks.into_iter().map(|disk| (&disk.disk, disk.free_bytes)).collect())
    });
    let mut loads: Vec<NodeLoad> = places.collect();
    if loads.len() == MAJORITY {
        // The directories of a node are gone for good where another one has spoken at its address since.
        let was_wiped = |node: NodeId, record: &NodeRecord| {
            let others = tables.nodes().iter().filter(|(_, other)| other.address == record.address);
            others
                .max_by_key(|(other, _)| (nodes.seen(**other), **other))
                .is_some_and(|(last, _)| *last != node)
        };
        let others = tables.nodes().iter().filter(|(node, record)| {
            duty(record) == NodeDuty::NodeInService
                && loads.iter().all(|load| load.node != **node)
                && !was_wiped(**node, record)
        });
        let others: Vec<_> = others.map(|(&node, record)| (nodes.state(node, now), node, record)).collect();
        let is_away = |(state, node, _): &&(NodeState, NodeId, &NodeRecord)| {
            *state == NodeState::NodeDead || !nodes.disks(*node).is_empty()
        };
        let is_waited_for = others.iter().any(|(state, _, _)| *state == NodeState::NodeStale);
        let third = others.iter().filter(is_away).max_by_key(|(_, node, _)| nodes.seen(*node));
        loads.extend(third.filter(|_| !is_waited_for).map(|&(_, node, record)| {
            let disks = record.disks.iter().map(|disk| (disk, 0)).collect();
            NodeLoad { is_away: true, ..load(node, record, disks) }
        }));
    }
    (loads, existing)
}

/// Allocated pipelines that were seen with a leader, and of which a majority has said that it has begun: what
/// is acknowledged from then on is not forgotten by one that is made anew.
pub(crate) fn ready_to_open<'a>(world: &'a World<'_>) -> impl Iterator<Item = PipelineId> + 'a {
    let live = world.tables.live_pipelines();
    let allocated = live.filter(|record| record.state() == PipelineState::PipelineAllocated);
    let begun =
        allocated.filter(|record| record.begun.len() >= MAJORITY || planted::has(Bug::BegunIsForgotten));
    let led = begun.filter(|record| world.nodes.pipeline_seen(record, world.now).leader.is_some());
    led.map(|record| PipelineId(record.pipeline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::ops::testing::{create, disk, register, run, three_nodes};
    use proto::scm::{DiskReport, DiskState, MemberState, PipelineReport, RegisterNodeCommand};
    use std::collections::HashSet;

    const DELAY: Duration = Duration::from_millis(200);

    /// Three nodes, of which one is dead for good, when another one was away for long, so that all pipelines
    /// closed, and is back.
    #[test]
    fn a_dead_node_is_the_third_where_two_are_left() {
        let (tables, start) = (three_nodes(), Instant::now());
        let [stale_after, dead_after] = [5, 60].map(Duration::from_secs);
        let mut nodes = Nodes::new(Silence { stale_after, dead_after, disk_lost_after: dead_after }, start);
        let mut planned = |healthy: &[u64], after: Duration| {
            for &node in healthy {
                let (disk, state) = (disk(node, 0), DiskState::Works as i32);
                let here = DiskReport { disk, state, free_bytes: 1 << 40, ..DiskReport::default() };
                nodes.see(NodeId(node), vec![here], start + after);
            }
            let world = World::at(&tables, &nodes, start + after);
            let (loads, existing) = loads(&world, world.places());
            placement::plan(loads, &existing, 2, 10).len()
        };
        assert_eq!(planned(&[1, 2], Duration::from_secs(59)), 0, "the third may come by itself");
        assert_eq!(planned(&[1, 2], Duration::from_secs(60)), 2);
        assert_eq!(planned(&[1], Duration::from_secs(200)), 0, "one is no majority");
        assert_eq!(planned(&[1, 2, 3], Duration::from_secs(300)), 2);
    }

    /// The members of what is planned where two of four nodes are `live` and some are known to be dead; nodes
    /// 3 and 4 are at these addresses.
    fn thirds(
        addresses: [&str; 2],
        live: [u64; 2],
        dead: &[u64],
        says: Option<(u64, DiskState)>,
    ) -> Vec<u64> {
        let mut tables = three_nodes();
        for (number, address) in [3, 4].into_iter().zip(addresses) {
            let Command::RegisterNode(command) = register(number) else { unreachable!("it registers") };
            let address = address.to_owned();
            run(&mut tables, Command::RegisterNode(RegisterNodeCommand { address, ..command }));
        }
        let [stale_after, dead_after] = [5, 60].map(Duration::from_secs);
        let start = Instant::now();
        let mut nodes = Nodes::new(Silence { stale_after, dead_after, disk_lost_after: dead_after }, start);
        nodes.know_dead(dead.iter().copied().map(NodeId));
        let now = start + stale_after;
        for (node, state) in live.map(|node| (node, DiskState::Works)).into_iter().chain(says) {
            let (disk, state) = (disk(node, 0), state as i32);
            let here = DiskReport { disk, state, free_bytes: 1 << 40, ..DiskReport::default() };
            nodes.see(NodeId(node), vec![here], now);
        }
        let world = World::at(&tables, &nodes, now);
        let (loads, existing) = loads(&world, world.places());
        let planned = placement::plan(loads, &existing, 1, 1);
        planned.iter().flatten().map(|place| place.node.0).collect()
    }

    #[test]
    fn the_third_is_one_that_may_come_back_and_does_not_lead() {
        let apart = ["c:1", "d:1"];
        assert_eq!(thirds(apart, [1, 2], &[], None), [0; 0], "nobody is known to be dead yet");
        assert_eq!(thirds(apart, [1, 2], &[4], None), [0; 0], "node 3 may only be restarting");
        assert_eq!(thirds(apart, [1, 2], &[4], Some((3, DiskState::Failed))), [1, 2, 3], "it may be mended");
        assert_eq!(thirds(apart, [1, 4], &[2, 3], None), [1, 3, 4]);
        assert_eq!(
            thirds(["d:1"; 2], [1, 4], &[2, 3], None),
            [1, 2, 4],
            "node 3 was wiped, and is node 4 now"
        );
        assert_eq!(thirds(apart, [2, 3], &[1, 4], Some((1, DiskState::Full))), [2, 1, 3]);
    }

    /// A node that hears SCM, and not the others: a member there would stand still again.
    #[test]
    fn a_disk_on_which_a_member_stood_still_is_better_than_none() {
        let (mut tables, start) = (three_nodes(), Instant::now());
        run(&mut tables, register(4));
        run(&mut tables, create([1, 2, 3]));
        let [stale_after, dead_after] = [5, 60].map(Duration::from_secs);
        let mut nodes = Nodes::new(Silence { stale_after, dead_after, disk_lost_after: dead_after }, start);
        let mut planned = |second: u64, speaking: &[u64], applied_there: u64| -> Vec<u64> {
            let now = start + Duration::from_secs(second);
            for &node in speaking {
                // The third has most room.
                let (disk, free_bytes) = (disk(node, 0), if node == 3 { 1 << 41 } else { 1 << 40 });
                let state = DiskState::Works as i32;
                let here = DiskReport { disk, state, free_bytes, ..DiskReport::default() };
                nodes.see(NodeId(node), vec![here], now);
                let report = PipelineReport {
                    pipeline: 1,
                    replica: node,
                    leader_replica: 1,
                    last_index: 9,
                    applied_index: if node == 3 { applied_there } else { 9 },
                    state: MemberState::Runs as i32,
                    ..PipelineReport::default()
                };
                let member = (node <= 3).then_some(report);
                nodes.report_pipelines(NodeId(node), member.into_iter().collect(), &HashSet::new());
            }
            let mut placing = Placing::new(Duration::ZERO, 2, now - LOOK_AGAIN_INTERVAL);
            let planned = placing.plan(0, &World::at(&tables, &nodes, now)).expect("a round is due");
            let mut nodes: Vec<u64> = planned.iter().flatten().map(|place| place.node.0).collect();
            nodes.sort_unstable();
            nodes
        };
        let all = [1, 2, 3, 4];
        assert_eq!(planned(0, &all, 5), [1, 3, 4]);
        (1..=12).for_each(|second| drop(planned(second, &all, 5)));
        assert_eq!(planned(13, &all, 5), [1, 2, 4]);
        (14..=18).for_each(|second| drop(planned(second, &[1, 2, 3], 9)));
        assert_eq!(planned(19, &[1, 2, 3], 9), [1, 2, 3], "there are no three others");
        assert_eq!(planned(20, &all, 9), [1, 2, 4], "it comes on, and may stand still again");
        assert_eq!(planned(80, &all, 9), [1, 3, 4], "that was long ago");
    }

    /// A pipeline that could not be created, since SCM's own disk is full, must not be tried again without a
    /// pause.
    #[test]
    fn places_settle_and_what_failed_is_tried_again_later() {
        let (tables, start) = (three_nodes(), Instant::now());
        let within = Duration::from_secs(60);
        let mut nodes =
            Nodes::new(Silence { stale_after: within, dead_after: within, disk_lost_after: within }, start);
        for node in 1..=3 {
            let (disk, state) = (disk(node, 0), DiskState::Works as i32);
            let here = DiskReport { disk, state, free_bytes: 1 << 40, ..DiskReport::default() };
            nodes.see(NodeId(node), vec![here], start);
        }
        let mut placing = Placing::new(DELAY, 1, start);
        let mut placed = |changes: u64, after: Duration| {
            let planned = placing.plan(changes, &World::at(&tables, &nodes, start + after));
            planned.map(|planned| planned.len())
        };
        assert_eq!(placed(1, Duration::ZERO), None);
        assert_eq!(placed(2, DELAY / 2), None, "one more has come");
        assert_eq!(placed(2, DELAY), None);
        assert_eq!(placed(2, DELAY + DELAY / 2), Some(1));
        assert_eq!(placed(2, 2 * DELAY), None, "nothing came of it, and it is not tried again at once");
        assert_eq!(placed(2, 2 * DELAY + LOOK_AGAIN_INTERVAL), Some(1));
        // Nodes that come without end hold up nobody for ever.
        let rounds = (1..=40u64).filter(|n| placed(2 + n, 60 * DELAY + DELAY / 2 * *n as u32).is_some());
        assert!(rounds.count() >= 1);
    }
}
