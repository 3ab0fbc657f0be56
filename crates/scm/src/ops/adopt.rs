//! Pipelines and containers that a forced reset has lost, and that datanodes have, are SCM's again. A
//! pipeline comes back as one that closes: its members end it as any other, which shows what its containers
//! are. A pipeline that no node has any more, but for containers of it, is over; a member that comes later
//! brings it back.

use super::settle_containers::SETTLE_CONTAINERS_MAX;
use crate::member_view::MEMBERS;
use crate::tables::{Tables, TablesMut};
use proto::scm::{
    AdoptCommand, AdoptedContainer, ContainerRecord, ContainerState, PipelineDescription, PipelineMember,
    PipelineRecord, PipelineState, ScmReply,
};
use std::collections::BTreeSet;
use types::{ContainerId, PipelineId, ReplicaId};

const DISK_ID_BYTES: usize = 16;
/// The most pipelines and containers, taken together, of one command: a hundred kilobytes of log.
pub(crate) const ADOPTED_MAX: usize = SETTLE_CONTAINERS_MAX;
const REASON: &str = "a forced reset of SCM had lost it";

pub(super) fn apply(tables: &mut TablesMut<'_>, command: AdoptCommand) -> Result<ScmReply, String> {
    let AdoptCommand { pipelines, containers, at_ms } = command;
    if pipelines.len() + containers.len() > ADOPTED_MAX {
        return Err(format!("more than {ADOPTED_MAX} pipelines and containers at once"));
    }
    let to_come: BTreeSet<u64> = pipelines.iter().map(|described| described.pipeline).collect();
    pipelines.iter().try_for_each(|described| check_pipeline(tables, described))?;
    for adopted in &containers {
        check_container(tables, adopted)?;
        let pipeline = adopted.pipeline;
        if tables.pipeline(PipelineId(pipeline)).is_none() && !to_come.contains(&pipeline) {
            return Err(format!("no pipeline {pipeline}"));
        }
    }
    for described in pipelines {
        adopt_pipeline(tables, described, at_ms);
    }
    for AdoptedContainer { container, pipeline } in containers {
        let adopted = true;
        tables.put_container(ContainerRecord { container, pipeline, adopted, ..ContainerRecord::default() });
    }
    Ok(ScmReply::default())
}

fn check_container(tables: &TablesMut<'_>, adopted: &AdoptedContainer) -> Result<(), String> {
    let container = adopted.container;
    match tables.is_lost_container(ContainerId(container)) {
        true => Ok(()),
        false => Err(format!("container {container} is no lost one")),
    }
}

pub(crate) fn check_pipeline(tables: &Tables, described: &PipelineDescription) -> Result<(), String> {
    let id = PipelineId(described.pipeline);
    let is_to_come = match tables.pipeline(id) {
        None => tables.is_lost_pipeline(id),
        // Its members make a whole pipeline of one that was known by its containers alone.
        Some(record) => record.members.is_empty() && !described.members.is_empty(),
    };
    if !is_to_come {
        return Err(format!("pipeline {id} is no lost one"));
    }
    if described.members.is_empty() {
        return Ok(());
    }
    let nodes: BTreeSet<u64> = described.members.iter().map(|member| member.node).collect();
    let replicas: BTreeSet<u64> = described.members.iter().map(|member| member.replica).collect();
    if described.members.len() != MEMBERS || nodes.len() != MEMBERS || replicas.len() != MEMBERS {
        return Err(format!("pipeline {id} does not have {MEMBERS} members: {:?}", described.members));
    }
    if let Some(member) = described.members.iter().find(|member| member.disk.len() != DISK_ID_BYTES) {
        return Err(format!("pipeline {id} is on no disk of node {}", member.node));
    }
    match replicas.into_iter().find(|replica| !tables.may_be_lost_replica(ReplicaId(*replica))) {
        Some(replica) => Err(format!("replica {replica} of pipeline {id} is no lost one")),
        None => Ok(()),
    }
}

fn adopt_pipeline(tables: &mut TablesMut<'_>, described: PipelineDescription, at_ms: u64) {
    let PipelineDescription { pipeline, first_container, members } = described;
    let has_members = !members.is_empty();
    let (state, end_container) = match has_members {
        true => (PipelineState::PipelineClosing, tables.draw_container().0),
        false => (PipelineState::PipelineClosed, 0),
    };
    let without_address = |member| PipelineMember { address: String::new(), ..member };
    tables.put_pipeline(PipelineRecord {
        pipeline,
        state: state as i32,
        members: members.into_iter().map(without_address).collect(),
        first_container,
        end_container,
        close_reason: REASON.to_owned(),
        close_at_ms: at_ms,
        adopted: true,
        ..PipelineRecord::default()
    });
    if has_members {
        tables.put_container(ContainerRecord {
            container: end_container,
            pipeline,
            state: ContainerState::ContainerDeleted as i32,
            ..ContainerRecord::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, create, disk, run, three_nodes};
    use super::*;
    use proto::scm::{AllocateContainerCommand, scm_command::Command};

    fn described(pipeline: u64, replicas: [u64; 3]) -> PipelineDescription {
        let member = |(n, replica): (usize, u64)| {
            let node = n as u64 + 1;
            PipelineMember { node, replica, disk: disk(node, 0), ..PipelineMember::default() }
        };
        let members = replicas.into_iter().enumerate().map(member).collect();
        PipelineDescription { pipeline, first_container: pipeline, members }
    }

    fn adopt(
        tables: &mut Tables,
        pipelines: Vec<PipelineDescription>,
        containers: &[(u64, u64)],
    ) -> ScmReply {
        let containers = containers.iter();
        let containers =
            containers.map(|&(container, pipeline)| AdoptedContainer { container, pipeline }).collect();
        run(tables, Command::Adopt(AdoptCommand { pipelines, containers, at_ms: 7 }))
    }

    /// Pipeline 1 with its container is all that the member of SCM that is left has heard of.
    fn reset() -> Tables {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        TablesMut::new(&mut tables).skip_numbers();
        tables
    }

    #[test]
    fn a_lost_pipeline_comes_back_closing_with_its_containers() {
        let mut tables = reset();
        assert_eq!(adopt(&mut tables, vec![described(2, [4, 5, 6])], &[(2, 2), (3, 2)]), ScmReply::default());
        let record = tables.pipeline(PipelineId(2)).unwrap().clone();
        assert_eq!((record.state(), record.end_container), (PipelineState::PipelineClosing, 2_000_000));
        assert!(record.adopted && record.close_reason.contains("forced reset"));
        let containers: Vec<u64> = tables.containers_of(&record).map(|record| record.container).collect();
        assert_eq!(containers, [2, 3], "not the one it ends with");
        assert!(tables.unresolved_containers().any(|record| record.container == 3 && record.adopted));
        let again = adopt(&mut tables, vec![described(2, [4, 5, 6])], &[]);
        assert_eq!(again.refused, "pipeline 2 is no lost one");
    }

    #[test]
    fn a_lost_container_of_a_known_pipeline_follows_the_one_before() {
        let mut tables = reset();
        let after = |tables: &mut Tables, after| {
            let command = AllocateContainerCommand { pipeline: 1, after };
            run(tables, Command::AllocateContainer(command))
        };
        assert_eq!(after(&mut tables, 7).refused, "no container 7");
        assert_eq!(adopt(&mut tables, vec![], &[(7, 1)]), ScmReply::default());
        assert_eq!(after(&mut tables, 1).container, 7);
        assert_eq!(after(&mut tables, 7).container, 2_000_000);
        run(&mut tables, close(1, ""));
        assert_eq!(after(&mut tables, 7).container, 2_000_000);
    }

    #[test]
    fn one_that_is_known_by_its_containers_alone_gets_members_when_one_comes() {
        let mut tables = reset();
        let alone = PipelineDescription { pipeline: 2, ..PipelineDescription::default() };
        assert_eq!(adopt(&mut tables, vec![alone.clone()], &[(4, 2)]), ScmReply::default());
        assert_eq!(tables.pipeline(PipelineId(2)).unwrap().state(), PipelineState::PipelineClosed);
        assert_eq!(adopt(&mut tables, vec![alone], &[]).refused, "pipeline 2 is no lost one");
        assert_eq!(adopt(&mut tables, vec![described(2, [4, 5, 6])], &[(2, 2)]), ScmReply::default());
        let record = tables.pipeline(PipelineId(2)).unwrap();
        assert_eq!((record.state(), record.members.len()), (PipelineState::PipelineClosing, 3));
        assert_eq!(tables.containers_of(record).count(), 2);
    }

    #[test]
    fn what_no_reset_has_lost_is_nobodys() {
        let check = |tables: Tables, pipelines: Vec<PipelineDescription>, containers, why: &str| {
            let mut tables = tables;
            let before = format!("{tables:?}");
            assert_eq!(adopt(&mut tables, pipelines, containers).refused, why);
            assert_eq!(format!("{tables:?}"), before);
        };
        let mut never_reset = three_nodes();
        run(&mut never_reset, create([1, 2, 3]));
        check(never_reset, vec![], &[(7, 1)], "container 7 is no lost one");
        check(reset(), vec![], &[(1, 1)], "container 1 is no lost one");
        check(reset(), vec![], &[(2_000_000, 1)], "container 2000000 is no lost one");
        check(reset(), vec![], &[(7, 2)], "no pipeline 2");
        check(reset(), vec![described(2_000_000, [4, 5, 6])], &[], "pipeline 2000000 is no lost one");
        let mut nowhere = described(2, [4, 5, 6]);
        nowhere.members[2].disk.clear();
        check(reset(), vec![nowhere], &[], "pipeline 2 is on no disk of node 3");
        check(reset(), vec![described(2, [4, 5, 3])], &[], "replica 3 of pipeline 2 is no lost one");
        let two = PipelineDescription {
            members: described(2, [4, 5, 6]).members[..2].to_vec(),
            ..described(2, [4, 5, 6])
        };
        let refused = adopt(&mut reset(), vec![two], &[]).refused;
        assert!(refused.starts_with("pipeline 2 does not have 3 members"), "{refused}");
    }
}
