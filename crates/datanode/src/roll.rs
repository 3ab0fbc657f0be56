//! Going on to the next container when one is nearly full, or when SCM says so; and ending a pipeline, which
//! is a roll too: its last.
//!
//! The leader asks SCM for the next container and proposes a roll. Where the log's records go is switched
//! when the roll is *appended*, before anybody applies it, so a roll that was decided on old news could send
//! the log back to a closed container. It cannot, because
//!
//! 1. one task per pipeline and process rolls, and waits for the outcome before it thinks again;
//! 2. it decides only after a read index, so that all entries of earlier terms, rolls among them, are
//!    applied;
//! 3. it proposes only if its term is still the one it decided in. As long as the term is the same, nobody
//!    else rolled;
//! 4. SCM gives one successor to each container, so two leaders that decide on the same news name the same
//!    container: the second roll switches the log to where it is, and applying it changes nothing;
//! 5. containers are numbered upwards, and the log takes no roll to an earlier owner than it has: should an
//!    old roll be appended regardless, it changes nothing, in the log as in the state machine. The state
//!    machine also checks every record's place against the open container: a log that went astray would stop
//!    its pipeline, not be served.
//!
//! The container that a pipeline ends with is drawn when the pipeline begins to close, after all that were
//! given out to follow another, and none is given out after it. So an end follows every roll there is, and a
//! roll that was decided before it and is appended after it is an old one by rule 5. Nobody rolls once an end
//! is applied.

use crate::index::machine::OpenContainer;
use crate::pipeline::{Pipeline, Wanted};
use anyhow::{Context, bail, ensure};
use futures::future::BoxFuture;
use prost::Message;
use proto::Failure;
use proto::datanode::{PipelineCommand, RollCommand, pipeline_command};
use raft::{Command, Role};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use types::{Backoff, ContainerId, OwnerId, Payload, PipelineId};

/// Gives the container that follows another in its pipeline of a cluster; asked twice, the same.
pub trait ContainerAllocator: Send + Sync + 'static {
    fn allocate(
        &self,
        cluster: &str,
        pipeline: PipelineId,
        after: ContainerId,
    ) -> BoxFuture<'static, Result<ContainerId, Failure>>;
}

/// The pause after a roll that failed. Where the container is full its writers wait for the next try, most
/// often for a leader of SCM that is there by then.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));
const READ_INDEX_MAX: Duration = Duration::from_secs(5);

/// Rolls one pipeline while this node leads it.
pub(crate) struct Roller {
    pub pipeline: Arc<Pipeline>,
    pub allocator: Arc<dyn ContainerAllocator>,
    pub roll_bytes: u64,
}

impl Roller {
    /// Rolls whenever that is due, until the pipeline has ended. May be dropped anywhere: of a roll under way
    /// at most a proposal is left whose outcome nobody waits for.
    pub(crate) async fn run(self) {
        let mut status = self.pipeline.group.watch();
        let mut open = self.pipeline.open.clone();
        let mut wanted = self.pipeline.wanted.subscribe();
        let mut retry = RETRY;
        loop {
            let role = status.borrow_and_update().role;
            let now = *open.borrow_and_update();
            if now.ended.is_some() {
                return;
            }
            let due = self.is_due(&now, *wanted.borrow_and_update());
            if due && role == Role::Leader {
                match self.roll().await {
                    Ok(()) => retry.reset(),
                    Err(failure) => {
                        let (pipeline, error) = (self.pipeline.id, format!("{failure:#}"));
                        match retry.is_at_first() {
                            true => warn!(%pipeline, error, "cannot go on to the next container yet"),
                            false => debug!(%pipeline, error, "cannot go on to the next container yet"),
                        }
                        sleep(retry.pause()).await;
                    }
                }
                continue;
            }
            let changed = tokio::select! {
                changed = status.changed() => changed,
                changed = open.changed() => changed,
                changed = wanted.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn is_due(&self, open: &OpenContainer, wanted: Wanted) -> bool {
        let is_full = open.used_bytes >= self.roll_bytes;
        open.ended.is_none() && (is_full || wanted.end.is_some() || wanted.roll_of == Some(open.container))
    }

    async fn roll(&self) -> anyhow::Result<()> {
        let Pipeline { id, group, wanted, rolls_to, .. } = self.pipeline.as_ref();
        let term = group.status().term;
        timeout(READ_INDEX_MAX, group.read_index())
            .await
            .context("wait for a read index")?
            .context("read index")?;
        let open = self.pipeline.open_container();
        let wanted = *wanted.borrow();
        if !self.is_due(&open, wanted) {
            return Ok(());
        }
        let next = match wanted.end {
            Some(end) => end,
            None => {
                let next = self.allocator.allocate(group.cluster(), *id, open.container).await;
                next.context("ask SCM for the next container")?
            }
        };
        ensure!(next > open.container, "SCM gave container {next} to follow {}", open.container);

        let status = group.status();
        if status.role != Role::Leader || status.term != term {
            bail!("leadership changed meanwhile");
        }
        let command = PipelineCommand {
            command: Some(pipeline_command::Command::Roll(RollCommand {
                next_container: next.0,
                ends_pipeline: wanted.end.is_some(),
            })),
        };
        let command = Command {
            meta: command.encode_to_vec().into(),
            body: Payload::default(),
            roll_to: Some(OwnerId::from(next)),
        };
        // The container is noted before the roll is proposed: who looks after that finds it.
        rolls_to.store(next.0, Ordering::Relaxed);
        group.apply(command).await.context("propose a roll")?;
        match wanted.end {
            Some(end) => info!(pipeline = %id, closed = %open.container, %end, "pipeline ended"),
            None => info!(pipeline = %id, closed = %open.container, opened = %next, "container rolled"),
        }
        Ok(())
    }
}
