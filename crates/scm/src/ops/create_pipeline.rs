//! A new pipeline on three disks of three nodes, with its first container and three replicas.

use crate::member_view::MEMBERS;
use crate::tables::{TablesMut, duty};
use proto::scm::{
    ContainerRecord, CreatePipelineCommand, NodeDuty, PipelineMember, PipelinePlace, PipelineRecord,
    PipelineState, ScmReply,
};
use std::collections::BTreeSet;
use types::NodeId;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: CreatePipelineCommand) -> Result<ScmReply, String> {
    check_places(tables, &command.places)?;
    let pipeline = tables.draw_pipeline();
    let first_container = tables.draw_container();
    let mut members = Vec::with_capacity(MEMBERS);
    for place in command.places {
        let replica = tables.draw_replica();
        // A member's address is looked up when it is told: nodes move.
        members.push(PipelineMember {
            node: place.node,
            replica: replica.0,
            disk: place.disk,
            address: String::new(),
        });
    }
    tables.put_container(ContainerRecord {
        container: first_container.0,
        pipeline: pipeline.0,
        ..ContainerRecord::default()
    });
    tables.put_pipeline(PipelineRecord {
        pipeline: pipeline.0,
        state: PipelineState::PipelineAllocated as i32,
        members,
        first_container: first_container.0,
        ..PipelineRecord::default()
    });
    Ok(ScmReply { pipeline: pipeline.0, container: first_container.0, ..ScmReply::default() })
}

fn check_places(tables: &TablesMut<'_>, places: &[PipelinePlace]) -> Result<(), String> {
    let nodes: BTreeSet<u64> = places.iter().map(|place| place.node).collect();
    if places.len() != MEMBERS || nodes.len() != MEMBERS {
        return Err(format!("a pipeline needs {MEMBERS} different nodes, got {places:?}"));
    }
    for place in places {
        let node = tables.node(NodeId(place.node)).ok_or_else(|| format!("no node {}", place.node))?;
        if duty(node) != NodeDuty::NodeInService {
            return Err(format!("node {} is {}", place.node, duty(node).as_str_name()));
        }
        if !node.disks.contains(&place.disk) {
            return Err(format!("node {} has no disk {:02x?}", place.node, place.disk.as_ref()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, disk, run, three_nodes};
    use crate::tables::Tables;
    use proto::scm::{CreatePipelineCommand, PipelinePlace, scm_command::Command};
    use types::{ContainerId, PipelineId};

    #[test]
    fn pipelines_containers_and_replicas_get_numbers_of_their_own() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let reply = run(&mut tables, create([3, 1, 2]));
        assert_eq!((reply.pipeline, reply.container), (2, 2));
        let record = tables.pipeline(PipelineId(2)).unwrap();
        let members: Vec<_> = record.members.iter().map(|member| (member.node, member.replica)).collect();
        assert_eq!(members, [(3, 4), (1, 5), (2, 6)]);
        assert_eq!(tables.container(ContainerId(2)).unwrap().pipeline, 2);
    }

    fn check_refused(places: &[(u64, u8)], why: &str) {
        let mut tables = three_nodes();
        let places = places.iter().map(|&(node, n)| PipelinePlace { node, disk: disk(node, n) }).collect();
        let reply = run(&mut tables, Command::CreatePipeline(CreatePipelineCommand { places }));
        assert!(reply.refused.contains(why), "{reply:?}");
        assert!(
            tables == Tables::default() || tables == three_nodes(),
            "a refused command changed {tables:?}"
        );
    }

    #[test]
    fn impossible_places_change_nothing() {
        check_refused(&[(1, 0), (2, 0)], "3 different nodes");
        check_refused(&[(1, 0), (1, 1), (2, 0)], "3 different nodes");
        check_refused(&[(1, 0), (2, 0), (9, 0)], "no node 9");
        check_refused(&[(1, 0), (2, 0), (3, 7)], "node 3 has no disk");
    }
}
