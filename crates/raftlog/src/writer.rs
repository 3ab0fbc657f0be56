//! The task that changes a log's files. While one write and sync runs, appends queue; the next flush takes
//! them all.

use crate::AppendError;
use crate::core::{Append, Core, Extent, Job, Truncate, Work};
use crate::hard_state::{HardStateFile, SlotRecord};
use crate::index::{Index, owners};
use crate::record::{DecodeError, HEADER_BYTES, Header};
use crate::segment::{SegmentId, allocation, owner_dir};
use crate::segment_index::{self, SegmentIndexWriter};
use bytes::Bytes;
use disk::{Disk, File, is_full, may_be_repeated};
use planted::Bug;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{LogId, LogIndex};

/// The time between two hints of how far the log is durable, where nothing else has one written sooner.
const HINT_INTERVAL: Duration = Duration::from_millis(100);

/// The interval at which a full disk is tried again.
const FULL_DISK_RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Writer {
    core: Arc<Core>,
    disk: Arc<dyn Disk>,
    hard_state: HardStateFile,
    /// The record as last saved or hinted.
    record: SlotRecord,
    open: Option<OpenSegment>,
    /// The segment that a spare was taken for, until it is open: what is in that file is nobody's.
    taken: Option<SegmentId>,
    segment_index: SegmentIndexWriter,
    /// Whether the record is not what the newest slot has.
    hint_is_due: bool,
    hinted: Instant,
}

/// The segment that is written to.
pub(crate) struct OpenSegment {
    pub(crate) id: SegmentId,
    pub(crate) file: Arc<dyn File>,
    pub(crate) allocated_bytes: u64,
    pub(crate) end: u64,
    /// The end of what a recycled file held before; 0 in a new one.
    pub(crate) old_bytes_end: u64,
}

impl OpenSegment {
    /// Zeros that say after a write up to `end` that the log ends there, where the file holds something else.
    /// A user's object may hold bytes that look like the log's next record; without this, they could become
    /// it by a crash.
    fn terminator(&self, end: u64) -> Option<Bytes> {
        const ZEROS: &[u8] = &[0; HEADER_BYTES];
        let bytes = self.old_bytes_end.saturating_sub(end).min(ZEROS.len() as u64) as usize;
        (bytes > 0).then(|| Bytes::from_static(&ZEROS[..bytes]))
    }
}

impl Writer {
    pub(crate) fn new(
        core: Arc<Core>,
        hard_state: HardStateFile,
        record: SlotRecord,
        open: Option<OpenSegment>,
        segment_index: SegmentIndexWriter,
    ) -> Writer {
        let disk = core.space.disk().clone();
        let hinted = Instant::now();
        Writer { core, disk, hard_state, record, open, taken: None, segment_index, hint_is_due: true, hinted }
    }

    /// Runs until the log is closed and its queue empty. A failure empties the queue with an error instead.
    pub(crate) async fn run(mut self) {
        let _stopped = StopGuard(self.core.clone());
        let mut failed = false;
        loop {
            let result = match self.core.take_work() {
                Work::Flush(appends) => self.flush(appends).await,
                Work::Other(job) => self.other(job).await,
                Work::Idle if failed => {
                    self.core.woken().await;
                    Ok(())
                }
                Work::Idle => self.idle().await.map_err(|error| self.failed(&error)),
                Work::Stop => break,
            };
            if let Err(error) = result {
                tracing::error!(log = self.core.spec.log, dir = self.core.spec.dir, %error, "log stopped");
                self.core.fail(&error);
                failed = true;
            }
        }
        let _ = self.finish().await;
    }

    /// Waits for work, and writes a hint when it is time for one: a log that is idle only between appends has
    /// no more of them than a busy one.
    async fn idle(&mut self) -> io::Result<()> {
        let next_hint = self.hinted + HINT_INTERVAL;
        if !self.hint_is_due() {
            self.core.woken().await;
        } else if Instant::now() >= next_hint {
            self.hint().await?;
        } else {
            // Cancelled or woken, there is work to look for.
            let _ = tokio::time::timeout_at(next_hint, self.core.woken()).await;
        }
        Ok(())
    }

    /// Leaves files as short as they can be. Nothing depends on it.
    async fn finish(&mut self) -> io::Result<()> {
        if self.core.lock().failure.is_some() {
            return Ok(());
        }
        self.hint().await?;
        self.hard_state.finish_hint().await?;
        self.close_segment().await
    }

    /// Writes and syncs appends together, and resolves their tokens in order.
    async fn flush(&mut self, appends: Vec<Append>) -> Result<(), AppendError> {
        let mut appends = appends;
        let extents = appends.iter_mut().flat_map(|append| std::mem::take(&mut append.extents));
        let written = self.write_through(merge(extents)).await.map_err(|error| self.failed(&error));
        if let Ok(()) = written
            && let Some(last) = appends.last()
        {
            self.core.flushed(last.end);
        }
        let bytes = appends.iter().map(|append| append.bytes).sum();
        self.core.space.release_unflushed(bytes);
        for append in appends {
            append.completion.resolve(written.clone());
        }
        self.core.space.refresh_free_bytes();
        if self.hinted.elapsed() >= HINT_INTERVAL && written.is_ok() {
            self.hint().await.map_err(|error| self.failed(&error))?;
        }
        if written.is_ok() {
            self.write_index_if_due().await;
        }
        written
    }

    async fn write_through(&mut self, extents: Vec<Extent>) -> io::Result<()> {
        for extent in extents {
            let mut waits = false;
            while let Err(error) = self.write_extent(&extent).await {
                self.wait_for_space(&extent, error, !waits).await?;
                waits = true;
            }
            if waits {
                let (log, file) = (self.core.spec.log, self.segment_path(extent.position.file()));
                tracing::info!(log, file, "there is space again, appends go on");
            }
            self.record.durable = Some(extent.last);
            self.hint_is_due = true;
        }
        Ok(())
    }

    /// Writes and syncs an extent; may be repeated when it failed for lack of space.
    async fn write_extent(&mut self, extent: &Extent) -> io::Result<()> {
        let Extent { position, buffers, bytes, .. } = extent;
        let segment = self.segment(position.file()).await?;
        let (end, allocated_bytes, file) = (segment.end, segment.allocated_bytes, segment.file.clone());
        assert!(
            position.offset == end,
            "log {}: append at {} of a segment that ends at {end}",
            self.core.spec.log,
            position.offset
        );
        let needed_bytes = end + bytes;
        let terminator = segment.terminator(needed_bytes);
        if needed_bytes > allocated_bytes {
            let segment_bytes_max = self.core.space.options().segment_bytes_max;
            let mut target = allocation(allocated_bytes, needed_bytes, segment_bytes_max);
            match file.preallocate(target).await {
                Err(error) if is_full(&error) && target > needed_bytes => {
                    target = needed_bytes;
                    file.preallocate(target).await?;
                }
                result => result?,
            }
            self.open.as_mut().expect("just opened").allocated_bytes = target;
        }
        let mut buffers = buffers.clone();
        buffers.extend(terminator);
        let started = Instant::now();
        file.write_and_sync(position.offset, buffers).await?;
        self.core.space.counts.write_and_sync.record_duration(started.elapsed());
        self.open.as_mut().expect("just opened").end = needed_bytes;
        Ok(())
    }

    /// Waits a while for space, or for a file that may be opened: entries that were accepted must be written,
    /// or the log cannot go on, and others use the disk and the process too. Any other error is the answer,
    /// and so is this one when the log is closed.
    async fn wait_for_space(&mut self, extent: &Extent, error: io::Error, is_first: bool) -> io::Result<()> {
        if !may_be_repeated(&error) || self.core.is_closing() {
            return Err(error);
        }
        let (space, is_full) = (&self.core.space, is_full(&error));
        if is_full && space.spares().give_back().await? > 0 {
            return Ok(());
        }
        if is_first {
            let (log, file) = (self.core.spec.log, self.segment_path(extent.position.file()));
            let (offset, bytes) = (extent.position.offset, extent.bytes);
            tracing::warn!(log, file, offset, bytes, %error, "appends wait for space, or for a file to be opened");
        }
        if is_full {
            space.refresh_free_bytes();
            self.hint().await?;
        }
        self.core.pause(FULL_DISK_RETRY_INTERVAL).await;
        Ok(())
    }

    fn segment_path(&self, id: SegmentId) -> String {
        id.path(&self.core.spec.owners_dir)
    }

    async fn segment(&mut self, id: SegmentId) -> io::Result<&OpenSegment> {
        if self.open.as_ref().is_none_or(|open| open.id != id) {
            self.next_segment(id).await?;
        }
        if self.record.begun != Some(id) {
            self.save_with(SlotRecord { begun: Some(id), ..self.record }).await?;
        }
        Ok(self.open.as_ref().expect("opened above"))
    }

    /// Closes the open segment and starts another. All records of the closed one are synced, so that a record
    /// in the next one proves that they once were whole.
    async fn next_segment(&mut self, id: SegmentId) -> io::Result<()> {
        let moves_on = self.open.is_some();
        if moves_on {
            self.close_segment().await?;
        }
        let dir = owner_dir(&self.core.spec.owners_dir, id.owner);
        if id.segment == 0 {
            self.disk.create_dir_all(&dir).await?;
        }
        let (file, allocated_bytes) = match open_existing(&*self.disk, &self.core.spec.owners_dir, id).await?
        {
            Some(leftover) => {
                if self.taken != Some(id) {
                    self.check_leftover(id, &*leftover.file).await?;
                }
                leftover.file.set_len(0).await?;
                (leftover.file, 0)
            }
            None => self.create_segment(id, moves_on).await?,
        };
        // The directory is synced before any record in the segment is acknowledged: else a crash could leave
        // the records without a name.
        self.disk.sync_dir(&dir).await?;
        self.open = Some(OpenSegment { id, file, allocated_bytes, end: 0, old_bytes_end: allocated_bytes });
        self.taken = None;
        Ok(())
    }

    /// A new file, or a spare when the log `moves_on`: the log of an idle pipeline should not sit on one.
    async fn create_segment(&mut self, id: SegmentId, moves_on: bool) -> io::Result<(Arc<dyn File>, u64)> {
        let recycled = moves_on && self.core.space.spares().take(id, &self.core.spec.owners_dir).await?;
        if recycled {
            self.taken = Some(id);
        }
        let file = self.disk.open(&self.segment_path(id), !recycled).await?;
        let allocated_bytes = if recycled { file.len().await? } else { 0 };
        Ok((file, allocated_bytes))
    }

    /// Refuses a file in the way that is neither empty nor begins with zeros: recovery has removed what a
    /// crash left of this log, so anything else is somebody's data.
    async fn check_leftover(&mut self, id: SegmentId, file: &dyn File) -> io::Result<()> {
        let start = file.read_at(0, HEADER_BYTES).await?;
        match Header::decode(&start) {
            Err(DecodeError::Zeros) => Ok(()),
            found => {
                let path = id.path(&self.core.spec.owners_dir);
                let what = match found {
                    Ok(header) => format!("records of log {} from entry {} on", header.log, header.id.index),
                    Err(_) => "something that is no record".to_owned(),
                };
                Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{path} holds {what} already")))
            }
        }
    }

    /// Gives back what was allocated and not used; a finished segment is its records and nothing else.
    /// Durably, as old bytes of a recycled file behind its last record would be taken for damage once there
    /// is a later segment.
    async fn close_segment(&mut self) -> io::Result<()> {
        self.write_index().await;
        if let Some(open) = &self.open
            && open.allocated_bytes > open.end
        {
            open.file.set_len(open.end).await?;
            open.file.sync_data().await?;
        }
        self.open = None;
        Ok(())
    }

    async fn other(&mut self, job: Job) -> Result<(), AppendError> {
        let (result, done) = match job {
            Job::Append(_) => unreachable!("appends come in flushes"),
            Job::SaveHardState { state, done } => {
                self.record.hard_state = Some(state);
                (self.save().await, done)
            }
            Job::Purge { to, start, done } => {
                // The purge comes after the appends before it, so after all that is purged is durable.
                (self.record.purged, self.record.start) = (Some(to), start);
                (self.save().await, done)
            }
            Job::Truncate(Truncate { cut, last, gone, done }) => {
                let result = loop {
                    let result = self.truncate(cut.file(), cut.offset, last, &gone).await;
                    if !self.is_to_be_repeated(&result).await {
                        break result;
                    }
                };
                self.core.truncated();
                (result, done)
            }
            Job::DeletePurged { done } => {
                let result = loop {
                    let result = self.delete_purged().await;
                    if !self.is_to_be_repeated(&result).await {
                        break result;
                    }
                };
                (result, done)
            }
        };
        let result = result.map_err(|error| self.failed(&error));
        let _ = done.send(result.clone()); // the caller may have gone
        result
    }

    /// Waits a while where a job was refused for lack of something that may be there again; all its steps may
    /// be repeated. False when it is not to be tried once more.
    async fn is_to_be_repeated(&mut self, result: &io::Result<()>) -> bool {
        let Err(error) = result else { return false };
        let is_refused = may_be_repeated(error) && !self.core.is_closing();
        if is_refused {
            tracing::warn!(log = self.core.spec.log, %error, "removing waits for space, or for a file to be opened");
            self.core.pause(FULL_DISK_RETRY_INTERVAL).await;
        }
        is_refused
    }

    /// Removes everything after a position. Newest first, each step durable before the next, so that a crash
    /// at any point leaves a log without a gap:
    ///
    /// lower the durable mark and the segment begun · remove later owners and segments · cut the last one
    async fn truncate(
        &mut self,
        cut: SegmentId,
        offset: u64,
        last: Option<LogId>,
        gone: &[SegmentId],
    ) -> io::Result<()> {
        let next = |id: Option<LogId>| id.map_or(LogIndex(0), |id| id.index.next());
        let lowered = SlotRecord {
            durable: if next(self.record.durable) > next(last) { last } else { self.record.durable },
            begun: self.record.begun.map(|begun| begun.min(cut)),
            ..self.record
        };
        if lowered != self.record {
            self.save_with(lowered).await?;
        }
        let owners_dir = self.core.spec.owners_dir.clone();
        if self.open.as_ref().is_some_and(|open| open.id != cut) {
            self.open = None;
        }
        for owner in owners(gone).into_iter().rev() {
            let dir = owner_dir(&owners_dir, owner);
            let gone: Vec<_> = gone.iter().filter(|id| id.owner == owner).copied().collect();
            self.remove_segments(&gone).await?;
            if owner != cut.owner {
                self.disk.remove_dir_all(&dir).await?;
                self.disk.sync_dir(&owners_dir).await?;
            }
            self.core.space.files().forget(&dir);
        }
        if self.open.is_none() {
            self.open = open_existing(&*self.disk, &owners_dir, cut).await?;
        }
        self.segment_index.forget();
        segment_index::clear(&*self.disk, &owners_dir, cut).await?;
        if let Some(open) = &mut self.open {
            open.file.set_len(offset).await?;
            open.file.sync_data().await?;
            (open.allocated_bytes, open.end) = (offset, offset);
            open.old_bytes_end = open.old_bytes_end.min(offset);
        }
        Ok(())
    }

    /// Removes segments that may never have been created, the last of the list first and each durably before
    /// the next: a crash in between leaves no segment without its predecessor, which recovery would take for
    /// damage. They never become spares: what was in them may be appended again in the same place.
    async fn remove_segments(&mut self, gone: &[SegmentId]) -> io::Result<()> {
        let owners_dir = self.core.spec.owners_dir.clone();
        for id in gone.iter().rev() {
            segment_index::remove(&*self.disk, &owners_dir, *id).await?;
            if planted::has(Bug::CarelessSpares) {
                if open_existing(&*self.disk, &owners_dir, *id).await?.is_some() {
                    self.core.space.delete_finished_segments(&owners_dir, &[*id]).await?;
                }
                continue;
            }
            match self.disk.remove_file(&id.path(&owners_dir)).await {
                Ok(()) => self.disk.sync_dir(&owner_dir(&owners_dir, id.owner)).await?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn delete_purged(&mut self) -> io::Result<()> {
        let start = self.record.start;
        let dir = owner_dir(&self.core.spec.owners_dir, start.owner);
        let gone: Vec<_> = self
            .disk
            .list(&dir)
            .await?
            .iter()
            .filter_map(|name| SegmentId::parse_number(name))
            .filter(|segment| *segment < start.segment)
            .map(|segment| SegmentId { owner: start.owner, segment })
            .collect();
        for id in &gone {
            segment_index::remove(&*self.disk, &self.core.spec.owners_dir, *id).await?;
        }
        self.core.space.delete_finished_segments(&self.core.spec.owners_dir, &gone).await
    }

    async fn write_index_if_due(&mut self) {
        let Some(id) = self.open.as_ref().map(|open| open.id) else { return };
        let due = |index: &Index| self.segment_index.is_due(id, self.durable_end(), index);
        if self.core.look_at_settled_index(due).unwrap_or(false) {
            self.write_index().await;
        }
    }

    /// Adds what is durable of the open segment to its index. Nothing depends on it, so an error only ends
    /// the index; if the disk itself fails, that shows in whatever comes next.
    async fn write_index(&mut self) {
        let Some(id) = self.open.as_ref().map(|open| open.id) else { return };
        let pending = |index: &Index| self.segment_index.pending(id, self.durable_end(), index);
        let Some(pending) = self.core.look_at_settled_index(pending) else { return };
        let owners_dir = &self.core.spec.owners_dir;
        if let Err(error) = self.segment_index.write(&*self.disk, owners_dir, pending).await {
            tracing::warn!(log = self.core.spec.log, segment = id.segment, %error, "write a segment's index");
            self.segment_index.forget();
        }
    }

    fn hint_is_due(&self) -> bool {
        self.hint_is_due || self.core.lock().committed != self.record.committed
    }

    fn durable_end(&self) -> LogIndex {
        self.record.durable.map_or(LogIndex(0), |durable| durable.index.next())
    }

    async fn save(&mut self) -> io::Result<()> {
        self.save_with(self.record).await
    }

    /// Saves a record with how far the log is committed. Nothing has changed when it fails.
    async fn save_with(&mut self, mut record: SlotRecord) -> io::Result<()> {
        record.committed = self.core.lock().committed;
        let started = Instant::now();
        self.hard_state.save(&record).await?;
        self.record = record;
        self.core.space.counts.hard_state.record_duration(started.elapsed());
        // The other slot still has what was promised before: a slot that rots must not take a vote back.
        self.hint_is_due = true;
        self.hint().await
    }

    /// Starts writing down how far the log is durable and committed, without waiting for it.
    async fn hint(&mut self) -> io::Result<()> {
        if self.hint_is_due() {
            self.record.committed = self.core.lock().committed;
            self.hard_state.start_hint(&self.record).await?;
            self.hint_is_due = false;
            self.hinted = Instant::now();
        }
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> AppendError {
        if is_full(error) {
            return self.core.space.disk_full();
        }
        AppendError::Poisoned { why: error.to_string() }
    }
}

/// Joins extents that follow each other, so that a flush is one write per segment.
fn merge(extents: impl Iterator<Item = Extent>) -> Vec<Extent> {
    let mut merged: Vec<Extent> = Vec::new();
    for extent in extents {
        match merged.last_mut() {
            Some(before)
                if before.position.file() == extent.position.file()
                    && before.position.offset + before.bytes == extent.position.offset =>
            {
                before.buffers.extend(extent.buffers);
                before.bytes += extent.bytes;
                before.last = extent.last;
            }
            _ => merged.push(extent),
        }
    }
    merged
}

/// Opens a segment that may not exist yet.
pub(crate) async fn open_existing(
    disk: &dyn Disk,
    owners_dir: &str,
    id: SegmentId,
) -> io::Result<Option<OpenSegment>> {
    match disk.open(&id.path(owners_dir), false).await {
        Ok(file) => {
            let bytes = file.len().await?;
            Ok(Some(OpenSegment { id, file, allocated_bytes: bytes, end: bytes, old_bytes_end: 0 }))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tells everybody when the writer is gone, also when its runtime was shut down under it.
struct StopGuard(Arc<Core>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.fail(&AppendError::Poisoned { why: "the log was closed".into() });
        self.0.space.forget(&self.0);
        self.0.set_stopped();
    }
}
