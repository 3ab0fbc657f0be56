//! Memory that the logs of several disks share, with others beside them. What others hold they hold; logs
//! keep what they wrote last in what is left, and give way.

use std::fmt;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A limit for the entries that logs keep in memory and for what others hold. A cheap handle.
#[derive(Clone)]
pub struct SharedMemory {
    shared: Arc<Shared>,
}

struct Shared {
    bytes_max: usize,
    /// The bytes that logs keep. Signed: a log's memory may be counted off before it was counted in.
    cached: AtomicIsize,
    held: AtomicUsize,
    caches: Mutex<Vec<Weak<dyn Caches>>>,
}

/// The logs of a disk.
pub(crate) trait Caches: Send + Sync {
    /// The bytes that each log keeps.
    fn cached_bytes_of_each(&self) -> Vec<usize>;

    /// Has each log let go of what it can that is more than `bytes_max`.
    fn shrink_each_to(&self, bytes_max: usize);
}

/// Bytes that somebody holds, until this is dropped.
#[must_use]
pub struct Held {
    memory: SharedMemory,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.shared.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl SharedMemory {
    pub fn new(bytes_max: usize) -> SharedMemory {
        let (cached, held, caches) = Default::default();
        SharedMemory { shared: Arc::new(Shared { bytes_max, cached, held, caches }) }
    }

    /// Counts what somebody holds: logs let go of as much. How much it may be is for its holders to see to.
    pub fn hold(&self, bytes: usize) -> Held {
        self.shared.held.fetch_add(bytes, Ordering::Relaxed);
        self.make_room();
        Held { memory: self.clone(), bytes }
    }

    pub fn bytes_max(&self) -> usize {
        self.shared.bytes_max
    }

    /// The bytes of the entries that logs keep, with those that are not durable yet.
    pub fn cached_bytes(&self) -> usize {
        self.shared.cached.load(Ordering::Relaxed).max(0) as usize
    }

    pub(crate) fn join(&self, caches: Weak<dyn Caches>) {
        self.lock_caches().push(caches);
    }

    pub(crate) fn account(&self, change: isize) {
        self.shared.cached.fetch_add(change, Ordering::Relaxed);
        if change > 0 {
            self.make_room();
        }
    }

    /// Cuts the largest logs down until all of them keep seven eighths of what is left for them: with the
    /// whole, the next append would be beyond it again, and every append would look at all logs.
    fn make_room(&self) {
        let left = self.shared.bytes_max.saturating_sub(self.shared.held.load(Ordering::Relaxed));
        if self.cached_bytes() <= left {
            return;
        }
        let caches = self.caches();
        let sizes = caches.iter().flat_map(|caches| caches.cached_bytes_of_each()).collect();
        let each = largest(sizes, left / 8 * 7);
        caches.iter().for_each(|caches| caches.shrink_each_to(each));
    }

    fn caches(&self) -> Vec<Arc<dyn Caches>> {
        let mut caches = self.lock_caches();
        caches.retain(|caches| caches.strong_count() > 0);
        caches.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock_caches(&self) -> MutexGuard<'_, Vec<Weak<dyn Caches>>> {
        self.shared.caches.lock().expect("no holder panics")
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedMemory")
    }
}

/// The most that one of these may have so that all together have `all`, if those that have less keep it.
fn largest(mut sizes: Vec<usize>, all: usize) -> usize {
    sizes.sort_unstable();
    let mut left = all;
    for (smaller, size) in sizes.iter().enumerate() {
        let share = left / (sizes.len() - smaller);
        if *size > share {
            return share;
        }
        left -= size;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs that can let go of everything.
    struct Logs {
        sizes: Mutex<Vec<usize>>,
        memory: SharedMemory,
    }

    impl Logs {
        fn of(memory: &SharedMemory, sizes: &[usize]) -> Arc<Logs> {
            let logs = Arc::new(Logs { sizes: Mutex::new(sizes.to_vec()), memory: memory.clone() });
            let caches: Arc<dyn Caches> = logs.clone();
            memory.join(Arc::downgrade(&caches));
            memory.account(sizes.iter().sum::<usize>() as isize);
            logs
        }
    }

    impl Caches for Logs {
        fn cached_bytes_of_each(&self) -> Vec<usize> {
            self.sizes.lock().unwrap().clone()
        }

        fn shrink_each_to(&self, bytes_max: usize) {
            for size in &mut *self.sizes.lock().unwrap() {
                let gone = size.saturating_sub(bytes_max);
                *size -= gone;
                self.memory.account(-(gone as isize));
            }
        }
    }

    #[test]
    fn logs_of_all_disks_give_way_to_what_others_hold() {
        let memory = SharedMemory::new(800);
        let (one, two) = (Logs::of(&memory, &[300, 10]), Logs::of(&memory, &[400]));
        assert_eq!(memory.cached_bytes(), 710, "there is room for all of it");
        let held = memory.hold(400);
        assert_eq!((one.cached_bytes_of_each(), two.cached_bytes_of_each()), (vec![170, 10], vec![170]));
        assert_eq!(memory.cached_bytes(), 350);
        drop(held);
        memory.account(350);
        assert_eq!(memory.cached_bytes(), 700, "what was given back is there for logs");
        memory.account(-350);
        let _held = memory.hold(800);
        assert_eq!((one.cached_bytes_of_each(), two.cached_bytes_of_each()), (vec![0, 0], vec![0]));
    }

    #[test]
    fn the_largest_give_way_first() {
        let check = |sizes: &[usize], all, expect| assert_eq!(largest(sizes.to_vec(), all), expect);
        check(&[], 10, usize::MAX);
        check(&[5, 5], 10, usize::MAX);
        check(&[0, 0, 90], 60, 60);
        check(&[10, 90, 20], 60, 30);
        check(&[50, 50, 50], 60, 20);
        check(&[1, 2], 0, 0);
    }
}
