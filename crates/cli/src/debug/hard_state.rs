use super::found::{Found, print};
use super::local;
use anyhow::Context;
use raftlog::inspect::{HardStateFault, HardStateSlot, read_hard_state};
use serde_json::{Value, json};
use std::path::Path;
use types::LogId;

pub(super) async fn show(path: &Path, as_json: bool) -> anyhow::Result<Found> {
    let name = path.display().to_string();
    let file = read_hard_state(local::open(path)?).await.with_context(|| format!("read {name}"))?;
    if as_json {
        let slots: Vec<_> = file.slots.iter().map(slot).collect();
        let newest = file.newest().map(|slot| slot.sequence);
        let all =
            json!({ "file": name, "bytes": file.file_bytes, "slots": slots, "newest_sequence": newest });
        print(&format!("{all}\n"))?;
    } else {
        print(&format!("{name}:\n{file}"))?;
    }
    Ok(Found::damaged(file.is_damaged()))
}

fn slot(slot: &Result<HardStateSlot, HardStateFault>) -> Value {
    let id = |id: Option<LogId>| id.map(|id| json!({ "term": id.term.0, "index": id.index.0 }));
    match slot {
        Err(fault) => json!({ "ok": false, "fault": fault.to_string() }),
        Ok(slot) => json!({
            "ok": true,
            "sequence": slot.sequence,
            "log": slot.log,
            "vote_term": slot.vote.map(|vote| vote.vote_term),
            "vote_replica": slot.vote.map(|vote| vote.vote_replica),
            "vote_committed": slot.vote.map(|vote| vote.vote_committed),
            "purged": id(slot.purged),
            "committed": id(slot.committed),
            "durable": id(slot.durable),
            "start_owner": slot.start_owner.0,
            "start_segment": slot.start_segment,
            "start_offset": slot.start_offset,
            "begun": slot.begun.map(|(owner, segment)| json!({ "owner": owner.0, "segment": segment })),
        }),
    }
}
