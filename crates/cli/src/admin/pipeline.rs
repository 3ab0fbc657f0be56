use super::refused;
use crate::output;
use crate::table::{human_bytes, table};
use anyhow::Context;
use proto::scm::scm_client::ScmClient;
use proto::scm::{ListPipelinesRequest, Pipeline, PipelineState};
use serde_json::json;
use tonic::transport::Channel;

pub(super) async fn list(scm: &mut ScmClient<Channel>, as_json: bool) -> anyhow::Result<()> {
    let answer = scm.list_pipelines(ListPipelinesRequest {}).await.map_err(refused)?;
    let mut pipelines = answer.into_inner().pipelines;
    pipelines.sort_by_key(|pipeline| pipeline.pipeline);
    if as_json {
        let list: Vec<_> = pipelines.iter().map(to_json).collect();
        return output::print(&format!("{:#}\n", json!(list))).context("write to standard output");
    }
    let headings = ["PIPELINE", "STATE", "MEMBERS", "LEADER", "CONTAINER", "USED"];
    let rows: Vec<_> = pipelines.iter().map(row).collect();
    output::print(&table(headings, &rows)).context("write to standard output")
}

fn state(pipeline: &Pipeline) -> &'static str {
    match pipeline.state() {
        PipelineState::PipelineAllocated => "allocated",
        PipelineState::PipelineOpen => "open",
        PipelineState::PipelineClosing => "closing",
        PipelineState::PipelineClosed => "closed",
        PipelineState::Unspecified => "unknown",
    }
}

fn row(pipeline: &Pipeline) -> [String; 6] {
    let members: Vec<String> = pipeline.members.iter().map(|member| member.node.to_string()).collect();
    let number_or_dash = |number: u64| if number == 0 { "-".to_owned() } else { number.to_string() };
    [
        pipeline.pipeline.to_string(),
        state(pipeline).to_owned(),
        members.join(","),
        number_or_dash(pipeline.leader_node),
        number_or_dash(pipeline.container),
        human_bytes(pipeline.container_bytes),
    ]
}

fn to_json(pipeline: &Pipeline) -> serde_json::Value {
    let members: Vec<_> = pipeline
        .members
        .iter()
        .map(|member| {
            json!({
                "node": member.node,
                "replica": member.replica,
                "address": member.address,
                "disk": proto::disk_id(&member.disk).map(|id| id.to_string()).unwrap_or_default(),
            })
        })
        .collect();
    json!({
        "pipeline": pipeline.pipeline,
        "state": state(pipeline),
        "members": members,
        "leader_node": (pipeline.leader_node != 0).then_some(pipeline.leader_node),
        "container": pipeline.container,
        "container_bytes": pipeline.container_bytes,
    })
}
