//! SCM's view of a pipeline's members at one moment: tables and reports, read once for all who decide by it.

use crate::nodes::{Nodes, OPENS_WITHIN, PipelineSeen, STANDS_STILL_AFTER};
use proto::scm::{
    DiskState, LogEnd, MemberEnd, MemberState, NodeState, PipelineMember, PipelineRecord, PipelineReport,
};
use std::time::Duration;
use tokio::time::Instant;
use types::NodeId;

/// The number of members of a pipeline, and so of replicas that a container comes with.
pub(crate) const MEMBERS: usize = 3;
/// The number of members that decide for all: any two majorities have one in common.
pub(crate) const MAJORITY: usize = MEMBERS / 2 + 1;

/// A pipeline with what is known of each member, in the order of the record.
pub(crate) struct PipelineView<'a> {
    pub(crate) record: &'a PipelineRecord,
    pub(crate) members: Vec<MemberView<'a>>,
    pub(crate) seen: PipelineSeen,
}

/// All that is known of one member of one pipeline.
pub(crate) struct MemberView<'a> {
    pub(crate) member: &'a PipelineMember,
    pub(crate) node: NodeState,
    /// The time at which the member's node last spoke; `None` if it did not yet.
    pub(crate) heard: Option<Instant>,
    /// Whether the member's node is silent, and not for want of time to speak to this leader.
    pub(crate) is_silent: bool,
    /// The member's report on the pipeline, from its node's last heartbeat.
    pub(crate) said: Option<&'a PipelineReport>,
    /// Whether the member's disk is there and works; `None` if its node has said nothing yet.
    pub(crate) disk_works: Option<bool>,
    /// The reason why its disk is there and does not work, as its node tells it.
    pub(crate) disk_why: Option<&'a str>,
    pub(crate) disk_is_full: bool,
    /// The time for which the member has been behind without coming on.
    pub(crate) stands_still: Duration,
}

impl<'a> PipelineView<'a> {
    pub(crate) fn of(record: &'a PipelineRecord, nodes: &'a Nodes, now: Instant) -> PipelineView<'a> {
        let view = |member| MemberView::of(record, member, nodes, now);
        let members = record.members.iter().map(view).collect();
        PipelineView { record, members, seen: nodes.pipeline_seen(record, now) }
    }

    pub(crate) fn member_on(&self, node: NodeId) -> Option<&MemberView<'a>> {
        self.members.iter().find(|view| view.node_id() == node)
    }

    /// The fault, in words, that keeps a member whose node speaks from doing its part.
    pub(crate) fn fault(&self, view: &MemberView<'_>) -> Option<String> {
        let node = view.node_id();
        if !view.is_healthy() {
            return None;
        }
        if view.disk_works == Some(false) {
            return Some(match view.disk_why {
                None => format!("its disk on node {node} is missing"),
                Some("") => format!("its disk on node {node} failed"),
                Some(why) => format!("its disk on node {node} failed: {why}"),
            });
        }
        match view.said {
            None => Some(format!("node {node} does not have it")),
            Some(report) => match report.state() {
                MemberState::Runs => view.standstill().or_else(|| self.leads_without_room(view)),
                MemberState::Ended | MemberState::QuasiClosed => None,
                MemberState::Opening => (view.stands_still >= OPENS_WITHIN)
                    .then(|| format!("node {node} has been making it for {} s", view.stands_still.as_secs())),
                MemberState::Stopped | MemberState::LogLost => {
                    Some(format!("its group stopped on node {node}: {}", report.why))
                }
                MemberState::Unspecified => Some(format!("node {node} does not say what state it is in")),
            },
        }
    }

    /// The fault of a leader whose disk is full while others have room: it refuses writes and can write no
    /// roll, and is never behind.
    fn leads_without_room(&self, view: &MemberView<'_>) -> Option<String> {
        // Where all are full another pipeline could take no more than this one.
        let has_room_elsewhere = self.members.iter().any(|view| !view.disk_is_full);
        (view.leads() && view.disk_is_full && has_room_elsewhere)
            .then(|| format!("it leads on node {}, and its disk there is full", view.member.node))
    }

    /// Whether a member that speaks and runs says of itself that it leads, and can. A closing pipeline is not
    /// led by a member that has no room for its roll.
    pub(crate) fn is_led(&self) -> bool {
        let is_closing = self.record.state().is_closing();
        let leads = |view: &MemberView<'_>| {
            view.is_healthy()
                && view.leads()
                && view.votes()
                && view.standstill().is_none()
                && !(is_closing && view.disk_is_full)
        };
        self.seen.leader.and_then(|leader| self.member_on(leader)).is_some_and(leads)
    }

    /// Whether nothing may be committed because disks are full: members with full disks, and those that have
    /// fallen silent beside them, leave no majority. Until there is something to write, the pipeline's leader
    /// hears of no follower's full disk.
    pub(crate) fn may_lack_room(&self) -> bool {
        let is_out = |view: &&MemberView<'_>| view.disk_is_full || view.is_silent;
        self.members.iter().any(|view| view.disk_is_full)
            && self.members.iter().filter(is_out).count() + MAJORITY > MEMBERS
    }

    /// Whether enough members are there for an election: members that vote, on nodes that speak.
    pub(crate) fn could_elect(&self) -> bool {
        let is_there = |view: &&MemberView<'_>| view.is_healthy() && view.votes();
        self.members.iter().filter(is_there).count() >= MAJORITY
    }
}

impl<'a> MemberView<'a> {
    pub(crate) fn of(
        record: &'a PipelineRecord,
        member: &'a PipelineMember,
        nodes: &'a Nodes,
        now: Instant,
    ) -> MemberView<'a> {
        let node = NodeId(member.node);
        let is_full =
            nodes.disks(node).iter().any(|disk| disk.disk == member.disk && disk.state() == DiskState::Full);
        let (state, heard) = (nodes.state(node, now), nodes.seen(node));
        let could_have_spoken = heard.is_some() || !nodes.is_young(now);
        MemberView {
            member,
            node: state,
            heard,
            is_silent: state != NodeState::NodeHealthy && could_have_spoken,
            said: nodes.member_report(record, member),
            disk_works: nodes.disk_works(node, &member.disk),
            disk_why: nodes.disk_why(node, &member.disk),
            disk_is_full: is_full,
            stands_still: nodes.stands_still(record, member),
        }
    }

    pub(crate) fn node_id(&self) -> NodeId {
        NodeId(self.member.node)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.node == NodeState::NodeHealthy
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.node == NodeState::NodeDead
    }

    /// Whether the member says that it has ended, for good.
    pub(crate) fn has_ended(&self) -> bool {
        self.said.is_some_and(PipelineReport::has_ended)
    }

    /// Whether the pipeline's last entry is applied here, so that it is committed.
    pub(crate) fn has_applied_the_end(&self) -> bool {
        self.said.is_some_and(|report| report.state() == MemberState::Ended)
    }

    /// The end of a member's log, as SCM's own log has it.
    pub(crate) fn noted_end(&self, record: &PipelineRecord) -> Option<MemberEnd> {
        record.ended.iter().find(|end| end.replica == self.member.replica).copied()
    }

    /// The end of the member's log, for SCM's own, once it has ended.
    pub(crate) fn end_to_note(&self) -> Option<MemberEnd> {
        let report = self.said.filter(|report| report.has_ended())?;
        let LogEnd { container, term, index, log_term, log_index } = report.end.unwrap_or_default();
        Some(MemberEnd {
            replica: report.replica,
            last_index: index,
            last_term: term,
            last_container: container,
            is_last_roll: self.has_applied_the_end() && container != 0,
            log_term,
            log_index,
        })
    }

    /// Whether the member votes, and so can lead.
    fn votes(&self) -> bool {
        self.said.is_some_and(PipelineReport::votes)
    }

    /// Whether the member's group runs and goes on.
    pub(crate) fn runs(&self) -> bool {
        self.said.is_some_and(|report| report.state() == MemberState::Runs)
    }

    /// Whether the member is still being made.
    pub(crate) fn is_opening(&self) -> bool {
        self.said.is_some_and(|report| report.state() == MemberState::Opening)
    }

    /// Whether the member says of itself that it leads.
    pub(crate) fn leads(&self) -> bool {
        self.said.is_some_and(|report| report.leader_replica == self.member.replica)
    }

    /// Whether the member has spoken since `since` without a word of the pipeline, its disk being there: it
    /// has let go of the pipeline, or never had it. A member whose disk is gone has let go of nothing.
    pub(crate) fn has_let_go(&self, since: Instant) -> bool {
        self.heard.is_some_and(|heard| heard >= since) && self.disk_works == Some(true) && self.said.is_none()
    }

    /// The fault of a member whose node speaks and whose group runs, and that nevertheless takes nothing, or,
    /// where it leads, can commit nothing: its disk is full, or hangs.
    fn standstill(&self) -> Option<String> {
        let (node, seconds) = (self.member.node, self.stands_still.as_secs());
        (self.stands_still >= STANDS_STILL_AFTER).then(|| {
            let why = if self.disk_is_full { ": its disk is full" } else { "" };
            format!("it has been behind on node {node} for {seconds} s without coming on{why}")
        })
    }
}
