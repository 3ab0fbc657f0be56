use crate::adapter::alive::Alive;
use crate::adapter::encoding::{
    DecodeError, entry_from_meta, entry_from_record, entry_to_record, log_id_from, log_id_of, vote_from,
    vote_to,
};
use crate::adapter::type_config::{RaftEntry, RaftLogId, RaftVote, TypeConfig};
use crate::counts::Counts;
use crate::log::room_wait::RoomWait;
use crate::replica::identity::Identity;
use crate::snapshot::SnapshotStore;
use disk::ReadFault;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use raftlog::{AppendError, Log, ReadError};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::LogIndex;

/// The most entries without bodies that are read at once: some ten thousand bytes in memory, a seek on disk.
const META_COUNT_MAX: usize = 512;
/// The time between two attempts to read where the process lacks something.
const SHORTAGE_LOOK: Duration = Duration::from_millis(200);

/// A [`Log`] as openraft wants it. The log does the work; this translates.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: Log,
    /// The limit of the entries' bytes in one message to a follower.
    append_bytes_max: usize,
    /// The snapshots that make purged entries dispensable; `None` where nothing does.
    snapshots: Option<Arc<SnapshotStore>>,
    counts: Arc<Counts>,
    /// The replica, until it is written down that its log is in use.
    unused: Option<Identity>,
    room_wait: RoomWait,
    /// The field stands after the log, so it is dropped after it.
    _alive: Alive,
}

impl LogStore {
    pub(crate) fn new(
        log: Log,
        append_bytes_max: usize,
        snapshots: Option<Arc<SnapshotStore>>,
        alive: Alive,
        counts: Arc<Counts>,
        unused: Option<Identity>,
        room_wait: RoomWait,
    ) -> LogStore {
        LogStore { log, append_bytes_max, snapshots, counts, unused, room_wait, _alive: alive }
    }

    /// The part of `range` that the log has.
    fn present(&self, range: impl RangeBounds<u64>) -> Range<LogIndex> {
        let state = self.log.state();
        let Range { start, end } = bounds(range);
        let start = start.max(state.purged.map_or(LogIndex(0), |purged| purged.index.next()));
        let end = end.min(state.last.map_or(LogIndex(0), |last| last.index.next()));
        start..end.max(start)
    }

    /// Entries from the start of `range` without bodies.
    async fn read_meta(&self, range: Range<LogIndex>) -> Result<Vec<RaftEntry>, MetaError> {
        let metas = loop {
            match self.log.read_meta(range.clone(), META_COUNT_MAX).await {
                Err(failure) if self.may_wait_after(&failure) => tokio::time::sleep(SHORTAGE_LOOK).await,
                read => break read?,
            }
        };
        Ok(metas.into_iter().map(entry_from_meta).collect::<Result<_, _>>()?)
    }

    /// All entries of `range` without bodies, a piece at a time; an error where the log has none.
    fn metas(
        &self,
        range: Range<LogIndex>,
    ) -> impl Stream<Item = Result<RaftEntry, MetaError>> + Send + 'static {
        let log = self.clone();
        stream::try_unfold(range, move |range| {
            let log = log.clone();
            async move {
                if range.is_empty() {
                    return Ok(None);
                }
                let entries = log.read_meta(range.clone()).await?;
                let next = entries.last().map_or(range.end, |last| LogIndex(last.log_id.index).next());
                Ok::<_, MetaError>(Some((stream::iter(entries.into_iter().map(Ok)), next..range.end)))
            }
        })
        .try_flatten()
    }

    /// Whether a read failed only because the process ran out of something (open files, memory): that comes
    /// back, and is no reason to end the group, which a person would have to open again.
    fn may_wait_after(&self, failure: &ReadError) -> bool {
        let is_short = matches!(failure, ReadError::Io { fault: ReadFault::Shortage, .. });
        if is_short {
            tracing::warn!(%failure, "a log cannot be read for the moment; trying on");
        }
        is_short && self.room_wait.lasts()
    }

    /// Appends when the disk's queue has room, however long that takes: a disk that hangs for a minute must
    /// not end the group, and the core that waits here is what produces more appends.
    async fn append_waiting(&self, records: Vec<raftlog::Entry>) -> Result<raftlog::FlushToken, AppendError> {
        const RETRY_INTERVAL: Duration = Duration::from_millis(2);
        loop {
            // The bytes are shared, not copied.
            match self.log.append(records.clone()) {
                Err(AppendError::Busy { .. }) => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                done => return done,
            }
        }
    }
}

fn bounds(range: impl RangeBounds<u64>) -> Range<LogIndex> {
    let start = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => u64::MAX,
    };
    LogIndex(start)..LogIndex(end)
}

/// The reason why entries cannot be had without their bodies.
#[derive(Debug, thiserror::Error)]
enum MetaError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl From<MetaError> for io::Error {
    fn from(error: MetaError) -> Self {
        io::Error::other(error)
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    /// Entries without their bodies, whose readers (recovery of membership, replay, log ids) need none.
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<RaftEntry>, io::Error> {
        let range = self.present(range);
        match self.metas(range.clone()).try_collect().await {
            // A log that began later, with a snapshot, is read from where it began.
            Err(MetaError::Read(ReadError::OutOfRange { first, .. })) if range.start < first => {
                Ok(self.metas(first..range.end.max(first)).try_collect().await?)
            }
            read => Ok(read?),
        }
    }

    /// Reads what followers are sent: whole entries, at least one, up to the byte limit.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<RaftEntry>, io::Error> {
        let range = LogIndex(start)..LogIndex(end);
        let records = loop {
            match self.log.read(range.clone(), self.append_bytes_max).await {
                Err(failure) if self.may_wait_after(&failure) => tokio::time::sleep(SHORTAGE_LOOK).await,
                read => break read.map_err(io::Error::other)?,
            }
        };
        records.into_iter().map(|record| Ok(entry_from_record(record)?)).collect()
    }

    /// Reads for apply: no bodies, never the whole range at once, and no entry left out.
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<RaftEntry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let Range { start, end } = bounds(range);
        let last = self.log.state().last.map_or(start, |last| last.index.next());
        let end = end.min(last);
        // openraft applies what is committed, which the other members' disks may have made so. The state
        // machine's store must not get ahead of this disk: a crash could then take entries that it counts as
        // applied.
        let log = self.log.clone();
        let entries = self.metas(start..end).map_err(io::Error::from);
        let flushed = async move {
            log.until_flushed(end).await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(entries)
        };
        stream::once(flushed).try_flatten().boxed()
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.log.state().hard_state.map(vote_from))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.log.state();
        Ok(LogState {
            last_purged_log_id: state.purged.map(log_id_from),
            last_log_id: state.last.max(state.purged).map(log_id_from),
        })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    /// Saves a vote. All that a replica promises begins with one: entries and snapshots come from a leader
    /// that it took for one before.
    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        let (before, vote) = (self.log.state().hard_state, vote_to(vote));
        self.log.save_hard_state(vote).await.map_err(io::Error::other)?;
        if let Some(unused) = &self.unused {
            unused.note_use(self.log.space().disk(), &self.room_wait).await?;
            self.unused = None;
        }
        self.counts.vote_saved(before, vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> Result<(), io::Error> {
        self.log.save_committed(committed.as_ref().map(log_id_of));
        Ok(())
    }

    /// Answers the hint of how far the log is committed. One that names more than the log has (a crash took
    /// the tail) is none: the next leader will tell.
    async fn read_committed(&mut self) -> Result<Option<RaftLogId>, io::Error> {
        let Some(committed) = self.log.state().committed else { return Ok(None) };
        let is_there = self.log.id_at(committed.index).await.is_ok_and(|id| id == committed);
        Ok(is_there.then(|| log_id_from(committed)))
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let started = Instant::now();
        let records = entries.into_iter().map(entry_to_record).collect::<Result<Vec<_>, _>>()?;
        let bytes: usize = records.iter().map(|record| record.meta.len() + record.body.len()).sum();
        let counts = self.counts.clone();
        counts.appends.count();
        counts.tally.append_entries.add(records.len() as u64);
        counts.tally.append_bytes.add(bytes as u64);
        let token = self.append_waiting(records).await.map_err(io::Error::other)?;
        // Tokens of a log resolve in append order, so an id is never reported durable before its
        // predecessors.
        token.on_durable(move |result| {
            counts.append.record_duration(started.elapsed());
            flushed.io_completed(result.map_err(io::Error::other));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> Result<(), io::Error> {
        self.log.truncate_after(last.map(|id| LogIndex(id.index))).await.map_err(io::Error::other)
    }

    /// Purges entries, which go only when a snapshot has them: by then the state has them durably too, while
    /// what was applied since may be in its memory alone.
    async fn purge(&mut self, to: RaftLogId) -> Result<(), io::Error> {
        if let Some(snapshots) = &self.snapshots {
            let (to, durable) = (log_id_of(&to), snapshots.current_id());
            if durable.is_none_or(|durable| durable < to) {
                return Err(io::Error::other(format!("asked to purge up to {to:?}, durable is {durable:?}")));
            }
        }
        self.log.purge(log_id_of(&to)).await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::testing::FileState;
    use disk::Disk;
    use disk::sim::{SimDisk, SimOptions};
    use diskhooks::{Act, Call, HookedDisk};
    use raftlog::{Entry, LogSpace, LogSpaceOptions, LogSpec};
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::timeout;
    use types::{LogId, OwnerId, Payload, ReplicaId};

    fn id(index: u64) -> LogId {
        LogId { index: LogIndex(index), ..LogId::default() }
    }

    fn entry(index: u64) -> Entry {
        Entry { id: id(index), kind: 1, meta: Default::default(), body: Payload::default(), roll_to: None }
    }

    async fn open_log(disk: &Arc<dyn Disk>) -> Log {
        let options = LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 1 << 20, ..Default::default() };
        let (dir, owners_dir) = ("groups/om".to_owned(), "meta/om".to_owned());
        let spec = LogSpec { log: 1, dir, owners_dir, first_owner: OwnerId(0) };
        LogSpace::new(disk.clone(), options).open(spec).await.unwrap()
    }

    fn store_of(log: &Log, snapshots: Option<Arc<SnapshotStore>>) -> LogStore {
        let counts = Arc::new(Counts::new(ReplicaId(1)));
        let (alive, room_wait) = (Alive::new().0, RoomWait::default());
        LogStore::new(log.clone(), 1 << 20, snapshots, alive, counts, None, room_wait)
    }

    #[tokio::test(start_paused = true)]
    async fn what_this_disk_has_not_synced_is_not_applied() {
        let hangs = Arc::new(AtomicBool::new(false));
        let decide = {
            let hangs = hangs.clone();
            move |call: Call<'_>| match call.operation.is_change() && hangs.load(Ordering::Relaxed) {
                true => Act::Hang,
                false => Act::Pass,
            }
        };
        let real = Arc::new(SimDisk::new(SimOptions::default()));
        let disk: Arc<dyn Disk> = Arc::new(HookedDisk::new(real, decide));
        let log = open_log(&disk).await;
        let mut store = store_of(&log, None);
        log.append((0..5).map(entry).collect()).unwrap().durable().await.unwrap();
        hangs.store(true, Ordering::Relaxed);
        let _never = log.append((5..10).map(entry).collect()).unwrap();
        let synced: Vec<_> = store.entries_stream(0..5).await.collect().await;
        assert_eq!(synced.len(), 5);
        let mut more = store.entries_stream(4..6).await;
        let first = timeout(Duration::from_secs(60), more.next()).await;
        assert!(first.is_err(), "the group may have committed entry 5, and this disk does not have it yet");
    }

    #[tokio::test]
    async fn what_no_snapshot_has_is_not_purged() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimOptions::default()));
        let log = open_log(&disk).await;
        log.append((0..10).map(entry).collect()).unwrap().durable().await.unwrap();
        let state = FileState::open(&disk, 100).await.unwrap();
        let snapshots = state.store().await.unwrap();
        let mut store = store_of(&log, Some(snapshots.clone()));
        store.purge(log_id_from(id(3))).await.unwrap_err();
        state.set(id(5));
        snapshots.write().await.unwrap();
        store.purge(log_id_from(id(6))).await.unwrap_err();
        assert_eq!(log.state().purged, None);
        store.purge(log_id_from(id(5))).await.unwrap();
        assert_eq!(log.state().purged, Some(id(5)));
    }
}
