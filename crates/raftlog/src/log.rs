use crate::core::{Append, Core, Extent, Job, State, Truncate};
use crate::flush::token;
use crate::index::Located;
use crate::record::{self, BODY_BYTES_MAX, META_BYTES_MAX, encode_head, padding_bytes};
use crate::segment::Position;
use crate::{AppendError, Entry, FlushToken, HardState, LogSpace, LogState, ReadError};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use types::{LogId, LogIndex};

/// The largest body that is copied behind its header: cheaper than one more buffer in the write.
const COPIED_BODY_BYTES_MAX: usize = 4096;

/// One Raft group's log; a cheap handle. Calls that change it come from one task at a time. When the last
/// handle is dropped the log finishes what is queued and closes.
#[derive(Clone)]
pub struct Log {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl Log {
    pub(crate) fn new(core: Arc<Core>) -> Log {
        Log { handle: Arc::new(Handle { core }) }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    pub fn state(&self) -> LogState {
        self.core().state()
    }

    /// Appends entries that follow each other and the log's last one; the first of an empty log may have any
    /// index. On return they are readable, but **not durable**: see [`FlushToken`]. After an I/O error the
    /// log is poisoned and every later call says so. Never blocks on the disk; needs a tokio runtime.
    pub fn append(&self, entries: Vec<Entry>) -> Result<FlushToken, AppendError> {
        let core = self.core();
        let bytes = append_check_sizes(&entries)?;
        core.space.reserve_unflushed(bytes)?;
        let cached_before;
        let cached_after;
        let token = {
            let mut state = core.lock();
            if let Err(refused) = state.check().and_then(|()| append_check_order(&state, &entries)) {
                drop(state);
                core.space.release_unflushed(bytes);
                return Err(refused);
            }
            cached_before = state.cache.bytes();
            let token = self.append_enqueue(&mut state, entries, bytes);
            let keep_from = state.flushed_end;
            state.cache.shrink(core.space.options().cache_bytes_per_log_max, keep_from);
            cached_after = state.cache.bytes();
            token
        };
        core.wake();
        core.space.account_cached(cached_before, cached_after);
        Ok(token)
    }

    /// Lets go of the entries in memory that are on the disk as well, from where they are read then.
    pub fn release_cache(&self) {
        let core = self.core();
        core.space.release_cached(core.shrink_cache(0));
    }

    /// Gives entries their places and queues their bytes.
    fn append_enqueue(&self, state: &mut State, entries: Vec<Entry>, bytes: usize) -> FlushToken {
        let core = self.core();
        let segment_bytes_max = core.space.options().segment_bytes_max;
        let mut extents = ExtentBuilder::default();
        for entry in entries {
            let (meta_bytes, body_bytes) = (entry.meta.len() as u32, entry.body.len() as u32); // sizes were checked
            let record_bytes = record::record_bytes(entry.meta.len(), entry.body.len());
            let position = state.tail.fit(record_bytes, segment_bytes_max);
            let located = Located { id: entry.id, position, meta_bytes, body_bytes };
            extents.push(core.spec.log, &entry, &located, record_bytes);
            if state.index.is_empty() {
                state.flushed_end = entry.id.index;
            }
            state.index.push(located);
            state.tail = position.after(record_bytes, entry.roll_to);
            state.cache.push(entry);
        }
        let (token, completion) = token();
        let end = state.end();
        state.enqueue(Job::Append(Append { extents: extents.finish(), bytes, end, completion }));
        token
    }

    /// The id of one entry; also of the last purged one.
    pub async fn id_at(&self, index: LogIndex) -> Result<LogId, ReadError> {
        let state = self.core().lock();
        if let Some(purged) = state.purged.filter(|purged| purged.index == index) {
            return Ok(purged);
        }
        let out_of_range = || ReadError::OutOfRange { index, first: state.index.first(), end: state.end() };
        state.index.get(index).map(|located| located.id).ok_or_else(out_of_range)
    }

    /// Bytes of the records after an entry; of all that are not purged, for `None` or an entry that is
    /// purged. Of the last owner only.
    pub fn bytes_after(&self, index: Option<LogIndex>) -> u64 {
        bytes_after(&self.core().lock(), index)
    }

    /// Bytes of the records up to an entry that are not purged: what [`Log::purge`] to it would forget. Of
    /// the last owner only.
    pub fn bytes_up_to(&self, index: LogIndex) -> u64 {
        // Under one lock: what is appended between two looks is no part of it.
        let state = self.core().lock();
        bytes_after(&state, None) - bytes_after(&state, Some(index))
    }

    /// Whether [`Log::purge`] to an entry would forget the last entries of owners other than the last one.
    pub fn frees_earlier_owners(&self, to: LogIndex) -> bool {
        let state = self.core().lock();
        let is_earlier =
            |index| state.index.get(index).map(|located| located.position.owner != state.tail.owner);
        let (first, next) = (state.index.first(), to.next());
        is_earlier(first) == Some(true) && next > first && is_earlier(next) != Some(true)
    }

    /// Removes all entries after `last` (all, when `None`), durably: they never come back. Undoes rolls.
    /// Cancellation safe: the entries are gone for readers at once, and from the disk before anything that is
    /// appended later.
    pub async fn truncate_after(&self, last: Option<LogIndex>) -> Result<(), AppendError> {
        let core = self.core();
        let outcome = core.change(|state, done| {
            let first = state.index.first();
            let end = last.map_or(first, |last| last.next().max(first));
            if end >= state.end() {
                return Ok(None);
            }
            let cached_before = state.cache.bytes();
            let truncate = truncate_prepare(state, end, done);
            core.space.release_cached(cached_before - state.cache.bytes());
            Ok(Some(Job::Truncate(truncate)))
        });
        outcome.await
    }

    /// Forgets entries up to `to`, durably. Owners' segments stay. `to` may be past the last entry: the log
    /// is then empty and goes on after it.
    pub async fn purge(&self, to: LogId) -> Result<(), AppendError> {
        let core = self.core();
        let outcome = core.change(|state, done| {
            let is_purged = state.purged.is_some_and(|purged| purged.index >= to.index);
            if is_purged || (!state.index.is_empty() && to.index.next() < state.index.first()) {
                return Ok(None);
            }
            let cached_before = state.cache.bytes();
            purge_prepare(state, to);
            core.space.release_cached(cached_before - state.cache.bytes());
            Ok(Some(Job::Purge { to, start: state.start, done }))
        });
        outcome.await
    }

    /// Removes segments that hold only purged entries, of the owner the log's first entry stands in: for
    /// metadata groups, whose records nobody reads by place.
    pub async fn delete_purged_segments(&self) -> Result<(), AppendError> {
        self.core().change(|_, done| Ok(Some(Job::DeletePurged { done }))).await
    }

    /// Saves the hard state, durably on return.
    pub async fn save_hard_state(&self, hard_state: HardState) -> Result<(), AppendError> {
        let outcome = self.core().change(|state, done| {
            state.hard_state = Some(hard_state);
            Ok(Some(Job::SaveHardState { state: hard_state, done }))
        });
        outcome.await
    }

    /// Waits until all entries before `end` are durable on this disk.
    pub async fn until_flushed(&self, end: LogIndex) -> Result<(), AppendError> {
        self.core().until_flushed(end).await
    }

    /// The disk the log is on.
    pub fn space(&self) -> &Arc<LogSpace> {
        &self.core().space
    }

    /// Remembers how far the log is committed; written with the next sync, not synced for itself.
    pub fn save_committed(&self, committed: Option<LogId>) {
        self.core().lock().committed = committed;
    }

    /// Refuses further changes, finishes those that are queued and lets go of the files. Other handles can
    /// still read what is on the disk.
    pub async fn close(&self) {
        self.core().close();
        self.core().until_stopped().await;
    }
}

fn bytes_after(state: &State, index: Option<LogIndex>) -> u64 {
    let first = index.map_or(state.index.first(), |index| index.next().max(state.index.first()));
    match state.index.get(first) {
        Some(next) if next.position.owner == state.tail.owner => {
            state.tail.owner_bytes - next.position.owner_bytes
        }
        Some(_) => state.tail.owner_bytes,
        None => 0,
    }
}

fn append_check_sizes(entries: &[Entry]) -> Result<usize, AppendError> {
    let mut total = 0;
    for entry in entries {
        let too_large = |bytes, limit| AppendError::TooLarge { index: entry.id.index, bytes, limit };
        if entry.body.len() > BODY_BYTES_MAX {
            return Err(too_large(entry.body.len(), BODY_BYTES_MAX));
        }
        if entry.meta.len() > META_BYTES_MAX {
            return Err(too_large(entry.meta.len(), META_BYTES_MAX));
        }
        total += record::record_bytes(entry.meta.len(), entry.body.len()) as usize;
    }
    Ok(total)
}

fn append_check_order(state: &State, entries: &[Entry]) -> Result<(), AppendError> {
    let mut last = state.last();
    for entry in entries {
        if last.is_some_and(|last| last.index.next() != entry.id.index) {
            return Err(AppendError::Gap { last, got: entry.id });
        }
        last = Some(entry.id);
    }
    Ok(())
}

/// Takes the entries from `end` on out of memory; what must happen to the files is in the answer.
fn truncate_prepare(state: &mut State, end: LogIndex, done: crate::core::Done) -> Truncate {
    let cut = end_before(state, end);
    let mut gone = state.index.truncate(end);
    gone.push(state.tail.file());
    gone.dedup();
    // The file of the last entry that stays comes first, and after a roll the cut is in the one behind it.
    // Only a cut before the first entry may be in a file that no entry is in: then all of them go.
    if let Some(cut_at) = gone.iter().position(|file| *file == cut.file()) {
        gone.drain(..=cut_at);
    }
    state.cache.truncate(end);
    state.tail = cut;
    state.flushed_end = state.flushed_end.min(end);
    Truncate { cut, last: state.last(), gone, done }
}

fn purge_prepare(state: &mut State, to: LogId) {
    state.start = end_before(state, to.index.next());
    state.index.drop_before(to.index.next());
    state.cache.drop_before(to.index.next());
    state.flushed_end = state.flushed_end.max(state.index.first());
    state.purged = Some(to);
}

/// The place of the entry at `index`, if it fits there: a function of the entries before it alone, whatever
/// stands there now.
fn end_before(state: &State, index: LogIndex) -> Position {
    let Some(next) = state.index.get(index) else { return state.tail };
    let before = index.0.checked_sub(1).and_then(|before| state.index.get(LogIndex(before)));
    match before {
        None => state.start,
        Some(before) => {
            let rolled = next.position.owner != before.position.owner;
            before.position.after(before.record_bytes(), rolled.then_some(next.position.owner))
        }
    }
}

/// Collects records into as few buffers as possible: what is small is copied together, large bodies are not
/// copied.
#[derive(Default)]
struct ExtentBuilder {
    extents: Vec<Extent>,
    staging: BytesMut,
}

impl ExtentBuilder {
    fn push(&mut self, log: u64, entry: &Entry, located: &Located, record_bytes: u64) {
        let follows = |extent: &Extent| extent.position.file() == located.position.file();
        if !self.extents.last().is_some_and(follows) {
            self.flush_staging();
            let (position, last) = (located.position, entry.id);
            self.extents.push(Extent { position, buffers: Vec::new(), bytes: 0, last });
        }
        let body = entry.body.bytes();
        let copied_bytes =
            if body.len() <= COPIED_BODY_BYTES_MAX { record_bytes } else { record_bytes - body.len() as u64 };
        // Without this the buffer would grow, and be copied, several times.
        self.staging.reserve(copied_bytes as usize);
        encode_head(log, entry, &located.place(), &mut self.staging);
        if body.len() <= COPIED_BODY_BYTES_MAX {
            self.staging.extend_from_slice(body);
        } else {
            self.flush_staging();
            self.push_buffer(body.clone());
        }
        let unpadded = record::head_bytes(entry.meta.len(), body.len()) + body.len() as u64;
        self.staging.extend_from_slice(&[0; 8][..padding_bytes(unpadded) as usize]);
        let extent = self.extents.last_mut().expect("pushed above");
        extent.bytes += record_bytes;
        extent.last = entry.id;
    }

    fn flush_staging(&mut self) {
        if !self.staging.is_empty() {
            let buffer = self.staging.split().freeze();
            self.push_buffer(buffer);
        }
    }

    fn push_buffer(&mut self, buffer: Bytes) {
        self.extents.last_mut().expect("bytes come after their extent").buffers.push(buffer);
    }

    fn finish(mut self) -> Vec<Extent> {
        self.flush_staging();
        self.extents
    }
}
