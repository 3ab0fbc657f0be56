//! Invariants that hold at any time, by what SCM shows.

use super::plan::machine_at;
use super::run::Run;
use super::view::View;
use proto::scm::{ContainerInfo, ContainerReplica, ReplicaState};
use types::ContainerId;

const LOOK_MS: u128 = 100;

impl Run {
    pub(super) fn look_at_view(&self) {
        if !self.world.now().as_millis().is_multiple_of(LOOK_MS) {
            return;
        }
        let Some(view) = self.views.newest() else { return };
        self.look_for_damage(&view);
        self.look_for_ends(&view);
        self.look_for_cut_off(&view);
        self.look_for_deleted(&view);
    }

    /// Looks for a bad replica on a machine where no bit was flipped and no disk failed.
    fn look_for_damage(&self, view: &View) {
        for info in &view.containers {
            for (machine, replica) in replicas(info) {
                if !replica.unhealthy.is_empty() && !self.ledger.is_damaged(machine) {
                    let (container, why) = (ContainerId(info.container), &replica.unhealthy);
                    self.ledger.fail(format!(
                        "container {container} on dn{machine} is bad, and nobody damaged it: {why}"
                    ));
                }
            }
        }
    }

    /// Looks for CLOSED replicas of one container that end with different records: they are what the
    /// container is.
    fn look_for_ends(&self, view: &View) {
        for info in &view.containers {
            let closed = replicas(info).filter(|(_, replica)| replica.state() == ReplicaState::ReplicaClosed);
            let mut ends =
                closed.map(|(machine, replica)| (machine, (replica.last_term, replica.last_index)));
            let Some((first, expected)) = ends.next() else { continue };
            if let Some((other, end)) = ends.find(|(_, end)| *end != expected) {
                let container = ContainerId(info.container);
                self.ledger.fail(format!(
                    "container {container} is CLOSED on dn{first} with {expected:?} as its last record, on dn{other} with {end:?}"
                ));
            }
        }
    }

    /// Looks for a CLOSED container that lacks something acknowledged, though no majority of its members lost
    /// anything. (What was sent again may stand for a chunk in the next container; a block's first record
    /// stands where it says.)
    fn look_for_cut_off(&self, view: &View) {
        let newest = self.ledger.newest_blocks();
        for info in view.containers.iter().filter(|info| !self.losses.has_lost_majority(info)) {
            let Some(block) = newest.get(&ContainerId(info.container)) else { continue };
            let closed = replicas(info).find(|(_, replica)| replica.state() == ReplicaState::ReplicaClosed);
            if let Some((machine, replica)) = closed
                && replica.last_index < block.local
            {
                let (end, container) = (replica.last_index, block.container);
                self.ledger.fail(format!(
                    "container {container} is CLOSED on dn{machine} with {end} as its last record, and block {block} was acknowledged"
                ));
            }
        }
    }
}

/// The replicas on machines that are known, each with the machine's number.
fn replicas(info: &ContainerInfo) -> impl Iterator<Item = (usize, &ContainerReplica)> {
    info.replicas.iter().filter_map(|of| {
        let machine = machine_at(&of.node.as_ref()?.address)?;
        Some((machine, of.replica.as_ref()?))
    })
}
