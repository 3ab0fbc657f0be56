//! Compares the ways to reach a disk: `cargo run --release -p flotilla-disk --example disk_io -- DIRECTORY
//! [SECONDS]`. Each line is a number of files with one operation outstanding on each, again and again.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // it measures; it reads /proc

extern crate flotilla_disk as disk;

use bytes::Bytes;
use disk::{Disk, DiskIo, File, RealDisk};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const FILE_BYTES: u64 = 32 << 20;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory to make a directory in");
    let seconds = arguments.next().map_or(3.0, |text| text.parse().expect("seconds"));
    let duration = Duration::from_secs_f64(seconds);
    println!(
        "{:<34} {:>8} {:>10} {:>10} {:>9} {:>10}",
        "pattern", "io", "ops/s", "MiB/s", "CPU µs/op", "p99 µs"
    );
    for (files, bytes) in
        [(1, 4 << 10), (8, 4 << 10), (64, 4 << 10), (1, 1 << 20), (8, 1 << 20), (64, 1 << 20)]
    {
        for io in [DiskIo::Threads, DiskIo::Uring] {
            let setup = Setup::new(&directory, io, files).await;
            let name = format!("{files} × {} KiB write_and_sync", bytes >> 10);
            report(
                &name,
                io,
                bytes,
                measure(&setup.files, duration, move |file, n| write(file, n, bytes)).await,
            );
        }
    }
    for files in [1, 8] {
        for io in [DiskIo::Threads, DiskIo::Uring] {
            let setup = Setup::new(&directory, io, files).await;
            let name = format!("{files} × 64 KiB read, cached");
            report(
                &name,
                io,
                64 << 10,
                measure(&setup.files, duration, |file, n| read(file, n, 64 << 10)).await,
            );
        }
    }
    for io in [DiskIo::Threads, DiskIo::Uring] {
        let setup = Setup::new(&directory, io, 65).await;
        let (read_files, write_files) = setup.files.split_at(1);
        let writes = measure(write_files, duration, |file, n| write(file, n, 4096));
        let reads = measure(read_files, duration, |file, n| read(file, n, 4096));
        let (_, reads) = tokio::join!(writes, reads);
        report("4 KiB read beside 64 writers", io, 4096, reads);
    }
}

struct Setup {
    files: Vec<Arc<dyn File>>,
    _directory: tempfile::TempDir,
}

impl Setup {
    async fn new(directory: &str, io: DiskIo, files: usize) -> Setup {
        let directory = tempfile::tempdir_in(Path::new(directory)).unwrap();
        let disk = RealDisk::open_with(&directory.path().join("disk"), 1, io).unwrap();
        let zeros = Bytes::from(vec![0; 1 << 20]);
        let mut opened = Vec::new();
        for n in 0..files {
            let file = disk.open(&n.to_string(), true).await.unwrap();
            // As segments are: allocated, and written before.
            for at in 0..FILE_BYTES >> 20 {
                file.write_at(at << 20, vec![zeros.clone()]).await.unwrap();
            }
            file.sync_data().await.unwrap();
            opened.push(file);
        }
        Setup { files: opened, _directory: directory }
    }
}

async fn write(file: Arc<dyn File>, n: u64, bytes: u64) {
    // Not made anew each time: that would be most of the work.
    static DATA: [u8; 1 << 20] = [7; 1 << 20];
    let data = Bytes::from_static(&DATA[..bytes as usize]);
    file.write_and_sync(n * bytes % FILE_BYTES, vec![data]).await.unwrap();
}

async fn read(file: Arc<dyn File>, n: u64, bytes: u64) {
    let read = file.read_at(n * 7919 * 4096 % (FILE_BYTES - bytes), bytes as usize).await.unwrap();
    assert_eq!(read.len() as u64, bytes);
}

struct Outcome {
    latencies: Vec<Duration>,
    elapsed: Duration,
    cpu: Duration,
}

async fn measure<F: Future<Output = ()> + Send + 'static>(
    files: &[Arc<dyn File>],
    duration: Duration,
    operation: impl Fn(Arc<dyn File>, u64) -> F + Copy + Send + 'static,
) -> Outcome {
    let (start, cpu) = (Instant::now(), cpu());
    let tasks: Vec<_> = files
        .iter()
        .cloned()
        .map(|file| {
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < duration {
                    let begun = Instant::now();
                    operation(file.clone(), latencies.len() as u64).await;
                    latencies.push(begun.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    latencies.sort();
    Outcome { latencies, elapsed: start.elapsed(), cpu: self::cpu() - cpu }
}

/// CPU time of this process, the kernel's workers for its ring included.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

fn report(name: &str, io: DiskIo, bytes: u64, outcome: Outcome) {
    let count = outcome.latencies.len();
    let per_second = count as f64 / outcome.elapsed.as_secs_f64();
    println!(
        "{name:<34} {:>8} {per_second:>10.0} {:>10.1} {:>9.0} {:>10.0}",
        io.to_string(),
        per_second * bytes as f64 / f64::from(1 << 20),
        outcome.cpu.as_secs_f64() * 1e6 / count as f64,
        outcome.latencies[count * 99 / 100].as_secs_f64() * 1e6,
    );
}
