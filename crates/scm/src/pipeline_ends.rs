//! The leader's task that closes pipelines, ends them and settles what their containers are; and that adopts what a forced reset has lost, which ends
//! the same way.

use crate::adoption::Adoption;
use crate::closing::{Closing, ClosingGraces};
use crate::leader::Leader;
use crate::resolution::Resolution;
use proto::Failure;
use proto::scm::{AdoptedContainer, CloseContainersCommand, scm_command::Command};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// Between two looks. Ten thousand pipelines take a few milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Commands of one look: bounds the proposals in flight.
const COMMANDS_MAX: usize = 256;

/// Runs until the leadership ends.
pub(crate) async fn end_pipelines(leader: &Leader) {
    let options = &leader.options;
    let graces = ClosingGraces {
        member_fault: options.member_fault_grace,
        quasi_close: options.quasi_close_after,
        let_go: options.stale_after,
    };
    let mut closing = Closing::new(graces);
    let mut resolution = Resolution::new(options.stale_after);
    let mut adoption = Adoption::new(options.stale_after);
    loop {
        if let Err(failure) = adopt(leader, &mut adoption).await {
            warn!(%failure, "adopt what a forced reset has lost");
        }
        if let Err(failure) = end_pipelines_round(leader, &mut closing, &mut resolution).await {
            warn!(%failure, "close pipelines and containers");
        }
        sleep(LOOK_INTERVAL).await;
    }
}

async fn end_pipelines_round(
    leader: &Leader,
    closing: &mut Closing,
    resolution: &mut Resolution,
) -> Result<(), Failure> {
    let (at_ms, in_safe_mode) = (leader.clock.now_ms(), leader.in_safe_mode());
    let (commands, containers) = leader.read(|tables, nodes| {
        let now = Instant::now();
        let commands = closing.decide(tables, nodes, now, at_ms, in_safe_mode);
        (commands, resolution.decide(tables, nodes, now))
    });
    let proposed = commands.into_iter().take(COMMANDS_MAX).map(|command| propose(leader, command));
    futures::future::join_all(proposed).await.into_iter().collect::<Result<(), Failure>>()?;
    if !containers.is_empty() {
        for closed in &containers {
            info!(
                container = closed.container,
                state = closed.state().as_str_name(),
                last_term = closed.last_term,
                last_index = closed.last_index,
                "container is settled"
            );
        }
        leader.propose(Command::CloseContainers(CloseContainersCommand { containers })).await?;
    }
    Ok(())
}

async fn adopt(leader: &Leader, adoption: &mut Adoption) -> Result<(), Failure> {
    let (at_ms, now) = (leader.clock.now_ms(), Instant::now());
    let command = leader.read(|tables, nodes| adoption.decide(tables, nodes, now, at_ms));
    let Some(command) = command else { return Ok(()) };
    for described in &command.pipelines {
        let members: Vec<u64> = described.members.iter().map(|member| member.node).collect();
        warn!(pipeline = described.pipeline, ?members, "adopt a pipeline that the forced reset had lost");
    }
    for AdoptedContainer { container, pipeline } in &command.containers {
        warn!(container, pipeline, "adopt a container that the forced reset had lost");
    }
    let reply = leader.propose(Command::Adopt(command)).await?;
    match reply.refused.is_empty() {
        true => Ok(()),
        false => Err(Failure::internal(reply.refused)),
    }
}

async fn propose(leader: &Leader, command: Command) -> Result<(), Failure> {
    match &command {
        Command::ClosePipeline(close) => {
            info!(pipeline = close.pipeline, reason = %close.reason, "close pipeline");
        }
        Command::QuasiClosePipeline(close) => {
            warn!(pipeline = close.pipeline, "nobody leads it: its members end by themselves");
        }
        Command::EndPipeline(end) => info!(pipeline = end.pipeline, "pipeline is over"),
        _ => {}
    }
    leader.propose(command).await?;
    // One that closes makes room for others.
    leader.places_changed.notify_one();
    Ok(())
}
