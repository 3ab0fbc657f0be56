use super::args::DatanodeCommand;
use super::scm::Scm;
use super::words;
use crate::answer::Answer;
use crate::table::{Cell, Tone, human_bytes, table};
use anyhow::{Context, bail};
use proto::scm::{DatanodeInfo, DiskReport, DiskState, ListDatanodesRequest, NodeDuty, SetNodeDutyRequest};
use serde_json::{Value, json};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The pause between two questions of `--wait`.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(scm: &mut Scm, command: DatanodeCommand) -> anyhow::Result<Answer> {
    match command {
        DatanodeCommand::List => list(scm).await,
        DatanodeCommand::Info { node } => info(scm, node).await,
        DatanodeCommand::Diskinfo { node } => diskinfo(scm, node).await,
        DatanodeCommand::Decommission { node, force, wait } => {
            let request = duty_request(node, NodeDuty::NodeDecommissioning, None, force);
            set_duty(scm, request, wait.then_some(NodeDuty::NodeDecommissioned)).await
        }
        DatanodeCommand::Maintenance { node, within, force, wait } => {
            let request = duty_request(node, NodeDuty::NodeEnteringMaintenance, within, force);
            set_duty(scm, request, wait.then_some(NodeDuty::NodeInMaintenance)).await
        }
        DatanodeCommand::Recommission { node } => {
            set_duty(scm, duty_request(node, NodeDuty::NodeInService, None, false), None).await
        }
    }
}

async fn list(scm: &mut Scm) -> anyhow::Result<Answer> {
    let datanodes = datanodes(scm).await?;
    let rows: Vec<_> = datanodes.iter().map(row).collect();
    let list: Vec<_> = datanodes.iter().map(to_json).collect();
    let problems: String = datanodes.iter().filter_map(problem).collect();
    Ok(Answer::new(table(HEADINGS, &rows) + &problems, json!(list)))
}

/// The line on a node's problem, if it has one, such as a clock that is not SCM's. Nothing is decided by
/// clocks, so the node's state says nothing of it.
fn problem(datanode: &DatanodeInfo) -> Option<String> {
    let DatanodeInfo { node, problem, .. } = datanode;
    (!problem.is_empty()).then(|| format!("\nnode {node}: {problem}\n"))
}

async fn info(scm: &mut Scm, node: u64) -> anyhow::Result<Answer> {
    let datanode = datanode(scm, node).await?;
    let mut text = table(HEADINGS, &[row(&datanode)]);
    text += &problem(&datanode).unwrap_or_default();
    if let Some(waits) = waits(&datanode) {
        text += &format!("\n{waits}\n");
    }
    text += "\n";
    text += &disks_table(std::slice::from_ref(&datanode));
    Ok(Answer::new(text, to_json(&datanode)))
}

async fn diskinfo(scm: &mut Scm, node: Option<u64>) -> anyhow::Result<Answer> {
    let datanodes = match node {
        Some(node) => vec![datanode(scm, node).await?],
        None => datanodes(scm).await?,
    };
    let list: Vec<_> = datanodes
        .iter()
        .map(|datanode| json!({ "node": datanode.node, "disks": disks_to_json(datanode) }))
        .collect();
    Ok(Answer::new(disks_table(&datanodes), json!(list)))
}

fn duty_request(node: u64, duty: NodeDuty, within: Option<Duration>, force: bool) -> SetNodeDutyRequest {
    let for_ms = within.map_or(0, |within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    SetNodeDutyRequest { node, duty: duty as i32, for_ms, force }
}

async fn set_duty(
    scm: &mut Scm,
    request: SetNodeDutyRequest,
    until: Option<NodeDuty>,
) -> anyhow::Result<Answer> {
    scm.change(async |client| client.set_node_duty(request).await).await?;
    let datanode = loop {
        let datanode = datanode(scm, request.node).await?;
        match until {
            Some(duty) if datanode.duty() != duty => {
                // Somebody else may have decided otherwise meanwhile; waiting on would never end.
                if datanode.duty() != request.duty() {
                    bail!("node {} is {} meanwhile", request.node, words::node_duty(datanode.duty()).0);
                }
                tokio::time::sleep(PAUSE).await;
            }
            _ => break datanode,
        }
    };
    let mut text = format!("node {} is {}\n", datanode.node, words::node_duty(datanode.duty()).0);
    if let Some(waits) = waits(&datanode) {
        text += &format!("{waits}\n");
    }
    Ok(Answer::new(text, to_json(&datanode)))
}

pub(super) async fn datanodes(scm: &mut Scm) -> anyhow::Result<Vec<DatanodeInfo>> {
    let answer = scm.look(async |client| client.list_datanodes(ListDatanodesRequest {}).await).await?;
    let mut datanodes = answer.datanodes;
    datanodes.sort_by_key(|datanode| datanode.node);
    Ok(datanodes)
}

async fn datanode(scm: &mut Scm, node: u64) -> anyhow::Result<DatanodeInfo> {
    let mut datanodes = datanodes(scm).await?.into_iter();
    datanodes.find(|datanode| datanode.node == node).with_context(|| format!("there is no node {node}"))
}

/// The reasons why a node that leaves is still needed.
fn waits(datanode: &DatanodeInfo) -> Option<String> {
    let (containers, pipelines) = (datanode.containers_waiting, datanode.pipelines_waiting);
    (containers + pipelines > 0).then(|| {
        format!("still needed: {containers} containers want a replica elsewhere, {pipelines} pipelines are not closed")
    })
}

const HEADINGS: [&str; 12] = [
    "NODE",
    "STATE",
    "DUTY",
    "ADDRESS",
    "RACK",
    "LAST HEARTBEAT",
    "DISKS",
    "FREE",
    "CAPACITY",
    "CONTAINERS",
    "PIPELINES",
    "LEADERS",
];

fn row(datanode: &DatanodeInfo) -> [Cell; 12] {
    let are = |state: DiskState| datanode.disks.iter().filter(|disk| disk.state() == state).count();
    let all = datanode.disks.len();
    let disks = match (are(DiskState::Failed), are(DiskState::Hangs)) {
        (0, 0) => all.to_string().into(),
        (failed, 0) => Cell::toned(format!("{all} ({failed} failed)"), Tone::Bad),
        (0, hang) => Cell::toned(format!("{all} ({hang} hang)"), Tone::Bad),
        (failed, hang) => Cell::toned(format!("{all} ({failed} failed, {hang} hang)"), Tone::Bad),
    };
    [
        datanode.node.to_string().into(),
        words::cell(words::node_state(datanode.state())),
        words::cell(words::node_duty(datanode.duty())),
        datanode.address.clone().into(),
        datanode.rack.clone().into(),
        format!("{:.1} s ago", datanode.last_heartbeat_age_ms as f64 / 1000.0).into(),
        disks,
        human_bytes(datanode.disks.iter().map(|disk| disk.free_bytes).sum()).into(),
        human_bytes(datanode.disks.iter().map(|disk| disk.capacity_bytes).sum()).into(),
        datanode.containers.to_string().into(),
        datanode.pipelines.to_string().into(),
        datanode.leaders.to_string().into(),
    ]
}

fn disks_table(datanodes: &[DatanodeInfo]) -> String {
    let of_node = |datanode: &DatanodeInfo| {
        let node = datanode.node;
        datanode.disks.iter().map(move |disk| disk_row(node, disk)).collect::<Vec<_>>()
    };
    let rows: Vec<_> = datanodes.iter().flat_map(of_node).collect();
    let whys =
        datanodes.iter().flat_map(|datanode| datanode.disks.iter().filter(|disk| !disk.why.is_empty()));
    let whys: String = whys.map(|disk| format!("{}: {}\n", disk_name(disk), disk.why)).collect();
    table(["NODE", "DISK", "STATE", "FREE", "CAPACITY", "USED"], &rows) + &whys
}

fn disk_name(disk: &DiskReport) -> String {
    proto::disk_id(&disk.disk).map(|id| id.to_string()).unwrap_or_default()
}

fn disk_row(node: u64, disk: &DiskReport) -> [Cell; 6] {
    let used = match disk.capacity_bytes {
        0 => "-".to_owned(),
        capacity => {
            format!("{:.1} %", capacity.saturating_sub(disk.free_bytes) as f64 / capacity as f64 * 100.0)
        }
    };
    let state = match disk.state() {
        DiskState::Failed => ("failed", Tone::Bad),
        DiskState::Full => ("full", Tone::Bad),
        DiskState::Hangs => ("hangs", Tone::Bad),
        DiskState::Works => ("good", Tone::Good),
        DiskState::Unspecified => words::UNKNOWN,
    };
    [
        node.to_string().into(),
        disk_name(disk).into(),
        words::cell(state),
        human_bytes(disk.free_bytes).into(),
        human_bytes(disk.capacity_bytes).into(),
        used.into(),
    ]
}

fn disks_to_json(datanode: &DatanodeInfo) -> Vec<Value> {
    let disk = |disk: &DiskReport| {
        json!({
            "disk": disk_name(disk),
            "capacity_bytes": disk.capacity_bytes,
            "free_bytes": disk.free_bytes,
            "failed": disk.state() == DiskState::Failed,
            "full": disk.state() == DiskState::Full,
            "hangs": disk.state() == DiskState::Hangs,
            "why": disk.why,
        })
    };
    datanode.disks.iter().map(disk).collect()
}

fn to_json(datanode: &DatanodeInfo) -> Value {
    let until = OffsetDateTime::from_unix_timestamp((datanode.duty_until_ms / 1000) as i64).ok();
    let until = until.filter(|_| datanode.duty_until_ms != 0).and_then(|until| until.format(&Rfc3339).ok());
    json!({
        "node": datanode.node,
        "state": words::node_state(datanode.state()).0,
        "duty": words::node_duty(datanode.duty()).0,
        "duty_until": until,
        "address": datanode.address,
        "version": (!datanode.version.is_empty()).then_some(&datanode.version),
        "rack": (!datanode.rack.is_empty()).then_some(&datanode.rack),
        "last_heartbeat_age_ms": datanode.last_heartbeat_age_ms,
        "disks": disks_to_json(datanode),
        "containers": datanode.containers,
        "pipelines": datanode.pipelines,
        "leaders": datanode.leaders,
        "containers_waiting": datanode.containers_waiting,
        "pipelines_waiting": datanode.pipelines_waiting,
        "problem": (!datanode.problem.is_empty()).then_some(&datanode.problem),
    })
}
