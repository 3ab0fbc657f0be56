//! The words for states: the same in tables, in JSON and on the command line.

use super::args::{StateFilter, TroubleFilter};
use crate::table::{Cell, Tone};
use proto::registry::Health;
use proto::scm::{
    ContainerState, ContainerTrouble, DiscardState, NodeDuty, NodeState, PipelineState, ReplicaState,
    TaskKind,
};

/// The word for what only a newer version has a word for.
pub(super) const UNKNOWN: (&str, Tone) = ("unknown", Tone::Warning);

pub(super) type Word = (&'static str, Tone);

pub(super) fn cell((word, tone): Word) -> Cell {
    Cell::toned(word, tone)
}

pub(super) fn node_state(state: NodeState) -> Word {
    match state {
        NodeState::NodeHealthy => ("healthy", Tone::Good),
        NodeState::NodeStale => ("stale", Tone::Warning),
        NodeState::NodeDead => ("dead", Tone::Bad),
        NodeState::Unspecified => UNKNOWN,
    }
}

pub(super) fn node_duty(duty: NodeDuty) -> Word {
    match duty {
        NodeDuty::NodeInService | NodeDuty::Unspecified => ("in-service", Tone::Plain),
        NodeDuty::NodeDecommissioning => ("decommissioning", Tone::Warning),
        NodeDuty::NodeDecommissioned => ("decommissioned", Tone::Warning),
        NodeDuty::NodeEnteringMaintenance => ("entering-maintenance", Tone::Warning),
        NodeDuty::NodeInMaintenance => ("in-maintenance", Tone::Warning),
    }
}

pub(super) fn pipeline_state(state: PipelineState) -> Word {
    match state {
        PipelineState::PipelineAllocated => ("allocated", Tone::Warning),
        PipelineState::PipelineOpen => ("open", Tone::Good),
        PipelineState::PipelineClosing => ("closing", Tone::Warning),
        PipelineState::PipelineQuasiClosing => ("quasi-closing", Tone::Warning),
        PipelineState::PipelineClosed => ("closed", Tone::Plain),
        PipelineState::Unspecified => UNKNOWN,
    }
}

pub(super) fn container_state(state: ContainerState) -> Word {
    match state {
        ContainerState::ContainerOpen | ContainerState::Unspecified => ("open", Tone::Plain),
        ContainerState::ContainerClosed => ("closed", Tone::Plain),
        ContainerState::ContainerQuasiClosed => ("quasi-closed", Tone::Bad),
        ContainerState::ContainerDeleted => ("deleted", Tone::Plain),
    }
}

pub(super) fn replica_state(state: ReplicaState) -> Word {
    match state {
        ReplicaState::ReplicaOpen => ("open", Tone::Plain),
        ReplicaState::ReplicaClosed => ("closed", Tone::Good),
        ReplicaState::ReplicaQuasiClosed => ("quasi-closed", Tone::Warning),
        ReplicaState::ReplicaWithoutLog => ("without its log", Tone::Bad),
        ReplicaState::Unspecified => UNKNOWN,
    }
}

pub(super) fn trouble(trouble: ContainerTrouble) -> Word {
    match trouble {
        ContainerTrouble::ContainerMissing => ("missing", Tone::Bad),
        ContainerTrouble::ContainerUnderReplicated => ("under-replicated", Tone::Warning),
        ContainerTrouble::ContainerOverReplicated => ("over-replicated", Tone::Plain),
        ContainerTrouble::ContainerMisReplicated => ("mis-replicated", Tone::Warning),
        ContainerTrouble::ContainerUnhealthy => ("unhealthy", Tone::Bad),
        ContainerTrouble::ContainerDifferent => ("different", Tone::Bad),
        ContainerTrouble::ContainerAhead => ("ahead", Tone::Bad),
        ContainerTrouble::ContainerDiverged => ("diverged", Tone::Bad),
        ContainerTrouble::Unspecified => UNKNOWN,
    }
}

pub(super) fn discard_state(state: DiscardState) -> Word {
    match state {
        DiscardState::DiscardGone => ("gone", Tone::Good),
        DiscardState::DiscardUnderWay => ("under-way", Tone::Plain),
        DiscardState::DiscardOpen => ("open", Tone::Plain),
        DiscardState::DiscardHeld => ("held", Tone::Plain),
        DiscardState::DiscardAway => ("away", Tone::Warning),
        DiscardState::DiscardTroubled => ("troubled", Tone::Bad),
        DiscardState::DiscardPaused => ("paused", Tone::Warning),
        DiscardState::DiscardUnknown => ("unknown-container", Tone::Bad),
        DiscardState::Unspecified => UNKNOWN,
    }
}

/// The words for what a container waits for, by the state of its discarding.
pub(super) fn discard_waits_for(state: DiscardState) -> &'static str {
    match state {
        DiscardState::DiscardGone => "nothing: what was asked for is gone, or the container is",
        DiscardState::DiscardUnderWay => "its nodes, which were told",
        DiscardState::DiscardOpen => {
            "the container to close: once it is full, much of it is dead, or what is has waited for a day (at once: \
             admin container close)"
        }
        DiscardState::DiscardHeld => "a log to let go of it: until each member of its pipeline has all of it",
        DiscardState::DiscardAway => "a node with a replica to speak, or to be dead",
        DiscardState::DiscardTroubled => "its replicas to be well",
        DiscardState::DiscardPaused => "SCM",
        DiscardState::DiscardUnknown => "an operator: SCM does not know the container",
        DiscardState::Unspecified => "what a newer version knows",
    }
}

pub(super) fn health(health: Health) -> Word {
    match health {
        Health::Passing => ("passing", Tone::Good),
        Health::Warning => ("warning", Tone::Warning),
        Health::Critical => ("critical", Tone::Bad),
        Health::Unspecified => UNKNOWN,
    }
}

pub(super) fn task_kind(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::TaskCopy => "copy",
        TaskKind::TaskDelete => "delete",
        TaskKind::TaskClose => "close",
        TaskKind::TaskCheck => "check",
        TaskKind::TaskMoveLeader => "move-leader",
        TaskKind::TaskRoll => "roll",
        TaskKind::TaskPipeline => "pipeline",
        TaskKind::TaskDiscard => "discard",
        TaskKind::TaskTakeDiscards => "take-discards",
        TaskKind::Unspecified => UNKNOWN.0,
    }
}

impl From<StateFilter> for ContainerState {
    fn from(filter: StateFilter) -> Self {
        match filter {
            StateFilter::Open => ContainerState::ContainerOpen,
            StateFilter::Closed => ContainerState::ContainerClosed,
            StateFilter::QuasiClosed => ContainerState::ContainerQuasiClosed,
            StateFilter::Deleted => ContainerState::ContainerDeleted,
        }
    }
}

impl From<TroubleFilter> for ContainerTrouble {
    fn from(filter: TroubleFilter) -> Self {
        match filter {
            TroubleFilter::Missing => ContainerTrouble::ContainerMissing,
            TroubleFilter::UnderReplicated => ContainerTrouble::ContainerUnderReplicated,
            TroubleFilter::OverReplicated => ContainerTrouble::ContainerOverReplicated,
            TroubleFilter::MisReplicated => ContainerTrouble::ContainerMisReplicated,
            TroubleFilter::Unhealthy => ContainerTrouble::ContainerUnhealthy,
            TroubleFilter::Different => ContainerTrouble::ContainerDifferent,
            TroubleFilter::Ahead => ContainerTrouble::ContainerAhead,
            TroubleFilter::Diverged => ContainerTrouble::ContainerDiverged,
        }
    }
}
