//! `./dev sim`: simulates clusters, seed after seed.

use clap::Parser;
use flotilla_sim::scenario::{Counts, Options, run};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

#[derive(Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Threads, each with seeds of its own.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Print all events of each run.
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let total = Mutex::new((Counts::default(), 0u64, 0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= args.seeds {
                        return;
                    }
                    let options =
                        Options { seed: args.seed.wrapping_add(at), is_printed: args.trace, planted: None };
                    let result = run(options);
                    let mut total = total.lock().expect("no holder panics");
                    match result {
                        Ok(finished) => {
                            total.1 += 1;
                            total.3 = total.3.max(finished.settled_ms);
                            eprintln!("{} {:?} {:x}", options.seed, finished.counts, finished.hash);
                        }
                        Err(violation) => {
                            total.2 += 1;
                            eprintln!("{violation}");
                        }
                    }
                }
            });
        }
    });
    let total = total.into_inner().expect("no holder panics");
    println!(
        "{{\"seeds\": {}, \"violations\": {}, \"settled_ms_max\": {}, \"elapsed\": {:.1}}}",
        total.1,
        total.2,
        total.3,
        started.elapsed().as_secs_f64()
    );
    if total.2 == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
