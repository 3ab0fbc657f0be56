//! The cluster's birth: the first id proposed is the cluster's for good.

use crate::tables::TablesMut;
use proto::scm::{BootstrapCommand, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: BootstrapCommand) -> ScmReply {
    if tables.cluster().is_empty() {
        tables.set_cluster(&command.cluster);
    }
    ScmReply { cluster: tables.cluster().to_owned(), ..ScmReply::default() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use crate::tables::Tables;
    use proto::scm::{BootstrapCommand, scm_command::Command};

    #[test]
    fn the_first_cluster_id_wins() {
        let mut tables = Tables::default();
        for id in ["one", "two"] {
            let reply = run(&mut tables, Command::Bootstrap(BootstrapCommand { cluster: id.into() }));
            assert_eq!(reply.cluster, "one");
        }
        assert_eq!(tables.cluster(), "one");
    }
}
