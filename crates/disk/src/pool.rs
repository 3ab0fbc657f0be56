use crate::IoFuture;
use crate::queue::{Gate, Kind, Queue, Slots};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The operations under way at a time. A journaling file system merges concurrent syncs into one commit, and
/// devices reorder what they are given: a pool makes use of both with a thread for each operation under way.
const SLOTS: Slots = Slots { reads: 16, changes: 16 };

/// The most threads of a pool: one is started only when all others are busy. Neither kind of operation can
/// take the last four.
const THREADS_MAX: usize = 20;

/// Threads that run one disk's blocking calls.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    gate: Gate,
}

struct Shared {
    state: Mutex<State>,
    ready: Condvar,
}

type Job = Box<dyn FnOnce() + Send>;

struct State {
    queue: Queue<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("jobs run outside the lock, so no holder panics")
    }
}

impl Pool {
    pub(crate) fn new() -> Pool {
        let state = State { queue: Queue::new(SLOTS), threads: Vec::new(), idle: 0, closed: false };
        Pool {
            shared: Arc::new(Shared { state: Mutex::new(state), ready: Condvar::new() }),
            gate: Gate::new(),
        }
    }

    /// Queues a blocking call.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        kind: Kind,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (sender, result) = oneshot::channel();
        let job = Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(call))
                .unwrap_or_else(|_| Err(io::Error::other("a disk operation panicked")));
            // The caller may have lost interest: the operation is done all the same.
            let _ = sender.send(outcome);
        });
        let shared = self.shared.clone();
        self.gate.enter(kind, move |room| push(&shared, kind, job, room), result)
    }

    pub(crate) fn ends_nothing_for(&self) -> Duration {
        self.shared.lock().queue.ends_nothing_for()
    }
}

fn push(shared: &Arc<Shared>, kind: Kind, job: Job, room: OwnedSemaphorePermit) {
    let mut state = shared.lock();
    if state.closed {
        return; // drops the job and with it the sender: the caller reads "closed"
    }
    state.queue.push(kind, job, room);
    if state.idle < state.queue.startable() && state.threads.len() < THREADS_MAX {
        let worker = shared.clone();
        let name = format!("disk-{}", state.threads.len());
        match std::thread::Builder::new().name(name).spawn(move || work(&worker)) {
            Ok(thread) => state.threads.push(thread),
            // With at least one thread everything still runs, only later.
            Err(error) if !state.threads.is_empty() => tracing::warn!(%error, "start another disk thread"),
            Err(error) => {
                tracing::error!(%error, "start the first disk thread");
                state.queue.clear();
            }
        }
    }
    drop(state);
    shared.ready.notify_one();
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some((kind, job)) = state.queue.take() {
            drop(state);
            job();
            state = shared.lock();
            // Whoever finishes looks for more itself, so nobody needs to be told of the free slot.
            state.queue.finish(kind);
        } else if state.closed {
            return; // what waits for a slot is left to those who hold the slots
        } else {
            state.idle += 1;
            state = shared.ready.wait(state).expect("jobs run outside the lock, so no holder panics");
            state.idle -= 1;
        }
    }
}

impl Drop for Pool {
    /// Finishes what is queued: when the last handle of a disk is gone, so is every operation on it.
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.lock();
            state.closed = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.ready.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    #[tokio::test]
    async fn several_operations_run_at_the_same_time() {
        let pool = Pool::new();
        let meeting = Arc::new(std::sync::Barrier::new(4));
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let meeting = meeting.clone();
                // Returns only if all four are under way together.
                pool.run(Kind::Change, move || {
                    meeting.wait();
                    Ok(())
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    }

    #[tokio::test]
    async fn operations_start_without_being_polled_and_finish_before_the_pool_is_gone() {
        let pool = Pool::new();
        let done = Arc::new(AtomicUsize::new(0));
        for n in 0..200 {
            let done = done.clone();
            drop(pool.run(if n % 2 == 0 { Kind::Read } else { Kind::Change }, move || {
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }));
        }
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 200);
    }

    #[tokio::test]
    async fn more_than_the_queue_holds_waits_its_turn() {
        let pool = Pool::new();
        let calls: Vec<_> = (0..3000).map(|n| pool.run(Kind::Change, move || Ok(n))).collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), n);
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_own_operation_only() {
        let pool = Pool::new();
        assert!(pool.run::<()>(Kind::Change, || panic!("planted")).await.is_err());
        assert_eq!(pool.run(Kind::Read, || Ok(1)).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn neither_kind_waits_for_the_other() {
        for (blocked, free) in [(Kind::Change, Kind::Read), (Kind::Read, Kind::Change)] {
            let pool = Pool::new();
            let (release, wait) = mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            // All slots, all room in the queue, and callers who wait outside.
            let calls: Vec<_> = (0..3000)
                .map(|_| {
                    let wait = wait.clone();
                    pool.run(blocked, move || {
                        let _ = wait.lock().unwrap().recv();
                        Ok(())
                    })
                })
                .collect();
            let call = pool.run(free, || Ok(7));
            assert_eq!(tokio::time::timeout(Duration::from_secs(30), call).await.unwrap().unwrap(), 7);
            drop(release);
            for call in calls {
                call.await.unwrap();
            }
        }
    }
}
