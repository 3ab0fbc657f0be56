use proto::{Code, Failure};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;
use types::NodeId;

/// Processes that came with the directories of a datanode or an OM that is elsewhere and well. Nobody knows
/// which of two is the copy: the one that speaks stays, until nothing is heard from there.
#[derive(Default)]
pub(crate) struct Twins {
    /// The address of each, and the time at which it last came.
    came: BTreeMap<NodeId, (String, Instant)>,
}

impl Twins {
    pub(crate) fn note(&mut self, of: NodeId, address: &str, now: Instant) {
        self.came.insert(of, (address.to_owned(), now));
    }

    /// Takes note that `of` has registered: whoever else has its directories comes again.
    pub(crate) fn forget(&mut self, of: NodeId) {
        self.came.remove(&of);
    }

    /// The address of a twin that came no longer ago than `within`.
    pub(crate) fn lately(&self, of: NodeId, now: Instant, within: Duration) -> Option<&str> {
        let (address, came) = self.came.get(&of)?;
        (now.saturating_duration_since(*came) < within).then_some(address)
    }
}

/// The answer to a twin. `whose`: "node 3" or "OM 3".
pub(crate) fn refuse(whose: &str, address: &str, twin: &str) -> Failure {
    warn!(at = address, twin, "two have the directories of {whose}: the second one waits");
    let why = format!(
        "{whose} is at {address}, and is well: one of the two has a copy of its directories, or it has moved, and waits until nothing is heard from there"
    );
    Failure::new(Code::PreconditionFailed, why)
}
