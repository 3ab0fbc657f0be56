//! A datanode says each second how it is, and learns which pipelines it should have and where their members are.

use crate::leader::Leader;
use crate::view;
use proto::Failure;
use proto::scm::{DiskReport, HeartbeatRequest, HeartbeatResponse, NodeRecord};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, timeout};
use types::NodeId;

/// How long the answer to a node without pipelines waits for rounds of pipeline creation: a node that just joined
/// hears of its pipelines as soon as they exist, not at its next heartbeat.
const FIRST_PIPELINES_WAIT: Duration = Duration::from_millis(500);
/// Reports of one heartbeat.
const PIPELINE_REPORTS_MAX: usize = 10_000;

pub(crate) async fn heartbeat(
    leader: &Leader,
    request: HeartbeatRequest,
) -> Result<HeartbeatResponse, Failure> {
    leader.check_cluster(&request.cluster)?;
    super::register::check_disks(&request.disks)?;
    if request.pipelines.len() > PIPELINE_REPORTS_MAX {
        return Err(Failure::invalid(format!("more than {PIPELINE_REPORTS_MAX} pipelines on one node")));
    }
    let node = NodeId(request.node);
    let as_registered = leader.read(|tables, _| {
        tables.node(node).is_some_and(|record| registered_like_this(record, &request.address, &request.disks))
    });
    if !as_registered {
        return Ok(HeartbeatResponse { register_again: true, ..HeartbeatResponse::default() });
    }
    let mut round = leader.rounds.subscribe();
    let (places_changed, reports_changed) = leader.change_nodes(|nodes| {
        (nodes.see(node, request.disks, Instant::now()), nodes.report_pipelines(node, request.pipelines))
    });
    if places_changed {
        leader.places_changed.notify_one();
    }
    if reports_changed {
        leader.reports_changed.notify_one();
    }
    let has_pipelines = || leader.read(|tables, _| tables.live_pipelines_on(node).next().is_some());
    let first_pipelines = async { while !has_pipelines() && round.changed().await.is_ok() {} };
    let _ = timeout(FIRST_PIPELINES_WAIT, first_pipelines).await;
    Ok(answer(leader, node))
}

/// A node that moved, or whose disks are not those it registered with, goes into the log again.
fn registered_like_this(record: &NodeRecord, address: &str, disks: &[DiskReport]) -> bool {
    record.address == address
        && record.disks.len() == disks.len()
        && disks.iter().all(|disk| record.disks.contains(&disk.disk))
}

/// The node's pipelines, and the addresses of those it shares one with.
fn answer(leader: &Leader, node: NodeId) -> HeartbeatResponse {
    leader.read(|tables, nodes| {
        let records = || tables.live_pipelines_on(node);
        let peers: BTreeSet<NodeId> =
            records().flat_map(|record| record.members.iter().map(|member| NodeId(member.node))).collect();
        HeartbeatResponse {
            pipelines: records().map(|record| view::pipeline(record, tables, nodes)).collect(),
            addresses: view::node_addresses(tables, peers),
            ..HeartbeatResponse::default()
        }
    })
}
