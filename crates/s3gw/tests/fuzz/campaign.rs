//! Random requests from a seed. As many cases as are asked for are of each target.

use crate::allocation::peak;
use crate::random::Random;
use crate::wire::{gateway, with_trial};
use crate::{chunks, form, range, request, xml};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use testkit::fuzz::{Campaign, json_counts};
use tokio::time::Instant;

const SEEDS_IN_TESTS: u64 = 25;
const CASES_PER_SEED: u64 = 20;
/// Far above what any of them takes, in a debug build on a busy machine: a case that takes as long does not
/// end by itself.
const CASE_MAX: Duration = Duration::from_secs(10);
/// The bytes that a case takes which has no large document: the request some times over.
const CASE_BYTES_MAX: usize = 4 << 20;

type Case = fn(&mut Random) -> Result<bool, String>;

const TARGETS: [(&str, Case); 5] = [
    ("request", |random| small(|| request::case(random, &gateway))),
    ("chunks", |random| small(|| chunks::case(random, &gateway))),
    ("form", |random| small(|| form::case(random, &gateway))),
    ("range", |random| small(|| range::case(random, &ranges))),
    ("xml", |random| xml::case(random, &gateway)),
];

pub(crate) fn ranges(
    text: &str,
    object_bytes: u64,
) -> (Option<std::ops::Range<u64>>, Option<std::ops::Range<u64>>) {
    with_trial(|trial| (trial.range(text, object_bytes), trial.copy_range(text, object_bytes)))
}

fn small(case: impl FnOnce() -> Result<bool, String>) -> Result<bool, String> {
    let (result, most) = peak(case);
    if most > CASE_BYTES_MAX {
        return Err(format!("it takes {most} bytes"));
    }
    result
}

/// Answers whether something passed that could have been refused.
pub(crate) fn checked(case: impl FnOnce() -> Result<bool, String>) -> Result<bool, String> {
    let begun = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(case)).map_err(|_| "a panic".to_owned())?;
    if begun.elapsed() > CASE_MAX {
        return Err(format!("it takes {:?}", begun.elapsed()));
    }
    result
}

#[test]
fn campaign() {
    let mut campaign = Campaign::asked(SEEDS_IN_TESTS);
    let mut counts = [Count::default(); TARGETS.len()];
    while let Some(seed) = campaign.next_seed(campaign.seeds() * CASES_PER_SEED) {
        for ((name, case), count) in TARGETS.iter().zip(&mut counts) {
            let begun = Instant::now();
            let mut random = Random::new(seed);
            for _ in 0..CASES_PER_SEED {
                count.cases += 1;
                match checked(|| case(&mut random)) {
                    Ok(has_passed) => count.passed += u64::from(has_passed),
                    Err(why) => {
                        campaign.found(name, &why);
                        break;
                    }
                }
            }
            count.spent += begun.elapsed();
        }
    }
    let seeds = campaign.seeds();
    report(campaign, &counts);
    for ((name, _), Count { cases, passed, .. }) in TARGETS.iter().zip(counts) {
        let tries = seeds < SEEDS_IN_TESTS || passed > 0 && passed < cases;
        assert!(tries, "{name}: {passed} of {cases} passed: it tries nothing");
    }
}

/// The counts of one target.
#[derive(Clone, Copy, Default)]
struct Count {
    cases: u64,
    passed: u64,
    spent: Duration,
}

fn report(campaign: Campaign, counts: &[Count]) {
    let named = |of: fn(&Count) -> u64| {
        let counts = TARGETS.iter().zip(counts);
        counts.map(|((name, _), count)| (*name, of(count))).collect::<Vec<_>>()
    };
    let passed = json_counts(named(|count| count.passed).into_iter());
    let micros = json_counts(named(|count| count.spent.as_micros() as u64 / count.cases.max(1)).into_iter());
    let counts = format!("\"passed\": {passed}, \"micros_a_case\": {micros}");
    campaign.end(&named(|count| count.cases), &counts);
}
