//! One, twelve and fifteen Raft logs per node on twelve simulated spinning disks, the same objects for all
//! three. Ends with one line of JSON. `./dev bench multiraft [--quick] [--seed=N]`

use flotilla_benches::multiraft::{Load, Outcome, World, print_comparison};
use serde_json::json;
use std::time::Duration;

const LOGS: [usize; 3] = [1, 12, 15];

/// One log alone gets a load under which two thirds of its writes are fast, as in the report this is compared
/// with; then six times that, at which twelve logs do as well as they do there; then all they take.
const LOADS: [(&str, Load); 4] = [
    ("an idle cluster: one object after the other", Load::Closed { writers: 1 }),
    (
        "open loop, 80 MB/s: more than half of what one disk takes",
        Load::Open { bytes_per_second: 80_000_000 },
    ),
    ("open loop, 480 MB/s: six times that", Load::Open { bytes_per_second: 480_000_000 }),
    ("closed loop, 200 writers: as fast as it goes", Load::Closed { writers: 200 }),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let seed = arguments.iter().find_map(|argument| argument.strip_prefix("--seed="));
    let seed: u64 = seed.map_or(1, |seed| seed.parse().expect("the seed is a number"));
    let (warm_up, measured) = (Duration::from_secs(5), Duration::from_secs(if quick { 20 } else { 120 }));
    let mut figures = Vec::new();
    for (title, load) in LOADS {
        let outcomes = LOGS.map(|logs| run(World { logs, load, seed, warm_up, measured }));
        print_comparison(title, &outcomes);
        figures.push(json!({"load": title, "outcomes": outcomes.each_ref().map(Outcome::figures)}));
    }
    println!(
        "{}",
        json!({"bench": "multiraft", "seed": seed, "seconds": measured.as_secs(), "figures": figures})
    );
}

fn run(world: World) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("start tokio");
    runtime.block_on(world.run())
}
