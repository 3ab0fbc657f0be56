//! What SCM decides, one command per file: how it changes the tables, and what it answers.
//!
//! `apply` is a pure function of tables and command. A command that cannot be carried out changes nothing and
//! answers [`refused`](proto::scm::ScmReply).

mod allocate_container;
mod bootstrap;
mod create_pipeline;
mod open_pipeline;
mod register_node;

use crate::tables::TablesMut;
use proto::scm::{ScmReply, scm_command::Command};

pub(crate) fn apply(tables: &mut TablesMut<'_>, command: Command) -> ScmReply {
    let result = match command {
        Command::Bootstrap(command) => Ok(bootstrap::apply(tables, command)),
        Command::RegisterNode(command) => Ok(register_node::apply(tables, command)),
        Command::CreatePipeline(command) => create_pipeline::apply(tables, command),
        Command::OpenPipeline(command) => open_pipeline::apply(tables, command),
        Command::AllocateContainer(command) => allocate_container::apply(tables, command),
        Command::ClosePipeline(_)
        | Command::QuasiClosePipeline(_)
        | Command::EndPipeline(_)
        | Command::CloseContainers(_)
        | Command::SetNodeDuty(_)
        | Command::SetSwitches(_) => Err("this version does not propose it".to_owned()),
    };
    result.unwrap_or_else(|why| ScmReply { refused: why, ..ScmReply::default() })
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::tables::Tables;
    use bytes::Bytes;
    use proto::scm::{CreatePipelineCommand, PipelinePlace, RegisterNodeCommand};

    pub(crate) fn run(tables: &mut Tables, command: Command) -> ScmReply {
        apply(&mut TablesMut::new(tables), command)
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
        })
    }

    pub(crate) fn create(nodes: [u64; 3]) -> Command {
        let places = nodes.into_iter().map(|node| PipelinePlace { node, disk: disk(node, 0) }).collect();
        Command::CreatePipeline(CreatePipelineCommand { places })
    }

    /// Nodes 1, 2 and 3, two disks each.
    pub(crate) fn three_nodes() -> Tables {
        let mut tables = Tables::default();
        for number in 1..=3 {
            assert_eq!(run(&mut tables, register(number)).node, number.into());
        }
        tables
    }
}
