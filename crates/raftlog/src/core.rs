//! The core of a log: shared by its handles, readers and writer.

use crate::cache::Cache;
use crate::flush::Completion;
use crate::index::Index;
use crate::segment::{Position, SegmentId};
use crate::{AppendError, Entry, HardState, LogSpace, LogSpec, LogState, Place};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use types::{LogId, LogIndex};

/// The most bytes that one write and sync takes together: enough to keep a device busy, little enough that
/// the first in the flush does not wait long for the last.
const FLUSH_BYTES_MAX: usize = 16 << 20;

pub(crate) struct Core {
    pub(crate) spec: LogSpec,
    pub(crate) space: Arc<LogSpace>,
    state: Mutex<State>,
    wake: Notify,
    /// A mark that `flushed_end` moved or the log failed.
    flush_moved: watch::Sender<()>,
    stopped: watch::Sender<bool>,
}

pub(crate) struct State {
    pub(crate) index: Index,
    pub(crate) cache: Cache,
    pub(crate) purged: Option<LogId>,
    /// The place of the entry after `purged`, if it fits there.
    pub(crate) start: Position,
    /// The place of the next entry, if it fits there.
    pub(crate) tail: Position,
    pub(crate) hard_state: Option<HardState>,
    pub(crate) committed: Option<LogId>,
    /// The end of what is on the disk: entries from it on are only in the cache, and must stay there.
    pub(crate) flushed_end: LogIndex,
    /// The number of truncations queued: entries flushed before the truncation must not count for those that
    /// replace them.
    truncations: usize,
    queue: VecDeque<Job>,
    /// The reason why nothing changes any more: the log failed, or was closed.
    pub(crate) failure: Option<AppendError>,
    closing: bool,
}

/// Changes of a log's files, carried out one after another in this order.
pub(crate) enum Job {
    Append(Append),
    SaveHardState {
        state: HardState,
        done: Done,
    },
    Truncate(Truncate),
    Purge {
        to: LogId,
        start: Position,
        done: Done,
    },
    /// Removes whole segments of the current owner that hold only purged entries.
    DeletePurged {
        done: Done,
    },
}

pub(crate) type Done = oneshot::Sender<Result<(), AppendError>>;

pub(crate) struct Append {
    pub(crate) extents: Vec<Extent>,
    pub(crate) bytes: usize,
    /// The log index after the append's last entry.
    pub(crate) end: LogIndex,
    pub(crate) completion: Completion,
}

/// Bytes that follow each other in one segment.
pub(crate) struct Extent {
    pub(crate) position: Position,
    pub(crate) buffers: Vec<Bytes>,
    pub(crate) bytes: u64,
    /// The last entry in it.
    pub(crate) last: LogId,
}

pub(crate) struct Truncate {
    /// The end of what stays.
    pub(crate) cut: Position,
    /// The last entry that stays.
    pub(crate) last: Option<LogId>,
    /// Files after the cut, oldest first.
    pub(crate) gone: Vec<SegmentId>,
    pub(crate) done: Done,
}

/// The writer's next piece of work.
pub(crate) enum Work {
    /// Appends that are written and synced together.
    Flush(Vec<Append>),
    Other(Job),
    /// Nothing to do now.
    Idle,
    /// Nothing to do ever.
    Stop,
}

/// The state that a log begins with.
pub(crate) struct Opened {
    pub(crate) index: Index,
    pub(crate) purged: Option<LogId>,
    pub(crate) start: Position,
    pub(crate) tail: Position,
    pub(crate) hard_state: Option<HardState>,
    pub(crate) committed: Option<LogId>,
}

impl State {
    pub(crate) fn last(&self) -> Option<LogId> {
        self.index.last().map(|located| located.id).or(self.purged)
    }

    pub(crate) fn end(&self) -> LogIndex {
        self.index.end()
    }

    /// Refuses when the log can no longer change anything.
    pub(crate) fn check(&self) -> Result<(), AppendError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.closing => Err(AppendError::Poisoned { why: "the log was closed".into() }),
            None => Ok(()),
        }
    }

    pub(crate) fn enqueue(&mut self, job: Job) {
        self.truncations += usize::from(matches!(job, Job::Truncate(_)));
        self.queue.push_back(job);
    }

    fn take_flush(&mut self) -> Vec<Append> {
        let (mut appends, mut bytes) = (Vec::new(), 0);
        while let Some(Job::Append(next)) = self.queue.front() {
            if !appends.is_empty() && bytes + next.bytes > FLUSH_BYTES_MAX {
                break;
            }
            bytes += next.bytes;
            match self.queue.pop_front() {
                Some(Job::Append(append)) => appends.push(append),
                _ => unreachable!("the front was just seen to be an append"),
            }
        }
        appends
    }
}

impl Core {
    pub(crate) fn new(spec: LogSpec, space: Arc<LogSpace>, opened: Opened) -> Core {
        let Opened { index, purged, start, tail, hard_state, committed } = opened;
        let state = State {
            flushed_end: index.end(),
            index,
            cache: Cache::default(),
            purged,
            start,
            tail,
            hard_state,
            committed,
            truncations: 0,
            queue: VecDeque::new(),
            failure: None,
            closing: false,
        };
        Core {
            spec,
            space,
            state: Mutex::new(state),
            wake: Notify::new(),
            flush_moved: watch::Sender::new(()),
            stopped: watch::Sender::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of a log's state panics")
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Queues a change and waits for it. Cancellation safe: once queued, it is carried out.
    pub(crate) async fn change(
        &self,
        prepare: impl FnOnce(&mut State, Done) -> Result<Option<Job>, AppendError>,
    ) -> Result<(), AppendError> {
        let (done, outcome) = oneshot::channel();
        {
            let mut state = self.lock();
            state.check()?;
            match prepare(&mut state, done)? {
                Some(job) => state.enqueue(job),
                None => return Ok(()),
            }
        }
        self.wake();
        outcome.await.unwrap_or_else(|_| Err(AppendError::Poisoned { why: "the log was closed".into() }))
    }

    pub(crate) fn state(&self) -> LogState {
        let state = self.lock();
        LogState {
            hard_state: state.hard_state,
            purged: state.purged,
            last: state.last(),
            committed: state.committed,
            owner: state.tail.owner,
            owner_bytes: state.tail.owner_bytes,
        }
    }

    /// The entry at a place, if it is in memory.
    pub(crate) fn cached_at(&self, place: &Place) -> Option<Entry> {
        let state = self.lock();
        let end = state.end();
        let index = state.index.find(place, state.cache.first(end))?;
        state.cache.get(index, end).cloned()
    }

    /// The memory of the entries that the log keeps.
    pub(crate) fn cached_bytes(&self) -> usize {
        self.lock().cache.bytes()
    }

    /// Drops cached entries down to `bytes_max`; returns how many bytes that freed.
    pub(crate) fn shrink_cache(&self, bytes_max: usize) -> usize {
        let mut state = self.lock();
        let (before, keep_from) = (state.cache.bytes(), state.flushed_end);
        state.cache.shrink(bytes_max, keep_from);
        before - state.cache.bytes()
    }

    /// Looks at the index, if it shows what is in the files: a truncation that is queued has changed only the
    /// former.
    pub(crate) fn look_at_settled_index<T>(&self, look: impl FnOnce(&Index) -> T) -> Option<T> {
        let state = self.lock();
        (state.truncations == 0).then(|| look(&state.index))
    }

    pub(crate) fn take_work(&self) -> Work {
        let mut state = self.lock();
        let appends = state.take_flush();
        if !appends.is_empty() {
            return Work::Flush(appends);
        }
        match state.queue.pop_front() {
            Some(job) => Work::Other(job),
            None if state.closing => Work::Stop,
            None => Work::Idle,
        }
    }

    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Waits for `duration`, or until the log is closed. Takes wake-ups for appends, so look for work
    /// afterwards.
    pub(crate) async fn pause(&self, duration: Duration) {
        let end = Instant::now() + duration;
        while !self.is_closing() {
            if tokio::time::timeout_at(end, self.woken()).await.is_err() {
                return;
            }
        }
    }

    /// Takes note that entries before `end` are durable, unless a truncation that is still queued has taken
    /// them out of the log.
    pub(crate) fn flushed(&self, end: LogIndex) {
        let mut state = self.lock();
        if state.truncations == 0 {
            state.flushed_end = state.flushed_end.max(end);
        }
        drop(state);
        self.flush_moved.send_replace(());
    }

    pub(crate) async fn until_flushed(&self, end: LogIndex) -> Result<(), AppendError> {
        let mut moved = self.flush_moved.subscribe();
        loop {
            {
                let state = self.lock();
                if state.flushed_end >= end {
                    return Ok(());
                }
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
            }
            // The sender is ours, so it is there.
            let _ = moved.changed().await;
        }
    }

    pub(crate) fn truncated(&self) {
        self.lock().truncations -= 1;
    }

    /// Ends the log with an error: all that waits and all that comes gets it.
    pub(crate) fn fail(&self, error: &AppendError) {
        let queue = {
            let mut state = self.lock();
            state.failure.get_or_insert_with(|| error.clone());
            std::mem::take(&mut state.queue)
        };
        self.flush_moved.send_replace(());
        // Outside the lock: callbacks may look at the log.
        for job in queue {
            match job {
                Job::Append(append) => {
                    self.space.release_unflushed(append.bytes);
                    append.completion.resolve(Err(error.clone()));
                }
                Job::SaveHardState { done, .. }
                | Job::Truncate(Truncate { done, .. })
                | Job::Purge { done, .. }
                | Job::DeletePurged { done } => drop(done.send(Err(error.clone()))),
            }
        }
    }

    /// Refuses further changes and lets the writer finish what is queued.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    pub(crate) fn set_stopped(&self) {
        let freed = {
            let mut state = self.lock();
            let bytes = state.cache.bytes();
            state.cache = Cache::default();
            state.closing = true;
            bytes
        };
        self.space.release_cached(freed);
        self.stopped.send_replace(true);
    }

    pub(crate) async fn until_stopped(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender is in `self`, which is borrowed: it cannot be gone.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}
