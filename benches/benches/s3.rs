//! S3 requests of 1, 16 and 64 clients against three datanodes, SCM, OM and a gateway, each a process: put,
//! get, head, list and a mix of them, of 4 KiB to 16 MiB; rates, latencies, processor time by process and
//! memory. Ends with one line of JSON. `./dev bench s3 [--quick] [--peer URL|BINARY] [--counts] [--kinds=…]
//! [--sizes=…] [--clients=…]`

use anyhow::Context;
use flotilla_benches::blocks::Windows;
use flotilla_benches::s3::{
    Counted, Kind, Measured, Memory, Objects, Pace, Size, Target, counting_library, operations_counted, run,
};
use flotilla_benches::{Peak, flotilla_binary};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const CLIENTS: [usize; 3] = [1, 16, 64];
/// The most memory of all processes together, a minute after the load's end.
const SETTLED_BYTES_MAX: u64 = 600 << 20;
const MIB: f64 = (1 << 20) as f64;

struct Plan {
    pace: Pace,
    settle: Duration,
    counts: bool,
    /// The URL of another server, or the path of another binary.
    peer: Option<String>,
    kinds: Vec<Kind>,
    sizes: Vec<&'static Size>,
    clients: Vec<usize>,
}

impl Plan {
    fn of(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan {
            pace: pace(1, 5),
            settle: Duration::from_secs(60),
            counts: false,
            peer: None,
            kinds: Kind::ALL.to_vec(),
            sizes: Size::ALL.iter().collect(),
            clients: CLIENTS.to_vec(),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
            match (name, value) {
                ("--quick", "") => {
                    plan.pace = pace(1, 2);
                    plan.settle = Duration::from_secs(15);
                }
                ("--counts", "") => plan.counts = true,
                ("--peer", "") => plan.peer = Some(arguments.next().ok_or("--peer of what?")?.clone()),
                ("--peer", peer) => plan.peer = Some(peer.to_owned()),
                ("--kinds", list) => {
                    plan.kinds = chosen(list, |name| Kind::ALL.into_iter().find(|kind| kind.name() == name))?;
                }
                ("--sizes", list) => {
                    plan.sizes = chosen(list, |name| Size::ALL.iter().find(|size| size.name == name))?;
                }
                ("--clients", list) => plan.clients = chosen(list, |number| number.parse().ok())?,
                _ => return Err(format!("unknown argument {argument}")),
            }
        }
        Ok(plan)
    }

    /// Tells whether a kind is measured with a size; one that has no size of its own is measured with the
    /// first.
    fn has(&self, kind: Kind, size: &Size) -> bool {
        self.kinds.contains(&kind) && (!kind.is_about_names() || self.sizes.first() == Some(&size))
    }
}

fn pace(warm_up: u64, measured: u64) -> Pace {
    let seconds = Duration::from_secs;
    let windows = Windows { warm_up: seconds(warm_up), measured: seconds(measured) };
    Pace { windows, longest: seconds(30) }
}

fn chosen<T>(list: &str, known: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    list.split(',').map(|name| known(name).ok_or(format!("`{name}` is not one to choose"))).collect()
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let plan = Plan::of(&arguments).unwrap_or_else(|wrong| {
        eprintln!("{wrong}");
        std::process::exit(2);
    });
    let figures = if plan.counts { counts(&plan)? } else { load(&plan)? };
    println!("{}", json!({"bench": "s3", "arguments": arguments, "figures": figures}));
    Ok(())
}

/// The targets: ours, and the one that takes turns with it.
fn targets(plan: &Plan) -> anyhow::Result<Vec<Target>> {
    let mut targets = vec![Target::start("flotilla", &flotilla_binary())?];
    match plan.peer.as_deref() {
        None => {}
        Some(url) if url.starts_with("http://") => {
            let variable =
                |name: &str| std::env::var(name).with_context(|| format!("{name} in the environment"));
            let keys = (variable("FLOTILLA_PEER_ACCESS_KEY")?, variable("FLOTILLA_PEER_SECRET_KEY")?);
            let pid = std::env::var("FLOTILLA_PEER_PID").ok().map(|pid| pid.parse()).transpose()?;
            targets.push(Target::at(url, keys.0, keys.1, pid)?);
        }
        Some(binary) => targets.push(Target::start("peer", Path::new(binary))?),
    }
    Ok(targets)
}

fn load(plan: &Plan) -> anyhow::Result<Value> {
    let targets = targets(plan)?;
    let peaks: Vec<Peak> = targets.iter().map(Memory::peak).collect();
    let objects = Objects::default();
    println!(
        "windows of {:?}, after {:?}; CPU in ms an operation: of all processes of a target, then of each kind, then the clients'\n{:<6} {:>6} {:>7} {:<9} {:>9} {:>9} {:>9} {:>7}  by process",
        plan.pace.windows.measured,
        plan.pace.windows.warm_up,
        "",
        "size",
        "clients",
        "",
        "ops/s",
        "p50 ms",
        "p99 ms",
        "CPU"
    );
    let mut rows = Vec::new();
    for size in &plan.sizes {
        targets.iter().try_for_each(|target| target.fill(size, &objects))?;
        for kind in Kind::ALL.into_iter().filter(|kind| plan.has(*kind, size)) {
            for &clients in &plan.clients {
                rows.push(row(plan, &targets, kind, size, clients, &objects)?);
            }
        }
    }
    std::thread::sleep(plan.settle);
    let memory: Vec<Value> =
        targets.iter().zip(&peaks).map(|(target, peak)| report_memory(target, peak, plan.settle)).collect();
    Ok(json!({"rows": rows, "memory": memory}))
}

/// Measures one window of each target; with two of them, two of each in turns.
fn row(
    plan: &Plan,
    targets: &[Target],
    kind: Kind,
    size: &Size,
    clients: usize,
    objects: &Objects,
) -> anyhow::Result<Value> {
    let mut measured = vec![Measured::default(); targets.len()];
    for _ in 0..targets.len() {
        for (target, measured) in targets.iter().zip(&mut measured) {
            measured.add(run(target, kind, size, clients, objects, plan.pace)?);
        }
    }
    let each: Vec<Value> = targets
        .iter()
        .zip(&measured)
        .map(|(target, measured)| report(target, kind, size, clients, measured))
        .collect();
    let ratio = |of: fn(&Measured) -> f64| measured.get(1).map(|peer| of(&measured[0]) / of(peer));
    let rate = ratio(Measured::per_second);
    let p50 = ratio(|measured| measured.percentile_ms(0.5));
    let cpu = ratio(Measured::cpu_ms).filter(|ratio| ratio.is_finite());
    if let (Some(rate), Some(p50)) = (rate, p50) {
        let cpu = cpu.map_or("-".to_owned(), |cpu| format!("{cpu:.2}"));
        println!("{:>41} of the peer's: rate {rate:.2}, p50 {p50:.2}, CPU {cpu}", "");
    }
    Ok(json!({
        "kind": kind.name(), "size": size.name, "clients": clients, "targets": each,
        "of_peer": rate.map(|rate| json!({"rate": rate, "p50": p50, "cpu": cpu})),
    }))
}

fn report(target: &Target, kind: Kind, size: &Size, clients: usize, measured: &Measured) -> Value {
    let (p50, p99) = (measured.percentile_ms(0.5), measured.percentile_ms(0.99));
    let own = measured.ms_per_operation(measured.clients_cpu);
    let each = measured.cpu.iter().map(|(name, seconds)| (*name, measured.ms_per_operation(*seconds)));
    let mut each: Vec<(&str, f64)> = each.collect();
    each.push(("clients", own));
    let by_process: Vec<String> = each.iter().map(|(name, ms)| format!("{name} {ms:.3}")).collect();
    let refused =
        if measured.refused > 0 { format!(", {} refused", measured.refused) } else { String::new() };
    println!(
        "{:<6} {:>6} {clients:>7} {:<9} {:>9.1} {p50:>9.2} {p99:>9.2} {:>7.3}  {}{refused}",
        kind.name(),
        size.name,
        target.name,
        measured.per_second(),
        measured.cpu_ms(),
        by_process.join(", ")
    );
    json!({
        "target": target.name, "per_second": measured.per_second(), "operations": measured.operations, "refused": measured.refused,
        "p50_ms": p50, "p99_ms": p99, "cpu_ms_per_operation": measured.cpu_ms(),
        "cpu_ms_by_process": each.into_iter().map(|(name, ms)| (name.to_owned(), json!(ms))).collect::<serde_json::Map<_, _>>(),
    })
}

fn report_memory(target: &Target, peak: &Peak, settle: Duration) -> Value {
    let settled = Memory::of(target);
    let mib = |bytes: u64| (bytes as f64 / MIB).round();
    let each: Vec<String> =
        settled.each.iter().map(|(name, bytes)| format!("{name} {}", mib(*bytes))).collect();
    println!(
        "{:<9} resident, MiB: {} at most, {} after {settle:?} of rest: {}",
        target.name,
        mib(peak.bytes()),
        mib(settled.bytes()),
        each.join(", ")
    );
    json!({
        "target": target.name, "most_mib": mib(peak.bytes()), "settled_mib": mib(settled.bytes()),
        "settled_after_seconds": settle.as_secs(),
        "settled_mib_by_process": settled.each.iter().map(|(name, bytes)| (name.to_string(), json!(mib(*bytes)))).collect::<serde_json::Map<_, _>>(),
        "goal": {"settled_mib_max": mib(SETTLED_BYTES_MAX), "reached": settled.bytes() <= SETTLED_BYTES_MAX},
    })
}

/// The cost of one request in calls, thread hops, allocations and copies. Rates of this run mean nothing: all
/// that is counted takes longer.
fn counts(plan: &Plan) -> anyhow::Result<Value> {
    let dir = tempfile::tempdir()?;
    let target = Target::start("counted", &counting_library(dir.path(), &flotilla_binary())?)?;
    let objects = Objects::default();
    println!(
        "one client; by process, for one operation, without what goes on by itself\n{:<6} {:>6} {:<10} {:>7} {:>9} {:>8} {:>7} {:>12} {:>7} {:>13}",
        "", "size", "", "calls", "messages", "wakeups", "allocs", "alloc'd bytes", "copies", "copies/bytes"
    );
    let mut rows = Vec::new();
    for size in &plan.sizes {
        target.fill(size, &objects)?;
        for kind in [Kind::Get, Kind::Put].into_iter().filter(|kind| plan.kinds.contains(kind)) {
            let counted = operations_counted(&target, dir.path(), kind, size, &objects)?;
            rows.extend(counted.iter().map(|counted| report_counts(kind, size, counted)));
        }
    }
    Ok(json!(rows))
}

fn report_counts(kind: Kind, size: &Size, counted: &Counted) -> Value {
    let Counted { process, calls, messages, wakeups, allocations, allocated_bytes, copies, copied_bytes } =
        counted;
    let copied = copied_bytes / size.bytes as f64;
    println!(
        "{:<6} {:>6} {process:<10} {calls:>7.2} {messages:>9.2} {wakeups:>8.1} {allocations:>7.0} {allocated_bytes:>12.0} {copies:>7.1} {copied:>13.2}",
        kind.name(),
        size.name
    );
    json!({
        "kind": kind.name(), "size": size.name, "process": process, "calls": calls, "messages": messages, "wakeups": wakeups,
        "allocations": allocations, "allocated_bytes": allocated_bytes, "copies": copies, "copies_of_the_body": copied,
    })
}
