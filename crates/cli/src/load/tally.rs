//! Counts of what has been done, and of how long it took.

use serde_json::{Value, json};
use std::time::Duration;

/// Steps between a power of two and the next: a percentile is at most so much (3 %) too high.
const STEPS_LOG2: u32 = 5;

/// The counts of operations by the time they took, in microseconds, in steps that grow with it.
#[derive(Clone, Debug, Default)]
struct Latencies {
    counts: Vec<u64>,
    most: u64,
}

impl Latencies {
    fn note(&mut self, micros: u64) {
        let step = step(micros);
        if self.counts.len() <= step {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.most = self.most.max(micros);
    }

    fn add(&mut self, other: &Latencies) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.most = self.most.max(other.most);
    }

    fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The milliseconds that this share of operations does not exceed.
    fn percentile_ms(&self, share: f64) -> f64 {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return highest(step).min(self.most) as f64 / 1e3;
            }
        }
        0.0
    }
}

fn step(micros: u64) -> usize {
    // Each of the first steps is a microsecond.
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(STEPS_LOG2 + 1);
    ((u64::from(shift) << STEPS_LOG2) + (micros >> shift)) as usize
}

fn highest(step: usize) -> u64 {
    let shift = (step >> STEPS_LOG2).saturating_sub(1) as u32;
    let first = step as u64 - (u64::from(shift) << STEPS_LOG2);
    (first << shift) | ((1 << shift) - 1)
}

/// The operations of a stretch of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    latencies: Latencies,
    bytes: u64,
    pub(super) failed: u64,
    pub(super) wrong: u64,
}

impl Tally {
    pub(super) fn done(&mut self, took: Duration, bytes: u64) {
        self.latencies.note(took.as_micros() as u64);
        self.bytes += bytes;
    }

    pub(super) fn add(&mut self, other: &Tally) {
        self.latencies.add(&other.latencies);
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.wrong += other.wrong;
    }

    pub(super) const HEADING: &str = "    time s  operations     a second     MiB/s    p50 ms    p99 ms  p99.9 ms    max ms  failed  wrong\n";

    /// A line for people. `at`: the time since the run began, of which the line is about the last `over`.
    pub(super) fn line(&self, at: Duration, over: Duration) -> String {
        let Tally { latencies, bytes, failed, wrong } = self;
        let seconds = over.as_secs_f64();
        format!(
            "{:>10.1} {:>11} {:>12.1} {:>9.1} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {failed:>7} {wrong:>6}\n",
            at.as_secs_f64(),
            latencies.count(),
            latencies.count() as f64 / seconds,
            *bytes as f64 / seconds / f64::from(1 << 20),
            latencies.percentile_ms(0.5),
            latencies.percentile_ms(0.99),
            latencies.percentile_ms(0.999),
            latencies.most as f64 / 1e3,
        )
    }

    pub(super) fn json(&self, at: Duration, over: Duration, is_total: bool) -> Value {
        let Tally { latencies, bytes, failed, wrong } = self;
        json!({
            "total": is_total, "at_seconds": at.as_secs_f64(), "seconds": over.as_secs_f64(), "operations": latencies.count(),
            "per_second": latencies.count() as f64 / over.as_secs_f64(), "bytes": bytes,
            "p50_ms": latencies.percentile_ms(0.5), "p99_ms": latencies.percentile_ms(0.99),
            "p999_ms": latencies.percentile_ms(0.999), "max_ms": latencies.most as f64 / 1e3, "failed": failed, "wrong": wrong,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_follows_the_one_before_and_is_at_most_a_32nd_wide() {
        let mut before = None;
        for micros in (0..200_000).chain([u64::MAX >> 20, u64::MAX]) {
            let step = step(micros);
            let top = highest(step);
            assert!(micros <= top && top - micros <= micros / 32, "{micros}: step {step} to {top}");
            if let Some((at, last)) = before.replace((step, micros)) {
                assert!(step == at || step > at && (micros > last + 1 || step == at + 1), "{micros}");
            }
        }
    }

    #[test]
    fn percentiles_are_of_all_that_was_added() {
        let (mut fast, mut slow) = (Tally::default(), Tally::default());
        (0..990).for_each(|_| fast.done(Duration::from_micros(20), 1));
        (0..10).for_each(|_| slow.done(Duration::from_millis(80), 1));
        fast.add(&slow);
        assert_eq!(fast.latencies.percentile_ms(0.5), 0.02);
        assert_eq!(fast.latencies.percentile_ms(0.99), 0.02);
        assert_eq!(fast.latencies.percentile_ms(0.999), 80.0);
        let second = Duration::from_secs(1);
        assert_eq!(fast.json(second, second, true)["operations"], 1000);
    }
}
