//! Deleted data that still takes room on disks, and what it waits for.

use super::bucket::connect;
use super::om_groups::{number, oms};
use super::scm::Scm;
use super::uploads::age;
use crate::answer::Answer;
use crate::table::{Cell, Tone, human_bytes, table};
use futures::future::join_all;
use proto::om::{GetUnusedResponse, UnusedContainer, UnusedTotals};
use serde_json::{Value, json};
use std::time::Duration;
use types::{Clock, SystemClock};

/// The most containers that people are shown of each group; programs get all that the group tells of.
const CONTAINERS_SHOWN: usize = 20;

/// A group of names, and what it says.
pub(super) type Said = (u64, Result<GetUnusedResponse, String>);

pub(super) async fn ask_all(scm: &mut Scm) -> anyhow::Result<Vec<Said>> {
    let groups = oms(scm).await?.groups;
    let client = connect(&scm.addresses().join(","));
    let said = groups.iter().map(|group| {
        let (client, group) = (&client, number(group));
        async move { (group, client.unused(group).await.map_err(|failure| failure.to_string())) }
    });
    Ok(join_all(said).await)
}

pub(super) async fn run(scm: &mut Scm) -> anyhow::Result<Answer> {
    let said = ask_all(scm).await?;
    let list: Vec<Value> = said.iter().map(to_json).collect();
    Ok(Answer::new(text(&said, SystemClock.now_ms()), json!(list)))
}

fn text(said: &[Said], now_ms: u64) -> String {
    let headings =
        ["GROUP", "DELETED", "BYTES", "UNUSED", "BYTES", "OLDEST", "CONTAINERS", "STILL NAMED", "PROBLEM"];
    let mut text = table(headings, &said.iter().map(|said| row(said, now_ms)).collect::<Vec<_>>());
    let of_groups = said.iter().filter_map(|(group, said)| Some((group, said.as_ref().ok()?)));
    let waiting = of_groups.flat_map(|(group, said)| {
        said.containers.iter().take(CONTAINERS_SHOWN).map(|it| container_row(*group, it, now_ms))
    });
    let waiting: Vec<_> = waiting.collect();
    if !waiting.is_empty() {
        text += "\n";
        text += &table(["CONTAINER", "GROUP", "IS", "NODE", "BLOCKS", "OLDEST", "WHY"], &waiting);
    }
    text
}

fn row((group, said): &Said, now_ms: u64) -> [Cell; 9] {
    let group = Cell::from(group.to_string());
    let said = match said {
        Ok(said) => said,
        Err(why) => {
            let unknown = || Cell::from("?");
            let why = Cell::toned(why.clone(), Tone::Bad);
            return [group, unknown(), unknown(), unknown(), unknown(), unknown(), unknown(), unknown(), why];
        }
    };
    let totals = said.totals.unwrap_or_default();
    let tone = if totals.still_named == 0 { Tone::Plain } else { Tone::Bad };
    [
        group,
        totals.deleted_pieces.to_string().into(),
        human_bytes(totals.deleted_bytes).into(),
        totals.unused_blocks.to_string().into(),
        human_bytes(totals.unused_bytes).into(),
        since(said.oldest_ms, now_ms).into(),
        said.containers_waiting.to_string().into(),
        Cell::toned(totals.still_named.to_string(), tone),
        "".into(),
    ]
}

fn container_row(group: u64, waiting: &UnusedContainer, now_ms: u64) -> [Cell; 7] {
    let node = if waiting.node == 0 { "-".to_owned() } else { waiting.node.to_string() };
    [
        waiting.container.to_string().into(),
        group.to_string().into(),
        waiting.state.clone().into(),
        node.into(),
        waiting.blocks.to_string().into(),
        since(waiting.oldest_ms, now_ms).into(),
        waiting.why.clone().into(),
    ]
}

/// The age of what was at that time; 0: there is none.
pub(super) fn since(ms: u64, now_ms: u64) -> String {
    if ms == 0 { "-".to_owned() } else { age(Duration::from_millis(now_ms.saturating_sub(ms))) }
}

fn to_json((group, said): &Said) -> Value {
    let said = match said {
        Ok(said) => said,
        Err(why) => return json!({ "group": group, "problem": why }),
    };
    let UnusedTotals { deleted_pieces, deleted_bytes, unused_blocks, unused_bytes, still_named } =
        said.totals.unwrap_or_default();
    let container = |waiting: &UnusedContainer| {
        json!({
            "container": waiting.container,
            "state": waiting.state,
            "node": (waiting.node != 0).then_some(waiting.node),
            "blocks": waiting.blocks,
            "oldest_ms": waiting.oldest_ms,
            "why": waiting.why,
        })
    };
    json!({
        "group": group,
        "deleted_pieces": deleted_pieces,
        "deleted_bytes": deleted_bytes,
        "unused_blocks": unused_blocks,
        "unused_bytes": unused_bytes,
        "still_named": still_named,
        "oldest_ms": (said.oldest_ms != 0).then_some(said.oldest_ms),
        "containers_waiting": said.containers_waiting,
        "containers": said.containers.iter().map(container).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_told_with_what_it_waits_for() {
        let totals = UnusedTotals { unused_blocks: 7, unused_bytes: 70, ..UnusedTotals::default() };
        let held = UnusedContainer {
            container: 12,
            blocks: 7,
            oldest_ms: 1000,
            state: "held".to_owned(),
            node: 3,
            ..UnusedContainer::default()
        };
        let said = GetUnusedResponse {
            totals: Some(totals),
            oldest_ms: 1000,
            containers: vec![held],
            containers_waiting: 1,
        };
        let said = [(0, Ok(said)), (1, Err("nobody leads group 1".to_owned()))];
        let text = text(&said, 61_000);
        let row = |begin: &str| {
            let row = text.lines().find(|line| line.starts_with(begin)).unwrap();
            row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("12")[..5], ["12", "0", "held", "3", "7"]);
        assert_eq!(row("1 ").last().unwrap(), "1", "{text}");
        assert!(row("0").contains(&"60".to_owned()), "{text}");
        assert_eq!(to_json(&said[0])["containers"][0]["node"], 3);
    }
}
