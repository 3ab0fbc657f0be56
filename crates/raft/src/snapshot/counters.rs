use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use types::{LogIndex, ReplicaId};

/// The time after a broken transfer within which the member is expected to go on with it: longer than a
/// process takes to restart and open its groups.
const RESUME_MAX: Duration = Duration::from_secs(300);

/// The progress of a group's snapshots on this host. Counts are since the group was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotProgress {
    /// The last entry in the newest snapshot here.
    pub last: Option<LogIndex>,
    pub written_count: u64,
    /// Attempts to write a snapshot that failed; each is a WARN line.
    pub write_failed_count: u64,
    pub installed_count: u64,
    /// Attempts to send a snapshot to a member that took the offer, and what became of those that are over.
    pub sends_begun: u64,
    pub sends_finished: u64,
    pub sends_failed: u64,
    /// Attempts to receive a snapshot, and what became of those that are over. One that failed leaves its
    /// pieces for the next.
    pub receives_begun: u64,
    pub receives_finished: u64,
    pub receives_failed: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// The size of the snapshot that is being received, and what is missing of it; 0 when there is none.
    pub receiving_bytes: u64,
    pub receiving_left_bytes: u64,
    /// The members that are being sent a snapshot.
    pub sending: BTreeMap<ReplicaId, SendProgress>,
}

/// The progress of a member with the snapshot that it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    pub bytes: u64,
    pub left_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) written_count: AtomicU64,
    pub(crate) write_failed_count: AtomicU64,
    pub(crate) installed_count: AtomicU64,
    sends_begun: AtomicU64,
    sends_finished: AtomicU64,
    sends_failed: AtomicU64,
    pub(crate) receives_begun: AtomicU64,
    pub(crate) receives_finished: AtomicU64,
    pub(crate) receives_failed: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) receiving_bytes: AtomicU64,
    pub(crate) receiving_left_bytes: AtomicU64,
    transfers: Mutex<BTreeMap<ReplicaId, Transfer>>,
}

/// A member that is sent a snapshot, or has a part of one.
struct Transfer {
    /// The progress of the attempt under way; `None` between two.
    now: Option<SendProgress>,
    /// The time at which an attempt broke after which the member has something of it.
    broke_at: Option<Instant>,
}

/// A transfer to a member, counted until it is dropped.
pub(crate) struct Sending<'a> {
    counters: &'a Counters,
    to: ReplicaId,
    is_finished: bool,
}

impl Counters {
    pub(crate) fn start_sending(&self, to: ReplicaId, bytes: u64) -> Sending<'_> {
        count(&self.sends_begun);
        let now = Some(SendProgress { bytes, left_bytes: bytes });
        let mut transfers = lock(&self.transfers);
        let broke_at = transfers.get(&to).and_then(|transfer| transfer.broke_at);
        transfers.insert(to, Transfer { now, broke_at });
        Sending { counters: self, to, is_finished: false }
    }

    /// Whether somebody is being sent the newest snapshot, or has a part of it and may soon ask for the rest.
    pub(crate) fn is_awaited(&self) -> bool {
        let mut transfers = lock(&self.transfers);
        let is_recent = |broke_at: Instant| broke_at.elapsed() < RESUME_MAX;
        transfers.retain(|_, transfer| transfer.now.is_some() || transfer.broke_at.is_some_and(is_recent));
        !transfers.is_empty()
    }

    pub(crate) fn progress(&self, last: Option<LogIndex>) -> SnapshotProgress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let transfers = lock(&self.transfers);
        let sending = transfers.iter().filter_map(|(to, transfer)| Some((*to, transfer.now?))).collect();
        SnapshotProgress {
            last,
            written_count: read(&self.written_count),
            write_failed_count: read(&self.write_failed_count),
            installed_count: read(&self.installed_count),
            sends_begun: read(&self.sends_begun),
            sends_finished: read(&self.sends_finished),
            sends_failed: read(&self.sends_failed),
            receives_begun: read(&self.receives_begun),
            receives_finished: read(&self.receives_finished),
            receives_failed: read(&self.receives_failed),
            sent_bytes: read(&self.sent_bytes),
            received_bytes: read(&self.received_bytes),
            receiving_bytes: read(&self.receiving_bytes),
            receiving_left_bytes: read(&self.receiving_left_bytes),
            sending,
        }
    }
}

impl Sending<'_> {
    pub(crate) fn left(&self, left_bytes: u64) {
        if let Some(Transfer { now: Some(now), .. }) = lock(&self.counters.transfers).get_mut(&self.to) {
            now.left_bytes = left_bytes;
        }
    }

    pub(crate) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        count(if self.is_finished { &self.counters.sends_finished } else { &self.counters.sends_failed });
        let mut transfers = lock(&self.counters.transfers);
        let Some(mut transfer) = transfers.remove(&self.to) else { return };
        let has_part = transfer.now.take().is_some_and(|now| now.left_bytes < now.bytes);
        if has_part {
            transfer.broke_at = Some(Instant::now());
        }
        if !self.is_finished && transfer.broke_at.is_some() {
            transfers.insert(self.to, transfer);
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().expect("no holder panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_member_with_a_part_of_a_snapshot_is_awaited_for_a_while() {
        let (counters, to) = (Counters::default(), ReplicaId(7));
        drop(counters.start_sending(to, 100));
        assert!(!counters.is_awaited(), "it has nothing of it");

        let sending = counters.start_sending(to, 100);
        assert!(counters.is_awaited());
        sending.left(40);
        drop(sending);
        assert!(counters.progress(None).sending.is_empty());
        tokio::time::advance(RESUME_MAX / 2).await;
        // An attempt that comes to nothing takes nothing away.
        drop(counters.start_sending(to, 100));
        assert!(counters.is_awaited());
        tokio::time::advance(RESUME_MAX / 2).await;
        assert!(!counters.is_awaited(), "it does not come back");

        let sending = counters.start_sending(to, 100);
        sending.left(0);
        sending.finish();
        assert!(!counters.is_awaited(), "it has all of it");
        let progress = counters.progress(None);
        assert_eq!((progress.sends_begun, progress.sends_finished, progress.sends_failed), (4, 1, 3));
    }
}
