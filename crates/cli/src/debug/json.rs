use raftlog::inspect::{Damage, Item, SeenRecord, SegmentSummary, Verdict};
use serde_json::{Value, json};

pub(super) fn item(file: &str, item: &Item, meta: Option<&[u8]>) -> Value {
    match item {
        Item::Record(record) => self::record(file, record, meta),
        Item::Damage(damage) => {
            let mut value = self::damage(damage, None);
            value["file"] = file.into();
            value["ok"] = damage.is_old_bytes().into();
            value
        }
        Item::Unused { offset, bytes } => {
            json!({ "file": file, "offset": offset, "bytes": bytes, "unused": true })
        }
    }
}

fn record(file: &str, record: &SeenRecord, meta: Option<&[u8]>) -> Value {
    let mut value = json!({
        "file": file,
        "offset": record.offset,
        "bytes": record.bytes,
        "index": record.id.index.0,
        "term": record.id.term.0,
        "kind": record.kind,
        "log": record.log,
        "owner": record.place.owner.0,
        "segment": record.place.segment,
        "meta_bytes": record.meta_bytes,
        "body_bytes": record.place.body_bytes,
        "roll_to": record.roll_to.map(|owner| owner.0),
        "ok": true,
    });
    if let Some(meta) = meta {
        value["meta_hex"] = self::hex(meta).into();
    }
    value
}

pub(super) fn damage(damage: &Damage, verdict: Option<&Verdict>) -> Value {
    let clues: Vec<_> = damage.clues.iter().map(|clue| clue.to_string()).collect();
    let mut value = json!({
        "offset": damage.offset,
        "bytes": damage.bytes(),
        "fault": damage.fault.to_string(),
        "index": damage.index.map(|index| index.0),
        "next_index": damage.next_index.map(|index| index.0),
        "clues": clues,
    });
    if let Some(verdict) = verdict {
        value["start"] = verdict.to_string().into();
    }
    value
}

pub(super) fn summary(file: &str, summary: &SegmentSummary, damage: Vec<Value>) -> Value {
    let (entries_lost, more) = summary.entries_lost();
    json!({
        "file": file,
        "records": summary.records,
        "record_bytes": summary.record_bytes,
        "file_bytes": summary.file_bytes,
        "unused_bytes": summary.unused_bytes,
        "first_index": summary.first.map(|id| id.index.0),
        "last_index": summary.last.as_ref().map(|last| last.id.index.0),
        "first_term": summary.terms.map(|(first, _)| first.0),
        "last_term": summary.terms.map(|(_, last)| last.0),
        "entries_lost": entries_lost,
        "entries_lost_is_all": !more,
        "old_bytes": summary.old_bytes.as_ref().map(|old| old.told_as_old_bytes()),
        "damage": damage,
    })
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
