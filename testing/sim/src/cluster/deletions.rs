//! Who holds which containers, by the directories on the disks: a good replica may go only when three others
//! stay, none of which SCM knows to be bad.

use super::plan::machine_at;
use super::run::Run;
use super::view::View;
use crate::world::ProcessId;
use proto::scm::{ContainerState, ReplicaState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use types::{ContainerId, OwnerId};

/// Replicas, by the machine that has each.
type Replicas = BTreeSet<(usize, ContainerId)>;

const REPLICAS: usize = 3;
const LOOK_MS: u128 = 200;
/// The time within which SCM (`stale_after`), and a moment later a node that has its order already, miss a
/// machine that is lost.
const MISSED_WITHIN: Duration = Duration::from_secs(5);
/// A node may carry out for so long what it was told (`ORDER_HOLDS` and a heartbeat), whatever SCM has heard
/// since.
const ORDERED_WITHIN: Duration = Duration::from_secs(35);

/// The replicas on all machines, as they were when last looked at.
#[derive(Default)]
pub(super) struct Holdings {
    held: BTreeMap<usize, BTreeSet<OwnerId>>,
    /// Containers of machines that a scheme took away, whatever was going on, and when.
    lost: Vec<(Duration, BTreeSet<OwnerId>)>,
    /// The replicas that SCM took for good, each with its machine.
    good: Replicas,
    /// The replicas of closed containers that SCM does not take for good, each with its machine and since
    /// when.
    bad: BTreeMap<(usize, ContainerId), Duration>,
    /// The deletions of which a view from afterwards is still to tell what the other replicas were worth.
    deletions: Vec<Deletion>,
    judged_at: Duration,
}

/// A good replica that was deleted.
struct Deletion {
    at: Duration,
    machine: usize,
    container: ContainerId,
    others: BTreeSet<usize>,
    /// Others that had it, of whose loss SCM may not have known yet.
    missed: usize,
}

impl Holdings {
    /// Notes that what a machine held is gone with its disk.
    pub(super) fn forget(&mut self, machine: usize) {
        self.held.remove(&machine);
    }

    /// Notes that a machine is lost in the middle of whatever is going on.
    pub(super) fn lose(&mut self, machine: usize, now: Duration) {
        self.lost.push((now, self.held.remove(&machine).unwrap_or_default()));
    }

    /// The number of machines that had the container and are lost, which SCM may not know yet.
    fn missed(&self, owner: OwnerId, now: Duration) -> usize {
        let is_it =
            |(at, held): &&(Duration, BTreeSet<OwnerId>)| now < *at + MISSED_WITHIN && held.contains(&owner);
        self.lost.iter().filter(is_it).count()
    }

    /// Takes what a view shows, and answers which replicas were deleted although too few good ones stayed:
    /// SCM had known the others to be bad before it can have told so, and still did afterwards.
    fn judge(&mut self, view: &View) -> Vec<String> {
        if view.asked_at <= self.judged_at {
            return Vec::new();
        }
        self.judged_at = view.asked_at;
        let (good, bad) = worth_now(view);
        self.good = good;
        self.bad.retain(|replica, _| bad.contains(replica));
        for replica in bad {
            self.bad.entry(replica).or_insert(view.asked_at);
        }
        let (due, later) =
            std::mem::take(&mut self.deletions).into_iter().partition(|deletion| deletion.at < view.asked_at);
        self.deletions = later;
        let wrong = |deletion: Deletion| {
            let Deletion { at, machine, container, others, missed } = deletion;
            let was_bad = |other: &&usize| {
                self.bad.get(&(**other, container)).is_some_and(|since| *since + ORDERED_WITHIN < at)
            };
            let bad: Vec<usize> = others.iter().filter(was_bad).copied().collect();
            (others.len() - bad.len() + missed < REPLICAS).then(|| {
                format!(
                    "the good replica of container {container} on dn{machine} was deleted, and of {others:?} SCM knew {bad:?} to be bad"
                )
            })
        };
        let due: Vec<Deletion> = due;
        due.into_iter().filter_map(wrong).collect()
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
        let mut deleted = Vec::new();
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
                    deleted.push(Deletion {
                        at: self.world.now(),
                        machine: *node,
                        container,
                        others: holders.iter().copied().collect(),
                        missed,
                    });
                }
            }
        }
        self.holdings.held = now;
        self.holdings.deletions.extend(deleted);
        if let Some(view) = self.views.newest() {
            for wrong in self.holdings.judge(&view) {
                self.ledger.fail(wrong);
            }
        }
    }

    /// The machines that have a container now, without those whose records a fault has just taken.
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

/// The replicas of closed containers, each with its machine: those that SCM takes for good, and those that it
/// does not.
fn worth_now(view: &View) -> (Replicas, Replicas) {
    let (mut good, mut bad) = (Replicas::new(), Replicas::new());
    for info in view.containers.iter().filter(|info| info.state() == ContainerState::ContainerClosed) {
        for of_info in &info.replicas {
            let (Some(node), Some(replica)) = (&of_info.node, &of_info.replica) else { continue };
            let is_good = replica.state() == ReplicaState::ReplicaClosed && replica.unhealthy.is_empty();
            if let Some(machine) = machine_at(&node.address) {
                let replicas = if is_good { &mut good } else { &mut bad };
                replicas.insert((machine, ContainerId(info.container)));
            }
        }
    }
    // A machine may have a container on two disks: it counts as good if one of them is.
    bad.retain(|replica| !good.contains(replica));
    (good, bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::scm::{
        ClusterStatus, ContainerInfo, ContainerReplica, ListOmsResponse, NodeAddress, ReplicaInfo,
    };

    const SEVENTH: ContainerId = ContainerId(7);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn view(asked_at: Duration, replicas: &[(usize, ReplicaState)]) -> View {
        let replica = |(machine, state): &(usize, ReplicaState)| ReplicaInfo {
            node: Some(NodeAddress { address: format!("dn{machine}:1"), ..Default::default() }),
            replica: Some(ContainerReplica { state: *state as i32, ..Default::default() }),
            ..Default::default()
        };
        let container = ContainerInfo {
            container: SEVENTH.0,
            state: ContainerState::ContainerClosed as i32,
            replicas: replicas.iter().map(replica).collect(),
            ..Default::default()
        };
        View {
            asked_at,
            status: ClusterStatus::default(),
            datanodes: Vec::new(),
            pipelines: Vec::new(),
            containers: vec![container],
            oms: ListOmsResponse::default(),
        }
    }

    /// The findings where four machines have a container, the fourth's replica is deleted after a minute, and
    /// SCM knew the third's as bad between these seconds.
    fn judged(bad_from: u64, bad_to: u64) -> Vec<String> {
        let mut holdings = Holdings::default();
        let mut found = Vec::new();
        for second in 0..70 {
            let is_bad = (bad_from..bad_to).contains(&second);
            let third = if is_bad { ReplicaState::ReplicaQuasiClosed } else { ReplicaState::ReplicaClosed };
            let closed = ReplicaState::ReplicaClosed;
            let fourth = (second <= 60).then_some((4, closed));
            let replicas = [Some((1, closed)), Some((2, closed)), Some((3, third)), fourth];
            let replicas: Vec<_> = replicas.into_iter().flatten().collect();
            found.extend(holdings.judge(&view(seconds(second), &replicas)));
            if second == 60 {
                assert!(holdings.good.contains(&(4, SEVENTH)));
                holdings.deletions.push(Deletion {
                    at: seconds(60),
                    machine: 4,
                    container: SEVENTH,
                    others: BTreeSet::from([1, 2, 3]),
                    missed: 0,
                });
            }
        }
        found
    }

    #[test]
    fn a_replica_that_was_known_to_be_bad_is_not_one_of_the_three_that_stay() {
        assert_eq!(judged(10, 70).len(), 1);
        assert_eq!(judged(70, 70), Vec::<String>::new(), "all are good");
        assert_eq!(judged(50, 70), Vec::<String>::new(), "it may have been told to go before");
        assert_eq!(judged(10, 61), Vec::<String>::new(), "SCM may have heard that it is good now");
    }
}
