use super::args::SafeModeCommand;
use super::scm::Scm;
use crate::answer::Answer;
use proto::scm::{ClusterStatus, GetClusterStatusRequest, SetSwitchesRequest};
use serde_json::json;
use std::time::Duration;

/// The pause between two questions of `wait`.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn run(scm: &mut Scm, command: SafeModeCommand) -> anyhow::Result<Answer> {
    let set = |safe_mode| SetSwitchesRequest { safe_mode: Some(safe_mode), ..SetSwitchesRequest::default() };
    let status = match command {
        SafeModeCommand::Status => ask(scm).await?,
        SafeModeCommand::Wait => loop {
            let status = ask(scm).await?;
            if !status.safe_mode {
                break status;
            }
            tokio::time::sleep(PAUSE).await;
        },
        SafeModeCommand::Enter => scm.change(async |client| client.set_switches(set(true)).await).await?,
        SafeModeCommand::Exit => scm.change(async |client| client.set_switches(set(false)).await).await?,
    };
    Ok(answer(&status))
}

async fn ask(scm: &mut Scm) -> anyhow::Result<ClusterStatus> {
    scm.look(async |client| client.get_cluster_status(GetClusterStatusRequest {}).await).await
}

fn answer(status: &ClusterStatus) -> Answer {
    let mut text = format!("safe mode is {}\n", if status.safe_mode { "on" } else { "off" });
    for awaited in &status.safe_mode_waits {
        text += &format!("  waits for {awaited}\n");
    }
    Answer::new(text, json!({ "safe_mode": status.safe_mode, "waits_for": status.safe_mode_waits }))
}
