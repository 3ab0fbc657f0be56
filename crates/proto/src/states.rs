//! The states of pipelines and of their members, as services ask about them.

use crate::scm::{MemberState, PipelineReport, PipelineState};

impl PipelineState {
    /// Whether the pipeline takes no more data, and is not over yet.
    pub fn is_closing(self) -> bool {
        matches!(self, PipelineState::PipelineClosing | PipelineState::PipelineQuasiClosing)
    }
}

impl PipelineReport {
    /// Whether the member has ended, for good: with its pipeline, or by itself.
    pub fn has_ended(&self) -> bool {
        matches!(self.state(), MemberState::Ended | MemberState::QuasiClosed)
    }

    /// Whether the member votes in its group, and can lead it.
    pub fn votes(&self) -> bool {
        matches!(self.state(), MemberState::Runs | MemberState::Ended)
    }
}
