//! The needs of some tests of the machine while they run. Everything else mostly waits.

use crate::artifacts::Test;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A slot: it waits for processes, disks and timers more than it computes.
    Slot,
    /// A slot and a core: it computes without a pause, for seconds.
    Core,
}

/// The first line that fits decides: the beginning of a test as it is printed, and its need.
const NEEDS: &[(&str, Need)] =
    &[("sim/sim", Need::Core), ("raftlog/crash", Need::Core), ("raftlog/fuzz", Need::Core)];

pub(crate) fn need(test: &Test) -> Need {
    let name = test.to_string();
    NEEDS.iter().find(|(beginning, _)| name.starts_with(beginning)).map_or(Need::Slot, |(_, need)| *need)
}
