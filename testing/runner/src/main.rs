//! Runs the tests of the workspace side by side, each in a process of its own: most of them wait for
//! processes, disks or timers, so a few at a time for each core take half as long as one binary after the
//! other. `./dev test` calls it.
//!
//! A test is found by asking each test binary that cargo built; it is started by its full name, in its
//! crate's directory, as cargo would. Tests that took long the last time begin first ([`times`]); [`needs`]
//! says which compute rather than wait. What a test prints is shown when it fails.

#![allow(clippy::disallowed_methods)] // files and clocks of a tool, outside of any server

mod artifacts;
mod needs;
mod process;
mod schedule;
mod summary;
mod times;

use anyhow::Context;
use artifacts::{Test, find_tests};
use clap::Parser;
use schedule::Limits;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use times::Times;

#[derive(Parser)]
struct Arguments {
    /// The file that `cargo test --no-run --message-format json` wrote
    #[arg(long)]
    artifacts: PathBuf,
    /// Where the times of this run are kept for the next
    #[arg(long)]
    times: PathBuf,
    /// How many tests run side by side; five for two cores when not given
    #[arg(long)]
    slots: Option<usize>,
    /// A test that takes longer is ended and has failed
    #[arg(long, default_value = "1200")]
    test_seconds_max: u64,
    /// Also those that are only run when asked for
    #[arg(long)]
    ignored: bool,
    /// Only tests whose crate, binary and name, written as in the output, contain this
    filter: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let cores = std::thread::available_parallelism().context("count the cores")?.get();
    let limits = Limits { slots: arguments.slots.unwrap_or(5 * cores / 2).max(1), cores };
    let found = find_tests(&arguments.artifacts)?;
    let is_wanted =
        |test: &Test| arguments.filter.as_ref().is_none_or(|part| test.to_string().contains(part.as_str()));
    let (skipped, tests): (Vec<_>, Vec<_>) =
        found.into_iter().filter(is_wanted).partition(|test| test.is_ignored && !arguments.ignored);

    let mut times = Times::read(&arguments.times);
    let queue = schedule::in_order(tests, &times);
    let each_within = Duration::from_secs(arguments.test_seconds_max);
    let mut results = schedule::run(queue, limits, each_within, summary::print_result);
    schedule::run_failed_alone(&mut results, each_within);
    let is_green = summary::print(&results, skipped.len());
    times.update(&results);
    if let Err(error) = times.write(&arguments.times) {
        eprintln!("the times of this run are not kept: {error:#}");
    }
    Ok(if is_green { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
