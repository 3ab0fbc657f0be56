//! A datanode makes itself known: it gets a number for its uuid, the same one each time, and its address and disks
//! are remembered as they are now.

use crate::tables::TablesMut;
use proto::scm::{NodeRecord, RegisterNodeCommand, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: RegisterNodeCommand) -> ScmReply {
    let before = tables.node_by_uuid(&command.uuid).cloned().unwrap_or_default();
    let node = if before.node == 0 { tables.draw_node().0 } else { before.node };
    let RegisterNodeCommand { uuid, address, disks } = command;
    tables.put_node(NodeRecord { node, uuid, address, disks, ..before });
    ScmReply { node, ..ScmReply::default() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{register, run, three_nodes, uuid};
    use proto::scm::{RegisterNodeCommand, scm_command::Command};
    use types::NodeId;

    #[test]
    fn a_node_keeps_its_number_and_may_move() {
        let mut tables = three_nodes();
        assert_eq!(run(&mut tables, register(2)).node, 2);
        let moved = RegisterNodeCommand { uuid: uuid(2), address: "elsewhere:9".into(), disks: vec![] };
        assert_eq!(run(&mut tables, Command::RegisterNode(moved)).node, 2);
        assert_eq!(tables.node(NodeId(2)).unwrap().address, "elsewhere:9");
        assert_eq!(run(&mut tables, register(4)).node, 4);
        assert_eq!(tables.nodes().len(), 4);
    }
}
