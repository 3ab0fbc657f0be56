//! Watch channels whose waiters wake in the order in which they began to wait. Tokio's wake in a random
//! order, which no seed decides; simulations must take the same steps again. The watch of the commit index
//! may wait for entries: see [`crate::adapter::ride`].

use crate::adapter::ride::Ride;
use openraft::rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::rt::{OptionalSend, OptionalSync};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// The watch of openraft's [`crate::adapter::runtime::Runtime`].
pub(crate) struct OrderedWatch;

pub(crate) struct Sender<T> {
    values: watch::Sender<T>,
    /// The field stands after the sender, so it is dropped after it: who waits then sees that the channel is
    /// closed.
    bell: RingOnDrop,
}

pub(crate) struct Receiver<T> {
    values: watch::Receiver<T>,
    bell: Arc<Notify>,
    ride: Option<Ride>,
}

#[derive(Clone)]
struct RingOnDrop(Arc<Notify>);

impl Drop for RingOnDrop {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { values: self.values.clone(), bell: self.bell.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Receiver { values: self.values.clone(), bell: self.bell.clone(), ride: self.ride.clone() }
    }
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = watch::channel(init);
        let bell = Arc::new(Notify::new());
        let sender = Sender { values: sender, bell: RingOnDrop(bell.clone()) };
        (sender, Receiver { values: receiver, bell, ride: Ride::of::<T>() })
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.values.send(value).map_err(|error| SendError(error.0))?;
        self.bell.0.notify_waiters();
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let is_modified = self.values.send_if_modified(modify);
        if is_modified {
            self.bell.0.notify_waiters();
        }
        is_modified
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.values.borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        Receiver { values: self.values.subscribe(), bell: self.bell.0.clone(), ride: Ride::of::<T>() }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for Receiver<T> {
    /// Cancellation safe: a change is seen when this returns, not before.
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // First listen, then look: a change in between rings.
            let mut rung = pin!(self.bell.notified());
            rung.as_mut().enable();
            match self.values.has_changed() {
                Ok(true) => break,
                Ok(false) => rung.await,
                // Closed: first what was sent last, then the end.
                Err(_) => return self.values.changed().await.map_err(|_| RecvError(())),
            }
        }
        if let Some(ride) = &mut self.ride {
            ride.over().await;
        }
        self.values.mark_unchanged();
        Ok(())
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.values.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        if let Some(ride) = &mut self.ride {
            ride.told();
        }
        self.values.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::ids::RaftLogId;
    use std::sync::Mutex;
    use std::time::Duration;
    use tokio::time::Instant;

    #[tokio::test]
    async fn waiters_wake_in_order_also_when_the_channel_closes() {
        for close in [false, true] {
            let (sender, receiver) = OrderedWatch::channel(0);
            let woken = Arc::new(Mutex::new(Vec::new()));
            let waiters: Vec<_> = (0..50)
                .map(|number| {
                    let (mut receiver, woken) = (receiver.clone(), woken.clone());
                    tokio::spawn(async move {
                        let seen = receiver.changed().await.is_ok();
                        woken.lock().unwrap().push((number, seen));
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            if close {
                drop(sender);
            } else {
                sender.send(1).unwrap();
            }
            for waiter in waiters {
                waiter.await.unwrap();
            }
            let expected: Vec<_> = (0..50).map(|number| (number, !close)).collect();
            assert_eq!(*woken.lock().unwrap(), expected);
        }
    }

    /// A receiver of the commit index, as openraft's replication has one for each follower.
    struct Follower {
        commits: Sender<Option<RaftLogId>>,
        heard: Receiver<Option<RaftLogId>>,
        index: u64,
    }

    impl Follower {
        fn new() -> Follower {
            let (commits, _) = OrderedWatch::channel(None);
            Follower { heard: commits.subscribe(), commits, index: 0 }
        }

        fn commit(&mut self) {
            self.index += 1;
            self.commits.send(Some(RaftLogId::new(1.into(), self.index))).unwrap();
        }

        /// The milliseconds after which a message with nothing but the commit index is made, of `within`.
        async fn goes_alone_after(&mut self, within: u64) -> Option<u64> {
            let began = Instant::now();
            let changed = tokio::time::timeout(Duration::from_millis(within), self.heard.changed());
            changed.await.ok()?.unwrap();
            self.entries();
            Some(began.elapsed().as_millis() as u64)
        }

        /// A message is made, which tells what is committed by then.
        fn entries(&mut self) {
            assert_eq!(self.heard.borrow_and_update().map(|id| id.index), Some(self.index));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_goes_at_once_where_no_entries_follow_soon() {
        let mut follower = Follower::new();
        for _ in 0..3 {
            follower.commit();
            assert_eq!(follower.goes_alone_after(100).await, Some(0));
            tokio::time::advance(Duration::from_millis(5)).await;
            follower.commit();
            follower.entries();
            assert_eq!(follower.goes_alone_after(100).await, None, "entries told it");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_rides_where_entries_follow_soon_and_goes_alone_when_they_stay_away() {
        let mut follower = Follower::new();
        follower.commit();
        assert_eq!(follower.goes_alone_after(1).await, Some(0));
        follower.entries();
        for _ in 0..5 {
            follower.commit();
            assert_eq!(follower.goes_alone_after(1).await, None, "entries may come");
            follower.entries();
            assert_eq!(follower.goes_alone_after(100).await, None, "it rode");
        }
        follower.commit();
        assert_eq!(follower.goes_alone_after(1).await, None);
        // A second one waits no longer than the first, however often it is looked for.
        follower.commit();
        assert_eq!(follower.goes_alone_after(100).await, Some(1));
        follower.commit();
        assert_eq!(follower.goes_alone_after(100).await, Some(0), "the last one waited in vain");
    }

    #[tokio::test]
    async fn what_was_sent_last_is_told_before_the_end() {
        let (sender, mut receiver) = OrderedWatch::channel(0);
        sender.send(1).unwrap();
        drop(sender);
        assert!(receiver.changed().await.is_ok());
        assert_eq!(*receiver.borrow_and_update(), 1);
        assert!(receiver.changed().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn other_watches_tell_at_once() {
        let (sender, mut receiver) = OrderedWatch::channel(0);
        for value in 1..10 {
            sender.send(value).unwrap();
            let began = Instant::now();
            receiver.changed().await.unwrap();
            assert_eq!((began.elapsed(), *receiver.borrow_and_update()), (Duration::ZERO, value));
        }
    }
}
