use super::load::{Client, Kind};
use super::objects::{Objects, Size};
use super::target::Target;
use crate::scrape;
use crate::usage::Usage;
use anyhow::{Context, ensure};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use testkit::prometheus::Scrape;

/// The number of operations, one after the other: enough of them that one round of heartbeats makes no
/// difference.
const OPERATIONS: u32 = 500;
const WARM_UP: u32 = 50;
const SOURCE: &str = include_str!("counts.c");

/// The cost of one operation to one kind of process, without what the process does when nobody asks.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub process: &'static str,
    /// gRPC calls that came in, and messages in them: a stream is one call.
    pub calls: f64,
    pub messages: f64,
    /// The number of times that a thread went to sleep and was woken.
    pub wakeups: f64,
    pub allocations: f64,
    pub allocated_bytes: f64,
    /// Copies in user space, of a KiB and more.
    pub copies: f64,
    pub copied_bytes: f64,
}

/// A binary that starts `binary` with the counting library in front of the C library; both lie in `dir`.
pub fn counting_library(dir: &Path, binary: &Path) -> anyhow::Result<PathBuf> {
    let (source, library, script) = (dir.join("counts.c"), dir.join("libcounts.so"), dir.join("counted"));
    std::fs::write(&source, SOURCE)?;
    let compiled = Command::new("cc")
        .args(["-O2", "-fPIC", "-shared", "-fno-builtin", "-o"])
        .args([&library, &source])
        .status()
        .context("start the C compiler")?;
    ensure!(compiled.success(), "the C compiler refuses counts.c");
    let line = format!(
        "#!/bin/sh\nexec env FLOTILLA_COUNTS='{}' LD_PRELOAD='{}' '{}' \"$@\"\n",
        dir.display(),
        library.display(),
        binary.display()
    );
    std::fs::write(&script, line)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// The cost of `kind` to the processes of a target that was started with the binary of [`counting_library`]
/// in `dir`.
pub fn operations_counted(
    target: &Target,
    dir: &Path,
    kind: Kind,
    size: &Size,
    objects: &Objects,
) -> anyhow::Result<Vec<Counted>> {
    let mut client = Client::new(target, size, objects, 0)?;
    (0..WARM_UP).try_for_each(|_| client.operate(kind))?;
    let before = Counts::of_all(target, dir)?;
    let began = Instant::now();
    (0..OPERATIONS).try_for_each(|_| client.operate(kind))?;
    let took = began.elapsed();
    let between = Counts::of_all(target, dir)?;
    std::thread::sleep(took);
    let after = Counts::of_all(target, dir)?;
    let names = target.processes.iter().map(|(name, _)| *name);
    let each = before.iter().zip(&between).zip(&after).map(|((before, between), after)| {
        // Threads that ended took their wakeups along, so a difference may be below zero.
        let net = |at: usize| {
            let [before, between, after] = [before, between, after].map(|counts| counts.0[at] as f64);
            ((between - before) - (after - between)) / f64::from(OPERATIONS)
        };
        let [calls, messages, wakeups, allocations, allocated_bytes, copies, copied_bytes] =
            std::array::from_fn(net);
        let process = "";
        Counted { process, calls, messages, wakeups, allocations, allocated_bytes, copies, copied_bytes }
    });
    Ok(names.zip(each).map(|(process, counted)| Counted { process, ..counted }).collect())
}

/// The counts of one kind of process, in the order of the fields of [`Counted`].
#[derive(Clone, Copy, Default)]
struct Counts([u64; 7]);

impl Counts {
    fn of_all(target: &Target, dir: &Path) -> anyhow::Result<Vec<Counts>> {
        target.processes.iter().map(|(name, pids)| Counts::of(target, name, pids, dir)).collect()
    }

    fn of(target: &Target, name: &str, pids: &[u32], dir: &Path) -> anyhow::Result<Counts> {
        let mut counts = Counts::default();
        for pid in pids {
            let bytes = std::fs::read(dir.join(pid.to_string())).context("read what a process counts")?;
            let (numbers, _) = bytes.as_chunks::<8>();
            ensure!(numbers.len() == 4, "four numbers, not {}", numbers.len());
            counts.0[2] += Usage::of(*pid).wakeups;
            counts.0[3..]
                .iter_mut()
                .zip(numbers)
                .for_each(|(sum, number)| *sum += u64::from_ne_bytes(*number));
        }
        for http in target.http_of(name) {
            let page = Scrape::parse(&scrape(&http)?).map_err(anyhow::Error::msg)?;
            for (at, metric) in ["flotilla_rpc_calls_total", "flotilla_rpc_messages_total"].iter().enumerate()
            {
                counts.0[at] +=
                    page.value(metric, &[]).with_context(|| format!("{http} has no {metric}"))? as u64;
            }
        }
        Ok(counts)
    }
}
