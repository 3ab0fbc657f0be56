//! SCM's decisions, one command per file: how it changes the tables, and what it answers.
//!
//! `apply` is a pure function of tables and command. A command that cannot be carried out changes nothing and
//! answers [`refused`](proto::scm::ScmReply).

pub(crate) mod accept_container_loss;
mod admit_member;
pub(crate) mod adopt;
mod allocate_container;
mod begin_om_restore;
mod bootstrap;
mod change_om_group;
mod close_pipeline;
mod create_om_group;
mod create_pipeline;
pub(crate) mod delete_containers;
mod end_om_restore;
pub(crate) mod end_pipeline;
mod found_om_group;
mod give_up_om_group;
mod note_begun;
mod note_fences;
mod note_lost_log;
mod note_nodes;
pub(crate) mod note_om_group;
mod open_pipeline;
mod quasi_close_pipeline;
mod register_node;
mod register_om;
mod registry;
mod set_node_duty;
mod set_om_duty;
mod set_racks;
mod set_switches;
pub(crate) mod settle_containers;

use crate::tables::TablesMut;
use proto::scm::{ScmReply, scm_command::Command};
use types::Term;

/// Applies a command, which the leader of `term` has put into the log.
pub(crate) fn apply(tables: &mut TablesMut<'_>, command: Command, term: Term) -> ScmReply {
    let result = match command {
        Command::Bootstrap(command) => Ok(bootstrap::apply(tables, command)),
        Command::RegisterNode(command) => Ok(register_node::apply(tables, command)),
        Command::CreatePipeline(command) => create_pipeline::apply(tables, command),
        Command::OpenPipeline(command) => open_pipeline::apply(tables, command),
        Command::AllocateContainer(command) => allocate_container::apply(tables, command),
        Command::ClosePipeline(command) => close_pipeline::apply(tables, command),
        Command::QuasiClosePipeline(command) => quasi_close_pipeline::apply(tables, command),
        Command::NoteBegun(command) => Ok(note_begun::apply(tables, command)),
        Command::NoteLostLog(command) => note_lost_log::apply(tables, command),
        Command::NoteNodes(command) => Ok(note_nodes::apply(tables, command)),
        Command::EndPipeline(command) => end_pipeline::apply(tables, command),
        Command::SettleContainers(command) => settle_containers::apply(tables, command),
        Command::AcceptContainerLoss(command) => accept_container_loss::apply(tables, command),
        Command::DeleteContainers(command) => delete_containers::apply(tables, command),
        Command::NoteFences(command) => Ok(note_fences::apply(tables, command)),
        Command::SetNodeDuty(command) => set_node_duty::apply(tables, command),
        Command::SetRacks(command) => set_racks::apply(tables, command),
        Command::SetSwitches(command) => set_switches::apply(tables, command),
        Command::Registry(command) => Ok(registry::apply(tables, command, term)),
        Command::Adopt(command) => adopt::apply(tables, command),
        Command::AdmitMember(command) => Ok(admit_member::apply(tables, command)),
        Command::RegisterOm(command) => Ok(register_om::apply(tables, command)),
        Command::FoundOmGroup(command) => found_om_group::apply(tables, command),
        Command::NoteOmGroup(command) => note_om_group::apply(tables, command),
        Command::ChangeOmGroup(command) => change_om_group::apply(tables, command),
        Command::SetOmDuty(command) => set_om_duty::apply(tables, command),
        Command::GiveUpOmGroup(command) => give_up_om_group::apply(tables, command),
        Command::CreateOmGroup(command) => create_om_group::apply(tables, command),
        Command::BeginOmRestore(command) => begin_om_restore::apply(tables, command),
        Command::EndOmRestore(command) => end_om_restore::apply(tables, command),
    };
    result.unwrap_or_else(|why| ScmReply { refused: why, ..ScmReply::default() })
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::tables::Tables;
    use bytes::Bytes;
    use proto::scm::{
        BeginOmRestoreCommand, ChangeOmGroupCommand, ClosePipelineCommand, ContainerReplica, ContainerState,
        CreateOmGroupCommand, CreatePipelineCommand, EndOmRestoreCommand, EndPipelineCommand,
        FoundOmGroupCommand, GiveUpOmGroupCommand, NodeDuty, NoteOmGroupCommand, OmMemberRecord, OmRestore,
        PipelinePlace, RegisterNodeCommand, RegisterOmCommand, ReplicaState, SetNodeDutyCommand,
        SetOmDutyCommand, SettleContainersCommand, SettledContainer,
    };

    pub(crate) fn run(tables: &mut Tables, command: Command) -> ScmReply {
        apply(&mut TablesMut::new(tables), command, Term(1))
    }

    pub(crate) fn uuid(number: u8) -> Bytes {
        Bytes::from(vec![number; 16])
    }

    /// Disk `disk` of node `node`.
    pub(crate) fn disk(node: u64, disk: u8) -> Bytes {
        let mut id = vec![disk; 16];
        id[..8].copy_from_slice(&node.to_be_bytes());
        Bytes::from(id)
    }

    pub(crate) fn register(number: u8) -> Command {
        Command::RegisterNode(RegisterNodeCommand {
            uuid: uuid(number),
            address: format!("node{number}:1"),
            disks: vec![disk(number.into(), 0), disk(number.into(), 1)],
            node: 0,
        })
    }

    pub(crate) fn create(nodes: [u64; 3]) -> Command {
        let places = nodes.into_iter().map(|node| PipelinePlace { node, disk: disk(node, 0) }).collect();
        Command::CreatePipeline(CreatePipelineCommand { places })
    }

    pub(crate) fn close(pipeline: u64, reason: &str) -> Command {
        Command::ClosePipeline(ClosePipelineCommand { pipeline, reason: reason.into(), at_ms: 1 })
    }

    pub(crate) fn end(pipeline: u64) -> Command {
        Command::EndPipeline(EndPipelineCommand { pipeline, ended: vec![] })
    }

    pub(crate) fn set_duty(node: u64, duty: NodeDuty) -> Command {
        Command::SetNodeDuty(SetNodeDutyCommand { node, duty: duty as i32, until_ms: 0 })
    }

    /// Nodes 1, 2 and 3, two disks each.
    pub(crate) fn three_nodes() -> Tables {
        let mut tables = Tables::default();
        for number in 1..=3 {
            assert_eq!(run(&mut tables, register(number)).node, number.into());
        }
        tables
    }

    /// Four nodes, and a pipeline of the first three that is over. Its container is closed, with record 9 of
    /// term 1.
    pub(crate) fn one_closed_container() -> Tables {
        let mut tables = three_nodes();
        run(&mut tables, register(4));
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let (state, last_term, last_index) = (ContainerState::ContainerClosed as i32, 1, 9);
        let closed = SettledContainer { container: 1, state, last_term, last_index };
        run(&mut tables, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }));
        tables
    }

    /// A good replica of [`one_closed_container`].
    pub(crate) fn good_replica() -> ContainerReplica {
        ContainerReplica {
            container: 1,
            pipeline: 1,
            state: ReplicaState::ReplicaClosed as i32,
            last_term: 1,
            last_index: 9,
            blocks: 1,
            released: true,
            ..ContainerReplica::default()
        }
    }

    pub(crate) fn register_om(number: u8) -> Command {
        let (uuid, address) = (uuid(number), format!("om{number}:1"));
        Command::RegisterOm(RegisterOmCommand { uuid, address, om: 0 })
    }

    pub(crate) fn found(group: u64, om: u64) -> Command {
        Command::FoundOmGroup(FoundOmGroupCommand { group, om })
    }

    /// Notes that a group has these members: replicas and their OMs.
    pub(crate) fn note(group: u64, members: &[(u64, u64)]) -> Command {
        let member = |&(replica, om): &(u64, u64)| OmMemberRecord { replica, om, has_voted: false };
        Command::NoteOmGroup(NoteOmGroupCommand {
            group,
            members: members.iter().map(member).collect(),
            given_up: vec![],
        })
    }

    pub(crate) fn change(group: u64, removed: &[u64], added: &[u64]) -> Command {
        let (removed, added) = (removed.to_vec(), added.to_vec());
        Command::ChangeOmGroup(ChangeOmGroupCommand { group, removed, added })
    }

    pub(crate) fn set_om_duty(om: u64, duty: NodeDuty) -> Command {
        Command::SetOmDuty(SetOmDutyCommand { om, duty: duty as i32 })
    }

    pub(crate) fn create_group() -> Command {
        Command::CreateOmGroup(CreateOmGroupCommand { up_to: 0 })
    }

    pub(crate) fn give_up(group: u64) -> Command {
        Command::GiveUpOmGroup(GiveUpOmGroupCommand { group })
    }

    pub(crate) fn begin_restore(backup: u8, groups: &[u64]) -> Command {
        let restore = OmRestore { backup: uuid(backup), taken_ms: 7, is_complete: false };
        let (restore, groups) = (Some(restore), groups.to_vec());
        Command::BeginOmRestore(BeginOmRestoreCommand { restore, groups })
    }

    pub(crate) fn end_restore(backup: u8) -> Command {
        Command::EndOmRestore(EndOmRestoreCommand { backup: uuid(backup) })
    }

    /// The replicas of a group, and their OMs.
    pub(crate) fn members(tables: &Tables, group: u64) -> Vec<(u64, u64)> {
        let members = &tables.om_group(group).unwrap().members;
        members.iter().map(|member| (member.replica, member.om)).collect()
    }

    /// OMs 1, 2 and 3. The first replica of names is 2.
    pub(crate) fn three_oms() -> Tables {
        let mut tables = Tables::default();
        for number in 1..=3 {
            assert_eq!(run(&mut tables, register_om(number)).om, number.into());
        }
        tables
    }
}
