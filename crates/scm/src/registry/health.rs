//! What checks say together.

use proto::registry::{Check, Health};

/// What SCM says of an instance: whether it hears from it.
pub(super) const CONNECTIVITY: &str = "connectivity";

/// The worst of them; an instance without checks is well. A word of a newer version is no praise.
pub(super) fn health(checks: &[Check]) -> Health {
    let known = |check: &Check| match check.health() {
        Health::Unspecified => Health::Warning,
        health => health,
    };
    checks.iter().map(known).max().unwrap_or(Health::Passing)
}

/// What an instance says, together with SCM's own word, in the order of the names.
pub(super) fn with_connectivity(checks: Vec<Check>, health: Health, output: &str) -> Vec<Check> {
    let own = Check { name: CONNECTIVITY.to_owned(), health: health as i32, output: output.to_owned() };
    let mut checks: Vec<Check> =
        checks.into_iter().filter(|check| check.name != CONNECTIVITY).chain([own]).collect();
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    checks
}

pub(super) fn is_connected(checks: &[Check]) -> bool {
    !checks.iter().any(|check| check.name == CONNECTIVITY && check.health() == Health::Critical)
}

/// Whether others should hear of it. What checks say in words changes all the time, and goes along when a health changes.
pub(super) fn differ(before: &[Check], now: &[Check]) -> bool {
    let essence = |check: &Check| (check.name.clone(), check.health);
    !before.iter().map(essence).eq(now.iter().map(essence))
}
