//! The sweep for blocks that no name has, and for names without a block.

use super::args::SweepCommand;
use super::bucket::connect;
use super::keys;
use super::scm::Scm;
use super::uploads::age;
use crate::answer::Answer;
use crate::table::{Cell, Tone, human_bytes, table};
use proto::om::{GetSweepResponse, LostKey, SweepStop, SweptContainer};
use serde_json::{Value, json};
use std::time::Duration;
use types::{Clock, SystemClock};

pub(super) async fn run(scm: &mut Scm, command: SweepCommand) -> anyhow::Result<Answer> {
    let client = connect(&scm.addresses().join(","));
    match command {
        SweepCommand::Status => Ok(status(&client.sweep(0).await?)),
        SweepCommand::Run { container } => {
            client.run_sweep(container.unwrap_or_default()).await?;
            let what = match container {
                Some(container) => format!("container {container} is"),
                None => "all closed containers are".to_owned(),
            };
            let text = format!(
                "{what} to be looked through, once closed for --sweep-after: flotilla admin sweep status\n"
            );
            Ok(Answer::new(text, json!({ "container": container, "asked": true })))
        }
        SweepCommand::Start => {
            client.switch_sweep(true).await?;
            let text = "the sweep goes on: what no name has now is given up for good\n".to_owned();
            Ok(Answer::new(text, json!({ "stopped": null })))
        }
        SweepCommand::Stop => {
            client.switch_sweep(false).await?;
            let text = "the sweep is stopped: flotilla admin sweep start has it go on\n".to_owned();
            Ok(Answer::new(text, json!({ "stopped": "an operator has stopped it" })))
        }
        SweepCommand::Explain { container } => Ok(explained(container, &client.sweep(container).await?)),
    }
}

/// Answers with the names that have lost a block.
pub(super) async fn lost(scm: &mut Scm) -> anyhow::Result<Answer> {
    let client = connect(&scm.addresses().join(","));
    Ok(lost_answer(&client.sweep(0).await?))
}

/// The findings of the sweep that an operator has to look at.
pub(super) struct Found {
    /// The number of names without a block, and the first of them.
    pub(super) lost: u64,
    pub(super) first: Option<String>,
    /// The reason why nothing is swept before an operator says so; empty while the sweep goes on.
    pub(super) stopped: String,
}

pub(super) async fn found(scm: &Scm) -> anyhow::Result<Found> {
    let client = connect(&scm.addresses().join(","));
    let told = client.sweep(0).await?;
    let first = told.lost.first().and_then(|lost| lost.key.as_ref());
    let first = first.map(|key| format!("{}/{}", keys::bucket(key), keys::what(key)));
    Ok(Found { lost: told.lost_total, first, stopped: told.stop.unwrap_or_default().why })
}

fn status(told: &GetSweepResponse) -> Answer {
    let now_ms = SystemClock.now_ms();
    let mut text = match (&told.stop, told.paused.as_str()) {
        (Some(SweepStop { why, at_ms }), _) => format!(
            "the sweep is stopped since {} ago: {why}\n\
             It would give up for good what only the missing names have. Once all names that anybody has are served, or it is \
             certain that there are no others: flotilla admin sweep start\n",
            since(*at_ms, now_ms)
        ),
        (None, "") if told.looked_ms == 0 => "the sweep has not looked yet\n".to_owned(),
        (None, "") => "the sweep goes on\n".to_owned(),
        (None, why) => format!("the sweep waits: {why}\n"),
    };
    text += &format!(
        "{} containers are closed, as it found {} ago: {} were swept, the one longest ago {} ago; {} never\n",
        told.closed,
        since(told.looked_ms, now_ms),
        told.swept,
        since(told.oldest_swept_ms, now_ms),
        told.unswept,
    );
    text += &format!("{} wait until their fence is old enough\n", told.waiting);
    if told.under_way != 0 {
        text += &format!("container {} is looked through now\n", told.under_way);
    }
    text += &format!(
        "since its leader was started: {} containers swept, {} blocks found that no name has ({}), {} names without a block\n",
        told.swept_since,
        told.orphans,
        human_bytes(told.orphan_bytes),
        told.lost_total,
    );
    if told.failed > 0 {
        text += &format!(
            "it failed {} times, {} ago because of: {}\n",
            told.failed,
            since(told.last_failure_ms, now_ms),
            told.last_failure
        );
    }
    Answer::new(text, status_to_json(told))
}

fn since(ms: u64, now_ms: u64) -> String {
    if ms == 0 { "-".to_owned() } else { age(Duration::from_millis(now_ms.saturating_sub(ms))) }
}

fn status_to_json(told: &GetSweepResponse) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let number = |number: u64| (number != 0).then_some(number);
    json!({
        "stopped": told.stop.as_ref().map(|stop| stop.why.clone()),
        "stopped_ms": told.stop.as_ref().map(|stop| stop.at_ms),
        "paused": text(&told.paused),
        "looked_ms": number(told.looked_ms),
        "closed": told.closed,
        "swept": told.swept,
        "unswept": told.unswept,
        "waiting": told.waiting,
        "oldest_swept_ms": number(told.oldest_swept_ms),
        "under_way": number(told.under_way),
        "swept_since": told.swept_since,
        "orphans": told.orphans,
        "orphan_bytes": told.orphan_bytes,
        "lost": told.lost_total,
        "failed": told.failed,
        "last_failure": text(&told.last_failure),
        "last_failure_ms": number(told.last_failure_ms),
    })
}

fn explained(container: u64, told: &GetSweepResponse) -> Answer {
    let text = match (&told.container, told.is_fenced) {
        (Some(swept), _) => {
            let ago = since(swept.swept_ms, SystemClock.now_ms());
            format!(
                "container {container} was swept {ago} ago: of {} blocks no name had {} ({}); {} names have blocks that no replica has\n",
                swept.blocks,
                swept.orphans,
                human_bytes(swept.orphan_bytes),
                swept.lost,
            )
        }
        (None, true) => format!(
            "container {container} is fenced, so that no group of names takes a further block of it; it is swept once that is \
             as old as what was deleted must be\n"
        ),
        (None, false) => format!(
            "container {container} was never swept: it is open, or was closed lately, or is none (flotilla admin container info \
             {container})\n"
        ),
    };
    let swept = |swept: &SweptContainer| {
        json!({
            "swept_ms": swept.swept_ms,
            "blocks": swept.blocks,
            "orphans": swept.orphans,
            "orphan_bytes": swept.orphan_bytes,
            "lost": swept.lost,
        })
    };
    let swept = told.container.as_ref().map(swept);
    Answer::new(text, json!({ "container": container, "fenced": told.is_fenced, "swept": swept }))
}

fn lost_answer(told: &GetSweepResponse) -> Answer {
    let row = |lost: &LostKey| -> [Cell; 5] {
        let key = lost.key.clone().unwrap_or_default();
        let container = key.block.as_ref().map_or(0, |block| block.container);
        [
            Cell::toned(keys::bucket(&key), Tone::Bad),
            keys::what(&key).into(),
            container.to_string().into(),
            keys::local(&key).to_string().into(),
            lost.why.clone().into(),
        ]
    };
    let mut text = match told.lost_total {
        0 => "no name is known to have a block that no replica has\n".to_owned(),
        count => format!("{count} names have blocks that no replica has; nothing mends them\n\n"),
    };
    if !told.lost.is_empty() {
        let rows: Vec<_> = told.lost.iter().map(row).collect();
        text += &table(["BUCKET", "KEY", "CONTAINER", "BLOCK", "WHY"], &rows);
    }
    let lost = told.lost.iter().map(|lost| {
        let key = lost.key.clone().unwrap_or_default();
        let mut json = keys::key_to_json(&key);
        json["container"] = json!(key.block.as_ref().map_or(0, |block| block.container));
        json["group"] = json!(lost.group);
        json["why"] = json!(lost.why);
        json["found_ms"] = json!(lost.found_ms);
        json
    });
    let lost: Vec<Value> = lost.collect();
    Answer::new(text, json!({ "total": told.lost_total, "lost": lost }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::datanode::BlockName;
    use proto::om::ContainerKey;

    #[test]
    fn a_name_without_a_block_is_told_with_where_it_was() {
        let block = Some(BlockName { container: 12, local: 7, nonce: vec![1; 16].into() });
        let key = ContainerKey {
            block,
            bucket: 5,
            bucket_name: "photos".to_owned(),
            key: "a/b".into(),
            ..ContainerKey::default()
        };
        let why = "no node has a replica of the container".to_owned();
        let lost = LostKey { key: Some(key), group: 3, why, found_ms: 9 };
        let told = GetSweepResponse { lost: vec![lost], lost_total: 2, ..GetSweepResponse::default() };
        let answer = lost_answer(&told);
        for said in ["photos", "a/b", "12", "7", "no node has a replica"] {
            assert!(answer.text.contains(said), "{}", answer.text);
        }
        let told = &answer.json["lost"][0];
        assert_eq!(
            (&told["bucket"], &told["container"], &told["block"]),
            (&json!("photos"), &json!(12), &json!(7))
        );
        assert_eq!(answer.json["total"], 2);
        assert!(lost_answer(&GetSweepResponse::default()).text.contains("no name is known"));
        let paused =
            GetSweepResponse { paused: "SCM is in safe mode".to_owned(), ..GetSweepResponse::default() };
        assert!(status(&paused).text.contains("SCM is in safe mode"));
        let stop = Some(SweepStop { why: "group 3 of names was reset".to_owned(), at_ms: 1 });
        let stopped = status(&GetSweepResponse { stop, ..paused });
        for said in ["is stopped", "group 3 of names was reset", "flotilla admin sweep start"] {
            assert!(stopped.text.contains(said), "{}", stopped.text);
        }
        assert_eq!(stopped.json["stopped"], "group 3 of names was reset");
        assert!(explained(4, &GetSweepResponse::default()).text.contains("never swept"));
    }
}
