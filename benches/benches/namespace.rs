//! Names that are written to and looked up in three OMs, each a process: rates, latencies, processor time of
//! all OMs together, syncs of their logs and bytes that reached the device, beside a second binary or etcd
//! if one is given. Ends with one line of JSON. `./dev bench namespace [--quick] [--peer BINARY] [--etcd BINARY]
//! [--count=N] [--oms=N] [--groups=N]`; with `--idle=SECONDS` what OMs cost that nobody uses, and with `--large` a namespace of
//! millions, and no more.

use flotilla_benches::flotilla_binary;
use flotilla_benches::namespace::{EtcdCluster, Large, Load, Measured, OmCluster, load};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;

struct Plan {
    /// The number of names that are written.
    count: u64,
    oms: usize,
    /// The number of groups over which the load is spread.
    groups: u64,
    /// The time for which it is measured what OMs cost without any load, and nothing else.
    idle: Option<Duration>,
    /// Whether one large bucket is measured: its pages, a restart, a move, and its blocks when it is deleted.
    large: bool,
    /// Another flotilla binary, which takes turns with ours.
    peer: Option<PathBuf>,
    /// The binary of etcd, into which the same names are written in turns with ours.
    etcd: Option<PathBuf>,
}

impl Plan {
    fn of(arguments: &[String]) -> Result<Plan, String> {
        let (count, oms, groups) = (1_000_000, 3, 1);
        let mut plan = Plan { count, oms, groups, idle: None, large: false, peer: None, etcd: None };
        let mut arguments = arguments.iter();
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
        while let Some(argument) = arguments.next() {
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            match (name, value) {
                ("--quick", "") => plan.count = 60_000,
                ("--count", value) => plan.count = number(value)?,
                ("--oms", value) => plan.oms = number(value)? as usize,
                ("--groups", value) => plan.groups = number(value)?.max(1),
                ("--idle", value) => plan.idle = Some(Duration::from_secs(number(value)?)),
                ("--large", "") => plan.large = true,
                ("--peer", "") => plan.peer = Some(arguments.next().ok_or("--peer of what?")?.into()),
                ("--peer", value) => plan.peer = Some(value.into()),
                ("--etcd", "") => plan.etcd = Some(arguments.next().ok_or("--etcd of what?")?.into()),
                ("--etcd", value) => plan.etcd = Some(value.into()),
                _ => return Err(format!("unknown argument {argument}")),
            }
        }
        match (&plan.peer, &plan.etcd) {
            (Some(_), Some(_)) => Err("--peer or --etcd: one takes turns with ours".to_owned()),
            _ => Ok(plan),
        }
    }
}

/// A row of the table: load of one kind. What a load writes has numbers of its own.
struct Row {
    kind: &'static str,
    clients: u32,
    connections: u32,
    /// The share of the plan's names that are operated on: one in so many.
    share: u64,
}

/// The rows of the table. The first writes most; those after it show what fewer clients see.
const ROWS: [Row; 5] = [
    Row { kind: "names", clients: 1000, connections: 16, share: 1 },
    Row { kind: "names", clients: 64, connections: 4, share: 10 },
    Row { kind: "names", clients: 1, connections: 1, share: 100 },
    Row { kind: "lookups", clients: 1000, connections: 16, share: 4 },
    Row { kind: "lookups", clients: 1, connections: 1, share: 20 },
];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let plan = Plan::of(&arguments).unwrap_or_else(|wrong| {
        eprintln!("{wrong}");
        std::process::exit(2);
    });
    if plan.large {
        let measured = Large { names: plan.count, oms: plan.oms }.run()?;
        println!("{}", json!({"bench": "namespace", "arguments": arguments, "large": measured}));
        return Ok(());
    }
    let start = |binary: &Path| OmCluster::start(binary, plan.oms, plan.groups);
    let mut clusters = vec![("flotilla", start(&flotilla_binary())?)];
    if let Some(peer) = &plan.peer {
        clusters.push(("peer", start(peer)?));
    }
    let etcd = plan.etcd.as_ref().map(|binary| EtcdCluster::start(binary, plan.oms)).transpose()?;
    if let Some(measured) = plan.idle {
        idle(&plan, &clusters, measured);
        return Ok(());
    }
    println!(
        "{} OMs, {} groups; CPU, syncs and device bytes of all of them per operation\n{:<8} {:>7} {:<9} {:>9} {:>10} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        plan.oms,
        plan.groups,
        "",
        "clients",
        "",
        "ops",
        "ops/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "CPU ms",
        "of disk",
        "syncs/op",
        "dev B/op"
    );
    let (mut rows, mut first) = (Vec::new(), 0);
    for row in &ROWS {
        let count = (plan.count / row.share).max(1);
        let kind = Load {
            kind: row.kind,
            clients: row.clients,
            connections: row.connections,
            count,
            first: if row.kind == "names" { first } else { 0 },
            written: plan.count,
            directories: 0,
        };
        if row.kind == "names" {
            first += count;
        }
        let mut measured = Vec::new();
        for (name, cluster) in &clusters {
            let one = load(cluster, kind)?;
            report(row, name, &one);
            measured.push((*name, one));
        }
        if let Some(etcd) = etcd.as_ref().filter(|_| row.kind == "names") {
            let one = etcd.load(kind)?;
            report(row, "etcd", &one);
            measured.push(("etcd", one));
        }
        rows.push(of_row(row, &measured));
    }
    let resident: Vec<Value> = clusters.iter().map(|(name, cluster)| resident(name, cluster)).collect();
    println!(
        "{}",
        json!({"bench": "namespace", "arguments": arguments, "oms": plan.oms, "groups": plan.groups, "rows": rows, "resident": resident})
    );
    Ok(())
}

fn idle(plan: &Plan, clusters: &[(&str, OmCluster)], measured: Duration) {
    for (name, cluster) in clusters {
        let (cpu_percent, wakeups) = cluster.idle(measured);
        let (Plan { oms, groups, .. }, mib) = (plan, cluster.resident_bytes() / MIB);
        println!(
            "{name}: {oms} OMs with {groups} groups that nobody uses: {cpu_percent:.2} % of a core and {wakeups:.0} wakeups a second, all together"
        );
        println!(
            "{}",
            json!({
                "bench": "namespace", "target": name, "oms": oms, "groups": groups, "idle_seconds": measured.as_secs(),
                "cpu_percent": cpu_percent, "wakeups_per_second": wakeups, "resident_most_mib": mib,
            })
        );
    }
}

fn report(row: &Row, name: &str, measured: &Measured) {
    let total = &measured.total;
    let number = |name: &str| total[name].as_f64().unwrap_or(f64::NAN);
    println!(
        "{:<8} {:>7} {name:<9} {:>9} {:>10.1} {:>8.2} {:>8.2} {:>9.2} {:>9.2} {:>9.4} {:>9.4} {:>9.4} {:>9.0}",
        row.kind,
        row.clients,
        measured.operations(),
        number("per_second"),
        number("p50_ms"),
        number("p99_ms"),
        number("p999_ms"),
        number("max_ms"),
        measured.cpu_ms(),
        measured.disk_cpu_seconds * 1e3 / measured.operations(),
        measured.syncs / measured.operations(),
        measured.device_bytes as f64 / measured.operations(),
    );
    if let Some(slowest) = measured.slowest_window() {
        println!("{:>26} the slowest 10 s had {slowest:.2} of the first one's rate", "");
    }
}

fn of_row(row: &Row, measured: &[(&str, Measured)]) -> Value {
    let target = |(name, measured): &(&str, Measured)| {
        json!({
            "target": name, "total": measured.total, "cpu_ms_per_operation": measured.cpu_ms(),
            "disk_cpu_ms_per_operation": measured.disk_cpu_seconds * 1e3 / measured.operations(),
            "syncs_per_operation": measured.syncs / measured.operations(),
            "device_bytes_per_operation": measured.device_bytes as f64 / measured.operations(),
            "slowest_window": measured.slowest_window(),
        })
    };
    let of_peer = match measured {
        [(_, ours), (_, peer)] => {
            let rate = |of: &Measured| of.total["per_second"].as_f64().unwrap_or(f64::NAN);
            let (rate, cpu) = (rate(ours) / rate(peer), ours.cpu_ms() / peer.cpu_ms());
            println!("{:>26} of the peer's: rate {rate:.2}, CPU {cpu:.2}", "");
            json!({"rate": rate, "cpu": cpu})
        }
        _ => Value::Null,
    };
    json!({
        "kind": row.kind, "clients": row.clients, "connections": row.connections,
        "targets": measured.iter().map(target).collect::<Vec<_>>(), "of_peer": of_peer,
    })
}

fn resident(name: &str, cluster: &OmCluster) -> Value {
    let mib = cluster.resident_bytes() / MIB;
    println!("{name:<9} resident, of the OM that has the most: {mib} MiB");
    json!({"target": name, "most_mib": mib})
}
