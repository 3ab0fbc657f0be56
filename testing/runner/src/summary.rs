//! The summary that a person reads: a line for each test, what failed with all it printed, which took longest
//! and computed most, and the count.

use crate::process::Verdict;
use crate::schedule::Outcome;
use std::time::Duration;

const MOST: usize = 20;

/// Prints whether a test passed, how long it took, and how long it computed with all that it started.
pub(crate) fn print_result(outcome: &Outcome) {
    let word = match outcome.verdict {
        Verdict::Passed => "ok    ",
        Verdict::Failed(_) => "FAILED",
    };
    let Outcome { took, computed, test, .. } = outcome;
    println!("{word} {:8.2} s {:8.2} s  {test}", took.as_secs_f64(), computed.as_secs_f64());
}

/// Prints the summary; true when nothing failed.
pub(crate) fn print(outcomes: &[Outcome], ignored: usize) -> bool {
    for outcome in outcomes {
        print_failure(outcome);
    }
    print_most("took longest", outcomes, |outcome| outcome.took);
    print_most("computed most, with what they started", outcomes, |outcome| outcome.computed);
    let computed: Duration = outcomes.iter().map(|outcome| outcome.computed).sum();
    println!("       {:8.2} s  all\n", computed.as_secs_f64());
    for outcome in outcomes.iter().filter(|outcome| outcome.passed_alone) {
        println!("unsteady: {} failed beside others, and passed alone", outcome.test);
    }
    let failed = outcomes.iter().filter(|outcome| outcome.has_failed() && !outcome.passed_alone).count();
    println!("tests: {} passed, {failed} failed, {ignored} ignored", outcomes.len() - failed);
    failed == 0
}

fn print_most(what: &str, outcomes: &[Outcome], of: fn(&Outcome) -> Duration) {
    let mut most: Vec<&Outcome> = outcomes.iter().collect();
    most.sort_by_key(|outcome| std::cmp::Reverse(of(outcome)));
    println!("\n{what}:");
    for outcome in most.iter().take(MOST) {
        println!("       {:8.2} s  {}", of(outcome).as_secs_f64(), outcome.test);
    }
}

fn print_failure(outcome: &Outcome) {
    let Verdict::Failed(why) = &outcome.verdict else { return };
    println!("\n---- {}: {why} ----", outcome.test);
    println!("{}", outcome.printed.trim_end());
    println!("---- again: ./dev test '{}' ----", outcome.test);
}
