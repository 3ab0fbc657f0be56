//! Planted bugs. Each makes correct code behave like code with the bug, mostly by lying to it from below; the
//! simulation must find every one.

use crate::mem_tables::MemTables;
use bytes::Bytes;
use disk::Disk;
use disk::sim::SimDisk;
use diskhooks::{Act, Call, HookedDisk, Operation};
use statedb::{Changes, Tables};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Entries are acknowledged a moment before they are synced, by leaders and followers.
    EntriesSyncedLate,
    /// A vote that was given may be forgotten in a loss of power.
    VotesNotSynced,
    /// Votes are not saved before their candidate leads: whoever restarts in between votes again.
    VotesLost,
    /// A leader that was restarted leads on without an election, as openraft does by default: docs/adr/0002.
    LeadersRestored,
    /// The effects of a state machine are durable, and how far it has come is not: commands are applied
    /// again.
    AppliedTwice,
    /// The state machine's store forgets a batch in the middle.
    BatchLost,
    /// Whoever takes itself for the leader answers reads without asking a quorum.
    ReadsNotConfirmed,
    /// Followers answer reads from what they have.
    FollowersReadAlone,
    /// Some clocks run at a quarter of their speed: what their processes take for the time of a lease is four
    /// times as long.
    LeasesTooLong,
    /// Snapshots lack the last entries that they claim to have.
    SnapshotsShort,
    /// A client whose write lost its leader is told that nothing was proposed.
    UnknownRefused,
    /// A task of which nobody asks what became of it panics.
    TaskPanics,
    /// The state machine's store fails, which ends its group.
    TablesFail,
    /// A connection that broke is never made again.
    CutStays,
}

/// The time after which the planted task panics.
const PANIC_AFTER: Duration = Duration::from_secs(2);

pub(super) async fn panic_once() {
    tokio::time::sleep(PANIC_AFTER).await;
    panic!("a planted panic");
}

impl Planted {
    pub(super) fn wrap_disk(self, disk: SimDisk) -> Arc<dyn Disk> {
        Arc::new(HookedDisk::new(Arc::new(disk), move |call| self.told_to(call)))
    }

    fn told_to(self, call: Call<'_>) -> Act {
        let is_hard_state = call.path.contains("/log/");
        match (self, call.operation) {
            (Planted::EntriesSyncedLate, Operation::WriteAndSync) if call.path.ends_with(".seg") => {
                Act::SyncLate(LATE)
            }
            (Planted::VotesNotSynced, Operation::WriteAndSync) if is_hard_state => Act::Weaken,
            (Planted::VotesNotSynced, Operation::SyncData | Operation::Settle) if is_hard_state => Act::Skip,
            // The vote is not even written.
            (Planted::VotesLost, Operation::WriteAt | Operation::WriteAndSync)
                if is_hard_state && is_for_candidate(call.buffers) =>
            {
                Act::Skip
            }
            _ => Act::Pass,
        }
    }

    pub(super) fn wrap_tables(self, tables: MemTables) -> Arc<dyn Tables> {
        match self {
            Planted::AppliedTwice | Planted::BatchLost | Planted::TablesFail => {
                Arc::new(LyingTables { tables, planted: self, batches: 0.into() })
            }
            _ => Arc::new(tables),
        }
    }
}

/// The time by which a sync is later than promised.
const LATE: Duration = Duration::from_millis(40);

/// Whether a slot of a hard state (docs/format/hard-state.md) has a vote that is not committed.
fn is_for_candidate(buffers: &[Bytes]) -> bool {
    const FLAGS_OFFSET: usize = 5;
    const VOTE: u8 = 1;
    const VOTE_COMMITTED: u8 = 2;
    let flags = buffers.first().and_then(|slot| slot.get(FLAGS_OFFSET)).copied().unwrap_or_default();
    flags & (VOTE | VOTE_COMMITTED) == VOTE
}

struct LyingTables {
    tables: MemTables,
    planted: Planted,
    batches: AtomicU64,
}

impl Tables for LyingTables {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        self.tables.get(key)
    }

    fn scan(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
        count_max: usize,
    ) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.tables.scan(from, end, count_max)
    }

    /// Writes the two halves of what should be one batch: a crash may come between them, or the first is left
    /// out.
    fn write(&self, changes: Changes) -> anyhow::Result<()> {
        const LOST_ONE_IN: u64 = 50;
        const FAILS_AT: u64 = 20;
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        if self.planted == Planted::TablesFail {
            anyhow::ensure!(number != FAILS_AT, "a planted error");
            return self.tables.write(changes);
        }
        let is_lost = self.planted == Planted::BatchLost && number % LOST_ONE_IN == LOST_ONE_IN - 1;
        if self.planted == Planted::BatchLost && !is_lost {
            return self.tables.write(changes);
        }
        let (mut effects, mut position) = (Changes::default(), Changes::default());
        for (key, value) in changes {
            let half = if key == kv::APPLIED_KEY { &mut position } else { &mut effects };
            match value {
                Some(value) => half.put(key, value),
                None => half.delete(key),
            }
        }
        if !is_lost {
            self.tables.write(effects)?;
        }
        self.tables.write(position)
    }

    fn flush(&self) -> anyhow::Result<()> {
        self.tables.flush()
    }
}
