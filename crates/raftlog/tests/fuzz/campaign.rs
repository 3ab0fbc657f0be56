//! Random inputs from a seed.

use crate::directory::{self, Outcomes};
use crate::{hard_state, inspect, record};
use disk::sim::Random;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use testkit::fuzz::Campaign;

const SEEDS_IN_TESTS: u64 = 60;
const RECORDS_PER_SEED: u64 = 150;
const HARD_STATES_PER_SEED: u64 = 40;
const SEGMENTS_PER_SEED: u64 = 30;

#[test]
fn campaign() {
    let mut campaign = Campaign::asked(SEEDS_IN_TESTS);
    let mut counts = Counts::default();
    while let Some(seed) = campaign.next_seed(counts.cases()) {
        for target in TARGETS {
            if let Err(why) = run(target, seed, &mut counts) {
                campaign.found(target.name, &why);
            }
        }
    }
    let Counts { record, hard_state, directory, inspect, outcomes } = counts;
    let targets =
        [("record", record), ("hard_state", hard_state), ("directory", directory), ("inspect", inspect)];
    let Outcomes { opened, refused, entries_refused, .. } = outcomes;
    let logs = format!(
        "\"logs_opened\": {opened}, \"logs_refused\": {refused}, \"entries_refused\": {entries_refused}"
    );
    campaign.end(&targets, &logs);
}

#[derive(Default)]
struct Counts {
    record: u64,
    hard_state: u64,
    directory: u64,
    inspect: u64,
    outcomes: Outcomes,
}

impl Counts {
    fn cases(&self) -> u64 {
        self.record + self.hard_state + self.directory + self.inspect
    }
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
