use std::sync::{Mutex, PoisonError};
use tokio::time::Instant;

/// The time since which a leader waits for the first answer of its term.
#[derive(Default)]
pub(crate) struct FirstAnswer {
    waiting: Mutex<Option<(u64, Instant)>>,
}

impl FirstAnswer {
    /// The moment since which the leader of this term waits: that of the first such call in the term.
    pub(crate) fn awaited_since(&self, term: u64) -> Instant {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match *waiting {
            Some((known, since)) if known == term => since,
            _ => waiting.insert((term, Instant::now())).1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn each_term_waits_anew() {
        let (answer, began) = (FirstAnswer::default(), Instant::now());
        assert_eq!(answer.awaited_since(3), began);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(answer.awaited_since(3), began);
        assert_eq!(answer.awaited_since(5), began + Duration::from_secs(5));
    }
}
