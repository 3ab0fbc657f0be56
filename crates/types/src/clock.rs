use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

/// Wall-clock time as the core sees it: milliseconds since the Unix epoch, from wherever the process was
/// given it. Used for what people read (modification times); never for deciding an order.
pub trait Clock: Send + Sync + 'static {
    fn now_ms(&self) -> u64;
}

impl fmt::Debug for dyn Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now_ms())
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one adapter through which wall-clock time enters
    fn now_ms(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).expect("a date before the year 584556019"))
    }
}

/// A clock that stands still until told otherwise.
#[derive(Default, Debug)]
pub struct ManualClock(Mutex<u64>);

impl ManualClock {
    pub fn at_ms(now_ms: u64) -> Self {
        Self(Mutex::new(now_ms))
    }

    pub fn advance(&self, by: Duration) {
        let by_ms = u64::try_from(by.as_millis()).expect("an advance below 584 million years");
        *self.0.lock().expect("no holder of the clock panics") += by_ms;
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        *self.0.lock().expect("no holder of the clock panics")
    }
}
