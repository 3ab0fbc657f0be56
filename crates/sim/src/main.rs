//! `./dev sim`: simulates clusters, seed after seed. The last line is JSON.

use clap::Parser;
use flotilla_sim::Campaign;
use flotilla_sim::scenario::Planted;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// Each simulates seeds of its own.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print all events.
    #[arg(long)]
    trace: bool,
    /// A bug to be found.
    #[arg(long)]
    planted: Option<Planted>,
}

fn main() -> ExitCode {
    let Args { seed, seeds, threads, trace, planted } = Args::parse();
    let report = Campaign { first_seed: seed, seeds, threads, is_printed: trace, planted }.run();
    for violation in &report.violations {
        eprintln!("{violation}");
    }
    println!("{report}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
