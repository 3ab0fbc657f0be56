//! The view of pipelines that SCM gives others: the tables, joined with what nodes report.

use crate::member_view::{MemberView, PipelineView};
use crate::nodes::Nodes;
use crate::om_orders::member_told;
use crate::om_view::{lacks_room, leader};
use crate::tables::Tables;
use crate::world::World;
use proto::scm::{
    ClusterView, MemberHealth, NodeAddress, OmGroupRecord, OmGroupView, OmMember, OmMemberRecord, Pipeline,
    PipelineMember, PipelineRecord, PipelineState,
};
use std::collections::BTreeMap;
use tokio::time::Instant;
use types::NodeId;

pub(crate) fn cluster_view(world: &World<'_>) -> ClusterView {
    let pipelines = world.tables.live_pipelines().map(|record| pipeline(record, world)).collect();
    ClusterView { cluster: world.tables.cluster().to_owned(), pipelines, om_groups: om_groups(world) }
}

/// The groups of names that are founded.
pub(crate) fn om_groups(world: &World<'_>) -> Vec<OmGroupView> {
    let founded = world.tables.om_groups().values().filter(|record| record.is_founded);
    founded.map(|record| om_group(record, world)).collect()
}

/// A group of names with all who may lead it: those of the record, and those whom the group still has.
fn om_group(record: &OmGroupRecord, world: &World<'_>) -> OmGroupView {
    let leader = leader(world, record);
    let mut members: BTreeMap<u64, OmMember> =
        record.members.iter().map(|member| (member.replica, member_told(world, member))).collect();
    if let Some(leader) = leader {
        let voters = leader.voters();
        members.values_mut().for_each(|member| member.is_voter = false);
        for voter in voters {
            let member = OmMemberRecord { replica: voter.replica, om: voter.om, has_voted: true };
            members.insert(voter.replica, member_told(world, &member));
        }
    }
    OmGroupView {
        group: record.group,
        members: members.into_values().collect(),
        leader_om: leader.map_or(0, |leader| leader.om.0),
        keys_bits: leader
            .and_then(|leader| leader.report().keys)
            .map(|keys| u64::BITS - keys.leading_zeros()),
        lacks_room: lacks_room(world, record),
    }
}

pub(crate) fn pipeline(record: &PipelineRecord, world: &World<'_>) -> Pipeline {
    let view = PipelineView::of(record, world.nodes, world.now);
    let member = |member: &PipelineMember| PipelineMember {
        address: address(world.tables, NodeId(member.node)),
        ..member.clone()
    };
    Pipeline {
        pipeline: record.pipeline,
        state: record.state,
        members: record.members.iter().map(member).collect(),
        first_container: record.first_container,
        leader_node: view.seen.leader.map_or(0, |leader| leader.0),
        container: view.seen.container,
        container_bytes: view.seen.container_bytes,
        end_container: record.end_container,
        close_reason: record.close_reason.clone(),
        health: Vec::new(),
        may_lack_room: view.may_lack_room(),
        // A node is told of its own member (`service::heartbeat`).
        has_begun: false,
    }
}

/// [`pipeline`], with what is wrong with its members: for people, who look once, since time alone changes
/// that.
pub(crate) fn pipeline_with_health(record: &PipelineRecord, world: &World<'_>) -> Pipeline {
    let World { nodes, now, .. } = *world;
    let health = match record.state() {
        PipelineState::PipelineClosed => Vec::new(),
        _ => {
            let view = PipelineView::of(record, nodes, now);
            view.members.iter().filter_map(|member| member_health(&view, member, nodes, now)).collect()
        }
    };
    Pipeline { health, ..pipeline(record, world) }
}

fn member_health(
    pipeline: &PipelineView<'_>,
    member: &MemberView<'_>,
    nodes: &Nodes,
    now: Instant,
) -> Option<MemberHealth> {
    let node = member.node_id();
    let silent = || format!("node {node} has been silent for {} s", nodes.age(node, now).as_secs());
    let problem = if member.is_healthy() { pipeline.fault(member)? } else { silent() };
    Some(MemberHealth { node: node.0, problem })
}

pub(crate) fn node_addresses(tables: &Tables, nodes: impl IntoIterator<Item = NodeId>) -> Vec<NodeAddress> {
    nodes.into_iter().map(|node| NodeAddress { node: node.0, address: address(tables, node) }).collect()
}

pub(crate) fn address(tables: &Tables, node: NodeId) -> String {
    tables.node(node).map(|record| record.address.clone()).unwrap_or_default()
}

/// Whether watchers should hear of the change. A container that grows is no such change: it would push the
/// view at each write.
pub(crate) fn differs(old: &ClusterView, new: &ClusterView) -> bool {
    let essence = |pipeline: &Pipeline| Pipeline { container_bytes: 0, ..pipeline.clone() };
    old.cluster != new.cluster
        || old.om_groups != new.om_groups
        || !old.pipelines.iter().map(essence).eq(new.pipelines.iter().map(essence))
}
