//! `DeleteContainers` writes down that nothing is left in closed containers: all their blocks were discarded,
//! in all their replicas. From here on the replicas go, also one that comes late. A container that is not
//! closed, or is deleted already, stays what it is.

use crate::tables::{TablesMut, container_state};
use proto::scm::{ContainerRecord, ContainerState, DeleteContainersCommand, EmptiedContainer, ScmReply};
use types::ContainerId;

/// The most containers of one command: some kilobytes of log.
pub(crate) const DELETE_CONTAINERS_MAX: usize = 1000;

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: DeleteContainersCommand,
) -> Result<ScmReply, String> {
    let count = command.containers.len();
    if count > DELETE_CONTAINERS_MAX {
        return Err(format!("{count} containers, at most {DELETE_CONTAINERS_MAX} at once"));
    }
    for EmptiedContainer { container, terms, lacks_earlier_terms } in command.containers {
        let closed = tables.container(ContainerId(container)).cloned();
        let closed = closed.filter(|record| container_state(record) == ContainerState::ContainerClosed);
        if let Some(record) = closed {
            let (state, emptied) = (ContainerState::ContainerDeleted.into(), true);
            let emptied = ContainerRecord { state, emptied, terms, lacks_earlier_terms, ..record };
            tables.put_container(emptied);
        }
    }
    Ok(ScmReply::default())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, three_nodes};
    use super::*;
    use proto::scm::scm_command::Command;
    use proto::scm::{SettleContainersCommand, SettledContainer, TermEnd};

    #[test]
    fn only_a_closed_container_becomes_an_emptied_one_and_stays_that() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, create([1, 2, 3]));
        let terms = vec![TermEnd { term: 2, last_index: 70, mark: 5 }];
        let emptied = |container| {
            let (terms, lacks_earlier_terms) = (terms.clone(), false);
            EmptiedContainer { container, terms, lacks_earlier_terms }
        };
        let containers = [1, 2, 99].map(emptied).into();
        let delete = Command::DeleteContainers(DeleteContainersCommand { containers });
        let state = ContainerState::ContainerClosed as i32;
        let close = |last_index| {
            let closed = SettledContainer { container: 1, state, last_term: 2, last_index };
            Command::SettleContainers(SettleContainersCommand { containers: vec![closed] })
        };
        run(&mut tables, close(70));
        assert_eq!(run(&mut tables, delete).refused, "");
        run(&mut tables, close(80));
        let record = |container| tables.container(ContainerId(container)).unwrap().clone();
        let ContainerRecord { emptied, last_index, terms: noted, .. } = record(1);
        assert_eq!((record(1).state(), emptied, last_index), (ContainerState::ContainerDeleted, true, 70));
        assert_eq!(noted, terms);
        assert!(container_state(&record(2)) == ContainerState::ContainerOpen && !record(2).emptied);
    }
}
