use crate::{Lot, Ticket};
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Reached,
    Expired,
    /// So many operations wait already that this one was not parked.
    Full,
}

/// A [`Lot`] on tokio's clock, in ticks of a millisecond; a cheap handle.
pub struct ParkingLot<K: Hash + Eq + Clone + Send + 'static> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    /// The moment of tick 0.
    started: Instant,
    pending_max: usize,
    state: Mutex<State<K>>,
    /// Notified when an operation is due before the driver would look again.
    sooner: Arc<Notify>,
}

/// Counts of what happened in a [`ParkingLot`] since it was made, and of who waits now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LotCounts {
    pub pending: usize,
    pub parked: u64,
    pub expired: u64,
    /// Operations that were turned away, because so many wait already.
    pub full: u64,
    /// Calls of [`ParkingLot::reach`].
    pub reaches: u64,
}

struct State<K> {
    lot: Lot<K, oneshot::Sender<Outcome>>,
    /// The counts without `pending`, which the lot knows.
    counts: LotCounts,
    /// The tick at which the driver looks again; `None` when there is no driver.
    driver_stop: Option<u64>,
}

impl<K: Hash + Eq + Clone + Send + 'static> Clone for ParkingLot<K> {
    fn clone(&self) -> Self {
        ParkingLot { shared: self.shared.clone() }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> ParkingLot<K> {
    /// A lot in which at most `pending_max` operations wait at a time.
    pub fn new(pending_max: usize) -> ParkingLot<K> {
        let state = State { lot: Lot::default(), counts: LotCounts::default(), driver_stop: None };
        let (started, sooner) = (Instant::now(), Arc::default());
        ParkingLot { shared: Arc::new(Shared { started, pending_max, state: Mutex::new(state), sooner }) }
    }

    /// The number of operations that wait now.
    pub fn pending(&self) -> usize {
        self.shared.lock().lot.len()
    }

    pub fn counts(&self) -> LotCounts {
        let state = self.shared.lock();
        LotCounts { pending: state.lot.len(), ..state.counts }
    }

    /// Waits until `key` has reached `value`, at most until `deadline`. `has_reached` is asked once, after
    /// the operation is where [`ParkingLot::reach`] finds it: so nothing that happens in between is missed,
    /// if whoever moves the value calls `reach` after it is visible to `has_reached`. Dropping the future
    /// takes the operation out.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn wait(&self, key: K, value: u64, deadline: Instant, has_reached: impl FnOnce() -> bool) -> Wait<K> {
        let (sender, outcome) = oneshot::channel();
        // Before the lock: a panic under it would be everybody's.
        let runtime = Handle::current();
        let due = self.shared.tick_at_or_after(deadline);
        let ticket = {
            let mut state = self.shared.lock();
            if state.lot.len() >= self.shared.pending_max {
                let ended = if has_reached() { Outcome::Reached } else { Outcome::Full };
                state.counts.full += u64::from(ended == Outcome::Full);
                return Wait { shared: self.shared.clone(), ended: Some(ended), parked: None };
            }
            let ticket = state.lot.park(key, value, due, sender);
            state.counts.parked += 1;
            self.shared.drive_until(&mut state, &runtime);
            ticket
        };
        let wait = Wait { shared: self.shared.clone(), ended: None, parked: Some((ticket, outcome)) };
        if has_reached() { wait.into_reached() } else { wait }
    }

    /// Wakes who waits for `key` to reach `value`, or less.
    pub fn reach(&self, key: &K, value: u64) {
        // The waiters are collected first: a waker that runs under the lock could want that lock.
        let mut completed = Vec::new();
        {
            let mut state = self.shared.lock();
            state.counts.reaches += 1;
            state.lot.reach(key, value, |waiter| completed.push(waiter));
        }
        for waiter in completed {
            let _ = waiter.send(Outcome::Reached); // it may have been dropped meanwhile
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().expect("no holder of a parking lot panics")
    }

    /// The first tick that is not before a time: nobody is told too early.
    fn tick_at_or_after(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.started).as_nanos().div_ceil(1_000_000) as u64
    }

    fn tick_now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Sees to it that the driver looks at the next stop. The driver exists only while something waits.
    fn drive_until(self: &Arc<Self>, state: &mut State<K>, runtime: &Handle) {
        let Some(stop) = state.lot.next_stop() else { return };
        match state.driver_stop {
            None => {
                state.driver_stop = Some(stop);
                runtime.spawn(drive(Arc::downgrade(self), self.started, self.sooner.clone(), stop));
            }
            Some(planned) if stop < planned => {
                state.driver_stop = Some(stop);
                self.sooner.notify_one();
            }
            Some(_) => {}
        }
    }

    /// Ends the operations that are due; answers the tick at which to come again.
    fn expire(&self) -> Option<u64> {
        let mut expired = Vec::new();
        let stop = {
            let mut state = self.lock();
            let now = self.tick_now();
            state.lot.expire(now, |waiter| expired.push(waiter));
            state.counts.expired += expired.len() as u64;
            state.driver_stop = state.lot.next_stop();
            state.driver_stop
        };
        for waiter in expired {
            let _ = waiter.send(Outcome::Expired);
        }
        stop
    }
}

impl<K> Drop for Shared<K> {
    fn drop(&mut self) {
        self.sooner.notify_one(); // the driver sees that the lot is gone
    }
}

/// The driver, which ends the operations of a lot that are due. It stops when nothing waits any more, or with
/// the lot, which it does not hold while it sleeps.
async fn drive<K: Hash + Eq + Clone + Send + 'static>(
    lot: Weak<Shared<K>>,
    started: Instant,
    sooner: Arc<Notify>,
    first_stop: u64,
) {
    let mut next = Some(first_stop);
    while let Some(stop) = next {
        let at = started + Duration::from_millis(stop);
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(at) => {}
            () = sooner.notified() => {}
        }
        let Some(shared) = lot.upgrade() else { return };
        next = shared.expire();
    }
}

/// An operation that waits; see [`ParkingLot::wait`].
#[must_use = "an operation waits only as long as its future is kept"]
pub struct Wait<K: Hash + Eq + Clone + Send + 'static> {
    shared: Arc<Shared<K>>,
    ended: Option<Outcome>,
    parked: Option<(Ticket, oneshot::Receiver<Outcome>)>,
}

impl<K: Hash + Eq + Clone + Send + 'static> Wait<K> {
    fn into_reached(mut self) -> Wait<K> {
        self.leave();
        self.ended = Some(Outcome::Reached);
        self
    }

    fn leave(&mut self) {
        if let Some((ticket, _)) = self.parked.take() {
            // The waiter is dropped after the lock: its waker may do anything.
            let _waiter = self.shared.lock().lot.cancel(ticket);
        }
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Future for Wait<K> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(ended) = self.ended {
            return Poll::Ready(ended);
        }
        let Some((_, outcome)) = &mut self.parked else { return Poll::Ready(Outcome::Expired) };
        // The sender is dropped without an answer only with the lot, and that is held by this future.
        let ended = std::task::ready!(Pin::new(outcome).poll(context)).unwrap_or(Outcome::Expired);
        (self.parked, self.ended) = (None, Some(ended));
        Poll::Ready(ended)
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Drop for Wait<K> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<K: Hash + Eq + Clone + Send + 'static> Unpin for Wait<K> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn in_ms(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn operations_end_when_the_value_is_reached_or_at_their_deadline() {
        let lot = ParkingLot::new(100);
        let started = Instant::now();
        let reached = lot.wait("applied", 10, in_ms(500), || false);
        let expires = lot.wait("applied", 11, in_ms(200), || false);
        let sooner = lot.wait("other", 1, in_ms(50), || false);
        lot.reach(&"applied", 10);
        assert_eq!(reached.await, Outcome::Reached);
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(sooner.await, Outcome::Expired);
        assert_eq!(started.elapsed().as_millis(), 50);
        assert_eq!(expires.await, Outcome::Expired);
        assert!((200..=201).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
        assert_eq!(lot.pending(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_reached_before_does_not_wait_and_what_is_dropped_leaves() {
        let lot = ParkingLot::new(2);
        assert_eq!(lot.wait(1, 1, in_ms(100), || true).await, Outcome::Reached);
        let (one, two) = (lot.wait(1, 1, in_ms(100), || false), lot.wait(1, 2, in_ms(100), || false));
        assert_eq!(lot.pending(), 2);
        assert_eq!(lot.wait(1, 3, in_ms(100), || false).await, Outcome::Full);
        assert_eq!(lot.wait(1, 3, in_ms(100), || true).await, Outcome::Reached);
        drop(one);
        assert_eq!(lot.pending(), 1);
        assert_eq!(two.await, Outcome::Expired);
        lot.reach(&1, 9);
        assert_eq!(lot.counts(), LotCounts { pending: 0, parked: 3, expired: 1, full: 1, reaches: 1 });
    }

    #[tokio::test]
    async fn a_lot_that_is_gone_ends_its_driver() {
        let lot = ParkingLot::new(2);
        let wait = lot.wait(1, 1, in_ms(3_600_000), || false);
        let drivers = || Handle::current().metrics().num_alive_tasks();
        tokio::task::yield_now().await;
        assert_eq!(drivers(), 1);
        drop((wait, lot));
        let given_up = Instant::now() + Duration::from_secs(30);
        while drivers() > 0 {
            assert!(Instant::now() < given_up, "the driver sleeps on");
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_lot_survives_an_operation_outside_a_runtime() {
        let lot = ParkingLot::new(2);
        let outside = std::panic::AssertUnwindSafe(|| drop(lot.wait(1, 1, in_ms(1), || false)));
        assert!(std::panic::catch_unwind(outside).is_err());
        assert_eq!(lot.pending(), 0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let expired = runtime.block_on(async { lot.wait(1, 1, in_ms(1), || false).await });
        assert_eq!(expired, Outcome::Expired);
    }

    /// Nothing is missed between looking and parking.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_value_that_moves_all_the_time_is_seen_by_everybody() {
        let lot = ParkingLot::new(1_000_000);
        let value = Arc::new(AtomicU64::new(0));
        let waits: Vec<_> = (1..=2000)
            .map(|awaited| {
                let (lot, value) = (lot.clone(), value.clone());
                tokio::spawn(async move {
                    let has_reached = || value.load(Ordering::SeqCst) >= awaited;
                    lot.wait((), awaited, in_ms(60_000), has_reached).await
                })
            })
            .collect();
        for next in 1..=2000 {
            value.store(next, Ordering::SeqCst);
            lot.reach(&(), next);
            if next % 16 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for wait in waits {
            assert_eq!(wait.await.unwrap(), Outcome::Reached);
        }
        assert_eq!(lot.pending(), 0);
    }
}
