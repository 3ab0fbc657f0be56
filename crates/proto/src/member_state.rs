//! The state that a member of a pipeline reports.

use crate::scm::{MemberState, PipelineReport};

impl PipelineReport {
    /// Whether the member has ended, for good: with its pipeline, or by itself.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), MemberState::Ended | MemberState::QuasiClosed)
    }

    /// Whether its group votes, and can lead.
    pub fn votes(&self) -> bool {
        matches!(self.state(), MemberState::Runs | MemberState::Ended)
    }
}
