//! The log of a process: its levels, seen and changed while it runs.

use crate::answer::Answer;
use anyhow::Context;
use proto::process::LogRequest;
use proto::process::process_client::ProcessClient;
use serde_json::json;
use std::time::Duration;
use tonic::transport::Endpoint;

const ANSWER_MAX: Duration = Duration::from_secs(5);

pub(super) async fn run(rpc: &str, directives: Vec<String>, reset: bool) -> anyhow::Result<Answer> {
    let endpoint = Endpoint::from_shared(format!("http://{rpc}"));
    let endpoint = endpoint.with_context(|| format!("`{rpc}` is not host:port (--rpc)"))?;
    let channel = endpoint.connect_timeout(ANSWER_MAX).timeout(ANSWER_MAX).connect().await;
    let channel = channel.with_context(|| format!("nothing answers at {rpc} (--rpc, FLOTILLA_RPC)"))?;
    let mut process = ProcessClient::new(channel);
    let asked = process.log(LogRequest { directives, reset }).await.map_err(proto::Failure::from);
    let said = asked.with_context(|| format!("{rpc} refused"))?.into_inner();
    let text = match said.before == said.now {
        true => format!("{}\n", said.now),
        false => format!("{}\nbefore: {}\n", said.now, said.before),
    };
    Ok(Answer::new(text, json!({ "log": said.now, "before": said.before })))
}
