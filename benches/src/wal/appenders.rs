use super::contender::{Appended, Case, Limits};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The rest of a turn, shared by its appenders.
pub(super) struct Budget {
    started: Instant,
    deadline: Instant,
    appends: AtomicU64,
}

impl Budget {
    /// Begins a turn, whose clock starts now.
    pub(super) fn new(case: Case, limits: Limits) -> Budget {
        let appends = limits.payload_bytes / case.payload_bytes as u64;
        let started = Instant::now();
        Budget { started, deadline: started + limits.duration, appends: AtomicU64::new(appends) }
    }

    /// Takes `count` appends, unless time or bytes have run out.
    pub(super) fn take(&self, count: usize) -> bool {
        let less = |left: u64| left.checked_sub(count as u64);
        Instant::now() < self.deadline
            && self.appends.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Appends in a thread for each log, for contenders whose calls block: it appends `case.window` payloads with
/// one call, waits until they are durable, and does it again.
pub(super) fn append_in_threads<A>(case: Case, limits: Limits, appenders: &mut [A]) -> Appended
where
    A: FnMut() + Send,
{
    assert_eq!(appenders.len(), case.logs);
    let ready = Barrier::new(case.logs + 1);
    let budget = std::sync::OnceLock::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = appenders
            .iter_mut()
            .map(|append| {
                let (ready, budget) = (&ready, &budget);
                scope.spawn(move || {
                    ready.wait();
                    let budget: &Budget = budget.get_or_init(|| Budget::new(case, limits));
                    append_until(budget, case.window, append)
                })
            })
            .collect();
        ready.wait();
        let mut appended = Appended::default();
        for thread in threads {
            appended.latencies.extend(thread.join().expect("an appender panicked"));
        }
        // From when the first of them began, which may be before this thread has its turn.
        appended.elapsed = budget.get_or_init(|| Budget::new(case, limits)).started.elapsed();
        appended.appends = (appended.latencies.len() * case.window) as u64;
        appended
    })
}

fn append_until(budget: &Budget, window: usize, append: &mut impl FnMut()) -> Vec<Duration> {
    let mut latencies = Vec::new();
    while budget.take(window) {
        let started = Instant::now();
        append();
        latencies.push(started.elapsed());
    }
    latencies
}
