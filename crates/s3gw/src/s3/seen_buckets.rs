use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The time for which a bucket counts as there after OM said so. Only what happens to an upload into a bucket
/// that was just deleted depends on it: whether it is refused before its bytes travel, or at its commit.
const SEEN_FOR: Duration = Duration::from_secs(5);
/// The most buckets that are remembered, by names of 63 bytes at most. Past it all are forgotten, which is
/// cheap to mend.
const SEEN_MAX: usize = 1024;

/// Buckets that were there a moment ago, so that a stream of small uploads does not ask OM twice for each.
#[derive(Default)]
pub(super) struct SeenBuckets {
    when: Mutex<HashMap<String, Instant>>,
}

impl SeenBuckets {
    pub(super) fn has(&self, bucket: &str) -> bool {
        let when = self.when.lock().expect("no holder panics");
        when.get(bucket).is_some_and(|seen| seen.elapsed() < SEEN_FOR)
    }

    pub(super) fn see(&self, bucket: &str) {
        let mut when = self.when.lock().expect("no holder panics");
        if when.len() >= SEEN_MAX {
            when.clear();
        }
        when.insert(bucket.to_owned(), Instant::now());
    }

    pub(super) fn forget(&self, bucket: &str) {
        self.when.lock().expect("no holder panics").remove(bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn buckets_are_seen_for_a_moment_and_not_when_they_are_gone() {
        let seen = SeenBuckets::default();
        assert!(!seen.has("a"));
        seen.see("a");
        seen.see("b");
        seen.forget("b");
        assert!(seen.has("a") && !seen.has("b"));
        tokio::time::advance(SEEN_FOR).await;
        assert!(!seen.has("a"));
    }

    #[tokio::test]
    async fn names_are_bounded() {
        let seen = SeenBuckets::default();
        (0..=SEEN_MAX).for_each(|number| seen.see(&number.to_string()));
        assert_eq!(seen.when.lock().unwrap().len(), 1);
        assert!(seen.has(&SEEN_MAX.to_string()) && !seen.has("0"));
    }
}
