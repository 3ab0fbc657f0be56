//! Counts of what a client sees of the cluster, for Prometheus: docs/metrics.md.

use crate::memory::Memory;
use md5many::Md5Counts;
use metrics::{Counter, Exposition, Histogram, Metric};
use proto::{Code, Failure};
use std::time::Duration;

const OM: Metric = Metric {
    name: "flotilla_client_om_seconds",
    help: "Time that a call to OM took, repeats included, by whether it asks (query) or changes something (change).",
};
const OM_REPEATS: Metric = Metric {
    name: "flotilla_client_om_repeats_total",
    help: "Calls sent to OM again: it did not answer, or did not lead.",
};
const OM_FAILED: Metric = Metric {
    name: "flotilla_client_om_failed_total",
    help: "Calls to OM given up, or of unknown outcome; what OM itself refused is not among them.",
};
const READ: Metric = Metric {
    name: "flotilla_client_read_seconds",
    help: "From asking a replica for a stretch of a block to its first bytes, or those of the second replica if that was asked too.",
};
const READS_SECOND: Metric = Metric {
    name: "flotilla_client_reads_second_total",
    help: "Reads for which a second replica was asked because the first was late.",
};
const READS_FAILED: Metric = Metric {
    name: "flotilla_client_reads_failed_total",
    help: "Times a replica could not be read from, or on from, by reason; another one is asked then.",
};
const UNREADABLE: Metric = Metric {
    name: "flotilla_client_unreadable_total",
    help: "Reads given up: no replica had the bytes, or they were not those that had been written.",
};
const CHUNK: Metric = Metric {
    name: "flotilla_client_chunk_seconds",
    help: "From handing a chunk (1 MiB at most) to its pipeline to the acknowledgement of a majority.",
};
const LEFT: Metric = Metric {
    name: "flotilla_client_pipelines_left_total",
    help: "Blocks that ended early because their pipeline failed or stood still; the rest went elsewhere.",
};
const WRITES_FAILED: Metric = Metric {
    name: "flotilla_client_writes_failed_total",
    help: "Bodies that no pipeline took within the deadline, or while the disks of all were full.",
};

const MEMORY: Metric = Metric {
    name: "flotilla_client_memory_bytes",
    help: "Data under way: read and not taken yet by who asked for it, or taken of a body and not acknowledged yet.",
};
const MEMORY_MAX: Metric = Metric {
    name: "flotilla_client_memory_max_bytes",
    help: "Limit of that, of all readers and writers together.",
};
const MEMORY_REFUSED: Metric = Metric {
    name: "flotilla_client_memory_refused_total",
    help: "Reads and writes that were refused or broken off, as there was no memory for their data.",
};

const MD5: Metric = Metric {
    name: "flotilla_client_md5_bytes_total",
    help: "Bytes of chunks hashed for ETags, by how many bodies at most went side by side. Chunks of up to 32 KiB are hashed where they are, and not counted.",
};

pub(crate) fn expose_md5(counts: &Md5Counts, exposition: &mut Exposition) {
    for (bodies, bytes) in counts.bytes() {
        exposition.counter(MD5, &[("bodies", bodies)], bytes);
    }
}

pub(crate) fn expose_memory(memory: &Memory, exposition: &mut Exposition) {
    exposition.gauge(MEMORY, &[], memory.bytes_in_use());
    exposition.gauge(MEMORY_MAX, &[], memory.bytes_max());
    exposition.counter(MEMORY_REFUSED, &[], memory.refused());
}

/// The reason why a replica was not read from. Numbers index counters.
#[derive(Clone, Copy)]
enum Reason {
    Busy,
    Corrupt,
    NotYet,
    Unavailable,
    Other,
}

impl Reason {
    const NAMES: [&str; 5] = ["busy", "corrupt", "not_yet", "unavailable", "other"];

    fn of(failure: &Failure) -> Reason {
        match failure.code {
            Code::Busy => Reason::Busy,
            Code::Corrupt => Reason::Corrupt,
            Code::NotYet => Reason::NotYet,
            Code::Unavailable | Code::OutcomeUnknown => Reason::Unavailable,
            _ => Reason::Other,
        }
    }
}

/// The counts of one client; few and the same for all datanodes, however many there are.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    queries: Histogram,
    changes: Histogram,
    pub(crate) om_repeats: Counter,
    pub(crate) om_failed: Counter,
    reads: Histogram,
    pub(crate) reads_second: Counter,
    reads_failed: [Counter; Reason::NAMES.len()],
    pub(crate) unreadable: Counter,
    chunks: Histogram,
    pub(crate) pipelines_left: Counter,
    pub(crate) writes_failed: Counter,
}

impl Counted {
    pub(crate) fn om_answered(&self, is_change: bool, after: Duration) {
        let calls = if is_change { &self.changes } else { &self.queries };
        calls.record_duration(after);
    }

    pub(crate) fn read_begun(&self, after: Duration) {
        self.reads.record_duration(after);
    }

    pub(crate) fn read_failed(&self, failure: &Failure) {
        self.reads_failed[Reason::of(failure) as usize].count();
    }

    pub(crate) fn chunk_acknowledged(&self, after: Duration) {
        self.chunks.record_duration(after);
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition) {
        for (kind, calls) in [("query", &self.queries), ("change", &self.changes)] {
            exposition.histogram(OM, &[("kind", kind)], &calls.take());
        }
        exposition.counter(OM_REPEATS, &[], self.om_repeats.get());
        exposition.counter(OM_FAILED, &[], self.om_failed.get());
        exposition.histogram(READ, &[], &self.reads.take());
        exposition.counter(READS_SECOND, &[], self.reads_second.get());
        for (reason, failed) in Reason::NAMES.iter().zip(&self.reads_failed) {
            exposition.counter(READS_FAILED, &[("reason", reason)], failed.get());
        }
        exposition.counter(UNREADABLE, &[], self.unreadable.get());
        exposition.histogram(CHUNK, &[], &self.chunks.take());
        exposition.counter(LEFT, &[], self.pipelines_left.get());
        exposition.counter(WRITES_FAILED, &[], self.writes_failed.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_of_a_replica_has_one_reason() {
        let counted = Counted::default();
        for code in [Code::Busy, Code::Corrupt, Code::Corrupt, Code::OutcomeUnknown, Code::NotFound] {
            counted.read_failed(&Failure::new(code, ""));
        }
        let mut exposition = Exposition::default();
        counted.expose(&mut exposition);
        let text = exposition.finish();
        for (reason, count) in [("busy", 1), ("corrupt", 2), ("not_yet", 0), ("unavailable", 1), ("other", 1)]
        {
            let line = format!("flotilla_client_reads_failed_total{{reason=\"{reason}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
