//! Changes of buckets, and resets of groups, that have been begun and are not at their end, as the root's
//! leader has seen them, for operators.

use metrics::{Exposition, Metric};
use proto::om::{ListUnsettledResponse, Unsettled as Told};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// The most that is told at once.
const TOLD_MAX: usize = 100;
/// The time after which a group that asks no more is not told of.
const FORGOTTEN_AFTER_MS: u64 = 30_000;

const COUNT: Metric = Metric {
    name: "flotilla_om_unsettled",
    help: "Changes of buckets, and groups that were reset, that the root's leader has begun with and not ended.",
};
const OLDEST: Metric = Metric {
    name: "flotilla_om_unsettled_oldest_seconds",
    help: "Time since the root's leader began with the first of them.",
};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum What {
    /// A bucket by its number, and what is to become of it.
    Bucket(u64, String),
    /// A group that was reset, and is to hear which buckets it has.
    Group(u64),
}

struct Since {
    since_ms: u64,
    heard_ms: u64,
    why: String,
}

#[derive(Default)]
pub(crate) struct Unsettled {
    known: Mutex<BTreeMap<What, Since>>,
}

impl Unsettled {
    /// Notes that something is not at its end, and why; an empty reason leaves the one of before.
    pub(crate) fn note(&self, what: What, now_ms: u64, why: String) {
        let mut known = self.known.lock().expect("no holder panics");
        let since = known.entry(what).or_insert(Since { since_ms: now_ms, heard_ms: 0, why: String::new() });
        since.heard_ms = now_ms;
        if !why.is_empty() {
            since.why = why;
        }
    }

    /// Notes why the last try to go on came to nothing; empty: it went on.
    pub(crate) fn note_try(&self, what: &What, why: String) {
        if let Some(since) = self.known.lock().expect("no holder panics").get_mut(what) {
            since.why = why;
        }
    }

    pub(crate) fn end(&self, what: &What) {
        self.known.lock().expect("no holder panics").remove(what);
    }

    /// Notes all buckets of which something is not at its end; none where the root is not led from here.
    pub(crate) fn note_buckets(&self, buckets: BTreeSet<What>, now_ms: u64) {
        let is_recent = |since: &Since| now_ms.saturating_sub(since.heard_ms) < FORGOTTEN_AFTER_MS;
        self.known.lock().expect("no holder panics").retain(|what, since| match what {
            What::Bucket(..) => buckets.contains(what),
            What::Group(_) => is_recent(since),
        });
        buckets.into_iter().for_each(|what| self.note(what, now_ms, String::new()));
    }

    pub(crate) fn told(&self) -> ListUnsettledResponse {
        let known = self.known.lock().expect("no holder panics");
        let mut unsettled: Vec<Told> = known
            .iter()
            .map(|(what, since)| Told {
                what: match what {
                    What::Bucket(_, what) => what.clone(),
                    What::Group(group) => {
                        format!("group {group} of names was reset, and is to hear which buckets it has")
                    }
                },
                since_ms: since.since_ms,
                why: since.why.clone(),
            })
            .collect();
        unsettled.sort_by_key(|told| told.since_ms);
        let count = unsettled.len() as u64;
        unsettled.truncate(TOLD_MAX);
        ListUnsettledResponse { unsettled, count }
    }

    pub(crate) fn expose(&self, now_ms: u64, exposition: &mut Exposition) {
        let known = self.known.lock().expect("no holder panics");
        let oldest = known.values().map(|since| now_ms.saturating_sub(since.since_ms)).max();
        exposition.gauge(COUNT, &[], known.len() as u64);
        exposition.gauge(OLDEST, &[], oldest.unwrap_or_default() / 1000);
    }
}
