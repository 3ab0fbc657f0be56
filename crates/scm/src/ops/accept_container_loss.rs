//! `AcceptContainerLoss` makes a container what is left of it, by the word of an operator: the one way in
//! which what a container has become changes.

use crate::tables::TablesMut;
use proto::scm::{AcceptContainerLossCommand, ContainerRecord, ContainerState, ScmReply, SettledContainer};
use types::ContainerId;

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: AcceptContainerLossCommand,
) -> Result<ScmReply, String> {
    let AcceptContainerLossCommand { before, after } = command;
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    let container = before.container;
    let record = tables.container(ContainerId(container)).cloned();
    let record = record.ok_or_else(|| format!("no container {container}"))?;
    if as_decided(&record) != before {
        return Err(format!("container {container} has become something else meanwhile: look again"));
    }
    let is_kept = match after.state() {
        ContainerState::ContainerClosed => true,
        ContainerState::ContainerDeleted => false,
        state => return Err(format!("what is left of a container is not {}", state.as_str_name())),
    };
    let SettledContainer { state, last_term, last_index, .. } = after;
    let record = match is_kept {
        true => ContainerRecord { state, last_term, last_index, ..record },
        // The end stays noted: a replica that comes late is told from what the container was.
        false => ContainerRecord { state, ..record },
    };
    tables.put_container(record);
    Ok(ScmReply::default())
}

/// The container as it has been decided on up to now.
pub(crate) fn as_decided(record: &ContainerRecord) -> SettledContainer {
    let ContainerRecord { container, state, last_term, last_index, .. } = *record;
    SettledContainer { container, state, last_term, last_index }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, three_nodes};
    use super::*;
    use crate::tables::Tables;
    use ContainerState::{ContainerClosed, ContainerDeleted, ContainerOpen};
    use proto::scm::{SettleContainersCommand, scm_command::Command};

    fn closed(state: ContainerState, last_index: u64) -> SettledContainer {
        SettledContainer { container: 1, state: state as i32, last_term: 2, last_index }
    }

    fn accept(tables: &mut Tables, before: SettledContainer, after: SettledContainer) -> String {
        let (before, after) = (Some(before), Some(after));
        run(tables, Command::AcceptContainerLoss(AcceptContainerLossCommand { before, after })).refused
    }

    #[test]
    fn a_container_becomes_what_is_left_only_of_what_was_decided_on() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let close = SettleContainersCommand { containers: vec![closed(ContainerClosed, 70)] };
        run(&mut tables, Command::SettleContainers(close));
        let is = |tables: &Tables| as_decided(tables.container(ContainerId(1)).unwrap());

        let meanwhile = accept(&mut tables, closed(ContainerClosed, 71), closed(ContainerClosed, 60));
        assert!(meanwhile.contains("meanwhile"), "{meanwhile}");
        let open = accept(&mut tables, closed(ContainerClosed, 70), closed(ContainerOpen, 60));
        assert!(open.contains("CONTAINER_OPEN"), "{open}");
        assert_eq!(is(&tables), closed(ContainerClosed, 70));

        assert_eq!(accept(&mut tables, closed(ContainerClosed, 70), closed(ContainerClosed, 60)), "");
        assert_eq!(is(&tables), closed(ContainerClosed, 60));
        // The answer was lost, and the call is repeated.
        assert!(!accept(&mut tables, closed(ContainerClosed, 70), closed(ContainerClosed, 60)).is_empty());
        assert_eq!(accept(&mut tables, closed(ContainerClosed, 60), closed(ContainerDeleted, 0)), "");
        assert_eq!(is(&tables), closed(ContainerDeleted, 60), "where it ended stays known");
    }
}
