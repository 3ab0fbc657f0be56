//! Random inputs from a seed.
//!
//! `FLOTILLA_FUZZ_MINUTES` says for how long, `FLOTILLA_FUZZ_SEED` with which seed to begin; `./dev fuzz`
//! sets them. Each seed stands for itself, so `--seed S --minutes 0` replays seed S alone.

use crate::directory::{self, Outcomes};
use crate::{hard_state, inspect, record};
use disk::sim::Random;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use tokio::time::{Duration, Instant};

const SEEDS_IN_TESTS: u64 = 60;
const RECORDS_PER_SEED: u64 = 150;
const HARD_STATES_PER_SEED: u64 = 40;
const SEGMENTS_PER_SEED: u64 = 30;

/// More of the same kind would only hide the first.
const FINDINGS_MAX: u64 = 5;

#[test]
fn campaign() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let minutes = number("FLOTILLA_FUZZ_MINUTES");
    let first_seed = number("FLOTILLA_FUZZ_SEED").unwrap_or(1);
    let started = Instant::now();
    let is_over = |seeds: u64| match minutes {
        Some(minutes) => seeds > 0 && started.elapsed() >= Duration::from_secs(60 * minutes),
        None => seeds >= SEEDS_IN_TESTS,
    };
    let (mut seeds, mut findings, mut counts) = (0, 0, Counts::default());
    while !is_over(seeds) && findings < FINDINGS_MAX {
        let seed = first_seed.wrapping_add(seeds);
        for target in TARGETS {
            if let Err(why) = run(target, seed, &mut counts) {
                findings += 1;
                println!("finding in {}, seed {seed}: {why}", target.name);
                println!("replay: ./dev fuzz --minutes 0 --seed {seed}");
            }
        }
        seeds += 1;
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let Counts { record, hard_state, directory, inspect, outcomes } = counts;
    let cases = record + hard_state + directory + inspect;
    println!(
        "{{\"cases\": {cases}, \"seed\": {first_seed}, \"seeds\": {seeds}, \"minutes\": {minutes:.2}, \
         \"findings\": {findings}, \"targets\": {{\"record\": {record}, \"hard_state\": {hard_state}, \
         \"directory\": {directory}, \"inspect\": {inspect}}}, \"logs_opened\": {}, \"logs_refused\": {}, \
         \"entries_refused\": {}}}",
        outcomes.opened, outcomes.refused, outcomes.entries_refused
    );
    assert_eq!(findings, 0, "see above");
}

#[derive(Default)]
struct Counts {
    record: u64,
    hard_state: u64,
    directory: u64,
    inspect: u64,
    outcomes: Outcomes,
}

struct Target {
    name: &'static str,
    run: fn(&mut Random, &mut Counts) -> Result<(), String>,
}

const TARGETS: &[Target] = &[
    Target {
        name: "record",
        run: |random, counts| {
            counts.record += RECORDS_PER_SEED;
            (0..RECORDS_PER_SEED).try_for_each(|_| record::case(random, record::decoder).map(drop))
        },
    },
    Target {
        name: "hard_state",
        run: |random, counts| {
            counts.hard_state += HARD_STATES_PER_SEED;
            (0..HARD_STATES_PER_SEED).try_for_each(|_| hard_state::case(random, hard_state::reader).map(drop))
        },
    },
    Target {
        name: "directory",
        run: |random, counts| {
            let outcomes = directory::case(random, directory::honest)?;
            counts.directory += outcomes.copies;
            counts.outcomes.opened += outcomes.opened;
            counts.outcomes.refused += outcomes.refused;
            counts.outcomes.entries_refused += outcomes.entries_refused;
            Ok(())
        },
    },
    Target {
        name: "inspect",
        run: |random, counts| {
            counts.inspect += SEGMENTS_PER_SEED;
            (0..SEGMENTS_PER_SEED).try_for_each(|_| inspect::case(random).map(drop))
        },
    },
];

fn run(target: &Target, seed: u64, counts: &mut Counts) -> Result<(), String> {
    without_panic(|| (target.run)(&mut Random::new(seed), counts))
}

thread_local! {
    /// Panics of this thread, also those of tasks, which tokio catches; `None` where they are to be printed.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Makes a panic, of the case or of a task it started on this thread, an error.
pub(crate) fn without_panic(case: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let noted = PANICS.with_borrow_mut(|panics| {
                panics.as_mut().map(|panics| panics.push(panic.to_string())).is_some()
            });
            if !noted {
                before(panic);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let result = catch_unwind(AssertUnwindSafe(case));
    let panics = PANICS.take().unwrap_or_default();
    match (result, panics.first()) {
        (_, Some(panic)) => Err(panic.clone()),
        (Ok(result), None) => result,
        (Err(_), None) => Err("a panic without a message".to_owned()),
    }
}
