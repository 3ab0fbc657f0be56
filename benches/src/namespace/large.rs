//! One large bucket: writing it, pages of it, a restart with it, its move while others write to it, and the
//! memory that unused blocks take which wait.

use super::load::{load_begin, load_end, load_groups};
use super::{Load, OmCluster};
use crate::flotilla_binary;
use anyhow::{Context, ensure};
use bytes::Bytes;
use client::{Client, ClientOptions, S3_VOLUME};
use proto::datanode::BlockName;
use proto::om::{BlockPiece, Key, ListKeysRequest};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Directories over which the names are spread, so that a page of them with a delimiter goes over all names.
const DIRECTORIES: u64 = 1000;
const PAGE_LIMIT: u32 = 1000;
/// The number of pages of each kind that are asked for, one after the other.
const PAGES: usize = 50;
/// The clients that write to the bucket while it moves.
const WRITERS: u32 = 100;
/// The time for which they write before and after the move.
const BESIDE: Duration = Duration::from_secs(3);
/// Numbers of the names that they write: none that is there.
const FIRST_BESIDE: u64 = 1 << 40;
/// Blocks of a key of those that are deleted.
const BLOCKS_OF_KEY: u64 = 2000;
const BLOCKS_OF_CONTAINER: u64 = 100_000;
/// Containers that SCM has never heard of, so that what was in them waits.
const CONTAINERS_FROM: u64 = 1 << 32;
const FILED_WITHIN: Duration = Duration::from_secs(900);
const MIB: u64 = 1 << 20;
/// What is deleted waits no longer than this; nobody reads it.
const OM_ARGS: &str = "--reclaim-after 1s --any-reclaim-after";

/// The size of the bucket.
pub struct Large {
    pub names: u64,
    pub oms: usize,
}

/// The cluster and a client of it, with one bucket of names in group 0.
struct Run {
    large: Large,
    cluster: OmCluster,
    client: Client,
    runtime: Runtime,
}

/// The memory of the OM that has the most, and SCM's.
#[derive(Clone, Copy)]
struct Resident {
    om: u64,
    scm: u64,
}

impl Large {
    /// Measures each in turn. Prints what it finds, and returns it.
    pub fn run(self) -> anyhow::Result<Value> {
        let runtime = Runtime::new()?;
        // A second group, for the bucket to move to.
        let cluster = OmCluster::start_with(&flotilla_binary(), self.oms, 2, OM_ARGS)?;
        let options = ClientOptions { scm: cluster.scm.clone(), ..ClientOptions::default() };
        let client = runtime.block_on(async { Client::connect(options) });
        let mut run = Run { large: self, cluster, client, runtime };
        let written = run.write()?;
        let pages = run.pages()?;
        let restart = run.restart()?;
        let moved = run.moved()?;
        let unused = run.unused()?;
        Ok(
            json!({"written": written, "pages": pages, "restart": restart, "moved": moved, "unused_blocks": unused}),
        )
    }
}

impl Run {
    fn names(&self, clients: u32, count: u64, first: u64) -> Load<'static> {
        let connections = clients.div_ceil(64);
        Load { kind: "names", clients, connections, count, first, written: 1, directories: DIRECTORIES }
    }

    fn write(&self) -> anyhow::Result<Value> {
        let measured = load_groups(&self.cluster, self.names(1000, self.large.names, 0), 1)?;
        let (cpu_ms, total) = (measured.cpu_ms(), &measured.total);
        let resident_mib = self.resident().om / MIB;
        let rate = |line: &Value| line["per_second"].as_f64().unwrap_or_default();
        println!(
            "{} names in {DIRECTORIES} directories: {:.0}/s, p99.9 {} ms, CPU of all OMs {cpu_ms:.3} ms, at most {resident_mib} MiB \
             resident; by 10 s: {:.0?}",
            self.large.names,
            rate(total),
            total["p999_ms"],
            measured.windows.iter().map(rate).collect::<Vec<_>>(),
        );
        Ok(json!({
            "total": total, "windows": measured.windows, "cpu_ms_per_operation": cpu_ms, "resident_mib": resident_mib,
            "slowest_window": measured.slowest_window(),
            "device_bytes_per_operation": measured.device_bytes as f64 / measured.operations(),
        }))
    }

    fn pages(&self) -> anyhow::Result<Value> {
        let directory = |at: usize| Bytes::from(format!("load/1/{:x}/", at as u64 * 17 % DIRECTORIES));
        let directories = self.pages_of("of directories", |_| (Bytes::from_static(b"load/1/"), "/"))?;
        let names = self.pages_of("of names in a directory", |at| (directory(at), ""))?;
        Ok(json!({"directories": directories, "names": names}))
    }

    /// Asks for pages with a prefix and a delimiter each.
    fn pages_of(&self, what: &str, of: impl Fn(usize) -> (Bytes, &'static str)) -> anyhow::Result<Value> {
        let (mut took, mut entries) = (Vec::new(), 0);
        let before = self.cluster.spent()?;
        for at in 0..PAGES {
            let (prefix, delimiter) = of(at);
            let request = ListKeysRequest {
                volume: S3_VOLUME.to_owned(),
                bucket: OmCluster::bucket(0),
                prefix,
                delimiter: Bytes::from_static(delimiter.as_bytes()),
                limit: PAGE_LIMIT,
                ..ListKeysRequest::default()
            };
            let begun = Instant::now();
            entries += self.runtime.block_on(self.client.list_keys(request))?.entries.len();
            took.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        let cpu_ms = (self.cluster.spent()?.cpu_seconds - before.cpu_seconds) * 1e3 / PAGES as f64;
        took.sort_by(f64::total_cmp);
        let (p50_ms, max_ms, entries) = (took[PAGES / 2], took[PAGES - 1], entries / PAGES);
        println!(
            "a page {what}, {entries} entries: p50 {p50_ms:.1} ms, max {max_ms:.1} ms, CPU {cpu_ms:.1} ms"
        );
        Ok(json!({"entries": entries, "p50_ms": p50_ms, "max_ms": max_ms, "cpu_ms": cpu_ms}))
    }

    fn restart(&mut self) -> anyhow::Result<Value> {
        let begun = Instant::now();
        self.cluster.kill_and_start_again();
        let ready_seconds = begun.elapsed().as_secs_f64();
        let request = ListKeysRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: OmCluster::bucket(0),
            limit: 1,
            ..ListKeysRequest::default()
        };
        self.runtime.block_on(self.client.list_keys(request))?;
        let answered_seconds = begun.elapsed().as_secs_f64();
        println!(
            "all OMs killed and started: ready after {ready_seconds:.1} s, answered after {answered_seconds:.1} s"
        );
        self.cluster.until_whole()?;
        Ok(json!({"ready_seconds": ready_seconds, "answered_seconds": answered_seconds}))
    }

    fn moved(&self) -> anyhow::Result<Value> {
        let writers = load_begin(&self.cluster, self.names(WRITERS, 1 << 40, FIRST_BESIDE), 0, 1)?;
        std::thread::sleep(BESIDE);
        let begun = Instant::now();
        let moved = self.cluster.admin(&["bucket", "move", &OmCluster::bucket(0), "--to", "1"]);
        let seconds = begun.elapsed().as_secs_f64();
        std::thread::sleep(BESIDE);
        let status = Command::new("kill").args(["-INT", &writers.id().to_string()]).status()?;
        ensure!(status.success(), "kill -INT: {status}");
        let said = load_end(writers)?; // fails where a writer has failed
        moved?;
        let (total, windows) = said.split_last().context("the writers say nothing")?;
        let longest = |line: &Value| line["max_ms"].as_f64().unwrap_or_default();
        println!(
            "moved to another group in {seconds:.1} s beside {WRITERS} writers: {} written, {} failed, longest {} ms, p99.9 {} ms; \
             longest by 10 s: {:.0?}",
            total["operations"],
            total["failed"],
            total["max_ms"],
            total["p999_ms"],
            windows.iter().map(longest).collect::<Vec<_>>(),
        );
        Ok(json!({"seconds": seconds, "writers": total, "windows": windows}))
    }

    /// Names blocks, as many as there are names, deletes those names, and takes the memory with all of the
    /// blocks waiting.
    fn unused(&self) -> anyhow::Result<Value> {
        let (before, bucket) = (self.resident(), OmCluster::bucket(0));
        let keys = self.large.names.div_ceil(BLOCKS_OF_KEY);
        for number in 0..keys {
            let commit = self.client.commit_key(S3_VOLUME, &bucket, key(number), None);
            self.runtime.block_on(commit)?;
        }
        let named = self.resident();
        for number in 0..keys {
            let delete = self.client.delete_keys(S3_VOLUME, &bucket, vec![name(number)], None);
            self.runtime.block_on(delete)?;
        }
        let (blocks, give_up) = (keys * BLOCKS_OF_KEY, Instant::now() + FILED_WITHIN);
        let mut most = self.resident();
        while self.waiting()? < blocks {
            ensure!(Instant::now() < give_up, "{} of {blocks} blocks wait", self.waiting()?);
            let now = self.resident();
            most = Resident { om: most.om.max(now.om), scm: most.scm.max(now.scm) };
            std::thread::sleep(Duration::from_millis(200));
        }
        // SCM has been asked for all of them, again and again.
        std::thread::sleep(10 * BESIDE);
        let now = self.resident();
        let words = |resident: Resident| format!("OM {} MiB, SCM {}", resident.om / MIB, resident.scm / MIB);
        println!(
            "{blocks} unused blocks wait: {}; at most {}; named {}; before {}",
            words(now),
            words(most),
            words(named),
            words(before)
        );
        let mib = |resident: Resident| json!({"om": resident.om / MIB, "scm": resident.scm / MIB});
        Ok(
            json!({"blocks": blocks, "mib": {"before": mib(before), "named": mib(named), "most": mib(most), "waiting": mib(now)}}),
        )
    }

    /// The unused blocks of all groups that wait.
    fn waiting(&self) -> anyhow::Result<u64> {
        let mut waiting = 0;
        for group in 0..self.cluster.groups {
            let unused = self.runtime.block_on(self.client.unused(group))?;
            waiting += unused.totals.unwrap_or_default().unused_blocks;
        }
        Ok(waiting)
    }

    fn resident(&self) -> Resident {
        Resident { om: self.cluster.resident_bytes(), scm: self.cluster.resident_bytes_of_scm() }
    }
}

fn name(number: u64) -> Bytes {
    Bytes::from(format!("blocks/{number}"))
}

/// A key with blocks of its own, of a byte each.
fn key(number: u64) -> Key {
    let pieces = (0..BLOCKS_OF_KEY).map(|at| {
        let block = number * BLOCKS_OF_KEY + at;
        let (container, local) =
            (CONTAINERS_FROM + block / BLOCKS_OF_CONTAINER, block % BLOCKS_OF_CONTAINER + 1);
        let nonce = Bytes::copy_from_slice(&u128::from(block).to_be_bytes());
        BlockPiece { block: Some(BlockName { container, local, nonce }), length: 1, ..BlockPiece::default() }
    });
    let pieces: Vec<BlockPiece> = pieces.collect();
    Key { key: name(number), size: BLOCKS_OF_KEY, etag: format!("{number:032x}"), pieces, ..Key::default() }
}
