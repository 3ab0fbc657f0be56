//! Pipeline write throughput over gRPC, three datanode processes, everything fsynced on a majority before it
//! is acknowledged; beside it the raw limit of the disk. Ends with one line of JSON.

#![allow(clippy::disallowed_methods)] // a bench reads the clock

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use flotilla_benches::{PipelineWriter, flotilla_binary, open_pipelines, raw_append};
use futures::future::try_join_all;
use serde_json::json;
use std::time::{Duration, Instant};
use testkit::{Cluster, ClusterOptions};
use types::Payload;

struct Case {
    name: &'static str,
    payload_bytes: usize,
    /// The number of blocks under way in each pipeline.
    outstanding: u64,
    /// The number of blocks written for the count of bytes.
    counted_blocks: u64,
}

const CASES: [Case; 2] = [
    Case { name: "4KiB", payload_bytes: 4 << 10, outstanding: 64, counted_blocks: 20_000 },
    Case { name: "1MiB", payload_bytes: 1 << 20, outstanding: 8, counted_blocks: 512 },
];

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(5))
        .configure_from_args();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let mut figures = Vec::new();
    for pipelines in [1, 4] {
        let options = ClusterOptions {
            disks_per_datanode: pipelines.min(2),
            pipelines_per_disk: pipelines.div_ceil(2) as u32,
            container_bytes_max: 8 << 30,
            ..ClusterOptions::default()
        };
        let cluster = Cluster::start(&flotilla_binary(), &options);
        let mut writers =
            runtime.block_on(open_pipelines(&cluster.scm_address, pipelines)).expect("open pipelines");
        for case in &CASES {
            let payload = Payload::checksummed(Bytes::from(vec![0x5a; case.payload_bytes]));
            let mut group = criterion.benchmark_group(format!("pipeline_write/{}", case.name));
            group.throughput(Throughput::Bytes(case.payload_bytes as u64));
            group.bench_function(BenchmarkId::from_parameter(format!("{pipelines}-pipelines")), |bencher| {
                bencher.iter_custom(|blocks| {
                    let started = Instant::now();
                    runtime
                        .block_on(write_spread(&mut writers, &payload, blocks, case.outstanding))
                        .expect("write");
                    started.elapsed()
                });
            });
            group.finish();
            figures.push(count_bytes(&runtime, &cluster, &mut writers, &payload, case));
        }
    }
    println!("{}", json!({"bench": "pipelines", "figures": figures}));
}

/// Writes `blocks`, divided over the pipelines, to all of them at once.
async fn write_spread(
    writers: &mut [PipelineWriter],
    payload: &Payload,
    blocks: u64,
    outstanding: u64,
) -> anyhow::Result<()> {
    let pipelines = writers.len() as u64;
    let shares = writers.iter_mut().enumerate().map(|(n, writer)| {
        let share = blocks / pipelines + u64::from((n as u64) < blocks % pipelines);
        writer.write(payload, share, outstanding)
    });
    try_join_all(shares).await.map(drop)
}

/// Writes a fixed number of blocks and counts what reached the device, and the same bytes raw.
fn count_bytes(
    runtime: &tokio::runtime::Runtime,
    cluster: &Cluster,
    writers: &mut [PipelineWriter],
    payload: &Payload,
    case: &Case,
) -> serde_json::Value {
    let device_bytes =
        || cluster.datanodes.iter().map(|datanode| datanode.device_bytes_written()).sum::<u64>();
    let before = device_bytes();
    let started = Instant::now();
    let write = write_spread(writers, payload, case.counted_blocks, case.outstanding);
    runtime.block_on(write).expect("write");
    let elapsed = started.elapsed();
    let payload_bytes = case.payload_bytes as u64 * case.counted_blocks;
    let amplification = (device_bytes() - before) as f64 / (3 * payload_bytes) as f64;

    let dir = tempfile::tempdir().expect("make a temporary directory");
    let raw = raw_append(dir.path(), case.payload_bytes, case.counted_blocks, case.outstanding);
    let per_second = |elapsed: Duration| case.counted_blocks as f64 / elapsed.as_secs_f64();
    println!(
        "{} pipelines, {}: {:.0} blocks/s ({:.1} MiB/s); raw limit {:.0} blocks/s, ratio {:.2}; \
         {amplification:.4} bytes to the device per payload byte and replica",
        writers.len(),
        case.name,
        per_second(elapsed),
        payload_bytes as f64 / elapsed.as_secs_f64() / f64::from(1 << 20),
        per_second(raw),
        raw.as_secs_f64() / elapsed.as_secs_f64(),
    );
    json!({
        "pipelines": writers.len(),
        "payload": case.name,
        "blocks_per_second": per_second(elapsed).round(),
        "raw_blocks_per_second": per_second(raw).round(),
        "of_raw_limit": raw.as_secs_f64() / elapsed.as_secs_f64(),
        "device_bytes_per_payload_byte_and_replica": amplification,
    })
}
