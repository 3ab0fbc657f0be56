use std::time::Duration;
use tokio::time::Instant;

/// The time that a client may still let us wait. It begins with `idle_max`; time in which it is waited for is
/// taken off, and each byte that it sends or takes gives some back.
#[derive(Debug)]
pub(crate) struct Pace {
    idle_max: Duration,
    bytes_per_second_min: u64,
    left: Duration,
    waiting_since: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(idle_max: Duration, bytes_per_second_min: u64) -> Pace {
        Pace { idle_max, bytes_per_second_min, left: idle_max, waiting_since: None }
    }

    /// Notes that the client is waited for from now on, if it was not.
    pub(crate) fn wait(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// Notes that the client sent or took so many bytes, and is not waited for now.
    pub(crate) fn moved(&mut self, bytes: usize, now: Instant) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(now.saturating_duration_since(since));
        }
        let earned = match self.bytes_per_second_min {
            0 => self.idle_max,
            rate => Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / rate),
        };
        self.left = self.left.saturating_add(earned).min(self.idle_max);
    }

    /// The moment when the client's time is over, if it does nothing until then; `None` while it is not
    /// waited for.
    pub(crate) fn over_at(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + self.left)
    }

    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.waiting_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE_MAX: Duration = Duration::from_secs(60);

    /// The seconds after which a client is let go that moves `bytes` after each `pause`; `None`: not within
    /// an hour.
    fn let_go_after(bytes: usize, pause: Duration, bytes_per_second_min: u64) -> Option<u64> {
        let begin = Instant::now();
        let mut now = begin;
        let mut pace = Pace::new(IDLE_MAX, bytes_per_second_min);
        while now < begin + Duration::from_secs(3600) {
            pace.wait(now);
            let over_at = pace.over_at().unwrap();
            if over_at <= now + pause {
                return Some((over_at - begin).as_secs());
            }
            now += pause;
            pace.moved(bytes, now);
            assert_eq!(pace.over_at(), None);
        }
        None
    }

    #[test]
    fn who_stands_still_or_is_slower_than_the_least_rate_is_let_go() {
        let second = Duration::from_secs(1);
        assert_eq!(let_go_after(0, 90 * second, 1024), Some(60));
        assert_eq!(let_go_after(1, second, 1024), Some(60));
        assert_eq!(let_go_after(512, second, 1024), Some(119), "half the rate: twice the time");
        assert_eq!(let_go_after(1025, second, 1024), None);
        assert_eq!(let_go_after(60 << 10, 59 * second, 1024), None, "in large pieces");
        assert_eq!(let_go_after(1, 59 * second, 0), None, "no rate: only standing still counts");
        assert_eq!(let_go_after(1, 61 * second, 0), Some(60));
    }

    #[test]
    fn nobody_earns_more_than_he_began_with() {
        let mut pace = Pace::new(IDLE_MAX, 1024);
        let now = Instant::now();
        pace.moved(1 << 30, now);
        pace.wait(now);
        assert_eq!(pace.over_at(), Some(now + IDLE_MAX));
    }
}
