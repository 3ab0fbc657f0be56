//! Seeds, each simulated in a process of its own, as `./dev sim` does it.

use clap::ValueEnum;
use flotilla_sim::seeds::{Campaign, Report, Simulated};
use std::fmt::Debug;

/// The most seeds that are tried before a bug counts as not found. The first one shows it, unless what is
/// simulated has changed.
const SEEDS_MAX: u64 = 12;

pub(crate) fn campaign(simulated: Simulated, first_seed: u64, seeds: u64) -> Report {
    with_planted(simulated, first_seed, seeds, None)
}

/// Simulates these seeds one after the other, and checks that no rule is broken and that each of these events
/// happens in one of them: a slice in which nothing happens proves nothing.
pub(crate) fn check_slice(simulated: Simulated, seeds: &[u64], reached: &[&str]) {
    let counts: Vec<(String, u64)> =
        seeds.iter().flat_map(|seed| well(&campaign(simulated, *seed, 1))).collect();
    let lacking: Vec<_> = reached
        .iter()
        .filter(|what| !counts.iter().any(|(name, count)| name == *what && *count > 0))
        .collect();
    assert!(lacking.is_empty(), "no seed of {seeds:?} has any {lacking:?}: choose others (`./dev sim`)");
}

/// Checks that a seed, the last one of 16, takes the same steps in two processes.
pub(crate) fn check_repeated(simulated: Simulated, seed: u64) {
    let report = campaign(simulated, seed, 1);
    well(&report);
    assert_eq!(report.repeated, 1);
}

/// Checks that a planted bug shows in one of these ways.
pub(crate) fn check_planted<P>(simulated: Simulated, planted: P, first_seed: u64, expected: &[&str])
where
    P: ValueEnum + Debug,
{
    let name = planted.to_possible_value().map(|value| value.get_name().to_owned());
    // The seeds run one after the other: beside a seed that shows a bug the next one would be waited for.
    let report = with_planted(simulated, first_seed, SEEDS_MAX, name);
    let found =
        report.violations.first().unwrap_or_else(|| panic!("no seed of {SEEDS_MAX} shows {planted:?}"));
    let is_expected = expected.iter().any(|what| found.contains(what));
    assert!(is_expected, "{planted:?} shows otherwise than as one of {expected:?}:\n{found}");
}

/// The counts of seeds that broke no rule.
fn well(report: &Report) -> Vec<(String, u64)> {
    assert!(report.violations.is_empty(), "{}", report.violations.join("\n"));
    report.counts.clone()
}

fn with_planted(simulated: Simulated, first_seed: u64, seeds: u64, planted: Option<String>) -> Report {
    let program = env!("CARGO_BIN_EXE_flotilla-sim").into();
    let (threads, is_printed, keeps_going) = (1, false, false);
    Campaign { program, simulated, first_seed, seeds, threads, is_printed, planted, keeps_going }.run()
}
