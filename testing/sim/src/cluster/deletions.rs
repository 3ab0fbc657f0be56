//! Who holds which containers, by the directories on the disks: a good replica may go only when three others
//! stay.

use super::plan::machine_at;
use super::run::Run;
use super::view::View;
use crate::world::ProcessId;
use proto::scm::{ContainerState, ReplicaState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{ContainerId, OwnerId};

const REPLICAS: usize = 3;
const LOOK_MS: u128 = 200;
/// Who is lost is missed by SCM (`stale_after`), and by a node that has its order already, a moment later.
const MISSED_WITHIN: Duration = Duration::from_secs(5);

/// As it was when last looked at.
#[derive(Default)]
pub(super) struct Holdings {
    held: BTreeMap<usize, BTreeSet<OwnerId>>,
    /// Containers of machines that a scheme took away, whatever was going on, and when.
    lost: Vec<(Duration, BTreeSet<OwnerId>)>,
    /// Which machine has which replica that SCM took for good.
    good: BTreeSet<(usize, ContainerId)>,
}

impl Holdings {
    /// Notes that what a machine held is gone with its disk.
    pub(super) fn forget(&mut self, machine: usize) {
        self.held.remove(&machine);
    }

    /// A machine is gone in the middle of whatever is going on.
    pub(super) fn lose(&mut self, machine: usize, now: Duration) {
        self.lost.push((now, self.held.remove(&machine).unwrap_or_default()));
    }

    /// How many had it of whom it is not known yet that they are lost.
    fn missed(&self, owner: OwnerId, now: Duration) -> usize {
        let is_it =
            |(at, held): &&(Duration, BTreeSet<OwnerId>)| now < *at + MISSED_WITHIN && held.contains(&owner);
        self.lost.iter().filter(is_it).count()
    }

    /// Who had a container when last looked at.
    pub(super) fn holders(&self, owner: OwnerId) -> BTreeSet<usize> {
        self.held.iter().filter(|(_, held)| held.contains(&owner)).map(|(machine, _)| *machine).collect()
    }
}

impl Run {
    pub(super) fn look_for_deletions(&mut self) {
        if !self.world.now().as_millis().is_multiple_of(LOOK_MS) {
            return;
        }
        let there = self.nodes().filter(|node| !self.gone.contains(node));
        let now: BTreeMap<usize, BTreeSet<OwnerId>> = there.map(|node| (node, self.owners(node))).collect();
        for container in self.ledger.containers() {
            let owner = OwnerId::from(container);
            let holders: Vec<usize> =
                now.iter().filter(|(_, held)| held.contains(&owner)).map(|(node, _)| *node).collect();
            let is_closed = self.holdings.good.iter().any(|(_, good)| *good == container);
            let before =
                |node: &&usize| self.holdings.held.get(node).is_none_or(|held| held.contains(&owner));
            let made = holders.iter().filter(|node| is_closed && !before(node)).count() as u64;
            self.ledger.count(|counts| counts.copies += made);
            for (node, held) in &self.holdings.held {
                let is_deleted = held.contains(&owner) && !holders.contains(node) && now.contains_key(node);
                if is_deleted && self.holdings.good.contains(&(*node, container)) {
                    self.ledger.count(|counts| counts.deletions += 1);
                    let missed = self.holdings.missed(owner, self.world.now());
                    if holders.len() + missed < REPLICAS {
                        self.ledger.fail(format!(
                            "the good replica of container {container} on dn{node} was deleted, and only {holders:?} have others"
                        ));
                    }
                }
            }
        }
        self.holdings.held = now;
        if let Some(view) = self.views.newest() {
            self.holdings.good = good_now(&view);
        }
    }

    /// Not those whose records a fault has just taken.
    pub(super) fn holders_now(&self, owner: OwnerId) -> BTreeSet<usize> {
        let there = self.nodes().filter(|node| !self.gone.contains(node));
        there.filter(|node| self.owners(*node).contains(&owner)).collect()
    }

    pub(super) fn owners(&self, machine: usize) -> BTreeSet<OwnerId> {
        let files = self.world.disks(ProcessId(machine)).iter().flat_map(|disk| disk.files());
        let owner = |(path, _): (String, u64)| {
            let (hex, file) = path.strip_prefix("containers/")?.split_once('/')?;
            let has_records = file.ends_with(".seg");
            u64::from_str_radix(hex, 16).ok().filter(|_| has_records).map(OwnerId)
        };
        files.filter_map(owner).collect()
    }
}

fn good_now(view: &View) -> BTreeSet<(usize, ContainerId)> {
    let mut good = BTreeSet::new();
    for info in view.containers.iter().filter(|info| info.state() == ContainerState::ContainerClosed) {
        for of_info in &info.replicas {
            let (Some(node), Some(replica)) = (&of_info.node, &of_info.replica) else { continue };
            let is_good = replica.state() == ReplicaState::ReplicaClosed && replica.unhealthy.is_empty();
            if let Some(machine) = machine_at(&node.address)
                && is_good
            {
                good.insert((machine, ContainerId(info.container)));
            }
        }
    }
    good
}
