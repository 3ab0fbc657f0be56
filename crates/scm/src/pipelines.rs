//! The leader's tasks around new pipelines: create them where there is room, open them once they have a leader.

use crate::leader::Leader;
use crate::nodes::{Nodes, takes_pipelines};
use crate::placement::{self, DiskLoad, Existing, NodeLoad, Place};
use crate::tables::{Tables, duty};
use bytes::Bytes;
use proto::Failure;
use proto::scm::{
    CreatePipelineCommand, NodeDuty, NodeState, OpenPipelineCommand, PipelinePlace, PipelineState,
    scm_command::Command,
};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};
use types::{NodeId, PipelineId};

/// Looks again without being told: for what a lost wake-up or a failed proposal left undone.
const LOOK_AGAIN_INTERVAL: Duration = Duration::from_secs(5);
/// Pipelines of one round: bounds the proposals in flight at once.
const ROUND_PIPELINES_MAX: usize = 256;
/// However many nodes keep appearing, a round starts after this many placement delays.
const PLACEMENT_DELAYS_MAX: u32 = 10;

/// Creates pipelines until the leadership ends.
pub(crate) async fn create_pipelines(leader: &Leader) {
    loop {
        let _ = timeout(LOOK_AGAIN_INTERVAL, leader.places_changed.notified()).await;
        create_pipelines_settle(leader).await;
        if let Err(failure) = create_pipelines_round(leader).await {
            warn!(%failure, "create pipelines");
        }
        leader.rounds.send_modify(|rounds| *rounds += 1);
    }
}

/// Waits until no node or disk has appeared for a moment.
async fn create_pipelines_settle(leader: &Leader) {
    let delay = leader.options.placement_delay;
    let deadline = Instant::now() + delay * PLACEMENT_DELAYS_MAX;
    while timeout_at(deadline.min(Instant::now() + delay), leader.places_changed.notified()).await.is_ok() {}
}

async fn create_pipelines_round(leader: &Leader) -> Result<(), Failure> {
    loop {
        let planned = leader.read(|tables, nodes| {
            let (loads, existing) = loads(tables, nodes, Instant::now());
            placement::plan(loads, &existing, leader.options.pipelines_per_disk, ROUND_PIPELINES_MAX)
        });
        if planned.is_empty() {
            return Ok(());
        }
        let created =
            futures::future::join_all(planned.into_iter().map(|places| create(leader, places))).await;
        created.into_iter().collect::<Result<Vec<PipelineId>, Failure>>()?;
    }
}

/// One more pipeline, on these three nodes or, when none are named, wherever there is most room; the limit per disk is not asked.
pub(crate) async fn create_one(leader: &Leader, wanted: &BTreeSet<NodeId>) -> Result<PipelineId, Failure> {
    /// More than a disk will ever carry.
    const PER_DISK: u32 = 1_000_000;
    let planned = leader.read(|tables, nodes| {
        let (mut loads, existing) = loads(tables, nodes, Instant::now());
        loads.retain(|load| wanted.is_empty() || wanted.contains(&load.node));
        placement::plan(loads, &existing, PER_DISK, 1)
    });
    let places = planned.into_iter().next();
    let places = places.ok_or_else(|| {
        Failure::invalid("not three of these nodes are healthy, in service and have a working disk")
    })?;
    create(leader, places).await
}

async fn create(leader: &Leader, places: [Place; 3]) -> Result<PipelineId, Failure> {
    let nodes = places.each_ref().map(|place| place.node);
    let places = places.map(|place| PipelinePlace { node: place.node.0, disk: place.disk });
    let reply =
        leader.propose(Command::CreatePipeline(CreatePipelineCommand { places: places.into() })).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::internal(format!("a planned pipeline was refused: {}", reply.refused)));
    }
    info!(pipeline = reply.pipeline, ?nodes, "created pipeline");
    Ok(PipelineId(reply.pipeline))
}

/// The healthy nodes in service with their disks that work, with the pipelines they carry.
fn loads(tables: &Tables, nodes: &Nodes, now: Instant) -> (Vec<NodeLoad>, Existing) {
    let mut per_disk: HashMap<&Bytes, u32> = HashMap::new();
    let mut existing = Existing::new();
    for record in tables.live_pipelines() {
        existing.push(record.members.iter().map(|member| NodeId(member.node)).collect());
        for member in &record.members {
            *per_disk.entry(&member.disk).or_default() += 1;
        }
    }
    let healthy = tables.nodes().iter().filter(|(node, record)| {
        nodes.state(**node, now) == NodeState::NodeHealthy && duty(record) == NodeDuty::NodeInService
    });
    let racks = tables.racks().numbers();
    let loads = healthy.map(|(&node, record)| {
        let usable = nodes
            .disks(node)
            .iter()
            .filter(|disk| takes_pipelines(disk) && record.disks.contains(&disk.disk));
        let disks = usable.map(|disk| DiskLoad {
            disk: disk.disk.clone(),
            pipelines: per_disk.get(&disk.disk).copied().unwrap_or(0),
            free_bytes: disk.free_bytes,
        });
        NodeLoad { node, rack: racks[tables.racks().of(record)], disks: disks.collect() }
    });
    (loads.collect(), existing)
}

/// Opens pipelines that were seen with a leader, until the leadership ends.
pub(crate) async fn open_pipelines(leader: &Leader) {
    let mut view = leader.view.subscribe();
    loop {
        for pipeline in ready_to_open(leader) {
            match leader.propose(Command::OpenPipeline(OpenPipelineCommand { pipeline: pipeline.0 })).await {
                Ok(_) => info!(%pipeline, "pipeline is open"),
                Err(failure) => warn!(%pipeline, %failure, "open pipeline"),
            }
        }
        let _ = timeout(LOOK_AGAIN_INTERVAL, view.changed()).await;
    }
}

fn ready_to_open(leader: &Leader) -> Vec<PipelineId> {
    let now = Instant::now();
    leader.read(|tables, nodes| {
        let allocated =
            tables.live_pipelines().filter(|record| record.state() == PipelineState::PipelineAllocated);
        let led = allocated.filter(|record| nodes.pipeline_seen(record, now).leader.is_some());
        led.map(|record| PipelineId(record.pipeline)).collect()
    })
}
