//! New pipelines: created where there is room, open once they have a leader.

use crate::leader::Leader;
use crate::member_view::{MAJORITY, MEMBERS};
use crate::placement::{self, DiskLoad, Existing, NodeLoad, Place};
use crate::tables::duty;
use crate::world::{Places, World};
use bytes::Bytes;
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
    pub(crate) fn plan(&mut self, changes: u64, world: &World<'_>) -> Option<Vec<[Place; MEMBERS]>> {
        let now = world.now;
        if self.seen != changes {
            self.seen = changes;
            let first = *self.first.get_or_insert(now);
            self.due = (now + self.delay).min(first + self.delay * PLACEMENT_DELAYS_MAX);
        }
        if now < self.due {
            return None;
        }
        let (loads, existing) = loads(world);
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
        let (mut loads, existing) = loads(world);
        loads.retain(|load| wanted.is_empty() || wanted.contains(&load.node));
        placement::plan(loads, &existing, PER_DISK, 1)
    });
    let places = planned.into_iter().next();
    let places = places.ok_or_else(|| {
        Failure::invalid("not three of these nodes are healthy, in service and have a working disk")
    })?;
    create(leader, places).await
}

async fn create(leader: &Leader, places: [Place; MEMBERS]) -> Result<PipelineId, Failure> {
    let reply = leader.propose(Command::CreatePipeline(creation(places))).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::internal(format!("a planned pipeline was refused: {}", reply.refused)));
    }
    info!(pipeline = reply.pipeline, "created pipeline");
    Ok(PipelineId(reply.pipeline))
}

pub(crate) fn creation(places: [Place; MEMBERS]) -> CreatePipelineCommand {
    let places = places.map(|place| PipelinePlace { node: place.node.0, disk: place.disk });
    CreatePipelineCommand { places: places.into() }
}

/// The healthy nodes in service with their disks that work, with the pipelines they carry. Where two are left,
/// a third one that is dead, or has no disk that works, is a member beside them: two take what is written, and
/// it may come back.
fn loads(world: &World<'_>) -> (Vec<NodeLoad>, Existing) {
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
        NodeLoad { node, rack: racks[tables.racks().of(record)], disks: disks.collect() }
    };
    let places = world.places().map(|Places { node, record, disks }| {
        load(node, record, disks.into_iter().map(|disk| (&disk.disk, disk.free_bytes)).collect())
    });
    let mut loads: Vec<NodeLoad> = places.collect();
    if loads.len() == MAJORITY {
        let is_away = |node: &NodeId| match nodes.state(*node, now) {
            NodeState::NodeDead => true,
            NodeState::NodeHealthy => !nodes.disks(*node).is_empty(),
            _ => false,
        };
        let others = tables.nodes().iter().filter(|(node, record)| {
            duty(record) == NodeDuty::NodeInService
                && loads.iter().all(|load| load.node != **node)
                && is_away(node)
        });
        let third = others.max_by_key(|(node, _)| nodes.seen(**node));
        loads.extend(
            third.map(|(&node, record)| {
                load(node, record, record.disks.iter().map(|disk| (disk, 0)).collect())
            }),
        );
    }
    (loads, existing)
}

/// Allocated pipelines that were seen with a leader.
pub(crate) fn ready_to_open<'a>(world: &'a World<'_>) -> impl Iterator<Item = PipelineId> + 'a {
    let live = world.tables.live_pipelines();
    let allocated = live.filter(|record| record.state() == PipelineState::PipelineAllocated);
    let led = allocated.filter(|record| world.nodes.pipeline_seen(record, world.now).leader.is_some());
    led.map(|record| PipelineId(record.pipeline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::ops::testing::{disk, three_nodes};
    use proto::scm::{DiskReport, DiskState};

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
            let (loads, existing) = loads(&world);
            placement::plan(loads, &existing, 2, 10).len()
        };
        assert_eq!(planned(&[1, 2], Duration::from_secs(59)), 0, "the third may come by itself");
        assert_eq!(planned(&[1, 2], Duration::from_secs(60)), 2);
        assert_eq!(planned(&[1], Duration::from_secs(200)), 0, "one is no majority");
        assert_eq!(planned(&[1, 2, 3], Duration::from_secs(300)), 2);
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
