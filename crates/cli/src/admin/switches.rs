//! Switches for what SCM does on its own: whether it does, and how it is going.

use super::args::SwitchCommand;
use super::scm::Scm;
use super::words;
use crate::answer::Answer;
use crate::table::{human_bytes, table};
use proto::scm::{ClusterStatus, CopiesWaiting, GetClusterStatusRequest, SetSwitchesRequest, TaskInfo};
use serde_json::{Value, json};

pub(super) async fn replication(scm: &mut Scm, command: SwitchCommand) -> anyhow::Result<Answer> {
    let set = |on| SetSwitchesRequest { replication: Some(on), ..SetSwitchesRequest::default() };
    let status = switch(scm, command, set).await?;
    let is_on = status.switches.unwrap_or_default().replication;
    let mut text = format!("replication is {}", on_or_off(is_on));
    if is_on && status.safe_mode {
        text += ", and waits for safe mode to end";
    }
    text += &format!(
        "\n{} copies are under way, {} failed lately; {} replicas are being deleted\n",
        status.copies_under_way, status.copies_failed, status.deletions_under_way
    );
    let waiting = status.copies_waiting.unwrap_or_default();
    text += &waits(&waiting);
    if !status.tasks.is_empty() {
        let rows: Vec<_> = status.tasks.iter().map(row).collect();
        text += "\n";
        text += &table(["NODE", "TASK", "CONTAINER", "DONE", "OF", "SINCE", "FAILED"], &rows);
    }
    let tasks: Vec<_> = status.tasks.iter().map(task_to_json).collect();
    let json = json!({
        "on": is_on,
        "safe_mode": status.safe_mode,
        "copies_under_way": status.copies_under_way,
        "copies_failed": status.copies_failed,
        "deletions_under_way": status.deletions_under_way,
        "waiting": {
            "reports": waiting.for_reports,
            "source": waiting.for_source,
            "node": waiting.for_node,
            "room": waiting.for_room,
            "turn": waiting.for_turn,
        },
        "tasks": tasks,
    });
    Ok(Answer::new(text, json))
}

/// A line for each thing that copies wait for.
fn waits(waiting: &CopiesWaiting) -> String {
    let room = format!("room: a node keeps {} % of its space free beyond a copy", waiting.keep_free_percent);
    let waits = [
        (waiting.for_reports, "nodes to tell of all they have"),
        (waiting.for_source, "a node with a good replica to speak"),
        (waiting.for_node, "a node in service that has no replica"),
        (waiting.for_room, room.as_str()),
        (waiting.for_turn, "their turn"),
    ];
    let lines = waits.into_iter().filter(|(containers, _)| *containers > 0);
    lines.map(|(containers, what)| format!("{containers} containers wait for {what}\n")).collect()
}

pub(super) async fn balancer(scm: &mut Scm, command: SwitchCommand) -> anyhow::Result<Answer> {
    let set = |on| SetSwitchesRequest { balancer: Some(on), ..SetSwitchesRequest::default() };
    let status = switch(scm, command, set).await?;
    let is_on = status.switches.unwrap_or_default().balancer;
    let balancer = status.balancer.unwrap_or_default();
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let text = format!(
        "the balancer is {}\nnodes are used {} to {}, {} on average\n{} containers are on the move; {} ({}) were moved \
         since this SCM leads\n",
        on_or_off(is_on),
        percent(balancer.utilization_min),
        percent(balancer.utilization_max),
        percent(balancer.utilization_mean),
        balancer.moves_under_way,
        balancer.moved_containers,
        human_bytes(balancer.moved_bytes),
    );
    let json = json!({
        "on": is_on,
        "utilization_min": balancer.utilization_min,
        "utilization_max": balancer.utilization_max,
        "utilization_mean": balancer.utilization_mean,
        "moves_under_way": balancer.moves_under_way,
        "moved_containers": balancer.moved_containers,
        "moved_bytes": balancer.moved_bytes,
    });
    Ok(Answer::new(text, json))
}

async fn switch(
    scm: &mut Scm,
    command: SwitchCommand,
    set: impl Fn(bool) -> SetSwitchesRequest,
) -> anyhow::Result<ClusterStatus> {
    match command {
        SwitchCommand::Status => {
            scm.look(async |client| client.get_cluster_status(GetClusterStatusRequest {}).await).await
        }
        SwitchCommand::Start => scm.change(async |client| client.set_switches(set(true)).await).await,
        SwitchCommand::Stop => scm.change(async |client| client.set_switches(set(false)).await).await,
    }
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn row(task: &TaskInfo) -> [String; 7] {
    let report = task.report.clone().unwrap_or_default();
    [
        task.node.to_string(),
        words::task_kind(report.kind()).to_owned(),
        if report.container == 0 { "-".to_owned() } else { report.container.to_string() },
        human_bytes(report.bytes_done),
        human_bytes(report.bytes_total),
        format!("{:.0} s ago", task.age_ms as f64 / 1000.0),
        report.failed,
    ]
}

fn task_to_json(task: &TaskInfo) -> Value {
    let report = task.report.clone().unwrap_or_default();
    json!({
        "node": task.node,
        "task": words::task_kind(report.kind()),
        "container": (report.container != 0).then_some(report.container),
        "pipeline": (report.pipeline != 0).then_some(report.pipeline),
        "bytes_done": report.bytes_done,
        "bytes_total": report.bytes_total,
        "age_ms": task.age_ms,
        "failed": (!report.failed.is_empty()).then_some(report.failed),
    })
}
