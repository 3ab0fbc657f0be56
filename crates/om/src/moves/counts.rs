//! Counts of moves from groups that are led here, for Prometheus and for who waits for one.

use metrics::{Counter, Exposition, Histogram, Metric};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const UNDER_WAY: Metric = Metric {
    name: "flotilla_om_moves",
    help: "Buckets that are being sent to other groups by their leaders here.",
};
const ENDED: Metric = Metric {
    name: "flotilla_om_moves_ended_total",
    help: "Moves of buckets from groups led here that came to an end, done or undone.",
};
const ROWS: Metric = Metric { name: "flotilla_om_moved_rows_total", help: "Rows sent to other groups." };
const BYTES: Metric = Metric {
    name: "flotilla_om_moved_bytes_total",
    help: "Bytes of rows and requests sent to other groups.",
};
const FROZEN: Metric = Metric {
    name: "flotilla_om_move_frozen_seconds",
    help: "Time for which changes of a bucket waited at the end of its move.",
};

#[derive(Debug, Default)]
pub(crate) struct MoveCounts {
    /// The rows and bytes that were sent of each bucket that is being sent, by its number.
    sent: Mutex<BTreeMap<u64, (u64, u64)>>,
    rows: Counter,
    bytes: Counter,
    done: Counter,
    undone: Counter,
    pub(super) frozen: Histogram,
}

/// The time in which a bucket is sent.
pub(super) struct Shown {
    counts: Arc<MoveCounts>,
    number: u64,
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.counts.sent.lock().expect("no holder panics").remove(&self.number);
    }
}

impl MoveCounts {
    /// Shows how much of a bucket is sent, until what this returns is dropped.
    pub(super) fn begin(self: Arc<MoveCounts>, number: u64) -> Shown {
        self.sent.lock().expect("no holder panics").insert(number, (0, 0));
        Shown { counts: self, number }
    }

    pub(super) fn note_sent(&self, number: u64, rows: usize, bytes: usize) {
        self.rows.add(rows as u64);
        self.bytes.add(bytes as u64);
        if let Some(sent) = self.sent.lock().expect("no holder panics").get_mut(&number) {
            *sent = (sent.0 + rows as u64, sent.1 + bytes as u64);
        }
    }

    pub(super) fn note_outcome(&self, is_done: bool) {
        if is_done { self.done.count() } else { self.undone.count() }
    }

    /// Rows and bytes that were sent of a bucket, by the run that is under way.
    pub(crate) fn sent(&self, number: u64) -> (u64, u64) {
        self.sent.lock().expect("no holder panics").get(&number).copied().unwrap_or_default()
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition) {
        let under_way = self.sent.lock().expect("no holder panics").len();
        exposition.gauge(UNDER_WAY, &[], under_way as u64);
        exposition.counter(ENDED, &[("outcome", "done")], self.done.get());
        exposition.counter(ENDED, &[("outcome", "undone")], self.undone.get());
        exposition.counter(ROWS, &[], self.rows.get());
        exposition.counter(BYTES, &[], self.bytes.get());
        exposition.histogram(FROZEN, &[], &self.frozen.take());
    }
}
