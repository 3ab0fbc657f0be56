//! What openraft needs of the crate `base2histogram`, which this one replaces (`[patch.crates-io]` in the
//! workspace's manifest).
//!
//! openraft keeps seventeen histograms for each group, for statistics that only its feature `runtime-stats`
//! can show; we do not switch that on, and measure groups ourselves (`crates/metrics`). The real crate makes
//! 27 MiB of tables when the first histogram of a process is made, and two KiB of buckets for each: more than
//! all else that an idle process of ours holds. These count what is recorded, and nothing more.

use std::fmt;
use std::marker::PhantomData;

/// How many values were recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    samples: u64,
    slots: PhantomData<T>,
}

impl<T> Histogram<T> {
    #[allow(clippy::new_without_default)] // the crate that this replaces has none either
    pub fn new() -> Histogram<T> {
        Histogram { samples: 0, slots: PhantomData }
    }

    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    pub fn record_n(&mut self, _value: u64, samples: u64) {
        self.samples += samples;
    }

    /// The number of samples; no percentile is known.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats { samples: self.samples, ..PercentileStats::default() }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples", self.samples)
    }
}

/// How many samples each of some histograms has.
#[derive(Debug, Default)]
pub struct AsciiChart {
    lines: Vec<(String, u64)>,
}

impl AsciiChart {
    pub fn new() -> AsciiChart {
        AsciiChart::default()
    }

    #[must_use]
    #[allow(clippy::should_implement_trait)] // its name there
    pub fn add(mut self, name: &str, histogram: Histogram) -> AsciiChart {
        self.lines.push((name.to_owned(), histogram.samples));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|(name, samples)| writeln!(f, "{name}: {samples} samples"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted() {
        let mut histogram = Histogram::<()>::new();
        histogram.record(7);
        histogram.record_n(8, 3);
        assert_eq!(histogram.percentile_stats().to_string(), "4 samples");
        assert_eq!(AsciiChart::new().add("all", histogram).to_string(), "all: 4 samples\n");
    }
}
