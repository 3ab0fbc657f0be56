//! Random requests from a seed, as in crates/raftlog/tests/fuzz/campaign.rs: `FLOTILLA_FUZZ_MINUTES` says for
//! how long, or `FLOTILLA_FUZZ_CASES` how many of each target, and `FLOTILLA_FUZZ_SEED` with which seed to
//! begin.

use crate::allocation::peak;
use crate::random::Random;
use crate::wire::{gateway, with_trial};
use crate::{chunks, form, range, request, xml};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::time::Instant;

const SEEDS_IN_TESTS: u64 = 25;
const CASES_PER_SEED: u64 = 20;
const FINDINGS_MAX: u64 = 5;
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
    let number = |name: &str| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let minutes = number("FLOTILLA_FUZZ_MINUTES");
    let first_seed = number("FLOTILLA_FUZZ_SEED").unwrap_or(1);
    let started = Instant::now();
    let cases_wanted = number("FLOTILLA_FUZZ_CASES");
    let is_over = |seeds: u64| match (cases_wanted, minutes) {
        (Some(cases), _) => seeds * CASES_PER_SEED >= cases,
        (None, Some(minutes)) => seeds > 0 && started.elapsed() >= Duration::from_secs(60 * minutes),
        (None, None) => seeds >= SEEDS_IN_TESTS,
    };
    let (mut seeds, mut findings) = (0, 0);
    let mut counts = [Count::default(); TARGETS.len()];
    while !is_over(seeds) && findings < FINDINGS_MAX {
        let seed = first_seed.wrapping_add(seeds);
        for ((name, case), count) in TARGETS.iter().zip(&mut counts) {
            let begun = Instant::now();
            let mut random = Random::new(seed);
            for _ in 0..CASES_PER_SEED {
                count.cases += 1;
                match checked(|| case(&mut random)) {
                    Ok(has_passed) => count.passed += u64::from(has_passed),
                    Err(why) => {
                        findings += 1;
                        println!("finding in {name}, seed {seed}: {why}");
                        println!("replay: ./dev fuzz --minutes 0 --seed {seed}");
                        break;
                    }
                }
            }
            count.spent += begun.elapsed();
        }
        seeds += 1;
    }
    report(first_seed, seeds, started.elapsed(), findings, &counts);
    assert_eq!(findings, 0, "see above");
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

fn report(first_seed: u64, seeds: u64, took: Duration, findings: u64, counts: &[Count]) {
    let all: u64 = counts.iter().map(|count| count.cases).sum();
    let list = |of: fn(&Count) -> u64| {
        let pairs = TARGETS.iter().zip(counts).map(|((name, _), count)| format!("\"{name}\": {}", of(count)));
        pairs.collect::<Vec<_>>().join(", ")
    };
    println!(
        "{{\"cases\": {all}, \"seed\": {first_seed}, \"seeds\": {seeds}, \"minutes\": {:.2}, \"findings\": {findings}, \
         \"targets\": {{{}}}, \"passed\": {{{}}}, \"micros_a_case\": {{{}}}}}",
        took.as_secs_f64() / 60.0,
        list(|count| count.cases),
        list(|count| count.passed),
        list(|count| count.spent.as_micros() as u64 / count.cases.max(1)),
    );
}
