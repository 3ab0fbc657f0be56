//! Metrics of containers, copies and tasks: docs/metrics.md.

use crate::copies::CopyStats;
use crate::index::records::ReplicaState;
use crate::inventory::{Inventory, Replica};
use crate::service::{ReadCounts, ReadMemory};
use metrics::{Exposition, Metric};
use statedb::CacheBytes;

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

const CONTAINERS: Metric = metric("flotilla_datanode_containers", "Replicas of containers on this node.");
const UNHEALTHY: Metric =
    metric("flotilla_datanode_containers_unhealthy", "Replicas that another must take the place of.");
const UNHASHED: Metric =
    metric("flotilla_datanode_containers_unhashed", "Closed replicas whose hash is yet to be computed.");
const BYTES: Metric = metric("flotilla_datanode_container_bytes", "What replicas take on the disks.");
const COPY_BYTES: Metric =
    metric("flotilla_datanode_copy_bytes_total", "Bytes of replicas, from and to other nodes.");
const COPIES: Metric = metric("flotilla_datanode_copies_total", "Replicas made here.");
const COPIES_FAILED: Metric =
    metric("flotilla_datanode_copies_failed_total", "Attempts to receive or to send a replica that failed.");
const DELETED: Metric = metric("flotilla_datanode_replicas_deleted_total", "Replicas deleted here.");
const TASKS: Metric = metric("flotilla_datanode_tasks", "What SCM wants this node to do.");

const MEMORY: Metric = metric("flotilla_datanode_memory_bytes", "Memory that data takes, by what it is for.");
const MEMORY_MAX: Metric = metric("flotilla_datanode_memory_max_bytes", "Limit of the sum of that.");
const INDEX_MEMORY: Metric = metric(
    "flotilla_datanode_index_memory_bytes",
    "Memory of the block indexes of all disks: blocks that were read, and what is not flushed yet.",
);
const INDEX_MEMORY_MAX: Metric = metric(
    "flotilla_datanode_index_memory_max_bytes",
    "Limit of that, a quarter of the limit for data, or 8 MiB for each disk.",
);
const READS_REFUSED: Metric = metric(
    "flotilla_datanode_reads_refused_total",
    "Readers sent elsewhere, as there was no memory for them.",
);

const READS: Metric = metric(
    "flotilla_datanode_read_messages_total",
    "Messages of data read for clients: in place, by the task that was asked, or after waiting for another thread.",
);

pub(crate) fn expose_reads(memory: &ReadMemory, reads: &ReadCounts, exposition: &mut Exposition) {
    exposition.counter(READS, &[("how", "in_place")], reads.in_place());
    exposition.counter(READS, &[("how", "waited")], reads.waited());
    exposition.counter(READS_REFUSED, &[], memory.refused());
}

/// The memory that a node's data takes, by owner.
pub(crate) struct MemoryInUse {
    pub bytes_max: usize,
    /// Chunks that are received and not applied yet.
    pub bodies: usize,
    /// Data that is read and not sent yet.
    pub reads: usize,
    /// Data that is on its way to the disks.
    pub writing: usize,
    /// The entries that logs keep.
    pub logs: usize,
}

pub(crate) fn expose_memory(memory: &MemoryInUse, exposition: &mut Exposition) {
    let MemoryInUse { bytes_max, bodies, reads, writing, logs } = *memory;
    for (owner, bytes) in [("bodies", bodies), ("reads", reads), ("writing", writing), ("logs", logs)] {
        exposition.gauge(MEMORY, &[("owner", owner)], bytes as u64);
    }
    exposition.gauge(MEMORY_MAX, &[], bytes_max as u64);
}

pub(crate) fn expose_index_memory(bytes: CacheBytes, exposition: &mut Exposition) {
    exposition.gauge(INDEX_MEMORY, &[], bytes.used);
    exposition.gauge(INDEX_MEMORY_MAX, &[], bytes.max);
}

pub(crate) fn expose_tasks(counts: &[(&str, u64)], exposition: &mut Exposition) {
    for &(state, count) in counts {
        exposition.gauge(TASKS, &[("state", state)], count);
    }
}

pub(crate) fn expose_containers(inventory: &Inventory, exposition: &mut Exposition) {
    let count = |is_meant: &dyn Fn(&Replica) -> bool| {
        inventory.select(|(_, replica)| is_meant(replica).then_some(())).len() as u64
    };
    let states = [
        ("open", ReplicaState::Open),
        ("closed", ReplicaState::Closed),
        ("quasi_closed", ReplicaState::QuasiClosed),
        ("without_log", ReplicaState::WithoutLog),
    ];
    for (name, state) in states {
        exposition.gauge(CONTAINERS, &[("state", name)], count(&|it| it.state == state));
    }
    exposition.gauge(UNHEALTHY, &[], count(&|it| it.unhealthy.is_some()));
    let lacks_hash = |it: &Replica| it.state.is_over() && it.hash.is_none();
    exposition.gauge(UNHASHED, &[], count(&lacks_hash));
    let bytes = inventory.select(|(_, replica)| Some(replica.disk_bytes)).into_iter().sum();
    exposition.gauge(BYTES, &[], bytes);
}

pub(crate) fn expose_copies(stats: &CopyStats, exposition: &mut Exposition) {
    let directions = [
        ("in", stats.received_bytes, stats.receiving_failed),
        ("out", stats.sent_bytes, stats.sending_failed),
    ];
    for (direction, bytes, failed) in directions {
        exposition.counter(COPY_BYTES, &[("direction", direction)], bytes);
        exposition.counter(COPIES_FAILED, &[("direction", direction)], failed);
    }
    exposition.counter(COPIES, &[], stats.received);
    exposition.counter(DELETED, &[], stats.deleted);
}
