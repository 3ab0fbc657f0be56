use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets with an upper bound; one more takes what is above the last.
pub const BOUNDS: usize = 20;

/// The quantity that is measured; it decides the bounds, each twice the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bounds from 16 µs, a cached write, to 8.6 s, where a disk counts as hanging.
    #[default]
    Nanoseconds,
    /// Bounds from 1 to 524 288.
    Count,
}

impl Unit {
    fn first_bound_log2(self) -> u32 {
        match self {
            Unit::Nanoseconds => 14,
            Unit::Count => 0,
        }
    }

    /// The bucket that counts `value`: the first whose bound is not below it.
    fn bucket(self, value: u64) -> usize {
        let log2_rounded_up = u64::BITS - value.saturating_sub(1).leading_zeros();
        (log2_rounded_up.saturating_sub(self.first_bound_log2()) as usize).min(BOUNDS)
    }
}

/// A count of how often values of which size occurred. Recording is two relaxed additions: no lock, no
/// allocation.
#[derive(Debug, Default)]
pub struct Histogram {
    unit: Unit,
    buckets: [AtomicU64; BOUNDS + 1],
    sum: AtomicU64,
}

impl Histogram {
    pub fn new(unit: Unit) -> Histogram {
        Histogram { unit, ..Histogram::default() }
    }

    pub fn record(&self, value: u64) {
        self.buckets[self.unit.bucket(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub fn record_duration(&self, duration: Duration) {
        self.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn take(&self) -> Distribution {
        Distribution {
            unit: self.unit,
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A histogram's values at some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    pub unit: Unit,
    /// The number of values that fell into each bucket, not cumulative; the last is without bound.
    pub buckets: [u64; BOUNDS + 1],
    pub sum: u64,
}

impl Distribution {
    pub fn new(unit: Unit) -> Distribution {
        Distribution { unit, ..Distribution::default() }
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn mean(&self) -> u64 {
        self.sum / self.count().max(1)
    }

    /// Upper bounds, as many as there are buckets with one.
    pub fn bounds(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.unit.first_bound_log2();
        (0..BOUNDS as u32).map(move |nth| 1 << (first + nth))
    }

    /// A value that `fraction` of all values do not exceed: the bound of their bucket, so up to twice too
    /// much. `u64::MAX` when they are above all bounds; 0 when there are none.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let wanted = (self.count() as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (bound, count) in self.bounds().chain([u64::MAX]).zip(self.buckets) {
            seen += count;
            if count > 0 && seen >= wanted {
                return bound;
            }
        }
        0
    }

    /// Adds the values of another of the same unit.
    pub fn merge(&mut self, other: &Distribution) {
        assert!(self.unit == other.unit, "{:?} and {:?} do not add up", self.unit, other.unit);
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(unit: Unit, value: u64) -> usize {
        let histogram = Histogram::new(unit);
        histogram.record(value);
        histogram.take().buckets.iter().position(|&count| count == 1).unwrap()
    }

    #[test]
    fn a_value_falls_into_the_first_bucket_whose_bound_is_not_below_it() {
        for unit in [Unit::Nanoseconds, Unit::Count] {
            for (nth, bound) in Distribution::new(unit).bounds().enumerate() {
                assert_eq!(bucket_of(unit, bound), nth, "{unit:?}: {bound} is within its own bound");
                assert_eq!(bucket_of(unit, bound + 1), nth + 1, "{unit:?}: {bound} + 1");
            }
            assert_eq!(bucket_of(unit, 0), 0);
            assert_eq!(bucket_of(unit, u64::MAX), BOUNDS);
        }
    }

    #[test]
    fn distributions_add_up_and_tell_quantiles() {
        let (fast, slow) = (Histogram::new(Unit::Count), Histogram::new(Unit::Count));
        (0..90).for_each(|_| fast.record(4));
        (0..10).for_each(|_| slow.record(1000));
        let mut both = fast.take();
        both.merge(&slow.take());
        assert_eq!((both.count(), both.sum, both.mean()), (100, 10_360, 103));
        assert_eq!((both.quantile(0.9), both.quantile(0.91)), (4, 1024));
        assert_eq!(Distribution::default().quantile(0.5), 0);
    }
}
