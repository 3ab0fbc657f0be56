use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The time whose worth of bytes may go at once after a pause; one piece always may.
const BURST: Duration = Duration::from_millis(100);

/// Lets bytes through at a rate, in the order of the calls. All transfers that are to keep to one rate share
/// one throttle.
pub struct Throttle {
    bytes_per_second: u64,
    /// The moment when what was let through so far has had its time.
    busy_until: Mutex<Option<Instant>>,
}

impl Throttle {
    pub fn new(bytes_per_second: u64) -> Throttle {
        Throttle { bytes_per_second: bytes_per_second.max(1), busy_until: Mutex::new(None) }
    }

    /// Waits until `bytes` may go. A call that is dropped while it waits has used its share for nothing.
    pub async fn take(&self, bytes: usize) {
        let may_go = self.reserve(bytes, Instant::now());
        tokio::time::sleep_until(may_go).await;
    }

    fn reserve(&self, bytes: usize, now: Instant) -> Instant {
        let nanos = u128::from(bytes as u64) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut busy_until = self.busy_until.lock().expect("no holder panics");
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let start = busy_until.map_or(earliest, |busy| busy.max(earliest));
        *busy_until = Some(start + cost);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_go_at_the_rate_whoever_sends_them() {
        let throttle = Throttle::new(1_000_000);
        let begin = Instant::now();
        let send = async || {
            for _ in 0..20 {
                throttle.take(100_000).await;
            }
        };
        tokio::join!(send(), send());
        let took = begin.elapsed();
        // 4 MB at 1 MB/s; the last piece is on its way when it returns, and the burst went before.
        assert!((Duration::from_millis(3_700)..=Duration::from_millis(4_000)).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_not_saved_up() {
        let throttle = Throttle::new(1_000_000);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begin = Instant::now();
        for _ in 0..10 {
            throttle.take(100_000).await;
        }
        assert!(begin.elapsed() >= Duration::from_millis(800), "{:?}", begin.elapsed());
    }
}
