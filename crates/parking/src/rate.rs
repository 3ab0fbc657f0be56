use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(60);
/// The least time between two samples, so that there are few of them.
const SAMPLES_EVERY: Duration = Duration::from_secs(1);

/// The growth of a total, in the last minute.
#[derive(Debug, Default)]
pub struct Rate {
    /// Totals, and when they were those: the first is the last that is a minute old, if one is.
    samples: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// Takes the total as it is now.
    pub fn note(&mut self, now: Instant, total: u64) {
        if self.samples.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= SAMPLES_EVERY) {
            self.samples.push_back((now, total));
        }
        let is_old = |at: Instant| now.saturating_duration_since(at) >= WINDOW;
        while self.samples.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.samples.pop_front();
        }
    }

    /// The growth for each second, as of the last sample.
    pub fn per_second(&self) -> u64 {
        let (Some((first, before)), Some((last, total))) = (self.samples.front(), self.samples.back()) else {
            return 0;
        };
        let millis = last.saturating_duration_since(*first).as_millis().max(1);
        u64::try_from(u128::from(total.saturating_sub(*before)) * 1_000 / millis).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn growth_is_that_of_the_last_minute() {
        let (mut rate, begun, mut total) = (Rate::default(), Instant::now(), 0);
        assert_eq!(rate.per_second(), 0);
        for second in 0..200 {
            rate.note(begun + Duration::from_secs(second), total);
            total += if second < 100 { 10 } else { 0 };
            let told = rate.per_second();
            match second {
                1..=100 => assert_eq!(told, 10, "after {second} s"),
                101..160 => assert!(told < 10, "{told} after {second} s"),
                _ => assert_eq!(told, 0, "after {second} s"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_tells_often_fills_no_memory() {
        let (mut rate, begun) = (Rate::default(), Instant::now());
        for millis in 0..200_000 {
            rate.note(begun + Duration::from_millis(millis), millis);
        }
        assert!(rate.samples.len() <= 62, "{}", rate.samples.len());
        assert_eq!(rate.per_second(), 1_000);
    }
}
