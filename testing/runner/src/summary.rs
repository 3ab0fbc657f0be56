//! The summary that a person reads: a line for each test, what failed with all it printed, the ten slowest,
//! and the count.

use crate::process::Verdict;
use crate::schedule::Outcome;

const SLOWEST: usize = 10;

pub(crate) fn print_result(outcome: &Outcome) {
    let word = match outcome.verdict {
        Verdict::Passed => "ok    ",
        Verdict::Failed(_) => "FAILED",
    };
    println!("{word} {:8.2} s  {}", outcome.took.as_secs_f64(), outcome.test);
}

/// Prints the summary; true when nothing failed.
pub(crate) fn print(outcomes: &[Outcome], ignored: usize) -> bool {
    for outcome in outcomes {
        print_failure(outcome);
    }
    let mut slowest: Vec<&Outcome> = outcomes.iter().collect();
    slowest.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    println!("\nthe slowest:");
    for outcome in slowest.iter().take(SLOWEST) {
        println!("       {:8.2} s  {}", outcome.took.as_secs_f64(), outcome.test);
    }
    println!();
    for outcome in outcomes.iter().filter(|outcome| outcome.passed_alone) {
        println!("unsteady: {} failed beside others, and passed alone", outcome.test);
    }
    let failed = outcomes.iter().filter(|outcome| outcome.has_failed() && !outcome.passed_alone).count();
    println!("tests: {} passed, {failed} failed, {ignored} ignored", outcomes.len() - failed);
    failed == 0
}

fn print_failure(outcome: &Outcome) {
    let Verdict::Failed(why) = &outcome.verdict else { return };
    println!("\n---- {}: {why} ----", outcome.test);
    println!("{}", outcome.printed.trim_end());
    println!("---- again: ./dev test '{}' ----", outcome.test);
}
