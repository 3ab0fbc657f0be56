//! The queues between openraft's tasks: tokio's, with the messages beside them instead of in them. Tokio
//! allocates its slots 32 at a time, a message large in each, and never fewer; openraft's messages take up to
//! some hundred bytes, and a group has a handful of such queues, nearly always empty. A pointer is what an
//! empty slot costs here.

use futures::TryFutureExt;
use openraft::rt::mpsc::{SendError, TryRecvError};
use openraft::rt::{Mpsc, MpscReceiver, MpscSender, MpscWeakSender, OptionalSend};
use tokio::sync::mpsc;

/// The queue of openraft's [`crate::adapter::runtime::Runtime`].
pub(crate) struct BoxedQueue;

pub(crate) struct Sender<T>(mpsc::Sender<Box<T>>);

pub(crate) struct WeakSender<T>(mpsc::WeakSender<Box<T>>);

pub(crate) struct Receiver<T>(mpsc::Receiver<Box<T>>);

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(self.0.clone())
    }
}

impl<T> Clone for WeakSender<T> {
    fn clone(&self) -> Self {
        WeakSender(self.0.clone())
    }
}

impl Mpsc for BoxedQueue {
    type Sender<T: OptionalSend> = Sender<T>;
    type Receiver<T: OptionalSend> = Receiver<T>;
    type WeakSender<T: OptionalSend> = WeakSender<T>;

    fn channel<T: OptionalSend>(messages_max: usize) -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = mpsc::channel(messages_max);
        (Sender(sender), Receiver(receiver))
    }
}

impl<T: OptionalSend> MpscSender<BoxedQueue, T> for Sender<T> {
    /// Cancellation safe: a message is either sent or dropped.
    fn send(&self, message: T) -> impl Future<Output = Result<(), SendError<T>>> + OptionalSend {
        self.0.send(Box::new(message)).map_err(|error| SendError(*error.0))
    }

    fn downgrade(&self) -> WeakSender<T> {
        WeakSender(self.0.downgrade())
    }
}

impl<T: OptionalSend> MpscReceiver<T> for Receiver<T> {
    /// Cancellation safe: a message that is taken is returned.
    async fn recv(&mut self) -> Option<T> {
        self.0.recv().await.map(|message| *message)
    }

    fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.0.try_recv().map(|message| *message).map_err(|error| match error {
            mpsc::error::TryRecvError::Empty => TryRecvError::Empty,
            mpsc::error::TryRecvError::Disconnected => TryRecvError::Disconnected,
        })
    }
}

impl<T: OptionalSend> MpscWeakSender<BoxedQueue, T> for WeakSender<T> {
    fn upgrade(&self) -> Option<Sender<T>> {
        self.0.upgrade().map(Sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    /// A message as large as openraft's.
    type Large = [u64; 64];

    #[tokio::test]
    async fn messages_come_in_order_and_a_full_queue_makes_senders_wait() {
        let (sender, mut receiver) = BoxedQueue::channel::<Large>(2);
        for n in 0..2 {
            sender.send([n; 64]).now_or_never().expect("there is room").unwrap();
        }
        assert!(sender.send([2; 64]).now_or_never().is_none(), "two are the limit");
        for n in 0..2 {
            assert_eq!(receiver.recv().await, Some([n; 64]));
        }
        assert!(matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
    }

    #[tokio::test]
    async fn a_weak_sender_does_not_keep_a_queue_open() {
        let (sender, mut receiver) = BoxedQueue::channel::<Large>(2);
        let weak = sender.downgrade();
        weak.upgrade().expect("it is open").send([7; 64]).await.unwrap();
        drop(sender);
        assert!(weak.upgrade().is_none());
        assert_eq!(receiver.recv().await, Some([7; 64]));
        assert_eq!(receiver.recv().await, None);
        assert!(matches!(receiver.try_recv(), Err(TryRecvError::Disconnected)));
    }

    #[tokio::test]
    async fn what_nobody_receives_is_given_back() {
        let (sender, receiver) = BoxedQueue::channel::<Large>(2);
        drop(receiver);
        assert_eq!(sender.send([9; 64]).await.unwrap_err().0, [9; 64]);
    }
}
