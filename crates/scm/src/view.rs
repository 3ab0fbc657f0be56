//! What SCM tells others about pipelines: the tables, joined with what nodes report.

use crate::nodes::Nodes;
use crate::tables::Tables;
use proto::scm::{ClusterView, NodeAddress, Pipeline, PipelineMember, PipelineRecord};
use types::NodeId;

pub(crate) fn cluster_view(tables: &Tables, nodes: &Nodes) -> ClusterView {
    let pipelines = tables.live_pipelines().map(|record| pipeline(record, tables, nodes)).collect();
    ClusterView { cluster: tables.cluster().to_owned(), pipelines }
}

pub(crate) fn pipeline(record: &PipelineRecord, tables: &Tables, nodes: &Nodes) -> Pipeline {
    let seen = nodes.pipeline_seen(record);
    let member = |member: &PipelineMember| PipelineMember {
        address: address(tables, NodeId(member.node)),
        ..member.clone()
    };
    Pipeline {
        pipeline: record.pipeline,
        state: record.state,
        members: record.members.iter().map(member).collect(),
        first_container: record.first_container,
        leader_node: seen.leader.map_or(0, |leader| leader.0),
        container: seen.container,
        container_bytes: seen.container_bytes,
        ..Pipeline::default()
    }
}

pub(crate) fn node_addresses(tables: &Tables, nodes: impl IntoIterator<Item = NodeId>) -> Vec<NodeAddress> {
    nodes.into_iter().map(|node| NodeAddress { node: node.0, address: address(tables, node) }).collect()
}

fn address(tables: &Tables, node: NodeId) -> String {
    tables.node(node).map(|record| record.address.clone()).unwrap_or_default()
}

/// Whether watchers should hear of the change. A growing container is none: it would push the view at each write.
pub(crate) fn differs(old: &ClusterView, new: &ClusterView) -> bool {
    let essence = |pipeline: &Pipeline| Pipeline { container_bytes: 0, ..pipeline.clone() };
    old.cluster != new.cluster || !old.pipelines.iter().map(essence).eq(new.pipelines.iter().map(essence))
}
