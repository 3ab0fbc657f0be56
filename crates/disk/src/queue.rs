use crate::IoFuture;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// The most operations of a kind that wait for their turn; callers beyond wait in their future until there is
/// room.
const QUEUED_MAX: usize = 1024;

/// The kind of an operation: each has a queue and slots of its own, so that reads do not wait for writes and
/// syncs, nor the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads, and what else changes nothing.
    Read,
    /// Writes, syncs, and all that is done to names.
    Change,
}

/// The number of operations of each kind that are under way at the same time.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) reads: usize,
    pub(crate) changes: usize,
}

/// Operations that wait for a slot; reads are taken first.
pub(crate) struct Queue<T> {
    reads: Lane<T>,
    changes: Lane<T>,
}

struct Lane<T> {
    waiting: VecDeque<(T, OwnedSemaphorePermit)>,
    free: usize,
    slots: usize,
    /// The moment since which operations wait or are under way, and none has ended; `None` while there are
    /// none.
    still_since: Option<Instant>,
}

impl<T> Queue<T> {
    pub(crate) fn new(slots: Slots) -> Queue<T> {
        let lane = |slots| Lane { waiting: VecDeque::new(), free: slots, slots, still_since: None };
        Queue { reads: lane(slots.reads), changes: lane(slots.changes) }
    }

    pub(crate) fn push(&mut self, kind: Kind, what: T, room: OwnedSemaphorePermit) {
        let lane = self.lane(kind);
        lane.waiting.push_back((what, room));
        lane.still_since.get_or_insert_with(Instant::now);
    }

    /// Takes the operation that is to be started now; [`Queue::finish`] gives its slot back.
    pub(crate) fn take(&mut self) -> Option<(Kind, T)> {
        [Kind::Read, Kind::Change].into_iter().find_map(|kind| Some((kind, self.lane(kind).take()?)))
    }

    pub(crate) fn finish(&mut self, kind: Kind) {
        let lane = self.lane(kind);
        lane.free += 1;
        lane.still_since = lane.has_any().then(Instant::now);
    }

    /// The longest time for which there have been operations of a kind and none has ended.
    pub(crate) fn ends_nothing_for(&self) -> Duration {
        let since = [&self.reads, &self.changes].into_iter().filter_map(|lane| lane.still_since).min();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The number of calls of [`Queue::take`] that would find something.
    pub(crate) fn startable(&self) -> usize {
        [&self.reads, &self.changes].into_iter().map(|lane| lane.waiting.len().min(lane.free)).sum()
    }

    /// Drops what waits. Nothing is waited for any more: what is under way may never end.
    pub(crate) fn clear(&mut self) {
        for lane in [&mut self.reads, &mut self.changes] {
            lane.waiting.clear();
            lane.still_since = None;
        }
    }

    fn lane(&mut self, kind: Kind) -> &mut Lane<T> {
        match kind {
            Kind::Read => &mut self.reads,
            Kind::Change => &mut self.changes,
        }
    }
}

impl<T> Lane<T> {
    fn has_any(&self) -> bool {
        self.free < self.slots || !self.waiting.is_empty()
    }

    fn take(&mut self) -> Option<T> {
        if self.free == 0 {
            return None;
        }
        let (what, _room) = self.waiting.pop_front()?;
        self.free -= 1;
        Some(what)
    }
}

/// Room in the queue.
pub(crate) struct Gate {
    reads: Arc<Semaphore>,
    changes: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        let room = || Arc::new(Semaphore::new(QUEUED_MAX));
        Gate { reads: room(), changes: room() }
    }

    /// Calls `push` at once when there is room, else when the future is polled and room has come; the future
    /// waits for the result.
    pub(crate) fn enter<T: Send + 'static>(
        &self,
        kind: Kind,
        push: impl FnOnce(OwnedSemaphorePermit) + Send + 'static,
        result: oneshot::Receiver<io::Result<T>>,
    ) -> IoFuture<T> {
        let room = match kind {
            Kind::Read => self.reads.clone(),
            Kind::Change => self.changes.clone(),
        };
        let waiting = match room.clone().try_acquire_owned() {
            Ok(permit) => {
                push(permit);
                None
            }
            Err(_) => Some(push),
        };
        Box::pin(async move {
            if let Some(push) = waiting {
                push(room.acquire_owned().await.expect("the semaphore is never closed"));
            }
            result.await.unwrap_or_else(|_| Err(io::Error::other("the disk was closed")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()
    }

    /// Whatever comes to wait, and whatever the other kind does.
    #[tokio::test(start_paused = true)]
    async fn a_queue_ends_nothing_since_what_began_or_ended_last() {
        let second = Duration::from_secs(1);
        let mut queue = Queue::new(Slots { reads: 1, changes: 2 });
        let check = |queue: &Queue<()>, seconds: u32| assert_eq!(queue.ends_nothing_for(), seconds * second);
        tokio::time::sleep(second).await;
        check(&queue, 0);
        queue.push(Kind::Change, (), room());
        tokio::time::sleep(second).await;
        queue.push(Kind::Change, (), room());
        assert!(queue.take().is_some() && queue.take().is_some());
        check(&queue, 1);
        queue.push(Kind::Read, (), room());
        queue.take();
        queue.finish(Kind::Read);
        tokio::time::sleep(second).await;
        check(&queue, 2);
        queue.finish(Kind::Change);
        check(&queue, 0);
        tokio::time::sleep(second).await;
        check(&queue, 1);
        queue.finish(Kind::Change);
        tokio::time::sleep(second).await;
        check(&queue, 0);
        queue.push(Kind::Read, (), room());
        queue.clear();
        tokio::time::sleep(second).await;
        check(&queue, 0);
    }
}
