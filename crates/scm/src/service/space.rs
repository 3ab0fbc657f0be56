//! The space as operators see it: where the bytes are, and why those that are dead are still there.

use super::containers;
use crate::discards::{Asked, ContainerProgress, Waiting};
use crate::leader::Leader;
use crate::tables::container_state;
use crate::world::World;
use bytes::Bytes;
use proto::scm::{
    ContainerReplica, ContainerSpace, DiskReport, ExplainSpaceRequest, SpaceAsked, SpaceOfContainers,
    SpaceOfDisk, SpaceOfReplicas, SpaceStatus, SpaceWaiting,
};
use proto::{Code, Failure};
use std::collections::BTreeMap;
use tokio::time::Instant;
use types::{ContainerId, NodeId};

pub(super) fn status(leader: &Leader) -> SpaceStatus {
    leader.plan(|world, replication| {
        let discards = &replication.discards;
        let emptied = world.tables.containers().values().filter(|record| record.emptied);
        SpaceStatus {
            reclaim_stopped: world.tables.switches().reclaim_stopped,
            safe_mode: world.in_safe_mode,
            containers: by_state(world),
            disks: by_disk(world),
            waiting: waiting(discards.waiting(), world.now),
            blocks_remembered: discards.remembered() as u64,
            blocks_gone: discards.blocks_gone,
            blocks_gone_per_second: discards.gone.per_second(),
            containers_emptied: emptied.count() as u64,
        }
    })
}

pub(super) fn explain(leader: &Leader, request: &ExplainSpaceRequest) -> Result<ContainerSpace, Failure> {
    let container = ContainerId(request.container);
    leader.plan(|world, replication| {
        let record = world.tables.container(container);
        let record =
            record.ok_or_else(|| Failure::new(Code::NotFound, format!("no container {container}")))?;
        let info = containers::info(record, world.tables, world.nodes, replication, world.now);
        let discards = &replication.discards;
        let waiting = discards.of_container(container);
        // The progress may have changed since the container was looked at.
        let progress = waiting.map(|_| discards.progress(container, world, &replication.tasks));
        Ok(ContainerSpace {
            info: Some(info),
            progress: progress.map(|progress: ContainerProgress| progress.to_proto(container)),
            asked: waiting.map(|waiting| asked(waiting, world.now)).unwrap_or_default(),
            blocks_remembered: waiting.map_or(0, Waiting::remembered) as u64,
            emptied: record.emptied,
        })
    })
}

fn asked(waiting: &Waiting, now: Instant) -> Vec<SpaceAsked> {
    let ago_ms = |then: Instant| now.saturating_duration_since(then).as_millis() as u64;
    let asked = |(&group, asked): (&u64, &Asked)| {
        let Asked { blocks, bytes, since, at } = *asked;
        SpaceAsked { group, blocks, bytes, since_ms: ago_ms(since), last_ms: ago_ms(at) }
    };
    waiting.asked.iter().map(asked).collect()
}

fn by_state(world: &World<'_>) -> Vec<SpaceOfContainers> {
    let mut found: BTreeMap<i32, SpaceOfContainers> = BTreeMap::new();
    for (container, record) in world.tables.containers() {
        let state: i32 = container_state(record).into();
        let empty = || SpaceOfContainers { state, containers: 0, space: Some(SpaceOfReplicas::default()) };
        let of_state = found.entry(state).or_insert_with(empty);
        of_state.containers += 1;
        let replicas = world.nodes.replicas().of(*container);
        replicas.for_each(|(_, replica)| add(&mut of_state.space, replica));
    }
    found.into_values().collect()
}

fn by_disk(world: &World<'_>) -> Vec<SpaceOfDisk> {
    let mut found: BTreeMap<(NodeId, Bytes), SpaceOfDisk> = BTreeMap::new();
    let of = |node: NodeId, disk: &Bytes, report: Option<DiskReport>| {
        let space = Some(SpaceOfReplicas::default());
        SpaceOfDisk { node: node.0, disk: disk.clone(), space, report }
    };
    for node in world.tables.nodes().keys().copied() {
        for report in world.nodes.disks(node) {
            found.insert((node, report.disk.clone()), of(node, &report.disk, Some(report.clone())));
        }
        for container in world.nodes.replicas().on(node) {
            let Some(replica) = world.nodes.replicas().get(container, node) else { continue };
            let key = (node, replica.disk.clone());
            let of_disk = found.entry(key).or_insert_with(|| of(node, &replica.disk, None));
            add(&mut of_disk.space, replica);
        }
    }
    found.into_values().collect()
}

fn add(space: &mut Option<SpaceOfReplicas>, replica: &ContainerReplica) {
    let space = space.get_or_insert_default();
    space.replicas += 1;
    space.blocks += replica.blocks;
    space.live_bytes += replica.payload_bytes;
    space.discarded_blocks += replica.discarded_blocks;
    space.discarded_bytes += replica.discarded_bytes;
    space.hole_bytes += replica.hole_bytes;
    space.disk_bytes += replica.disk_bytes;
    space.dead_bytes += replica.dead_bytes;
}

fn waiting<'a>(all: impl Iterator<Item = &'a Waiting>, now: Instant) -> Vec<SpaceWaiting> {
    let mut found: BTreeMap<i32, SpaceWaiting> = BTreeMap::new();
    for waiting in all {
        let state: i32 = waiting.progress.state.into();
        let of_state =
            found.entry(state).or_insert_with(|| SpaceWaiting { state, ..SpaceWaiting::default() });
        of_state.containers += 1;
        for asked in waiting.asked.values() {
            of_state.blocks += asked.blocks;
            of_state.bytes += asked.bytes;
            let ago_ms = now.saturating_duration_since(asked.since).as_millis() as u64;
            if ago_ms >= of_state.oldest_ms {
                (of_state.oldest_ms, of_state.oldest_container) = (ago_ms, waiting.container.0);
            }
        }
    }
    found.into_values().collect()
}
