//! The world that SCM's leader decides by: the tables, what nodes report, and the time, read at one moment.

use crate::member_view::{MEMBERS, PipelineView};
use crate::nodes::{Nodes, takes_pipelines};
use crate::oms::Oms;
use crate::replication::{NodeView, NodeViews};
use crate::tables::{Tables, duty};
use bytes::Bytes;
use proto::scm::{DiskReport, DiskState, NodeDuty, NodeRecord, NodeState};
use std::cell::OnceCell;
use std::collections::HashSet;
use tokio::time::Instant;
use types::{NodeId, PipelineId};

/// One look at the cluster, shared by all who decide at its moment, so that each fact is worked out once.
pub(crate) struct World<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) nodes: &'a Nodes,
    pub(crate) oms: &'a Oms,
    pub(crate) now: Instant,
    /// The time of day in milliseconds since the Unix epoch, for records.
    pub(crate) now_ms: u64,
    /// Whether SCM is in safe mode: too little is known to move or destroy anything, or an operator wants SCM
    /// to stay in it.
    pub(crate) in_safe_mode: bool,
    unended: OnceCell<Vec<PipelineView<'a>>>,
    node_views: OnceCell<NodeViews>,
    has_places: OnceCell<bool>,
}

/// A node that takes new pipelines, and the disks on which it does.
pub(crate) struct RoomyNode<'a> {
    pub(crate) node: NodeId,
    pub(crate) record: &'a NodeRecord,
    pub(crate) disks: Vec<&'a DiskReport>,
}

impl<'a> World<'a> {
    pub(crate) fn of(
        tables: &'a Tables,
        nodes: &'a Nodes,
        oms: &'a Oms,
        now: Instant,
        now_ms: u64,
        in_safe_mode: bool,
    ) -> World<'a> {
        let (unended, node_views, has_places) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        World { tables, nodes, oms, now, now_ms, in_safe_mode, unended, node_views, has_places }
    }

    /// Pipelines that have not ended.
    pub(crate) fn unended_pipelines(&self) -> &[PipelineView<'a>] {
        let view = |record| PipelineView::of(record, self.nodes, self.now);
        self.unended.get_or_init(|| self.tables.unended_pipelines().map(view).collect())
    }

    pub(crate) fn node_views(&self) -> &NodeViews {
        self.node_views.get_or_init(|| node_views(self.tables, self.nodes, self.now))
    }

    /// The nodes that take new pipelines: healthy ones in service, on a disk that works.
    pub(crate) fn places(&self) -> impl Iterator<Item = RoomyNode<'a>> {
        let World { tables, nodes, now, .. } = *self;
        let takes_part = move |node: NodeId, record: &NodeRecord| {
            nodes.state(node, now) == NodeState::NodeHealthy && duty(record) == NodeDuty::NodeInService
        };
        tables.nodes().iter().filter(move |(node, record)| takes_part(**node, record)).filter_map(
            move |(&node, record)| {
                let usable = |disk: &&DiskReport| takes_pipelines(disk) && record.disks.contains(&disk.disk);
                let disks: Vec<&DiskReport> = nodes.disks(node).iter().filter(usable).collect();
                (!disks.is_empty()).then_some(RoomyNode { node, record, disks })
            },
        )
    }

    /// The places of new pipelines but those on disks where a member stood still lately, and no other one has
    /// come on since: a new one would stand still, too.
    pub(crate) fn good_places(&self) -> impl Iterator<Item = RoomyNode<'a>> {
        let World { tables, nodes, .. } = *self;
        let disk_of = |node: NodeId, pipeline: PipelineId| {
            let members = &tables.pipeline(pipeline)?.members;
            members.iter().find(|member| NodeId(member.node) == node).map(|member| &member.disk)
        };
        let bad = nodes.stood_still_lately().filter_map(|(node, pipeline, at)| {
            let disk = disk_of(node, pipeline)?;
            let mut came_on = nodes.came_on_beside(node, at);
            let is_its_own = came_on.any(|other| other != pipeline && disk_of(node, other) == Some(disk));
            (!is_its_own).then_some((node, disk))
        });
        let bad: HashSet<(NodeId, &Bytes)> = bad.collect();
        self.places().filter_map(move |RoomyNode { node, record, mut disks }| {
            disks.retain(|disk| !bad.contains(&(node, &disk.disk)));
            (!disks.is_empty()).then_some(RoomyNode { node, record, disks })
        })
    }

    /// Whether a new pipeline would find good places.
    pub(crate) fn has_good_places(&self) -> bool {
        *self.has_places.get_or_init(|| self.good_places().count() >= MEMBERS)
    }

    /// Whether replicas are to be copied and deleted.
    pub(crate) fn may_move_data(&self) -> bool {
        !self.in_safe_mode && self.tables.switches().replication
    }

    /// Whether blocks that nobody names any more are to be discarded, and containers that have none left
    /// deleted.
    pub(crate) fn may_reclaim(&self) -> bool {
        !self.in_safe_mode && !self.tables.switches().reclaim_stopped
    }

    /// A world in which enough is known, on the seventh millisecond of time.
    #[cfg(test)]
    pub(crate) fn at(tables: &'a Tables, nodes: &'a Nodes, now: Instant) -> World<'a> {
        World::of(tables, nodes, Oms::silent(), now, 7, false)
    }

    /// [`World::at`], of OMs alone.
    #[cfg(test)]
    pub(crate) fn of_oms(tables: &'a Tables, oms: &'a Oms, now: Instant) -> World<'a> {
        World::of(tables, Nodes::silent(), oms, now, 7, false)
    }
}

/// The nodes, as planners of replicas have to know them.
fn node_views(tables: &Tables, nodes: &Nodes, now: Instant) -> NodeViews {
    let racks = tables.racks().numbers();
    let view = |(&node, record): (&NodeId, &NodeRecord)| {
        let disks = || nodes.disks(node).iter().filter(|disk| disk.state() != DiskState::Failed);
        let view = NodeView {
            state: nodes.state(node, now),
            duty: duty(record),
            rack: racks[tables.racks().of(record)],
            complete: nodes.replicas().is_complete(node),
            capacity_bytes: disks().map(|disk| disk.capacity_bytes).fold(0, u64::saturating_add),
            free_bytes: disks().map(|disk| disk.free_bytes).fold(0, u64::saturating_add),
            room_bytes: disks().map(room_bytes).max().unwrap_or_default(),
        };
        (node, view)
    };
    tables.nodes().iter().map(view).collect()
}

/// The room of one disk, for a copy, which stands on one.
fn room_bytes(disk: &DiskReport) -> u64 {
    if disk.state() == DiskState::Hangs {
        return 0;
    }
    disk.free_bytes.saturating_sub(disk.kept_bytes)
}
