//! Nodes are dead, or have come back, as the leader has found.

use crate::tables::TablesMut;
use proto::scm::{NodeRecord, NoteNodesCommand, ScmReply};
use types::NodeId;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: NoteNodesCommand) -> ScmReply {
    let NoteNodesCommand { dead, back } = command;
    let mut note = |node: u64, is_dead: bool| {
        let known = tables.node(NodeId(node)).filter(|record| record.is_dead != is_dead);
        if let Some(record) = known.cloned() {
            tables.put_node(NodeRecord { is_dead, ..record });
        }
    };
    dead.into_iter().for_each(|node| note(node, true));
    back.into_iter().for_each(|node| note(node, false));
    ScmReply::default()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{register, run, three_nodes};
    use proto::scm::{NoteNodesCommand, scm_command::Command};

    #[test]
    fn the_dead_are_noted_until_they_are_back() {
        let mut tables = three_nodes();
        let mut dead_after = |dead: &[u64], back: &[u64]| -> Vec<u64> {
            let note = NoteNodesCommand { dead: dead.to_vec(), back: back.to_vec() };
            assert_eq!(run(&mut tables, Command::NoteNodes(note)).refused, "");
            run(&mut tables, register(2));
            let dead = tables.nodes().iter().filter(|(_, record)| record.is_dead);
            dead.map(|(node, _)| node.0).collect()
        };
        assert_eq!(dead_after(&[2, 3, 9], &[]), [2, 3], "whatever else is noted of it, and nobody unknown");
        assert_eq!(dead_after(&[], &[3, 9]), [2]);
        assert_eq!(dead_after(&[], &[2]), []);
    }
}
