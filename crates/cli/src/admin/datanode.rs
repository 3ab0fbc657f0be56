use super::refused;
use crate::output;
use crate::table::{human_bytes, table};
use anyhow::Context;
use proto::scm::scm_client::ScmClient;
use proto::scm::{DatanodeInfo, ListDatanodesRequest, NodeState};
use serde_json::json;
use tonic::transport::Channel;

pub(super) async fn list(scm: &mut ScmClient<Channel>, as_json: bool) -> anyhow::Result<()> {
    let answer = scm.list_datanodes(ListDatanodesRequest {}).await.map_err(refused)?;
    let mut datanodes = answer.into_inner().datanodes;
    datanodes.sort_by_key(|datanode| datanode.node);
    if as_json {
        let list: Vec<_> = datanodes.iter().map(to_json).collect();
        return output::print(&format!("{:#}\n", json!(list))).context("write to standard output");
    }
    let headings =
        ["NODE", "STATE", "ADDRESS", "LAST HEARTBEAT", "DISKS", "FREE", "CAPACITY", "PIPELINES", "LEADERS"];
    let rows: Vec<_> = datanodes.iter().map(row).collect();
    output::print(&table(headings, &rows)).context("write to standard output")
}

fn state(datanode: &DatanodeInfo) -> &'static str {
    match datanode.state() {
        NodeState::NodeHealthy => "healthy",
        NodeState::NodeStale => "stale",
        NodeState::NodeDead => "dead",
        NodeState::Unspecified => "unknown",
    }
}

fn row(datanode: &DatanodeInfo) -> [String; 9] {
    let failed = datanode.disks.iter().filter(|disk| disk.failed).count();
    let disks = match failed {
        0 => datanode.disks.len().to_string(),
        _ => format!("{} ({failed} failed)", datanode.disks.len()),
    };
    [
        datanode.node.to_string(),
        state(datanode).to_owned(),
        datanode.address.clone(),
        format!("{:.1} s ago", datanode.last_heartbeat_age_ms as f64 / 1000.0),
        disks,
        human_bytes(datanode.disks.iter().map(|disk| disk.free_bytes).sum()),
        human_bytes(datanode.disks.iter().map(|disk| disk.capacity_bytes).sum()),
        datanode.pipelines.to_string(),
        datanode.leaders.to_string(),
    ]
}

fn to_json(datanode: &DatanodeInfo) -> serde_json::Value {
    let disks: Vec<_> = datanode
        .disks
        .iter()
        .map(|disk| {
            json!({
                "disk": proto::disk_id(&disk.disk).map(|id| id.to_string()).unwrap_or_default(),
                "capacity_bytes": disk.capacity_bytes,
                "free_bytes": disk.free_bytes,
                "failed": disk.failed,
            })
        })
        .collect();
    json!({
        "node": datanode.node,
        "state": state(datanode),
        "address": datanode.address,
        "last_heartbeat_age_ms": datanode.last_heartbeat_age_ms,
        "disks": disks,
        "pipelines": datanode.pipelines,
        "leaders": datanode.leaders,
    })
}
