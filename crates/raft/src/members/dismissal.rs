//! Dismissals tell a replica that its group goes on without it.

use crate::adapter::encoding::{DecodeError, log_id_checked, log_id_to_wire};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{RaftLogId, RaftStoredMembership};
use proto::raft as wire;
use std::collections::BTreeSet;

/// A committed membership, by its entry. It names its members, because it is passed on to others: only who is
/// not among them is dismissed by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dismissal {
    pub(crate) at: RaftLogId,
    members: BTreeSet<u64>,
}

impl Dismissal {
    pub(crate) fn new(at: RaftLogId, members: impl IntoIterator<Item = u64>) -> Dismissal {
        Dismissal { at, members: members.into_iter().collect() }
    }

    /// The dismissal by a committed membership; `None` before a group's first.
    pub(crate) fn by(committed: &RaftStoredMembership) -> Option<Dismissal> {
        let at = (*committed.log_id())?;
        Some(Dismissal::new(at, committed.nodes().map(|(&replica, _)| replica)))
    }

    pub(crate) fn is_of(&self, replica: u64) -> bool {
        !self.members.contains(&replica)
    }

    pub(crate) fn to_wire(&self) -> wire::Dismissal {
        let members = self.members.iter().copied().collect();
        wire::Dismissal { at: Some(log_id_to_wire(&self.at)), members }
    }

    pub(crate) fn from_wire(wire: wire::Dismissal, terms: TermLimit) -> Result<Dismissal, DecodeError> {
        let at = log_id_checked(wire.at.ok_or(DecodeError::Missing("the entry of a membership"))?, terms)?;
        if wire.members.is_empty() {
            return Err(DecodeError::Missing("the members of a membership"));
        }
        Ok(Dismissal::new(at, wire.members))
    }
}
