use super::World;
use super::cluster::DISKS_PER_NODE;
use super::gateway::{What, Written};
use super::time::real;
use serde_json::{Value, json};
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;

/// The latencies below which the share of writes is shown: the source of the idea reports those under 200 ms.
const LIMITS_MS: [u64; 4] = [50, 100, 200, 500];
const BAR_CHARS: usize = 20;

/// The figures of a run, in the time of the real world.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub logs: usize,
    /// The latencies of entries: an object of at most 1 MiB is one, a larger one is several.
    pub chunks: Latencies,
    pub objects: Latencies,
    /// The bytes per second that were acknowledged while measuring.
    pub bytes_per_second: f64,
    /// Share of the time in which each disk was at work, node after node.
    pub utilization: Vec<f64>,
    pub device_bytes_per_payload_byte_and_replica: f64,
}

/// Latencies, sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies(Vec<Duration>);

impl Outcome {
    pub(super) fn new(
        world: World,
        written: Vec<Written>,
        measured: Range<Instant>,
        utilization: Vec<f64>,
        device_bytes: u64,
    ) -> Outcome {
        let latencies = |what| {
            let begun = written.iter().filter(|one| one.what == what && measured.contains(&one.began));
            let mut latencies: Vec<_> = begun.map(|one| real(one.ended - one.began)).collect();
            latencies.sort_unstable();
            Latencies(latencies)
        };
        let acknowledged =
            written.iter().filter(|one| one.what == What::Chunk && measured.contains(&one.ended));
        let bytes: u64 = acknowledged.map(|one| one.bytes).sum();
        Outcome {
            logs: world.logs,
            chunks: latencies(What::Chunk),
            objects: latencies(What::Object),
            bytes_per_second: bytes as f64 / world.measured.as_secs_f64(),
            utilization,
            device_bytes_per_payload_byte_and_replica: device_bytes as f64 / (3 * bytes) as f64,
        }
    }

    /// The share of time in which the disks with this number, one on each node, were at work.
    fn utilization_of(&self, disk: usize) -> f64 {
        let same = self.utilization.iter().skip(disk).step_by(DISKS_PER_NODE);
        same.sum::<f64>() / (self.utilization.len() / DISKS_PER_NODE) as f64
    }

    pub fn figures(&self) -> Value {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let disks = (0..DISKS_PER_NODE).map(|disk| rounded(self.utilization_of(disk)));
        json!({
            "logs": self.logs,
            "megabytes_per_second": (self.bytes_per_second / 1e6).round(),
            "writes": self.chunks.figures(),
            "objects": self.objects.figures(),
            "disk_utilization": disks.collect::<Vec<_>>(),
            "device_bytes_per_payload_byte_and_replica": rounded(self.device_bytes_per_payload_byte_and_replica),
        })
    }
}

impl Latencies {
    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn share_under(&self, limit: Duration) -> f64 {
        self.0.partition_point(|latency| *latency < limit) as f64 / self.0.len().max(1) as f64
    }

    pub fn percentile(&self, share: f64) -> Duration {
        let nth = (self.0.len() as f64 * share) as usize;
        self.0.get(nth.min(self.0.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    fn figures(&self) -> Value {
        let ms = |share| (self.percentile(share).as_secs_f64() * 1e4).round() / 10.0;
        let mut figures =
            json!({"count": self.count(), "p50_ms": ms(0.5), "p90_ms": ms(0.9), "p99_ms": ms(0.99)});
        for limit in LIMITS_MS {
            let share = self.share_under(Duration::from_millis(limit));
            figures[format!("under_{limit}_ms")] = json!((share * 1e4).round() / 1e4);
        }
        figures
    }
}

/// The latencies of runs under the same load, and then what their disks did.
pub fn print_comparison(title: &str, outcomes: &[Outcome]) {
    println!("\n{title}");
    print_latencies(outcomes);
    println!("\n  time at work, disk by disk (mean of the three nodes)");
    let heads = outcomes.iter().map(|outcome| format!("{:<w$}", logs(outcome), w = BAR_CHARS + 6));
    println!("           {}", heads.collect::<String>().trim_end());
    for disk in 0..DISKS_PER_NODE {
        let bars = outcomes.iter().map(|outcome| bar(outcome.utilization_of(disk)));
        println!("  disk {disk:>2}  {}", bars.collect::<String>());
    }
}

fn print_latencies(outcomes: &[Outcome]) {
    println!(
        "  {:<18} {:>6} {:>8} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8}",
        "", "MB/s", "count", "<50ms", "<100ms", "<200ms", "<500ms", "p50 ms", "p90 ms", "p99 ms"
    );
    for outcome in outcomes {
        let rate = format!("{:.0}", outcome.bytes_per_second / 1e6);
        print_row(&format!("{}, writes", logs(outcome)), &rate, &outcome.chunks);
        print_row(&format!("{}, objects", logs(outcome)), "", &outcome.objects);
    }
}

fn print_row(name: &str, rate: &str, latencies: &Latencies) {
    let shares = LIMITS_MS.map(|limit| {
        let share = latencies.share_under(Duration::from_millis(limit));
        format!(" {:>6.1}%", share * 100.0)
    });
    let percentiles =
        [0.5, 0.9, 0.99].map(|share| format!(" {:>8.1}", latencies.percentile(share).as_secs_f64() * 1e3));
    println!("  {name:<18} {rate:>6} {:>8}{}{}", latencies.count(), shares.concat(), percentiles.concat());
}

fn logs(outcome: &Outcome) -> String {
    format!("{} log{}", outcome.logs, if outcome.logs == 1 { "" } else { "s" })
}

fn bar(share: f64) -> String {
    let full = (share * BAR_CHARS as f64).round() as usize;
    format!("{}{} {:>3.0}% ", "#".repeat(full), ".".repeat(BAR_CHARS.saturating_sub(full)), share * 100.0)
}
