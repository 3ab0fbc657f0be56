use crate::IoFuture;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Operations a disk runs at the same time. A journaling file system merges concurrent syncs into one commit, and
/// devices reorder what they are given: one thread per operation under way is how a pool offers both. Threads are
/// started only when all others are busy.
const THREADS_MAX: usize = 16;

/// Operations waiting for a thread; callers beyond wait in their future until there is room.
const QUEUED_MAX: usize = 1024;

/// Threads that run one disk's blocking calls.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
}

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Box<dyn FnOnce() + Send>, OwnedSemaphorePermit)>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("jobs run outside the lock, so no holder panics")
    }
}

impl Pool {
    pub(crate) fn new() -> Pool {
        Pool {
            shared: Arc::new(Shared { queue: Mutex::default(), ready: Condvar::new() }),
            room: Arc::new(Semaphore::new(QUEUED_MAX)),
        }
    }

    /// Queues a blocking call at once when there is room, else when the future is polled and room has come.
    pub(crate) fn run<T: Send + 'static>(
        &self,
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
        let waiting = match self.room.clone().try_acquire_owned() {
            Ok(permit) => {
                push(&shared, job, permit);
                None
            }
            Err(_) => Some((self.room.clone(), job)),
        };
        Box::pin(async move {
            if let Some((room, job)) = waiting {
                let permit = room.acquire_owned().await.expect("the semaphore is never closed");
                push(&shared, job, permit);
            }
            result.await.unwrap_or_else(|_| Err(io::Error::other("the disk was closed")))
        })
    }
}

fn push(shared: &Arc<Shared>, job: Box<dyn FnOnce() + Send>, permit: OwnedSemaphorePermit) {
    let mut queue = shared.lock();
    if queue.closed {
        return; // drops the job and with it the sender: the caller reads "closed"
    }
    queue.jobs.push_back((job, permit));
    if queue.idle < queue.jobs.len() && queue.threads.len() < THREADS_MAX {
        let worker = shared.clone();
        let name = format!("disk-{}", queue.threads.len());
        match std::thread::Builder::new().name(name).spawn(move || work(&worker)) {
            Ok(thread) => queue.threads.push(thread),
            // With at least one thread everything still runs, only later.
            Err(error) if !queue.threads.is_empty() => tracing::warn!(%error, "start another disk thread"),
            Err(error) => {
                tracing::error!(%error, "start the first disk thread");
                queue.jobs.clear();
            }
        }
    }
    drop(queue);
    shared.ready.notify_one();
}

fn work(shared: &Shared) {
    let mut queue = shared.lock();
    loop {
        if let Some((job, permit)) = queue.jobs.pop_front() {
            drop(queue);
            drop(permit);
            job();
            queue = shared.lock();
        } else if queue.closed {
            return;
        } else {
            queue.idle += 1;
            queue = shared.ready.wait(queue).expect("jobs run outside the lock, so no holder panics");
            queue.idle -= 1;
        }
    }
}

impl Drop for Pool {
    /// Finishes what is queued: when the last handle of a disk is gone, so is every operation on it.
    fn drop(&mut self) {
        let threads = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            std::mem::take(&mut queue.threads)
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

    #[tokio::test]
    async fn several_operations_run_at_the_same_time() {
        let pool = Pool::new();
        let meeting = Arc::new(std::sync::Barrier::new(4));
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let meeting = meeting.clone();
                // Returns only if all four are under way together.
                pool.run(move || {
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
        for _ in 0..100 {
            let done = done.clone();
            drop(pool.run(move || {
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }));
        }
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 100);
    }

    #[tokio::test]
    async fn more_than_the_queue_holds_waits_its_turn() {
        let pool = Pool::new();
        let calls: Vec<_> = (0..QUEUED_MAX * 3).map(|n| pool.run(move || Ok(n))).collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), n);
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_own_operation_only() {
        let pool = Pool::new();
        assert!(pool.run::<()>(|| panic!("planted")).await.is_err());
        assert_eq!(pool.run(|| Ok(1)).await.unwrap(), 1);
    }
}
