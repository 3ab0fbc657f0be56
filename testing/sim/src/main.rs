//! `./dev sim`: simulates clusters, seed after seed. The last line is JSON.

use clap::{Parser, Subcommand, ValueEnum};
use flotilla_sim::services::{Finished, Violation};
use flotilla_sim::{cluster, names, scenario, seeds};
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    /// Raft groups.
    #[command(flatten)]
    groups: Seeds<scenario::Planted>,
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// Raft groups of one seed, as they are started without a verb.
    #[command(hide = true)]
    GroupsSeed(Seeds<scenario::Planted>),
    /// Whole clusters of SCM and datanodes.
    Cluster(Seeds<cluster::Planted>),
    /// One of them, as `cluster` starts it.
    #[command(hide = true)]
    ClusterSeed(Seeds<cluster::Planted>),
    /// The namespace: OMs, SCM and clients.
    Om(Seeds<names::Planted>),
    /// One of them, as `om` starts it.
    #[command(hide = true)]
    OmSeed(Seeds<names::Planted>),
}

#[derive(clap::Args)]
struct Seeds<P: ValueEnum + Send + Sync + 'static> {
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
    planted: Option<P>,
    /// Go on after a violation.
    #[arg(long)]
    all: bool,
}

fn main() -> ExitCode {
    let Args { groups, what } = Args::parse();
    match what {
        None => run_all(seeds::Simulated::Groups, groups),
        Some(What::Cluster(clusters)) => run_all(seeds::Simulated::Clusters, clusters),
        Some(What::Om(of_names)) => run_all(seeds::Simulated::Names, of_names),
        Some(What::GroupsSeed(Seeds { seed, trace: is_printed, planted, .. })) => {
            tell(scenario::run(scenario::Options { seed, is_printed, planted }))
        }
        Some(What::ClusterSeed(Seeds { seed, trace: is_printed, planted, .. })) => {
            tell(cluster::run(cluster::Options { seed, is_printed, planted }))
        }
        Some(What::OmSeed(Seeds { seed, trace: is_printed, planted, .. })) => {
            tell(names::run(names::Options { seed, is_printed, planted }))
        }
    }
}

/// Tells what came of one seed to whoever started this process.
fn tell(result: Result<Finished, Violation>) -> ExitCode {
    match result {
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

fn run_all<P: ValueEnum + Send + Sync>(simulated: seeds::Simulated, all: Seeds<P>) -> ExitCode {
    let Seeds { seed, seeds, threads, trace, planted, all } = all;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("find this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    let planted = planted.and_then(|planted| planted.to_possible_value());
    let campaign = seeds::Campaign {
        program,
        simulated,
        first_seed: seed,
        seeds,
        threads: threads.get(),
        is_printed: trace,
        planted: planted.map(|name| name.get_name().to_owned()),
        keeps_going: all,
    };
    let report = campaign.run();
    for violation in &report.violations {
        eprintln!("{violation}");
    }
    println!("{report}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
