//! Changes of buckets, and resets of groups, that have been begun and are not at their end.

use super::bucket::connect;
use super::scm::Scm;
use super::uploads::age;
use crate::answer::Answer;
use crate::table::{Cell, table};
use proto::om::{ListUnsettledResponse, Unsettled};
use serde_json::json;
use std::time::Duration;
use types::{Clock, SystemClock};

/// The time after which an operator should look: what is well takes seconds.
const STUCK_AFTER: Duration = Duration::from_secs(60);

pub(super) async fn run(scm: &mut Scm) -> anyhow::Result<Answer> {
    Ok(answer(&told(scm).await?, SystemClock.now_ms()))
}

async fn told(scm: &Scm) -> anyhow::Result<ListUnsettledResponse> {
    Ok(connect(&scm.addresses().join(",")).unsettled().await?)
}

/// The changes and resets that have not come to their end for long, in words; `None`: there are none.
pub(super) async fn stuck(scm: &Scm) -> anyhow::Result<Option<String>> {
    Ok(in_words(&told(scm).await?, SystemClock.now_ms()))
}

fn in_words(told: &ListUnsettledResponse, now_ms: u64) -> Option<String> {
    // A large bucket that moves takes its time: what goes on has nothing to say.
    let stuck = told.unsettled.iter().filter(|it| since(it, now_ms) >= STUCK_AFTER && !it.why.is_empty());
    let (first, count) = (stuck.clone().next()?, stuck.count());
    let Unsettled { what, why, .. } = first;
    let for_long = age(since(first, now_ms));
    Some(format!(
        "{count} changes of buckets do not come to their end, the first for {for_long}: {what}: {why}"
    ))
}

fn since(told: &Unsettled, now_ms: u64) -> Duration {
    Duration::from_millis(now_ms.saturating_sub(told.since_ms))
}

fn answer(told: &ListUnsettledResponse, now_ms: u64) -> Answer {
    let row = |it: &Unsettled| -> [Cell; 3] {
        [it.what.clone().into(), age(since(it, now_ms)).into(), it.why.clone().into()]
    };
    let mut text = match told.count {
        0 => "all that was begun with buckets is at its end\n".to_owned(),
        count => format!("{count} changes of buckets, as the root's leader has seen them\n\n"),
    };
    if !told.unsettled.is_empty() {
        text += &table(["WHAT", "FOR", "WHY"], &told.unsettled.iter().map(row).collect::<Vec<_>>());
    }
    let unsettled: Vec<_> = told
        .unsettled
        .iter()
        .map(|it| json!({ "what": it.what, "since_ms": it.since_ms, "why": it.why }))
        .collect();
    Answer::new(text, json!({ "total": told.count, "unsettled": unsettled }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_young_is_not_stuck() {
        let one = |since_ms: u64, why: &str| Unsettled { what: "bucket a".into(), since_ms, why: why.into() };
        let told = |unsettled: Vec<Unsettled>| ListUnsettledResponse { count: 9, unsettled };
        let now_ms = 1_000_000;
        assert_eq!(in_words(&told(vec![]), now_ms), None);
        assert_eq!(in_words(&told(vec![one(now_ms - 59_999, "no quorum"), one(0, "")]), now_ms), None);
        let words = in_words(&told(vec![one(now_ms - 60_000, "no quorum"), one(now_ms, "")]), now_ms);
        let words = words.unwrap();
        assert!(words.starts_with("1 changes") && words.ends_with("bucket a: no quorum"), "{words}");
    }
}
