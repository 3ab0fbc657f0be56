//! The progress of a container's discards: what a group of names hears of it.

use proto::scm::{DiscardProgress, DiscardState};
use types::{ContainerId, NodeId};

/// The progress of a container's discards, and what it waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ContainerProgress {
    pub(crate) state: DiscardState,
    pub(crate) why: String,
    pub(crate) node: Option<NodeId>,
}

impl ContainerProgress {
    pub(crate) fn of(state: DiscardState) -> ContainerProgress {
        ContainerProgress { state, why: String::new(), node: None }
    }

    pub(crate) fn because(state: DiscardState, why: impl Into<String>) -> ContainerProgress {
        ContainerProgress { why: why.into(), ..ContainerProgress::of(state) }
    }

    pub(super) fn at(self, node: NodeId) -> ContainerProgress {
        ContainerProgress { node: Some(node), ..self }
    }

    pub(super) fn troubled(why: impl Into<String>, node: NodeId) -> ContainerProgress {
        ContainerProgress::because(DiscardState::DiscardTroubled, why).at(node)
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
