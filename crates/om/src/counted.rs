//! Counts of the calls that OM answers, for Prometheus.

use metrics::{Counter, Exposition, Histogram, Metric, Unit};
use proto::{Failure, Retry};
use rocksdb::DB;
use statedb::CacheBytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const CALLS: Metric = Metric {
    name: "flotilla_om_call_seconds",
    help: "Time to the answer of calls, refused and failed ones too, by operation.",
};
const REFUSED: Metric = Metric {
    name: "flotilla_om_calls_refused_total",
    help: "Calls answered with an error that trying again does not mend, as for a key that is not there, by operation.",
};
const FAILED: Metric = Metric {
    name: "flotilla_om_calls_failed_total",
    help: "Calls that could not be carried out, or whose outcome is unknown, by operation.",
};
const LOOKUPS: Metric = Metric {
    name: "flotilla_om_lookups_total",
    help: "Keys looked up: in place, in what RocksDB has in memory, or after waiting for a thread that reads a disk.",
};
const BY_FOLLOWERS: Metric = Metric {
    name: "flotilla_om_reads_by_followers_total",
    help: "Calls that look up keys or list them, and were answered by a replica that does not lead its group.",
};
const LISTINGS: Metric =
    Metric { name: "flotilla_om_listings", help: "Listings under way; beyond a limit they are refused." };
const ROWS: Metric =
    Metric { name: "flotilla_om_rows_estimate", help: "Rows in OM's tables, as RocksDB estimates them." };
const TABLES_BYTES: Metric =
    Metric { name: "flotilla_om_tables_bytes", help: "Live data in the files of OM's tables." };
const STALLED: Metric = Metric {
    name: "flotilla_om_tables_stalled",
    help: "1: RocksDB holds back writes until it has compacted.",
};

const MEMORY: Metric = Metric {
    name: "flotilla_om_tables_memory_bytes",
    help: "Memory of the tables of all groups: blocks that were read, and what is not flushed yet.",
};
const MEMORY_MAX: Metric = Metric {
    name: "flotilla_om_tables_memory_max_bytes",
    help: "Memory that the tables of all groups may have together.",
};

const BATCH_COMMANDS: Metric =
    Metric { name: "flotilla_om_batch_commands", help: "Commands applied with one write of OM's tables." };
const ENTRY_COMMANDS: Metric =
    Metric { name: "flotilla_om_entry_commands", help: "Commands in one entry of the group's log." };
const BATCH_ROWS: Metric =
    Metric { name: "flotilla_om_batch_rows", help: "Rows put or deleted with one write of OM's tables." };
const BATCH_WRITE: Metric = Metric {
    name: "flotilla_om_batch_write_seconds",
    help: "Time RocksDB took for one write of OM's tables, to memory; stalls are what takes long.",
};
const DELAYED: Metric = Metric {
    name: "flotilla_om_tables_delayed_bytes_per_second",
    help: "Rate to which RocksDB slows writes down, so that compaction keeps up; 0: it does not.",
};

/// Calls of all operations. The names are those of the methods in om.proto, and of changes and lookups one by
/// one.
#[derive(Debug)]
pub(crate) struct Counted {
    operations: BTreeMap<&'static str, Calls>,
    pub lookups: Lookups,
    pub by_followers: Counter,
}

/// Lookups of keys by the task that was asked, and on a thread that may wait for a disk.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    pub in_place: Counter,
    pub waited: Counter,
}

#[derive(Debug, Default)]
struct Calls {
    seconds: Histogram,
    refused: Counter,
    failed: Counter,
}

impl Counted {
    pub(crate) fn new(operations: &[&'static str]) -> Counted {
        let operations = operations.iter().map(|name| (*name, Calls::default())).collect();
        Counted { operations, lookups: Lookups::default(), by_followers: Counter::default() }
    }

    /// Answers a call and counts how that went.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        let answer = call.await;
        self.note(operation, begun, answer.as_ref().err());
        answer
    }

    /// Counts one question or change, also one of many that came in one call.
    pub(crate) fn note(&self, operation: &'static str, begun: Instant, failure: Option<&Failure>) {
        let Some(calls) = self.operations.get(operation) else { return };
        calls.seconds.record_duration(begun.elapsed());
        match failure.map(|failure| failure.retry) {
            None => {}
            Some(Retry::No) => calls.refused.count(),
            Some(_) => calls.failed.count(),
        }
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition) {
        for (operation, calls) in &self.operations {
            let labels = [("operation", *operation)];
            exposition.histogram(CALLS, &labels, &calls.seconds.take());
            exposition.counter(REFUSED, &labels, calls.refused.get());
            exposition.counter(FAILED, &labels, calls.failed.get());
        }
        exposition.counter(LOOKUPS, &[("how", "in_place")], self.lookups.in_place.get());
        exposition.counter(LOOKUPS, &[("how", "waited")], self.lookups.waited.get());
        exposition.counter(BY_FOLLOWERS, &[], self.by_followers.get());
    }
}

/// The commands that were applied to the tables, write by write.
#[derive(Debug)]
pub(crate) struct Batches {
    entries: Histogram,
    commands: Histogram,
    rows: Histogram,
    write: Histogram,
}

impl Default for Batches {
    fn default() -> Batches {
        let counts = || Histogram::new(Unit::Count);
        Batches {
            entries: counts(),
            commands: counts(),
            rows: counts(),
            write: Histogram::new(Unit::Nanoseconds),
        }
    }
}

impl Batches {
    pub(crate) fn note_entry(&self, commands: usize) {
        self.entries.record(commands as u64);
    }

    pub(crate) fn note(&self, commands: usize, rows: usize, write: Duration) {
        self.commands.record(commands as u64);
        self.rows.record(rows as u64);
        self.write.record_duration(write);
    }

    pub(crate) fn expose(&self, labels: &[(&str, &str)], exposition: &mut Exposition) {
        exposition.histogram(ENTRY_COMMANDS, labels, &self.entries.take());
        exposition.histogram(BATCH_COMMANDS, labels, &self.commands.take());
        exposition.histogram(BATCH_ROWS, labels, &self.rows.take());
        exposition.histogram(BATCH_WRITE, labels, &self.write.take());
    }
}

pub(crate) fn expose_listings(under_way: usize, exposition: &mut Exposition) {
    exposition.gauge(LISTINGS, &[], under_way as u64);
}

pub(crate) fn expose_memory(bytes: CacheBytes, exposition: &mut Exposition) {
    exposition.gauge(MEMORY, &[], bytes.used);
    exposition.gauge(MEMORY_MAX, &[], bytes.max);
}

/// Exposes the properties of a group's RocksDB; one that it cannot tell is left out.
pub(crate) fn expose_tables(db: &DB, labels: &[(&str, &str)], exposition: &mut Exposition) {
    let mut expose = |metric, property: &str| {
        if let Ok(Some(value)) = db.property_int_value(property) {
            exposition.gauge(metric, labels, value);
        }
    };
    expose(ROWS, "rocksdb.estimate-num-keys");
    expose(TABLES_BYTES, "rocksdb.estimate-live-data-size");
    expose(STALLED, "rocksdb.is-write-stopped");
    expose(DELAYED, "rocksdb.actual-delayed-write-rate");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Code;

    #[tokio::test]
    async fn what_was_refused_is_told_from_what_failed() {
        let counted = Counted::new(&["lookup_key"]);
        for answer in [Ok(()), Err(Code::NotFound), Err(Code::Busy), Err(Code::Unavailable)] {
            let answer = answer.map_err(|code| Failure::new(code, ""));
            let _ = counted.call("lookup_key", async { answer }).await;
        }
        let mut exposition = Exposition::default();
        counted.expose(&mut exposition);
        let text = exposition.finish();
        for line in [
            "flotilla_om_call_seconds_count{operation=\"lookup_key\"} 4",
            "flotilla_om_calls_refused_total{operation=\"lookup_key\"} 1",
            "flotilla_om_calls_failed_total{operation=\"lookup_key\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
