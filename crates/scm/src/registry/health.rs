//! The health of an instance: what its checks say together.

use crate::clock_apart::ClockApart;
use proto::registry::{Check, Health};

/// The check in which SCM says whether it hears from an instance.
pub(super) const CONNECTIVITY: &str = "connectivity";

/// The check in which SCM judges the clock of an instance that tells it.
pub(super) const CLOCK: &str = "clock";

/// The worst health of the checks; an instance without checks is well. A health that only a newer version
/// knows counts as a warning.
pub(super) fn health(checks: &[Check]) -> Health {
    let known = |check: &Check| match check.health() {
        Health::Unspecified => Health::Warning,
        health => health,
    };
    checks.iter().map(known).max().unwrap_or(Health::Passing)
}

/// An instance's own checks, together with SCM's word, in the order of the names.
pub(super) fn with_connectivity(checks: Vec<Check>, health: Health, output: &str) -> Vec<Check> {
    let own = Check { name: CONNECTIVITY.to_owned(), health: health as i32, output: output.to_owned() };
    let mut checks: Vec<Check> =
        checks.into_iter().filter(|check| check.name != CONNECTIVITY).chain([own]).collect();
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    checks
}

/// An instance's own checks, together with SCM's word on its clock.
pub(super) fn with_clock(checks: Vec<Check>, clock: ClockApart) -> Vec<Check> {
    let (health, output) = match clock.problem() {
        None => (Health::Passing, "its clock is SCM's".to_owned()),
        Some(problem) => (Health::Warning, problem),
    };
    let own = Check { name: CLOCK.to_owned(), health: health as i32, output };
    let mut checks: Vec<Check> =
        checks.into_iter().filter(|check| check.name != CLOCK).chain([own]).collect();
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    checks
}

/// SCM's complaint about the instance's clock, if there is one.
pub(crate) fn apart_clock(checks: &[Check]) -> Option<&Check> {
    checks.iter().find(|check| check.name == CLOCK && check.health() != Health::Passing)
}

pub(super) fn is_connected(checks: &[Check]) -> bool {
    !checks.iter().any(|check| check.name == CONNECTIVITY && check.health() == Health::Critical)
}

/// Whether others should hear of the change from one set of checks to the other. What checks say in words
/// changes all the time, and goes along when a health changes.
pub(super) fn differ(before: &[Check], now: &[Check]) -> bool {
    let essence = |check: &Check| (check.name.clone(), check.health);
    !before.iter().map(essence).eq(now.iter().map(essence))
}
