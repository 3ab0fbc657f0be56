use super::{Case, Rounds};
use serde_json::{Value, json};
use std::time::Duration;

/// The figures that the project wants to reach; each goal is printed with its figure at the end.
const OF_RAW_AT_1_MIB_MIN: f64 = 0.9;
const OF_PEERS_MIN: f64 = 2.0;
const DEVICE_BYTES_AT_1_MIB_MAX: f64 = 1.02;

const OURS: &str = "raftlog";
const RAW: &str = "raw";
const PEERS: [&str; 2] = ["raft-engine", "rocksdb"];

/// Prints a case's table, and answers its figures.
pub fn report(case: Case, rounds: &[Rounds]) -> Value {
    let (ours, raw) = (find(rounds, OURS), find(rounds, RAW));
    println!(
        "\n{} logs x {}, window {}\n{:<16} {:>9} {:>8} {:>7} {:>7} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}",
        case.logs,
        case.payload_name(),
        case.window,
        "",
        "append/s",
        "MiB/s",
        "of raw",
        "ours x",
        "p50 ms",
        "p99 ms",
        "syncs",
        "device",
        "CPU us",
        "mem MiB",
    );
    let mut figures = Vec::new();
    for rounds in rounds {
        println!(
            "{:<16} {:>9.0} {:>8.1} {:>7.2} {:>7.2} {:>9.2} {:>9.2} {:>8.3} {:>8.3} {:>8.1} {:>8.1}",
            rounds.name,
            rounds.rate(),
            rounds.rate() * case.payload_bytes as f64 / f64::from(1 << 20),
            ratio(Some(rounds), raw),
            ratio(ours, Some(rounds)),
            rounds.percentile(0.50).as_secs_f64() * 1e3,
            rounds.percentile(0.99).as_secs_f64() * 1e3,
            rounds.syncs as f64 / rounds.appends as f64,
            rounds.device_bytes_per_payload_byte(),
            rounds.cpu_us_per_append(),
            rounds.memory_bytes_peak as f64 / f64::from(1 << 20),
        );
        figures.push(rounds.figures(ours, raw));
    }
    json!({
        "case": case.name(),
        "logs": case.logs,
        "payload_bytes": case.payload_bytes,
        "window": case.window,
        "contenders": figures,
        "goals": ours.map(|ours| goals(case, ours, raw, rounds)),
    })
}

fn find<'a>(rounds: &'a [Rounds], name: &str) -> Option<&'a Rounds> {
    rounds.iter().find(|rounds| rounds.name == name)
}

/// The median ratio of rates in the same round, so that what the machine did meanwhile is the same for both.
/// Not a number when one of them does not take part.
fn ratio(of: Option<&Rounds>, to: Option<&Rounds>) -> f64 {
    let (Some(of), Some(to)) = (of, to) else { return f64::NAN };
    median(of.appends_per_second.iter().zip(&to.appends_per_second).map(|(of, to)| of / to).collect())
}

impl Rounds {
    fn rate(&self) -> f64 {
        median(self.appends_per_second.clone())
    }

    fn percentile(&self, share: f64) -> Duration {
        let nth = (self.latencies.len() as f64 * share) as usize;
        self.latencies.get(nth.min(self.latencies.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    fn device_bytes_per_payload_byte(&self) -> f64 {
        self.device_bytes as f64 / (self.appends * self.case.payload_bytes as u64) as f64
    }

    fn cpu_us_per_append(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.appends as f64
    }

    fn figures(&self, ours: Option<&Rounds>, raw: Option<&Rounds>) -> Value {
        json!({
            "name": self.name,
            "appends_per_second": self.rate().round(),
            "of_raw": rounded(ratio(Some(self), raw)),
            "ours_to_this": rounded(ratio(ours, Some(self))),
            "p50_us": self.percentile(0.50).as_micros() as u64,
            "p99_us": self.percentile(0.99).as_micros() as u64,
            "syncs_per_append": rounded(self.syncs as f64 / self.appends as f64),
            "device_bytes_per_payload_byte": rounded(self.device_bytes_per_payload_byte()),
            "cpu_us_per_append": rounded(self.cpu_us_per_append()),
            "memory_bytes_peak": self.memory_bytes_peak,
        })
    }
}

/// The goals that are about this case: (what, figure, met).
fn goals(case: Case, ours: &Rounds, raw: Option<&Rounds>, rounds: &[Rounds]) -> Vec<Value> {
    let goal = |what: String, figure: f64, met: bool| {
        println!("  goal: {what}: {figure:.3}: {}", if met { "met" } else { "MISSED" });
        json!({"goal": what, "figure": rounded(figure), "met": met})
    };
    let mut goals = Vec::new();
    if case.payload_bytes == 1 << 20 {
        let of_raw = ratio(Some(ours), raw);
        goals.push(goal(
            format!("at least {OF_RAW_AT_1_MIB_MIN} of the raw rate"),
            of_raw,
            of_raw >= OF_RAW_AT_1_MIB_MIN,
        ));
        let device = ours.device_bytes_per_payload_byte();
        goals.push(goal(
            format!("at most {DEVICE_BYTES_AT_1_MIB_MAX} bytes to the device per payload byte"),
            device,
            device <= DEVICE_BYTES_AT_1_MIB_MAX,
        ));
    }
    if case.payload_bytes == 4 << 10 && case.logs == 64 {
        for peer in rounds.iter().filter(|rounds| PEERS.contains(&rounds.name.as_str())) {
            let ratio = ratio(Some(ours), Some(peer));
            goals.push(goal(
                format!("at least {OF_PEERS_MIN} times {}", peer.name),
                ratio,
                ratio >= OF_PEERS_MIN,
            ));
        }
    }
    goals
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
