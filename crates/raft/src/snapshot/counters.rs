use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use types::{LogIndex, ReplicaId};

/// How a group's snapshots are doing on this host. Counts are since the group was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotProgress {
    /// The last entry in the newest snapshot here.
    pub last: Option<LogIndex>,
    pub written_count: u64,
    /// Attempts to write one that failed; each is a WARN line.
    pub write_failed_count: u64,
    pub installed_count: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// What is missing of the snapshot that is being received; 0 when there is none.
    pub receiving_left_bytes: u64,
    /// The members that are being sent one, with what they do not have yet.
    pub sending_left_bytes: BTreeMap<ReplicaId, u64>,
    /// Members that the log can no longer bring up to date, in a group that has no snapshots: they are lost.
    pub unserved: BTreeSet<ReplicaId>,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) written_count: AtomicU64,
    pub(crate) write_failed_count: AtomicU64,
    pub(crate) installed_count: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) receiving_left_bytes: AtomicU64,
    sending_left_bytes: Mutex<BTreeMap<ReplicaId, u64>>,
    unserved: Mutex<BTreeSet<ReplicaId>>,
}

/// A transfer to a member, counted until it is dropped.
pub(crate) struct Sending<'a> {
    counters: &'a Counters,
    to: ReplicaId,
}

impl Counters {
    pub(crate) fn start_sending(&self, to: ReplicaId, left_bytes: u64) -> Sending<'_> {
        lock(&self.sending_left_bytes).insert(to, left_bytes);
        Sending { counters: self, to }
    }

    pub(crate) fn is_sending(&self) -> bool {
        !lock(&self.sending_left_bytes).is_empty()
    }

    /// Whether the member was not known to be lost before.
    pub(crate) fn set_unserved(&self, member: ReplicaId) -> bool {
        lock(&self.unserved).insert(member)
    }

    pub(crate) fn progress(&self, last: Option<LogIndex>) -> SnapshotProgress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SnapshotProgress {
            last,
            written_count: read(&self.written_count),
            write_failed_count: read(&self.write_failed_count),
            installed_count: read(&self.installed_count),
            sent_bytes: read(&self.sent_bytes),
            received_bytes: read(&self.received_bytes),
            receiving_left_bytes: read(&self.receiving_left_bytes),
            sending_left_bytes: lock(&self.sending_left_bytes).clone(),
            unserved: lock(&self.unserved).clone(),
        }
    }
}

impl Sending<'_> {
    pub(crate) fn left(&self, bytes: u64) {
        lock(&self.counters.sending_left_bytes).insert(self.to, bytes);
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        lock(&self.counters.sending_left_bytes).remove(&self.to);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("no holder panics")
}
