use super::head::Malformed;
use crate::limits::RESETS_PER_SECOND_MAX;
use std::time::Duration;
use tokio::time::Instant;

const PERIOD: Duration = Duration::from_secs(1);

/// The calls of a connection that were given up while they were under way.
pub(super) struct Resets {
    period_begun: Instant,
    in_period: u32,
}

impl Resets {
    pub(super) fn since(now: Instant) -> Resets {
        Resets { period_begun: now, in_period: 0 }
    }

    /// Counts one more; an error when there are more in a second than may be.
    pub(super) fn count(&mut self, now: Instant) -> Result<(), Malformed> {
        if now.saturating_duration_since(self.period_begun) >= PERIOD {
            *self = Resets::since(now);
        }
        self.in_period += 1;
        if self.in_period > RESETS_PER_SECOND_MAX { Err(Malformed::Resets) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_may_be_in_each_second_are_let_pass() {
        let mut now = Instant::now();
        let mut resets = Resets::since(now);
        for _ in 0..3 {
            for _ in 0..RESETS_PER_SECOND_MAX {
                assert_eq!(resets.count(now), Ok(()));
            }
            now += PERIOD;
        }
        for _ in 0..RESETS_PER_SECOND_MAX {
            assert_eq!(resets.count(now), Ok(()));
        }
        assert_eq!(resets.count(now + PERIOD / 2), Err(Malformed::Resets));
    }
}
