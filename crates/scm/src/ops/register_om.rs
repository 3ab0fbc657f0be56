//! An OM makes itself known: it gets a number for its uuid, the same one each time, and its address is
//! remembered as it is now. Whoever had that address before is gone with its directory. An OM that a forced
//! reset has lost keeps its number, which stands in the memberships of its replicas.

use crate::tables::TablesMut;
use proto::scm::{OmRecord, RegisterOmCommand, ScmReply};
use types::NodeId;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: RegisterOmCommand) -> ScmReply {
    let RegisterOmCommand { uuid, address, om: says } = command;
    let before = tables.om_by_uuid(&uuid).cloned().unwrap_or_default();
    let om = match before.om {
        0 if tables.is_lost_om(NodeId(says)) => says,
        0 => tables.draw_om().0,
        known => known,
    };
    let replaced = tables.oms().values().filter(|other| other.om != om && other.address == address);
    let replaced: Vec<OmRecord> = replaced.cloned().collect();
    for other in replaced {
        tables.put_om(OmRecord { address: String::new(), ..other });
    }
    tables.put_om(OmRecord { om, uuid, address, ..before });
    ScmReply { om, ..ScmReply::default() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{register, register_om, run, three_oms, uuid};
    use crate::tables::{Tables, TablesMut};
    use proto::scm::{RegisterOmCommand, scm_command::Command};
    use types::NodeId;

    fn at(tables: &mut Tables, uuid_of: u8, om: u64, address: &str) -> u64 {
        let command = RegisterOmCommand { uuid: uuid(uuid_of), address: address.to_owned(), om };
        run(tables, Command::RegisterOm(command)).om
    }

    #[test]
    fn an_om_keeps_its_number_and_datanodes_have_theirs() {
        let mut tables = three_oms();
        assert_eq!(run(&mut tables, register_om(2)).om, 2);
        assert_eq!(run(&mut tables, register(2)).node, 1, "a datanode may have the same uuid");
        assert_eq!(at(&mut tables, 2, 0, "elsewhere:9"), 2);
        assert_eq!(tables.om_address(NodeId(2)), "elsewhere:9");
        assert_eq!(run(&mut tables, register_om(9)).om, 4);
    }

    #[test]
    fn an_emptied_directory_is_another_om_and_takes_the_address() {
        let mut tables = three_oms();
        assert_eq!(at(&mut tables, 7, 2, "om2:1"), 4, "nobody has lost a number 2");
        assert_eq!([2, 4].map(|om| tables.om_address(NodeId(om)).to_owned()), ["", "om2:1"]);
        assert_eq!(at(&mut tables, 2, 2, "om2:2"), 2, "its directory was not lost after all");
        assert_eq!([2, 4].map(|om| tables.om_address(NodeId(om)).to_owned()), ["om2:2", "om2:1"]);
    }

    #[test]
    fn an_om_that_a_reset_lost_gets_its_number_back_and_nobody_elses() {
        let mut tables = three_oms();
        TablesMut::new(&mut tables).reset();
        assert_eq!(at(&mut tables, 8, 9, "a:1"), 9);
        assert_eq!(at(&mut tables, 8, 9, "a:1"), 9);
        assert_eq!(at(&mut tables, 10, 9, "a:2"), 2_000_000, "that is another's");
        let node = proto::scm::RegisterNodeCommand { uuid: uuid(20), node: 9, ..Default::default() };
        assert_eq!(run(&mut tables, Command::RegisterNode(node)).node, 9, "datanodes count by themselves");
    }
}
