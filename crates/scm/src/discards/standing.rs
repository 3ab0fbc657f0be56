//! The standing of a container: what a group of names hears of it.

use proto::scm::{DiscardProgress, DiscardState};
use types::{ContainerId, NodeId};

/// The progress of a container's discards, and what it waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    pub(crate) state: DiscardState,
    pub(crate) why: String,
    pub(crate) node: Option<NodeId>,
}

impl Standing {
    pub(crate) fn of(state: DiscardState) -> Standing {
        Standing { state, why: String::new(), node: None }
    }

    pub(crate) fn because(state: DiscardState, why: impl Into<String>) -> Standing {
        Standing { why: why.into(), ..Standing::of(state) }
    }

    pub(super) fn at(self, node: NodeId) -> Standing {
        Standing { node: Some(node), ..self }
    }

    pub(super) fn troubled(why: impl Into<String>, node: NodeId) -> Standing {
        Standing::because(DiscardState::DiscardTroubled, why).at(node)
    }

    pub(crate) fn to_proto(&self, container: ContainerId) -> DiscardProgress {
        DiscardProgress {
            container: container.0,
            state: self.state.into(),
            why: self.why.clone(),
            node: self.node.map_or(0, |node| node.0),
            ..DiscardProgress::default()
        }
    }
}
