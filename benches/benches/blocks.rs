//! Blocks through gRPC on three datanode processes, every one fsynced on a majority before it is
//! acknowledged: 4 KiB to 4 MiB through 1, 4 and 16 pipelines; beside it three processes that only write and
//! sync the same bytes. Then what a cluster costs that nobody uses. Ends with one line of JSON. `./dev bench
//! blocks [--quick] [--pipelines=1,4,16] [--payloads=4KiB,64KiB,1MiB,4MiB] [--idle=no|only]`

use flotilla_benches::blocks::{
    BlocksCluster, Idle, Measured, READERS, WRITERS, Windows, idle_cluster, idle_dev, read, write_chosen,
    write_spread,
};
use flotilla_benches::kvnodes::{raw_processes, raw_writer};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

struct Payload {
    name: &'static str,
    bytes: usize,
    /// The processor time of all three datanodes for one write that the project wants to reach.
    cpu_ms_max: Option<f64>,
}

const PAYLOADS: [Payload; 4] = [
    Payload { name: "4KiB", bytes: 4 << 10, cpu_ms_max: Some(0.4) },
    Payload { name: "64KiB", bytes: 64 << 10, cpu_ms_max: Some(0.6) },
    Payload { name: "1MiB", bytes: 1 << 20, cpu_ms_max: None },
    Payload { name: "4MiB", bytes: 4 << 20, cpu_ms_max: None },
];
const PIPELINES: [usize; 3] = [1, 4, 16];
/// The pipelines of the datanode whose idle cost is measured.
const IDLE_PIPELINES: usize = 24;
/// The pipelines of a cluster as it is started when nothing is said: three datanodes of two disks.
const DEFAULT_PIPELINES: usize = 4;
const IDLE_CPU_PERCENT_MAX: f64 = 2.0;
const IDLE_RESIDENT_BYTES_MAX: u64 = 300 << 20;
const MIB: f64 = (1 << 20) as f64;

struct Plan {
    windows: Windows,
    idle: Duration,
    pipelines: Vec<usize>,
    payloads: Vec<&'static Payload>,
    with_load: bool,
    with_idle: bool,
}

impl Plan {
    fn of(arguments: &[String]) -> Result<Plan, String> {
        let mut plan = Plan {
            windows: Windows { warm_up: Duration::from_secs(2), measured: Duration::from_secs(8) },
            idle: Duration::from_secs(40),
            pipelines: PIPELINES.to_vec(),
            payloads: PAYLOADS.iter().collect(),
            with_load: true,
            with_idle: true,
        };
        for argument in arguments {
            match argument.split_once('=').unwrap_or((argument, "")) {
                ("--quick", "") => {
                    plan.windows =
                        Windows { warm_up: Duration::from_secs(1), measured: Duration::from_secs(3) };
                    plan.idle = Duration::from_secs(20);
                }
                ("--pipelines", list) => {
                    let numbers = list.split(',').map(|text| match text.parse() {
                        Ok(count) if WRITERS.is_multiple_of(count) => Ok(count),
                        _ => Err(format!("`{text}` does not divide {WRITERS} writers")),
                    });
                    plan.pipelines = numbers.collect::<Result<_, _>>()?;
                }
                ("--payloads", list) => {
                    let known = |name: &str| PAYLOADS.iter().find(|payload| payload.name == name);
                    let named = list.split(',').map(|name| known(name).ok_or(format!("no payload `{name}`")));
                    plan.payloads = named.collect::<Result<_, _>>()?;
                }
                ("--idle", "no") => plan.with_idle = false,
                ("--idle", "only") => plan.with_load = false,
                _ => return Err(format!("unknown argument {argument}")),
            }
        }
        Ok(plan)
    }
}

fn main() {
    if raw_writer() {
        return;
    }
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let plan = Plan::of(&arguments).unwrap_or_else(|wrong| {
        eprintln!("{wrong}");
        std::process::exit(2);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let (mut figures, mut idle) = (Vec::new(), Vec::new());
    if plan.with_load {
        runtime.block_on(load(&plan, &mut figures, &mut idle)).expect("load");
    }
    if plan.with_idle {
        runtime.block_on(rest(&plan, &mut idle)).expect("an idle cluster");
    }
    println!("{}", json!({"bench": "blocks", "arguments": arguments, "figures": figures, "idle": idle}));
}

async fn load(plan: &Plan, figures: &mut Vec<Value>, idle: &mut Vec<Value>) -> anyhow::Result<()> {
    println!(
        "3 datanodes, {WRITERS} writers, {READERS} readers, windows of {:?}; clients run on the same machine; CPU, syncs and memory are those of all \
         three datanodes\n{:<13} {:>5} {:>9} {:>9} {:>8} {:>9} {:>7} {:>7} {:>8} {:>8} {:>9} {:>8} {:>9} {:>8}",
        plan.windows.measured,
        "",
        "size",
        "pipelines",
        "blocks/s",
        "MiB/s",
        "raw/s",
        "of raw",
        "of one",
        "p50 ms",
        "p99 ms",
        "CPU ms/op",
        "syncs/op",
        "dev B/B",
        "RSS MiB"
    );
    let mut ones = HashMap::new();
    for &pipelines in &plan.pipelines {
        let cluster = BlocksCluster::start(pipelines).await?;
        for payload in &plan.payloads {
            let spread = write_spread(&cluster, payload.bytes, plan.windows).await?;
            figures.push(report(&cluster, "write, spread", payload, pipelines, &spread, &mut ones));
            let (chosen, pieces) = write_chosen(&cluster, payload.bytes, plan.windows).await?;
            figures.push(report(&cluster, "write, chosen", payload, pipelines, &chosen, &mut ones));
            let reads = read(&cluster, pieces, plan.windows).await?;
            figures.push(report(&cluster, READ, payload, pipelines, &reads, &mut ones));
        }
        if plan.with_idle && Some(&pipelines) == plan.pipelines.last() {
            let title = format!("{pipelines} pipelines after this load");
            idle.extend(idle_cluster(&cluster, &title, plan.idle).await.iter().map(report_idle));
        }
    }
    Ok(())
}

const READ: &str = "read";

/// Prints a line of the table. `ones` keeps the rates through one pipeline, to compare others with.
fn report(
    cluster: &BlocksCluster,
    kind: &'static str,
    payload: &Payload,
    pipelines: usize,
    measured: &Measured,
    ones: &mut HashMap<(&'static str, &'static str), f64>,
) -> Value {
    let rate = measured.per_second();
    if pipelines == 1 {
        ones.insert((kind, payload.name), rate);
    }
    let of_one = ones.get(&(kind, payload.name)).map(|one| rate / one);
    let is_write = kind != READ;
    // The raw limit is the same bytes with as many syncs as ours needed, in each of three processes.
    let raw = is_write.then(|| {
        let per_sync = (3.0 / measured.syncs_per_operation()).round().max(1.0) as u64;
        let raw = raw_processes(&cluster.dir(), payload.bytes, measured.operations, per_sync);
        measured.operations as f64 / raw.as_secs_f64()
    });
    let of_raw = raw.map(|raw| rate / raw);
    let written_bytes = 3.0 * payload.bytes as f64 * measured.operations as f64;
    let amplification = is_write.then(|| measured.device_bytes as f64 / written_bytes);
    let (p50, p99) = (measured.percentile_ms(0.5), measured.percentile_ms(0.99));
    let cpu = measured.cpu_ms_per_operation();
    let or_dash = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    println!(
        "{kind:<13} {:>5} {pipelines:>9} {rate:>9.0} {:>8.1} {:>9} {:>7} {:>7} {p50:>8.2} {p99:>8.2} {cpu:>9.3} {:>8.3} {:>9} {:>8.0}",
        payload.name,
        rate * payload.bytes as f64 / MIB,
        or_dash(raw, 0),
        or_dash(of_raw, 2),
        or_dash(of_one, 2),
        measured.syncs_per_operation(),
        or_dash(amplification, 3),
        measured.resident_bytes as f64 / MIB,
    );
    let goal = payload.cpu_ms_max.filter(|_| is_write);
    json!({
        "kind": kind,
        "payload": payload.name,
        "pipelines": pipelines,
        "blocks_per_second": rate.round(),
        "raw_per_second": raw.map(f64::round),
        "of_raw": of_raw,
        "of_one_pipeline": of_one,
        "p50_ms": p50,
        "p99_ms": p99,
        "datanodes_cpu_ms_per_block": cpu,
        "datanodes_cores": measured.cpu_seconds / measured.elapsed.as_secs_f64(),
        "syncs_per_block": measured.syncs_per_operation(),
        "device_bytes_per_payload_byte_and_replica": amplification,
        "datanodes_resident_mib": (measured.resident_bytes as f64 / MIB).round(),
        "goal": goal.map(|max| json!({"datanodes_cpu_ms_per_block_max": max, "reached": cpu <= max})),
    })
}

/// Measures clusters that nobody has ever used.
async fn rest(plan: &Plan, idle: &mut Vec<Value>) -> anyhow::Result<()> {
    println!("{:<50} {:>14} {:>9} {:>11}", "idle", "% of a core", "RSS MiB", "wakeups/s");
    for pipelines in [IDLE_PIPELINES, DEFAULT_PIPELINES] {
        let cluster = BlocksCluster::start(pipelines).await?;
        let title = format!("{pipelines} pipelines, never used");
        idle.extend(idle_cluster(&cluster, &title, plan.idle).await.iter().map(report_idle));
    }
    idle.push(report_idle(&idle_dev(plan.idle).await));
    Ok(())
}

fn report_idle(idle: &Idle) -> Value {
    println!(
        "{:<50} {:>14.2} {:>9.0} {:>11.0}",
        idle.name,
        idle.cpu_percent,
        idle.resident_bytes as f64 / MIB,
        idle.wakeups_per_second
    );
    json!({
        "name": idle.name,
        "cpu_percent": idle.cpu_percent,
        "resident_mib": (idle.resident_bytes as f64 / MIB).round(),
        "wakeups_per_second": idle.wakeups_per_second,
        "within_goal_of_a_whole_cluster": idle.cpu_percent < IDLE_CPU_PERCENT_MAX && idle.resident_bytes < IDLE_RESIDENT_BYTES_MAX,
    })
}
