//! A forced reset that may have been cut short.

use crate::adapter::encoding::entry_from_meta;
use crate::adapter::type_config::{Data, RaftEntry};
use crate::replica::identity::Identity;
use anyhow::Context;
use disk::Disk;
use openraft::EntryPayload;
use prost::Message;
use proto::raft as wire;
use raftlog::Log;
use std::sync::Arc;
use types::{LogIndex, ReplicaId};

/// Decides whether a reset counts, durably and before the replica hears anybody: the members that it gave up
/// are lost when the log ends with its two entries, and members as before when it does not. Whoever failed
/// half way may change their mind.
pub(crate) async fn settle_reset(
    identity: Identity,
    log: &Log,
    disk: &Arc<dyn Disk>,
) -> anyhow::Result<Identity> {
    if !identity.is_resetting {
        return Ok(identity);
    }
    let mut lost = identity.lost.clone();
    match log_end(log).await?.as_slice() {
        [
            RaftEntry { payload: EntryPayload::Normal(Data::Reset(record)), .. },
            RaftEntry { payload: EntryPayload::Membership(members), .. },
        ] if members.voter_ids().eq([identity.replica.0]) => {
            let record = wire::ResetRecord::decode(record.clone()).context("decode the record of a reset")?;
            lost.extend(record.lost.into_iter().map(ReplicaId));
        }
        // Half of a reset: nobody was told, and nobody else has it.
        [.., RaftEntry { log_id, payload: EntryPayload::Normal(Data::Reset(_)) }] => {
            log.truncate_after(log_id.index.checked_sub(1).map(LogIndex)).await.context("undo a reset")?;
        }
        _ => {}
    }
    lost.sort_unstable();
    lost.dedup();
    let identity = Identity { is_resetting: false, lost, ..identity };
    identity.write(disk).await.context("write how a reset ended")?;
    Ok(identity)
}

/// The log's last two entries, or what it has of them.
async fn log_end(log: &Log) -> anyhow::Result<Vec<RaftEntry>> {
    let state = log.state();
    let Some(last) = state.last else { return Ok(Vec::new()) };
    let first = state.purged.map_or(LogIndex(0), |purged| purged.index.next());
    let from = LogIndex(last.index.0.saturating_sub(1)).max(first);
    let records = log.read_meta(from..last.index.next(), 2).await.context("read the end of the log")?;
    Ok(records.into_iter().map(entry_from_meta).collect::<Result<_, _>>()?)
}
