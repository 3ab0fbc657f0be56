use super::args::PipelineCommand;
use super::scm::Scm;
use super::words;
use crate::answer::Answer;
use crate::table::{Cell, Tone, human_bytes, table};
use anyhow::bail;
use proto::scm::{
    AcceptLossRequest, ClosePipelineRequest, ContainerState, CreatePipelineRequest, ListPipelinesRequest,
    Pipeline, PipelineState, SettledContainer, TransferLeaderRequest,
};
use serde_json::{Value, json};

const MEMBERS: usize = 3;

pub(super) async fn run(scm: &mut Scm, command: PipelineCommand) -> anyhow::Result<Answer> {
    match command {
        PipelineCommand::List { all } => list(scm, all).await,
        PipelineCommand::Info { pipeline } => info(scm, pipeline).await,
        PipelineCommand::Create { nodes } => create(scm, nodes).await,
        PipelineCommand::Close { pipeline } => close(scm, pipeline).await,
        PipelineCommand::AcceptLoss { pipeline, keep } => {
            accept_loss(scm, pipeline, keep.unwrap_or_default()).await
        }
        PipelineCommand::TransferLeader { pipeline, to } => transfer_leader(scm, pipeline, to).await,
        PipelineCommand::StepDown { pipeline } => transfer_leader(scm, pipeline, 0).await,
    }
}

async fn accept_loss(scm: &mut Scm, pipeline: u64, keep_node: u64) -> anyhow::Result<Answer> {
    let request = AcceptLossRequest { pipeline, keep_node };
    let accepted = scm.change(async |client| client.accept_loss(request).await).await?;
    let row = |container: &SettledContainer| -> [Cell; 3] {
        let (kept, upto) = match container.state() {
            ContainerState::ContainerDeleted => (Cell::toned("nothing", Tone::Bad), "-".to_owned()),
            _ => ("yes".into(), format!("{} of term {}", container.last_index, container.last_term)),
        };
        [container.container.to_string().into(), kept, upto.into()]
    };
    let rows: Vec<_> = accepted.containers.iter().map(row).collect();
    let mut text = table(["CONTAINER", "KEPT", "UP TO ENTRY"], &rows);
    let node = accepted.node;
    let is_done = keep_node != 0;
    text += &match is_done {
        false => {
            format!("\nas node {node} has them; nothing was changed, repeat with --keep {node} to do it\n")
        }
        true => format!("\nas node {node} has them; copies are made where they lack\n"),
    };
    let json = |container: &SettledContainer| {
        let is_kept = container.state() != ContainerState::ContainerDeleted;
        json!({ "container": container.container, "kept": is_kept, "last_term": container.last_term, "last_index": container.last_index })
    };
    let containers: Vec<Value> = accepted.containers.iter().map(json).collect();
    let json =
        json!({ "pipeline": pipeline, "node": accepted.node, "done": is_done, "containers": containers });
    Ok(Answer::new(text, json))
}

async fn list(scm: &mut Scm, all: bool) -> anyhow::Result<Answer> {
    let mut pipelines = pipelines(scm).await?;
    pipelines.retain(|pipeline| all || pipeline.state() != PipelineState::PipelineClosed);
    let headings = ["PIPELINE", "STATE", "MEMBERS", "LEADER", "CONTAINER", "USED", "REMARKS"];
    let rows: Vec<_> = pipelines.iter().map(row).collect();
    let list: Vec<_> = pipelines.iter().map(to_json).collect();
    Ok(Answer::new(table(headings, &rows), json!(list)))
}

async fn info(scm: &mut Scm, number: u64) -> anyhow::Result<Answer> {
    let pipelines = pipelines(scm).await?;
    let Some(pipeline) = pipelines.iter().find(|pipeline| pipeline.pipeline == number) else {
        bail!("there is no pipeline {number}");
    };
    let problem_of = |node: u64| {
        let said = pipeline.health.iter().filter(|health| health.node == node);
        said.map(|health| health.problem.as_str()).collect::<Vec<_>>().join("; ")
    };
    let members: Vec<_> = pipeline
        .members
        .iter()
        .map(|member| {
            let role = if member.node == pipeline.leader_node { "leader" } else { "" };
            [
                member.node.to_string(),
                member.replica.to_string(),
                role.to_owned(),
                member.address.clone(),
                disk(&member.disk),
                problem_of(member.node),
            ]
        })
        .collect();
    let mut text =
        table(["PIPELINE", "STATE", "MEMBERS", "LEADER", "CONTAINER", "USED", "REMARKS"], &[row(pipeline)]);
    text += "\n";
    text += &table(["NODE", "REPLICA", "ROLE", "ADDRESS", "DISK", "PROBLEM"], &members);
    Ok(Answer::new(text, to_json(pipeline)))
}

async fn create(scm: &mut Scm, nodes: Vec<u64>) -> anyhow::Result<Answer> {
    if !nodes.is_empty() && nodes.len() != MEMBERS {
        bail!("a pipeline has {MEMBERS} nodes, {} are given (--nodes)", nodes.len());
    }
    let request = CreatePipelineRequest { nodes };
    let pipeline = scm.change(async |client| client.create_pipeline(request.clone()).await).await?.pipeline;
    Ok(Answer::new(format!("created pipeline {pipeline}\n"), json!({ "pipeline": pipeline })))
}

async fn close(scm: &mut Scm, pipeline: u64) -> anyhow::Result<Answer> {
    let request = ClosePipelineRequest { pipeline };
    scm.change(async |client| client.close_pipeline(request).await).await?;
    let text = format!(
        "pipeline {pipeline} is closing; `flotilla admin pipeline info {pipeline}` tells how far it is\n"
    );
    Ok(Answer::new(
        text,
        json!({ "pipeline": pipeline, "state": words::pipeline_state(PipelineState::PipelineClosing).0 }),
    ))
}

async fn transfer_leader(scm: &mut Scm, pipeline: u64, node: u64) -> anyhow::Result<Answer> {
    let request = TransferLeaderRequest { pipeline, node };
    scm.change(async |client| client.transfer_leader(request).await).await?;
    let whom = if node == 0 { "another member".to_owned() } else { format!("node {node}") };
    let text = format!("the leader of pipeline {pipeline} was asked to hand over to {whom}\n");
    Ok(Answer::new(text, json!({ "pipeline": pipeline, "to": (node != 0).then_some(node) })))
}

pub(super) async fn pipelines(scm: &mut Scm) -> anyhow::Result<Vec<Pipeline>> {
    let answer = scm.look(async |client| client.list_pipelines(ListPipelinesRequest {}).await).await?;
    let mut pipelines = answer.pipelines;
    pipelines.sort_by_key(|pipeline| pipeline.pipeline);
    Ok(pipelines)
}

fn row(pipeline: &Pipeline) -> [Cell; 7] {
    let members: Vec<String> = pipeline.members.iter().map(|member| member.node.to_string()).collect();
    let number_or_dash = |number: u64| if number == 0 { "-".to_owned() } else { number.to_string() };
    [
        pipeline.pipeline.to_string().into(),
        words::cell(words::pipeline_state(pipeline.state())),
        members.join(",").into(),
        number_or_dash(pipeline.leader_node).into(),
        number_or_dash(pipeline.container).into(),
        human_bytes(pipeline.container_bytes).into(),
        remarks(pipeline).into(),
    ]
}

fn remarks(pipeline: &Pipeline) -> String {
    let mut remarks = Vec::new();
    if !pipeline.close_reason.is_empty() {
        remarks.push(pipeline.close_reason.clone());
    }
    let health = pipeline.health.iter();
    remarks.extend(health.map(|health| format!("node {}: {}", health.node, health.problem)));
    remarks.join("; ")
}

fn disk(id: &[u8]) -> String {
    proto::disk_id(id).map(|id| id.to_string()).unwrap_or_default()
}

fn to_json(pipeline: &Pipeline) -> Value {
    let members: Vec<_> = pipeline
        .members
        .iter()
        .map(|member| {
            json!({
                "node": member.node,
                "replica": member.replica,
                "address": member.address,
                "disk": disk(&member.disk),
            })
        })
        .collect();
    let health: Vec<_> = pipeline
        .health
        .iter()
        .map(|health| json!({ "node": health.node, "problem": health.problem }))
        .collect();
    json!({
        "pipeline": pipeline.pipeline,
        "state": words::pipeline_state(pipeline.state()).0,
        "members": members,
        "leader_node": (pipeline.leader_node != 0).then_some(pipeline.leader_node),
        "container": pipeline.container,
        "container_bytes": pipeline.container_bytes,
        "close_reason": (!pipeline.close_reason.is_empty()).then_some(&pipeline.close_reason),
        "health": health,
    })
}
