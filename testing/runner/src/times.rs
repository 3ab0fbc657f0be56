//! How long each test took the last time, in a file beside what cargo built: only a hint for the order.

use crate::schedule::Outcome;
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;

/// The milliseconds that each test took, by the test as it is printed.
pub(crate) struct Times(BTreeMap<String, u64>);

/// Binaries whose tests take seconds each, for a machine that has no times yet.
const SLOW: &[&str] =
    &["cli/processes", "kvnode/drills", "sim/sim", "client/it", "scm/suite", "raft/groups", "datanode/it"];

impl Times {
    /// Reads the times. A file that cannot be read is as none: without it there are no hints.
    pub(crate) fn read(path: &Path) -> Times {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Times(serde_json::from_str(&text).unwrap_or_default())
    }

    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string(&self.0).expect("names and numbers are JSON");
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    pub(crate) fn update(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            self.0.insert(outcome.test.to_string(), outcome.took.as_millis() as u64);
        }
    }

    /// Tests of slow binaries that never ran here count as slow.
    pub(crate) fn expected_ms(&self, test: &str) -> u64 {
        let guess = || SLOW.iter().any(|binary| test.starts_with(binary)).then_some(10_000);
        self.0.get(test).copied().or_else(guess).unwrap_or(0)
    }
}
