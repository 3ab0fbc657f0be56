//! How much waits to go in the groups that are led here, for Prometheus and for operators.

use super::waits::Waits;
use crate::tables::{Read, UNUSED_TOTALS_KEY};
use metrics::{Counter, Exposition, Metric};
use proto::om::{GetUnusedResponse, UnusedContainer, UnusedTotals};
use proto::scm::DiscardState;
use statedb::Db;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use types::GroupId;

const DELETED_PIECES: Metric = Metric {
    name: "flotilla_om_deleted_pieces",
    help: "Pieces that no row names any more and that may be read yet: they wait for --reclaim-after.",
};
const DELETED_BYTES: Metric =
    Metric { name: "flotilla_om_deleted_bytes", help: "Bytes of such pieces, of one replica." };
const UNUSED_BLOCKS: Metric = Metric {
    name: "flotilla_om_unused_blocks",
    help: "Blocks that have waited so long, and of which SCM has not said that they are gone.",
};
const UNUSED_BYTES: Metric =
    Metric { name: "flotilla_om_unused_bytes", help: "Bytes of such blocks, of one replica." };
const STILL_NAMED: Metric = Metric {
    name: "flotilla_om_still_named_blocks",
    help: "Blocks that were filed as unused and that a key or part named nevertheless: an error; they stay.",
};
const WAITING: Metric = Metric {
    name: "flotilla_om_unused_containers",
    help: "Containers with unused blocks, by what SCM said of them last; of groups led here.",
};
const OLDEST: Metric = Metric {
    name: "flotilla_om_unused_oldest_seconds",
    help: "Age of the oldest of all that waits to go; of groups led here.",
};
const FORGOTTEN: Metric = Metric {
    name: "flotilla_om_forgotten_blocks_total",
    help: "Blocks that are gone from all replicas and were forgotten here.",
};
const FAILED: Metric = Metric {
    name: "flotilla_om_reclaim_failed_total",
    help: "Times that a group could not go on with what is unused: SCM did not answer, or it is led elsewhere.",
};
/// The most containers that operators are told of by number.
const CONTAINERS_TOLD: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct UnusedCounts {
    /// The deleted data that waits in each group that is led here.
    waits: Mutex<BTreeMap<GroupId, Arc<Waits>>>,
    pub(super) forgotten: Counter,
    pub(super) failed: Counter,
}

/// The time in which what waits in a group is shown.
pub(super) struct Shown {
    counts: Arc<UnusedCounts>,
    group: GroupId,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.counts.waits.lock().expect("no holder panics").remove(&self.group);
    }
}

impl UnusedCounts {
    /// Shows what waits in a group, until what this returns is dropped.
    pub(super) fn begin(self: Arc<UnusedCounts>, group: GroupId, waits: Arc<Waits>) -> Shown {
        self.waits.lock().expect("no holder panics").insert(group, waits);
        Shown { counts: self, group }
    }

    fn of(&self, group: GroupId) -> Option<Arc<Waits>> {
        self.waits.lock().expect("no holder panics").get(&group).cloned()
    }

    /// The answer to an operator who asks what waits to go in a group.
    pub(crate) fn unused(&self, group: GroupId, tables: &Db) -> anyhow::Result<GetUnusedResponse> {
        let waits = self.of(group).unwrap_or_default();
        let containers = waits.oldest(CONTAINERS_TOLD).into_iter().map(|(container, said)| UnusedContainer {
            container,
            blocks: said.blocks,
            oldest_ms: said.oldest_ms,
            state: word(said.state).to_owned(),
            why: said.why,
            node: said.node,
        });
        Ok(GetUnusedResponse {
            totals: Some(tables.message(UNUSED_TOTALS_KEY)?.unwrap_or_default()),
            oldest_ms: waits.oldest_ms(),
            containers: containers.collect(),
            containers_waiting: waits.states().values().sum(),
        })
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition) {
        exposition.counter(FORGOTTEN, &[], self.forgotten.get());
        exposition.counter(FAILED, &[], self.failed.get());
    }

    pub(crate) fn expose_group(
        &self,
        group: GroupId,
        tables: &Db,
        labels: &[(&str, &str)],
        now_ms: u64,
        exposition: &mut Exposition,
    ) {
        // Tables that cannot be read are told of by whoever needs them.
        let totals = tables.message::<UnusedTotals>(UNUSED_TOTALS_KEY).ok().flatten().unwrap_or_default();
        exposition.gauge(DELETED_PIECES, labels, totals.deleted_pieces);
        exposition.gauge(DELETED_BYTES, labels, totals.deleted_bytes);
        exposition.gauge(UNUSED_BLOCKS, labels, totals.unused_blocks);
        exposition.gauge(UNUSED_BYTES, labels, totals.unused_bytes);
        exposition.gauge(STILL_NAMED, labels, totals.still_named);
        let Some(waits) = self.of(group) else { return };
        for (state, containers) in waits.states() {
            exposition.gauge(WAITING, &[labels, &[("state", word(state))]].concat(), containers);
        }
        let age_ms = match waits.oldest_ms() {
            0 => 0,
            oldest_ms => now_ms.saturating_sub(oldest_ms),
        };
        exposition.gauge(OLDEST, labels, age_ms / 1000);
    }
}

/// A word for what SCM says of a container.
fn word(state: DiscardState) -> &'static str {
    match state {
        DiscardState::Unspecified => "unanswered",
        DiscardState::DiscardGone => "gone",
        DiscardState::DiscardUnderWay => "under_way",
        DiscardState::DiscardOpen => "open",
        DiscardState::DiscardHeld => "held",
        DiscardState::DiscardAway => "away",
        DiscardState::DiscardTroubled => "troubled",
        DiscardState::DiscardPaused => "paused",
        DiscardState::DiscardUnknown => "unknown",
    }
}
