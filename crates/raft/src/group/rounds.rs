//! Questions that are shared: one is under way at a time, and all who come meanwhile share the next one.

use crate::ReadIndexError;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use std::sync::{Arc, Mutex};
use types::LogIndex;

/// The rounds in which a replica that does not lead asks its leader: one call for all of its readers that
/// wait.
#[derive(Default)]
pub(crate) struct LeaderAsked {
    pub by_index: Rounds<Result<LogIndex, ReadIndexError>>,
    pub by_lease: Rounds<Result<LogIndex, ReadIndexError>>,
}

type Round<T> = BoxFuture<'static, T>;

/// The rounds of one question, whose answer holds for whoever came before it was asked.
pub(crate) struct Rounds<T: Clone> {
    inner: Arc<Inner<T>>,
}

struct Inner<T: Clone> {
    /// The lock that is held from a question to its answer.
    turn: tokio::sync::Mutex<()>,
    /// The round that has not been asked yet. Those who are in it hold it, and it ends when all of them have
    /// gone.
    next: Mutex<Option<WeakShared<Round<T>>>>,
}

impl<T: Clone> Default for Rounds<T> {
    fn default() -> Rounds<T> {
        Rounds { inner: Arc::new(Inner { turn: Default::default(), next: Mutex::default() }) }
    }
}

impl<T: Clone + Send + Sync + 'static> Rounds<T> {
    /// The answer to a question that is asked after this call, by `ask` or by the `ask` of whoever joined
    /// first. Whoever does not wait for it any more holds up nobody else.
    pub(crate) fn join(&self, ask: impl Future<Output = T> + Send + 'static) -> Shared<Round<T>> {
        let mut next = self.inner.next.lock().expect("no holder panics");
        if let Some(round) = next.as_ref().and_then(WeakShared::upgrade) {
            return round;
        }
        let inner = self.inner.clone();
        let round = async move {
            let _turn = inner.turn.lock().await;
            // Whoever comes from here on comes after the question.
            inner.next.lock().expect("no holder panics").take();
            ask.await
        };
        let round = round.boxed().shared();
        *next = round.downgrade();
        round
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    use tokio::time::sleep;

    /// Somebody who joins, to be answered with the number of the question, which takes 10 ms.
    fn join(rounds: &Arc<Rounds<u64>>, asked: &Arc<AtomicU64>) -> tokio::task::JoinHandle<u64> {
        let (rounds, asked) = (rounds.clone(), asked.clone());
        tokio::spawn(async move {
            let ask = async move {
                let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
                sleep(Duration::from_millis(10)).await;
                number
            };
            rounds.join(ask).await
        })
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_come_while_a_question_is_under_way_share_the_next_one() {
        let (rounds, asked) = (Arc::<Rounds<u64>>::default(), Arc::<AtomicU64>::default());
        let first = join(&rounds, &asked);
        sleep(Duration::from_millis(1)).await;
        let others: Vec<_> = (0..5).map(|_| join(&rounds, &asked)).collect();
        assert_eq!(first.await.unwrap(), 1);
        for other in others {
            assert_eq!(other.await.unwrap(), 2, "the first question was asked before it came");
        }
        assert_eq!(join(&rounds, &asked).await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_goes_on_without_those_who_have_gone_and_ends_with_the_last() {
        let (rounds, asked) = (Arc::<Rounds<u64>>::default(), Arc::<AtomicU64>::default());
        let first = join(&rounds, &asked);
        sleep(Duration::from_millis(1)).await;
        let [gone, stays] = [(); 2].map(|()| join(&rounds, &asked));
        sleep(Duration::from_millis(1)).await;
        gone.abort();
        first.abort();
        assert_eq!(stays.await.unwrap(), 2, "it does not wait for a question that nobody waits for");

        // Nobody of the next round stays, and nothing of it is asked.
        let first = join(&rounds, &asked);
        sleep(Duration::from_millis(1)).await;
        let gone = join(&rounds, &asked);
        sleep(Duration::from_millis(1)).await;
        gone.abort();
        assert_eq!(first.await.unwrap(), 3);
        assert_eq!(join(&rounds, &asked).await.unwrap(), 4);
    }
}
