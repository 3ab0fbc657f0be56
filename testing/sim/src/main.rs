//! `./dev sim`: simulates clusters, seed after seed. The last line is JSON.

use clap::{Parser, Subcommand};
use flotilla_sim::scenario::Planted;
use flotilla_sim::{Campaign, cluster};
use std::fmt;
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(flatten)]
    groups: Groups,
    #[command(subcommand)]
    what: Option<What>,
}

/// Raft groups.
#[derive(clap::Args)]
struct Groups {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Each simulates seeds of its own.
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Print all events.
    #[arg(long)]
    trace: bool,
    /// A bug to be found.
    #[arg(long)]
    planted: Option<Planted>,
}

#[derive(Subcommand)]
enum What {
    /// Whole clusters of SCM and datanodes.
    Cluster(Clusters),
    /// One of them, as `cluster` starts it.
    #[command(hide = true)]
    ClusterSeed(Clusters),
}

#[derive(clap::Args)]
struct Clusters {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// So many at a time.
    #[arg(long, default_value = "2")]
    threads: NonZeroUsize,
    /// Print all events.
    #[arg(long)]
    trace: bool,
    /// A bug to be found.
    #[arg(long)]
    planted: Option<cluster::Planted>,
    /// Go on after a violation.
    #[arg(long)]
    all: bool,
}

fn main() -> ExitCode {
    let Args { groups, what } = Args::parse();
    match what {
        None => {
            let Groups { seed, seeds, threads, trace, planted } = groups;
            let campaign =
                Campaign { first_seed: seed, seeds, threads: threads.get(), is_printed: trace, planted };
            let report = campaign.run();
            finish(&report.violations, &report)
        }
        Some(What::Cluster(clusters)) => run_clusters(clusters),
        Some(What::ClusterSeed(Clusters { seed, trace, planted, .. })) => {
            match cluster::run(cluster::Options { seed, is_printed: trace, planted }) {
                Ok(finished) => {
                    println!("{}", finished.line());
                    ExitCode::SUCCESS
                }
                Err(violation) => {
                    println!("{violation}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn run_clusters(clusters: Clusters) -> ExitCode {
    let Clusters { seed, seeds, threads, trace, planted, all } = clusters;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("find this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    let campaign = cluster::Campaign {
        program,
        first_seed: seed,
        seeds,
        threads: threads.get(),
        is_printed: trace,
        planted,
        keeps_going: all,
    };
    let report = campaign.run();
    finish(&report.violations, &report)
}

fn finish(violations: &[String], report: &impl fmt::Display) -> ExitCode {
    for violation in violations {
        eprintln!("{violation}");
    }
    println!("{report}");
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
