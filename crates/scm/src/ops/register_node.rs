//! A datanode makes itself known: it gets a number for its uuid, the same one each time, and its address and
//! disks are remembered as they are now. A datanode that a forced reset has lost keeps its number, which
//! stands on its disks, and in its pipelines.

use crate::tables::TablesMut;
use proto::scm::{NodeRecord, RegisterNodeCommand, ScmReply};
use types::NodeId;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: RegisterNodeCommand) -> ScmReply {
    let before = tables.node_by_uuid(&command.uuid).cloned().unwrap_or_default();
    let node = match before.node {
        0 if tables.is_lost_node(NodeId(command.node)) => command.node,
        0 => tables.draw_node().0,
        known => known,
    };
    let RegisterNodeCommand { uuid, address, disks, node: _ } = command;
    tables.put_node(NodeRecord { node, uuid, address, disks, ..before });
    ScmReply { node, ..ScmReply::default() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{register, run, three_nodes, uuid};
    use crate::tables::{Tables, TablesMut};
    use proto::scm::{RegisterNodeCommand, scm_command::Command};
    use types::NodeId;

    #[test]
    fn a_node_keeps_its_number_and_may_move() {
        let mut tables = three_nodes();
        assert_eq!(run(&mut tables, register(2)).node, 2);
        let address = "elsewhere:9".into();
        let moved = RegisterNodeCommand { uuid: uuid(2), address, ..RegisterNodeCommand::default() };
        assert_eq!(run(&mut tables, Command::RegisterNode(moved)).node, 2);
        assert_eq!(tables.node(NodeId(2)).unwrap().address, "elsewhere:9");
        assert_eq!(run(&mut tables, register(4)).node, 4);
        assert_eq!(tables.nodes().len(), 4);
    }

    #[test]
    fn a_node_that_a_reset_lost_gets_its_number_back_and_nobody_elses() {
        let mut tables = three_nodes();
        let says = |tables: &mut Tables, uuid_of: u8, node: u64| {
            let command = RegisterNodeCommand { uuid: uuid(uuid_of), node, ..RegisterNodeCommand::default() };
            run(tables, Command::RegisterNode(command)).node
        };
        assert_eq!(says(&mut tables, 7, 9), 4, "no reset has lost a node 9");
        TablesMut::new(&mut tables).skip_numbers();
        assert_eq!(says(&mut tables, 8, 9), 9);
        assert_eq!(says(&mut tables, 8, 9), 9);
        assert_eq!(says(&mut tables, 10, 9), 2_000_000, "that is another's");
        assert_eq!(says(&mut tables, 11, 2), 2_000_001, "that is another's, too");
        assert_eq!(says(&mut tables, 2, 5), 2, "whose uuid is known is known");
        assert_eq!(says(&mut tables, 12, 2_000_005), 2_000_002, "that was never drawn");
    }
}
