//! A replicated key-value store under load: three `kvnode` processes, 24 groups, 16-byte keys and values, 90
//! % writes and 10 % linearizable reads, every write synced on a majority. Ends with one line of JSON. `./dev
//! bench kv [--quick] [--only=PART OF A NAME] [--nodes="further arguments of kvnode"] [--perf]`

use flotilla_benches::kvnodes::{KvCluster, KvLoad, Measured, Windows, run};
use serde_json::{Value, json};
use std::time::Duration;

const GROUPS: u32 = 24;
const WRITE_SHARE: u64 = 90;

struct Case {
    outstanding: usize,
    batching: bool,
    pipelining: bool,
    merging: bool,
}

/// The rate that the project wants to reach.
const RATE_AT_256_MIN: f64 = 13_000.0;
const CPU_MS_SATURATED_MAX: f64 = 0.03;

impl Case {
    fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for outstanding in [256, 16_384] {
            for batching in [true, false] {
                for pipelining in [true, false] {
                    cases.push(Case { outstanding, batching, pipelining, merging: true });
                }
            }
            // This case shows what merging is worth: neither client nor server puts requests together.
            cases.push(Case { outstanding, batching: false, pipelining: true, merging: false });
        }
        cases
    }

    fn name(&self) -> String {
        let on = |name: &str, is_on: bool| format!("{}{name}", if is_on { "" } else { "no " });
        format!(
            "{} outstanding, {}, {}{}",
            self.outstanding,
            on("client batching", self.batching),
            on("pipelining", self.pipelining),
            if self.merging { "" } else { ", no merging" }
        )
    }

    /// The further arguments of nodes. Without pipelining a follower gets the next message when it has
    /// answered the last; without merging each request is a proposal, and as many of a group may be under way
    /// as are asked.
    fn node_args(&self) -> Vec<String> {
        let mut args = Vec::new();
        if !self.pipelining {
            args.push("--window-bytes=1".to_owned());
        }
        if !self.merging {
            args.extend(["--merge=1".to_owned(), format!("--rounds={}", self.outstanding)]);
        }
        args
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name));
    let only = value("--only=").unwrap_or_default();
    let node_args: Vec<String> =
        value("--nodes=").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    let known = |it: &&String| *it == "--quick" || it.starts_with("--only=") || it.starts_with("--nodes=");
    if let Some(unknown) = arguments.iter().find(|argument| !known(argument)) {
        eprintln!("unknown argument {unknown}");
        std::process::exit(2);
    }
    let (rounds, windows) = if quick {
        (1, Windows { warm_up: Duration::from_secs(1), measured: Duration::from_secs(3) })
    } else {
        (3, Windows { warm_up: Duration::from_secs(2), measured: Duration::from_secs(5) })
    };
    let mut cases = Case::all();
    cases.retain(|case| case.name().contains(only));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let mut seen: Vec<Vec<Measured>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (case, seen) in cases.iter().zip(&mut seen) {
            seen.push(runtime.block_on(measure(case, &node_args, windows)));
        }
    }
    println!(
        "{GROUPS} groups, 3 nodes, {WRITE_SHARE} % writes; medians of {rounds} rounds of {:?}; the client runs on the same machine\n\
         {:<62} {:>9} {:>8} {:>8} {:>12} {:>8} {:>8} {:>7}",
        windows.measured, "", "op/s", "p50 ms", "p99 ms", "CPU ms/op", "cores", "syncs/op", "failed"
    );
    let figures: Vec<Value> = cases.iter().zip(&seen).map(|(case, seen)| report(case, seen)).collect();
    println!("{}", json!({"bench": "kv", "quick": quick, "figures": figures}));
}

async fn measure(case: &Case, more: &[String], windows: Windows) -> Measured {
    let args: Vec<String> = case.node_args().into_iter().chain(more.iter().cloned()).collect();
    let cluster = KvCluster::start(GROUPS, &args).await;
    let load = KvLoad { outstanding: case.outstanding, batching: case.batching, write_share: WRITE_SHARE };
    run(&cluster, load, windows).await
}

fn report(case: &Case, rounds: &[Measured]) -> Value {
    let median = |figure: &dyn Fn(&Measured) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let (rate, cpu) = (median(&Measured::per_second), median(&Measured::cpu_ms_per_operation));
    let (p50, p99) = (median(&|it| it.percentile_ms(0.5)), median(&|it| it.percentile_ms(0.99)));
    let (cores, syncs) = (median(&Measured::server_cores), median(&Measured::syncs_per_operation));
    let failed: u64 = rounds.iter().map(|it| it.failed).sum();
    println!(
        "{:<62} {rate:>9.0} {p50:>8.2} {p99:>8.2} {cpu:>12.4} {cores:>8.2} {syncs:>8.3} {failed:>7}",
        case.name()
    );
    let goal = match case.outstanding {
        256 => json!({"operations_per_second_min": RATE_AT_256_MIN, "reached": rate >= RATE_AT_256_MIN}),
        _ => {
            json!({"server_cpu_ms_per_operation_max": CPU_MS_SATURATED_MAX, "reached": cpu <= CPU_MS_SATURATED_MAX})
        }
    };
    json!({
        "outstanding": case.outstanding,
        "client_batching": case.batching,
        "pipelining": case.pipelining,
        "merging": case.merging,
        "operations_per_second": rate.round(),
        "p50_ms": p50,
        "p99_ms": p99,
        "server_cpu_ms_per_operation": cpu,
        "server_cores": cores,
        "syncs_per_operation": syncs,
        "failed": failed,
        "goal": goal,
    })
}
