//! How long a disk full of logs takes to open, from cold files, with the indexes beside the segments and
//! without them. Ends with one line of JSON.

#![allow(clippy::disallowed_methods)] // a bench reads the clock and looks at files

use bytes::Bytes;
use disk::RealDisk;
use futures::future::join_all;
use raftlog::{Entry, LogSpace, LogSpaceOptions, LogSpec};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::{LogId, LogIndex, OwnerId, Payload, Term};

/// `FLOTILLA_OPEN_LOGS` logs of `FLOTILLA_OPEN_MIB` each, in eight segments each as 1 GiB has by default.
struct Size {
    logs: u64,
    mib_per_log: u64,
}

const SEGMENTS_PER_LOG: u64 = 8;

fn main() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let size = Size { logs: setting("LOGS", 100), mib_per_log: setting("MIB", 128) };
    let mut figures = Vec::new();
    for body_bytes in [4 << 10, 1 << 20] {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        runtime.block_on(fill(dir.path(), &size, body_bytes));
        for indexes in ["with", "without"] {
            if indexes == "without" {
                remove_indexes(&dir.path().join("containers"));
            }
            let cold = drop_caches();
            let read_before = device_bytes_read();
            let opened = runtime.block_on(open_all(dir.path(), &size));
            let read = device_bytes_read() - read_before;
            println!(
                "{} logs of {} MiB, records of {} KiB, {indexes} indexes: open in {:.2} s{}, {:.1} MiB read from the device",
                size.logs,
                size.mib_per_log,
                body_bytes >> 10,
                opened.as_secs_f64(),
                if cold { "" } else { " (page cache not dropped: that takes root)" },
                read as f64 / f64::from(1 << 20),
            );
            figures.push(json!({
                "logs": size.logs, "mib_per_log": size.mib_per_log, "body_bytes": body_bytes, "cold": cold,
                "indexes": indexes == "with", "seconds": opened.as_secs_f64(), "device_bytes_read": read,
            }));
        }
    }
    println!("{}", json!({"bench": "open", "figures": figures}));
}

fn setting(name: &str, default: u64) -> u64 {
    let name = format!("FLOTILLA_OPEN_{name}");
    std::env::var(&name)
        .map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn space(dir: &Path, size: &Size) -> Arc<LogSpace> {
    let disk = RealDisk::open(dir, 1).expect("open the data directory");
    let options = LogSpaceOptions {
        segment_bytes_max: (size.mib_per_log << 20) / SEGMENTS_PER_LOG,
        // Nothing that is read later should come from memory.
        cache_bytes_per_log_max: 0,
        cache_bytes_max: 0,
        ..LogSpaceOptions::default()
    };
    LogSpace::new(Arc::new(disk), options)
}

fn spec(log: u64) -> LogSpec {
    let first_owner = OwnerId(log);
    LogSpec { log, dir: format!("groups/{log}"), owners_dir: "containers".into(), first_owner }
}

async fn fill(dir: &Path, size: &Size, body_bytes: usize) {
    let space = space(dir, size);
    let body = Payload::checksummed(Bytes::from(vec![0x5a; body_bytes]));
    for number in 0..size.logs {
        let log = space.open(spec(number)).await.expect("create a log");
        let entries = (size.mib_per_log << 20) / body_bytes as u64;
        let batch = (1 << 20) / body_bytes as u64;
        for first in (0..entries).step_by(batch as usize * 16) {
            let entry = |index| Entry {
                id: LogId { term: Term(1), index: LogIndex(index) },
                kind: 1,
                meta: Bytes::new(),
                body: body.clone(),
                roll_to: None,
            };
            let entries = (first..entries.min(first + batch * 16)).map(entry).collect();
            log.append(entries).expect("append").durable().await.expect("write");
        }
        log.close().await;
    }
}

async fn open_all(dir: &Path, size: &Size) -> Duration {
    let started = Instant::now();
    let space = space(dir, size);
    let logs = join_all((0..size.logs).map(|number| space.open(spec(number)))).await;
    let opened = started.elapsed();
    for log in logs {
        let log = log.expect("open a log");
        assert!(log.state().last.is_some(), "a log that was filled has entries");
        log.close().await;
    }
    opened
}

fn remove_indexes(owners: &Path) {
    for owner in std::fs::read_dir(owners).expect("list owners") {
        for file in std::fs::read_dir(owner.expect("list owners").path()).expect("list segments") {
            let path = file.expect("list segments").path();
            if path.extension().is_some_and(|kind| kind == "idx") {
                std::fs::remove_file(path).expect("remove an index");
            }
        }
    }
}

/// Whether the kernel let go of what it had in memory.
fn drop_caches() -> bool {
    let _ = std::process::Command::new("sync").status();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

fn device_bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("read /proc/self/io");
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("the kernel counts read_bytes")
}
