//! `SettleContainers` writes down what containers are, once that is known. A container goes from OPEN to
//! QUASI_CLOSED, CLOSED or DELETED, and from QUASI_CLOSED to CLOSED or DELETED; what it has become stays.

use crate::tables::TablesMut;
use proto::scm::{ContainerRecord, ContainerState, ScmReply, SettleContainersCommand, SettledContainer};
use types::ContainerId;

/// The most containers of one command: a hundred kilobytes of log.
pub(crate) const SETTLE_CONTAINERS_MAX: usize = 1000;

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: SettleContainersCommand,
) -> Result<ScmReply, String> {
    let SettleContainersCommand { containers } = command;
    if containers.len() > SETTLE_CONTAINERS_MAX {
        return Err(format!("{} containers, at most {SETTLE_CONTAINERS_MAX} at once", containers.len()));
    }
    for closed in &containers {
        check(tables, closed)?;
    }
    for closed in &containers {
        settle(tables, closed);
    }
    Ok(ScmReply::default())
}

fn check(tables: &TablesMut<'_>, closed: &SettledContainer) -> Result<(), String> {
    use ContainerState::{ContainerClosed, ContainerDeleted, ContainerQuasiClosed};
    if tables.container(ContainerId(closed.container)).is_none() {
        return Err(format!("no container {}", closed.container));
    }
    match closed.state() {
        ContainerClosed | ContainerQuasiClosed | ContainerDeleted => Ok(()),
        state => Err(format!("a container is not settled as {}", state.as_str_name())),
    }
}

fn settle(tables: &mut TablesMut<'_>, closed: &SettledContainer) {
    let record = tables.container(ContainerId(closed.container)).expect("checked before").clone();
    let goes_on = match record.state() {
        ContainerState::Unspecified | ContainerState::ContainerOpen => true,
        ContainerState::ContainerQuasiClosed => closed.state() != ContainerState::ContainerQuasiClosed,
        ContainerState::ContainerClosed | ContainerState::ContainerDeleted => false,
    };
    if goes_on {
        let SettledContainer { state, last_term, last_index, .. } = *closed;
        tables.put_container(ContainerRecord { state, last_term, last_index, ..record });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, three_nodes};
    use super::*;
    use crate::tables::Tables;
    use proto::scm::scm_command::Command;

    fn close(tables: &mut Tables, state: ContainerState, last_index: u64) -> ScmReply {
        let closed = SettledContainer { container: 1, state: state as i32, last_term: 2, last_index };
        run(tables, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }))
    }

    #[test]
    fn what_a_container_has_become_stays() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let state = |tables: &Tables| {
            let record = tables.container(ContainerId(1)).unwrap();
            (record.state(), record.last_index)
        };
        assert_eq!(tables.unresolved_containers().count(), 1);
        close(&mut tables, ContainerState::ContainerQuasiClosed, 0);
        assert_eq!(state(&tables), (ContainerState::ContainerQuasiClosed, 0));
        assert_eq!(tables.unresolved_containers().count(), 1);
        close(&mut tables, ContainerState::ContainerClosed, 70);
        assert_eq!(state(&tables), (ContainerState::ContainerClosed, 70));
        for (later, last_index) in [
            (ContainerState::ContainerQuasiClosed, 80),
            (ContainerState::ContainerDeleted, 90),
            (ContainerState::ContainerClosed, 100),
        ] {
            close(&mut tables, later, last_index);
            assert_eq!(state(&tables), (ContainerState::ContainerClosed, 70));
        }
        assert_eq!(tables.unresolved_containers().count(), 0);
        assert!(close(&mut tables, ContainerState::ContainerOpen, 1).refused.contains("CONTAINER_OPEN"));
    }
}
