//! Watch channels whose waiters wake in the order in which they began to wait. Tokio's wake in a random
//! order, which no seed decides; simulations must take the same steps again.

use futures::FutureExt;
use openraft::rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::rt::{OptionalSend, OptionalSync};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// The watch of openraft's [`crate::adapter::runtime::Runtime`].
pub(crate) struct OrderedWatch;

pub(crate) struct Sender<T> {
    values: watch::Sender<T>,
    /// After the sender, so dropped after it: who waits then sees that the channel is closed.
    bell: RingOnDrop,
}

pub(crate) struct Receiver<T> {
    values: watch::Receiver<T>,
    bell: Arc<Notify>,
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
        Receiver { values: self.values.clone(), bell: self.bell.clone() }
    }
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = watch::channel(init);
        let bell = Arc::new(Notify::new());
        (Sender { values: sender, bell: RingOnDrop(bell.clone()) }, Receiver { values: receiver, bell })
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
        Receiver { values: self.values.subscribe(), bell: self.bell.0.clone() }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for Receiver<T> {
    /// Cancellation safe: a change is seen when this returns, not before.
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // First listen, then look: a change in between rings.
            let mut rung = pin!(self.bell.notified());
            rung.as_mut().enable();
            if let Some(seen) = self.values.changed().now_or_never() {
                return seen.map_err(|_| RecvError(()));
            }
            rung.await;
        }
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.values.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        self.values.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

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
}
