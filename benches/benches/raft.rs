//! Proposals replicated by three `kvnode` processes, every one synced on a majority before it is
//! acknowledged: 1, 8 and 24 groups, 4 KiB and 1 MiB. Beside it three processes that only write and sync the
//! same bytes. Ends with one line of JSON. `./dev bench raft [--quick] [--nodes="further arguments of
//! kvnode"]`

use bytes::Bytes;
use flotilla_benches::kvnodes::{KvCluster, Measured, PutLoad, Windows, raw_processes, raw_writer, run};
use serde_json::{Value, json};
use std::time::Duration;

struct Case {
    name: &'static str,
    payload_bytes: usize,
    /// The number of proposals under way, all groups together.
    outstanding: usize,
}

const CASES: [Case; 2] = [
    Case { name: "4KiB", payload_bytes: 4 << 10, outstanding: 256 },
    Case { name: "1MiB", payload_bytes: 1 << 20, outstanding: 24 },
];
const GROUPS: [u32; 3] = [1, 8, 24];

/// One round of ours and of raw.
struct Round {
    ours: Measured,
    raw_per_second: f64,
}

fn main() {
    if raw_writer() {
        return;
    }
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let node_args =
        arguments.iter().find_map(|argument| argument.strip_prefix("--nodes=")).unwrap_or_default();
    let node_args: Vec<String> = node_args.split_whitespace().map(str::to_owned).collect();
    let known = |argument: &&String| *argument == "--quick" || argument.starts_with("--nodes=");
    if let Some(unknown) = arguments.iter().find(|argument| !known(argument)) {
        eprintln!("unknown argument {unknown}");
        std::process::exit(2);
    }
    let (rounds, windows) = if quick {
        (1, Windows { warm_up: Duration::from_secs(1), measured: Duration::from_secs(3) })
    } else {
        (3, Windows { warm_up: Duration::from_secs(1), measured: Duration::from_secs(5) })
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let mut figures = Vec::new();
    println!(
        "3 nodes, medians of {rounds} rounds of {:?}; the client runs on the same machine\n\
         {:<8} {:>7} {:>12} {:>9} {:>9} {:>7} {:>8} {:>8} {:>10} {:>7} {:>9}",
        windows.measured,
        "payload",
        "groups",
        "proposals/s",
        "MiB/s",
        "raw/s",
        "of raw",
        "p50 ms",
        "p99 ms",
        "CPU ms/op",
        "cores",
        "syncs/op"
    );
    for case in &CASES {
        for groups in GROUPS {
            let seen: Vec<Round> =
                (0..rounds).map(|_| runtime.block_on(measure(case, groups, &node_args, windows))).collect();
            figures.push(report(case, groups, &seen));
        }
    }
    println!("{}", json!({"bench": "raft", "quick": quick, "figures": figures}));
}

async fn measure(case: &Case, groups: u32, more: &[String], windows: Windows) -> Round {
    let cluster = KvCluster::start(groups, more).await;
    let load = PutLoad { outstanding: case.outstanding, body: Bytes::from(vec![0x5a; case.payload_bytes]) };
    let ours = run(&cluster, load, windows).await;
    // The raw limit is the same bytes with as many syncs as ours needed, in each of three processes.
    let per_sync = (3.0 / ours.syncs_per_operation()).round().max(1.0) as u64;
    let raw = raw_processes(cluster.dir(), case.payload_bytes, ours.operations, per_sync);
    Round { raw_per_second: ours.operations as f64 / raw.as_secs_f64(), ours }
}

fn report(case: &Case, groups: u32, rounds: &[Round]) -> Value {
    let median = |figure: &dyn Fn(&Round) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let rate = median(&|it| it.ours.per_second());
    let raw = median(&|it| it.raw_per_second);
    let of_raw = median(&|it| it.ours.per_second() / it.raw_per_second);
    let (p50, p99) = (median(&|it| it.ours.percentile_ms(0.5)), median(&|it| it.ours.percentile_ms(0.99)));
    let cpu = median(&|it| it.ours.cpu_ms_per_operation());
    let cores = median(&|it| it.ours.server_cores());
    let syncs = median(&|it| it.ours.syncs_per_operation());
    let mib = rate * case.payload_bytes as f64 / f64::from(1 << 20);
    println!(
        "{:<8} {groups:>7} {rate:>12.0} {mib:>9.1} {raw:>9.0} {of_raw:>7.2} {p50:>8.2} {p99:>8.2} {cpu:>10.4} {cores:>7.2} {syncs:>9.3}",
        case.name
    );
    json!({
        "payload": case.name,
        "groups": groups,
        "outstanding": case.outstanding,
        "proposals_per_second": rate.round(),
        "raw_per_second": raw.round(),
        "of_raw": of_raw,
        "p50_ms": p50,
        "p99_ms": p99,
        "server_cpu_ms_per_proposal": cpu,
        "server_cores": cores,
        "syncs_per_proposal": syncs,
        "failed": rounds.iter().map(|it| it.ours.failed).sum::<u64>(),
    })
}
