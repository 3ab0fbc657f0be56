//! The members of pipelines that cannot prove any more what they had, by what was done to them: where they
//! are two of three, what was acknowledged may be gone, and the containers must wait for an operator, in
//! plain sight and untouched.

use super::harm::logs_on;
use super::run::Run;
use super::view::View;
use crate::world::ProcessId;
use proto::scm::{ContainerInfo, ContainerState, ContainerTrouble};
use std::collections::{BTreeMap, BTreeSet};
use types::{ContainerId, OwnerId, PipelineId};

const MAJORITY: usize = 2;

#[derive(Default)]
pub(super) struct Losses {
    of: BTreeMap<PipelineId, BTreeSet<usize>>,
    /// The machines that had each container when its pipeline's majority was lost.
    held: BTreeMap<ContainerId, BTreeSet<usize>>,
}

impl Losses {
    /// Whether a container may wait for ever: for a decision, or for a good replica, where its files were
    /// harmed.
    pub(super) fn excuse(&self, info: &ContainerInfo) -> bool {
        let waits = match info.state() {
            ContainerState::ContainerQuasiClosed => true,
            ContainerState::ContainerClosed => {
                info.troubles().any(|it| it == ContainerTrouble::ContainerMissing)
            }
            _ => false,
        };
        waits && self.has_lost_majority(info)
    }

    /// Forgets what a machine had, of which a disk is lost.
    pub(super) fn forget(&mut self, machine: usize) {
        for holders in self.held.values_mut() {
            holders.remove(&machine);
        }
    }

    /// Checks that what waits is all still there, by who has a container now, and that it is told of. Answers
    /// how many containers wait.
    fn check(&self, view: &View, holders: impl Fn(ContainerId) -> BTreeSet<usize>) -> Result<u64, String> {
        let waiting = || view.containers.iter().filter(|info| self.excuse(info));
        for container in waiting().map(|info| ContainerId(info.container)) {
            let Some(before) = self.held.get(&container) else { continue };
            if let Some(gone) = before.difference(&holders(container)).next() {
                return Err(format!("container {container} waits for an operator, and dn{gone} deleted it"));
            }
        }
        let told = view.status.quasi_closed + view.status.missing;
        if told == 0 && waiting().next().is_some() {
            return Err("containers wait for an operator, and the status does not say so".to_owned());
        }
        Ok(waiting().count() as u64)
    }

    /// Whether what was acknowledged in a container may be gone: to the third member a record that was
    /// damaged within the last half minute is a tail that was never written.
    pub(super) fn has_lost_majority(&self, info: &ContainerInfo) -> bool {
        self.of.get(&PipelineId(info.pipeline)).is_some_and(|lost| lost.len() >= MAJORITY)
    }
}

impl Run {
    pub(super) fn note_lost_log(&mut self, pipeline: PipelineId, machine: usize) {
        let lost = self.losses.of.entry(pipeline).or_default();
        if lost.insert(machine) && lost.len() == MAJORITY {
            let Some(view) = self.views.newest() else { return };
            let of_pipeline = view.containers.iter().filter(|info| PipelineId(info.pipeline) == pipeline);
            for container in of_pipeline.map(|info| ContainerId(info.container)) {
                let holders = self.holders_now(OwnerId::from(container));
                self.losses.held.insert(container, holders);
            }
        }
    }

    /// Notes that a disk is lost for good, with all its logs.
    pub(super) fn note_lost_disk(&mut self, machine: usize, number: usize) {
        for pipeline in logs_on(&self.world.disks(ProcessId(machine))[number]) {
            self.note_lost_log(pipeline, machine);
        }
        self.losses.forget(machine);
    }

    /// Checks that what waits is all still there.
    pub(super) fn check_waiting(&self, view: &View) -> Result<(), String> {
        let adopted = view.containers.iter().filter(|info| info.adopted).count();
        self.ledger.count(|counts| counts.containers_adopted += adopted as u64);
        let waiting = self.losses.check(view, |container| self.holdings.holders(OwnerId::from(container)))?;
        self.ledger.count(|counts| counts.containers_waiting += waiting);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::scm::{ClusterStatus, ListOmsResponse};
    use std::time::Duration;

    const PIPELINE: PipelineId = PipelineId(3);
    const CONTAINER: ContainerId = ContainerId(7);

    /// The finding where two of three members of a pipeline lost their logs, which left a container on these
    /// machines, and the status tells of so many that are quasi-closed.
    fn check(members_lost: usize, now: [usize; 2], quasi_closed: u64) -> Result<u64, String> {
        let mut losses = Losses::default();
        losses.of.insert(PIPELINE, (1..=members_lost).collect());
        losses.held.insert(CONTAINER, BTreeSet::from([1, 2]));
        let container = ContainerInfo {
            container: CONTAINER.0,
            pipeline: PIPELINE.0,
            state: ContainerState::ContainerQuasiClosed as i32,
            ..Default::default()
        };
        let view = View {
            asked_at: Duration::ZERO,
            status: ClusterStatus { quasi_closed, ..Default::default() },
            datanodes: Vec::new(),
            pipelines: Vec::new(),
            containers: vec![container],
            oms: ListOmsResponse::default(),
        };
        losses.check(&view, |_| BTreeSet::from(now))
    }

    #[test]
    fn what_waits_for_an_operator_is_told_of_and_stays() {
        assert_eq!(check(2, [1, 2], 1), Ok(1));
        assert_eq!(check(2, [1, 3], 1).unwrap_err(), "container 7 waits for an operator, and dn2 deleted it");
        assert!(check(2, [1, 2], 0).unwrap_err().contains("the status does not say so"));
        assert_eq!(check(1, [1, 3], 0), Ok(0), "it does not wait: two members can prove what they have");
    }
}
