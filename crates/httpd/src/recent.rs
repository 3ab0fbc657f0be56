use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The answer to a question that anybody may ask, and that costs something: it is asked once at a time, and
/// its answer is good for a while, for all who ask.
pub struct Recent<T> {
    good_for: Duration,
    /// The last answer, and its time. The lock is held while the question is asked: whoever asks meanwhile
    /// takes the same answer.
    last: Arc<Mutex<Option<(Instant, T)>>>,
}

impl<T: Clone + Send + 'static> Recent<T> {
    pub fn new(good_for: Duration) -> Recent<T> {
        Recent { good_for, last: Arc::default() }
    }

    /// Returns an answer that is no older than it may be; `None`: it could not be asked for.
    pub async fn get<A>(&self, ask: impl FnOnce() -> A) -> Option<T>
    where
        A: Future<Output = T> + Send + 'static,
    {
        let mut last = self.last.clone().lock_owned().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < self.good_for
        {
            return Some(answer.clone());
        }
        // The asking takes the lock with it: a caller who leaves meanwhile has nobody ask again.
        let asked = ask();
        let asking = tokio::spawn(async move {
            let answer = asked.await;
            *last = Some((Instant::now(), answer.clone()));
            answer
        });
        asking.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::sync::atomic::{AtomicU32, Ordering};

    const GOOD_FOR: Duration = Duration::from_secs(1);

    /// Each of those who ask is answered, and whoever leaves has cost nothing.
    #[tokio::test(start_paused = true)]
    async fn a_question_is_asked_once_in_its_time_whoever_asks_and_leaves() {
        let (recent, asked) = (Recent::new(GOOD_FOR), Arc::new(AtomicU32::new(0)));
        let get = || {
            recent.get(|| {
                let asked = asked.clone();
                async move {
                    let number = asked.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    number
                }
            })
        };
        for _ in 0..50 {
            let leaves = tokio::time::timeout(Duration::from_millis(1), get()).await;
            leaves.expect_err("it takes longer to ask");
        }
        let answers = join_all((0..256).map(|_| get())).await;
        assert_eq!(answers, [Some(0); 256]);
        tokio::time::advance(GOOD_FOR).await;
        assert_eq!(get().await, Some(1));
        assert_eq!(get().await, Some(1));
    }
}
