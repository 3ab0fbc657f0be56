//! Counts of what was read: by the task that was asked, in one go, or after it had waited for another thread,
//! for memory or for the log to be applied.

use metrics::Counter;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

#[derive(Default)]
pub(crate) struct ReadCounts {
    in_place: Counter,
    waited: Counter,
}

impl ReadCounts {
    /// Reads a message, and counts it if there is one.
    pub(super) async fn count<T, E>(
        &self,
        reading: impl Future<Output = Result<Option<T>, E>>,
    ) -> Result<Option<T>, E> {
        let mut reading = pin!(reading);
        // A message that is there when it is first asked for has gone through no other hands.
        let (read, counter) = match futures::poll!(&mut reading) {
            Poll::Ready(read) => (read, &self.in_place),
            Poll::Pending => (reading.await, &self.waited),
        };
        if let Ok(Some(_)) = &read {
            counter.count();
        }
        read
    }

    pub(crate) fn in_place(&self) -> u64 {
        self.in_place.get()
    }

    pub(crate) fn waited(&self) -> u64 {
        self.waited.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_yields_has_waited_and_what_gives_nothing_is_not_counted() {
        let counts = ReadCounts::default();
        let yields = async {
            tokio::task::yield_now().await;
            Ok::<_, ()>(Some(1))
        };
        counts.count(yields).await.unwrap();
        assert_eq!((counts.in_place(), counts.waited()), (0, 1));
        counts.count(async { Ok::<_, ()>(Some(2)) }).await.unwrap();
        counts.count(async { Ok::<Option<()>, ()>(None) }).await.unwrap();
        counts.count(async { Err::<Option<()>, _>(()) }).await.unwrap_err();
        assert_eq!((counts.in_place(), counts.waited()), (1, 1));
    }
}
