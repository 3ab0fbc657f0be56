//! Forgetting a pipeline's log, as a log, up to what all three members have: docs/cluster.md.
//!
//! The leader sees in openraft's replication what every member has durably, and says so in the log itself
//! ([`ForgetCommand`]), once in a while. What it says stays true for good, so whoever applies it, now or
//! after a restart, may forget up to there, each in its own time:
//!
//! ```text
//! leader    all have 1000, and 64 MiB or the open container follow it ──► entry 1900: forget up to 1000
//! any       applies 1900 ──► the index is flushed ──► the log begins after 1000
//! ```
//!
//! The index first: it has no log of its own, and what a crash takes from its memory is applied again from
//! this one. Only containers all of whose records are forgotten are *released*.

use crate::inventory::Inventory;
use crate::pipeline::Pipeline;
use anyhow::Context;
use prost::Message;
use proto::datanode::{ForgetCommand, PipelineCommand, pipeline_command};
use raft::{Command, ForgetError, Role};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};
use types::{LogId, Payload};

/// The least that goes at a time, as a part of the tail that stays: each time costs a flush of the index.
const STEP_OF_TAIL: u64 = 2;

pub(crate) struct Forgetter {
    pub pipeline: Arc<Pipeline>,
    pub tail_bytes: u64,
    pub interval: Duration,
    /// The inventory, which hears of containers that are released.
    pub inventory: Inventory,
}

impl Forgetter {
    /// Says in the log what may be forgotten, and forgets what the log says, as long as the pipeline is open.
    /// May be dropped anywhere: what was said in the log is applied again, or said again.
    pub(crate) async fn run(self) {
        let mut said = self.pipeline.forget_to.clone();
        let mut look = interval(self.interval);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = said.changed() => if changed.is_err() { return },
                _ = look.tick() => {}
            }
            let to = *said.borrow_and_update();
            if let Some(to) = to {
                self.forget(to).await;
            }
            if let Err(failure) = self.say().await {
                debug!(pipeline = %self.pipeline.id, error = format!("{failure:#}"), "cannot say what may be forgotten");
            }
        }
    }

    /// Says in the log, as the leader only, what may be forgotten. No tail is kept of a closed container: it
    /// could not be repaired before as much is written after it, which an idle pipeline never does.
    async fn say(&self) -> anyhow::Result<()> {
        let Pipeline { group, .. } = self.pipeline.as_ref();
        if group.status().role != Role::Leader || self.pipeline.open_container().ended.is_some() {
            return Ok(());
        }
        let open_bytes = group.log().state().owner_bytes;
        let Some(to) = group.forgettable(self.tail_bytes.min(open_bytes)) else { return Ok(()) };
        if !group.log().frees_earlier_owners(to)
            && group.log().bytes_up_to(to) < self.tail_bytes / STEP_OF_TAIL
        {
            return Ok(());
        }
        let LogId { term, index } = group.log().id_at(to).await?;
        let forget = ForgetCommand { last_term: term.0, last_index: index.0 };
        let command = PipelineCommand { command: Some(pipeline_command::Command::Forget(forget)) };
        let meta = command.encode_to_vec().into();
        group.apply(Command { meta, body: Payload::default(), roll_to: None }).await.context("propose it")?;
        Ok(())
    }

    async fn forget(&self, to: LogId) {
        let Pipeline { id, group, disk, .. } = self.pipeline.as_ref();
        if group.log().state().purged.is_some_and(|purged| purged.index >= to.index) {
            return;
        }
        let flushed = disk.index.with(move |index| index.flush()).await;
        if let Err(failure) = flushed {
            warn!(pipeline = %id, error = format!("{failure:#}"), "the index cannot be flushed, so the log is kept");
            return;
        }
        match group.forget_log(to.index).await {
            Ok(()) => {
                info!(pipeline = %id, to = to.index.0, "the log is forgotten up to what all members have");
                self.inventory.look_again_at_pipeline(*id);
            }
            // The next look tries again.
            Err(failure @ (ForgetError::InUse { .. } | ForgetError::NotApplied { .. })) => {
                debug!(pipeline = %id, %failure, "the log is not forgotten yet");
            }
            Err(ForgetError::Stopped) => {}
        }
    }
}
