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
        for holders in self.losses.held.values_mut() {
            holders.remove(&machine);
        }
    }

    /// Checks that what waits is all still there.
    pub(super) fn check_waiting(&self, view: &View) -> Result<(), String> {
        for container in self.ledger.containers().into_iter().filter(|it| self.is_lost_with_scm(*it)) {
            self.ledger.count(|counts| counts.containers_lost_with_scm += 1);
            if self.holdings.holders(OwnerId::from(container)).len() < MAJORITY {
                return Err(format!("SCM does not know container {container}, and its replicas are deleted"));
            }
        }
        let waiting = view.containers.iter().filter(|info| self.losses.excuse(info));
        for info in waiting {
            let container = ContainerId(info.container);
            self.ledger.count(|counts| counts.containers_waiting += 1);
            let Some(holders) = self.losses.held.get(&container) else { continue };
            let now = self.holdings.holders(OwnerId::from(container));
            if let Some(gone) = holders.difference(&now).next() {
                return Err(format!("container {container} waits for an operator, and dn{gone} deleted it"));
            }
        }
        let told = view.status.quasi_closed + view.status.missing;
        if told == 0 && view.containers.iter().any(|info| self.losses.excuse(info)) {
            return Err("containers wait for an operator, and the status does not say so".to_owned());
        }
        Ok(())
    }
}
