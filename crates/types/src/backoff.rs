//! Pauses between the tries of what failed.

use std::time::Duration;

/// Growing pauses: each is twice as long as the one before, up to the longest.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, next: first }
    }

    /// The pause before the next try; the one after it is longer.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// The pause that [`Backoff::pause`] will give.
    pub fn next_pause(&self) -> Duration {
        self.next
    }

    /// Notes progress: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Whether nothing has failed since the last progress.
    pub fn is_at_first(&self) -> bool {
        self.next == self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_progress() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(20), ms(100));
        assert!(backoff.is_at_first());
        assert_eq!([0; 5].map(|_| backoff.pause()), [20, 40, 80, 100, 100].map(ms));
        assert!(!backoff.is_at_first());
        backoff.reset();
        assert_eq!((backoff.next_pause(), backoff.pause()), (ms(20), ms(20)));
    }
}
