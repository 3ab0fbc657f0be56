//! The replicas of containers that the nodes say they have.
//!
//! A replica takes about 250 bytes: a million containers (2 PiB), three replicas each, are 750 MB of the
//! leader's memory.

use proto::scm::{ContainerReplica, ReplicaState};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range};
use types::{ContainerId, NodeId, PipelineId};

/// The end of a replica or a container: term and index of its last record. Among members that ended by
/// themselves, the one whose log has the greatest could lead.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LastRecord {
    pub(crate) term: u64,
    pub(crate) index: u64,
}

#[derive(Default)]
pub(crate) struct Replicas {
    by_container: BTreeMap<ContainerId, BTreeMap<NodeId, ContainerReplica>>,
    by_node: HashMap<NodeId, NodeReplicas>,
    /// Containers that reports have changed since they were looked at.
    changed: BTreeSet<ContainerId>,
}

#[derive(Default)]
struct NodeReplicas {
    containers: BTreeSet<ContainerId>,
    /// The containers that are open on the node.
    open: BTreeSet<ContainerId>,
    /// Whether a full report is in, and all that came after it.
    complete: bool,
    /// The parts of a full report that has begun. Until it ends, what was known before stays: a report that
    /// is half told must not look like lost replicas.
    incoming: Option<BTreeMap<ContainerId, ContainerReplica>>,
}

/// The part of a heartbeat that speaks of containers.
pub(crate) struct ContainersReport {
    pub(crate) replicas: Vec<ContainerReplica>,
    pub(crate) gone: Vec<u64>,
    pub(crate) begins: bool,
    pub(crate) ends: bool,
}

impl Replicas {
    /// Takes in what a node says of its containers. True when something is otherwise than it was known.
    pub(crate) fn report(&mut self, node: NodeId, report: ContainersReport) -> bool {
        let of_node = self.by_node.entry(node).or_default();
        if report.begins {
            of_node.incoming = Some(BTreeMap::new());
        }
        if let Some(incoming) = &mut of_node.incoming {
            incoming
                .extend(report.replicas.into_iter().map(|replica| (ContainerId(replica.container), replica)));
            for gone in report.gone {
                incoming.remove(&ContainerId(gone));
            }
            if !report.ends {
                return false;
            }
            return self.report_complete(node);
        }
        let mut changed = false;
        for replica in report.replicas {
            changed |= self.put(node, replica);
        }
        for gone in report.gone {
            changed |= self.remove(node, ContainerId(gone));
        }
        changed
    }

    fn report_complete(&mut self, node: NodeId) -> bool {
        let of_node = self.by_node.entry(node).or_default();
        let incoming = of_node.incoming.take().unwrap_or_default();
        let mut changed = !std::mem::replace(&mut of_node.complete, true);
        let gone: Vec<ContainerId> = of_node
            .containers
            .iter()
            .filter(|container| !incoming.contains_key(container))
            .copied()
            .collect();
        for container in gone {
            changed |= self.remove(node, container);
        }
        for replica in incoming.into_values() {
            changed |= self.put(node, replica);
        }
        changed
    }

    fn put(&mut self, node: NodeId, replica: ContainerReplica) -> bool {
        let container = ContainerId(replica.container);
        let nodes = self.by_container.entry(container).or_default();
        if nodes.get(&node) == Some(&replica) {
            return false;
        }
        let is_open = replica.state() == ReplicaState::ReplicaOpen;
        nodes.insert(node, replica);
        let of_node = self.by_node.entry(node).or_default();
        of_node.containers.insert(container);
        match is_open {
            true => of_node.open.insert(container),
            false => of_node.open.remove(&container),
        };
        self.changed.insert(container);
        true
    }

    fn remove(&mut self, node: NodeId, container: ContainerId) -> bool {
        let Some(nodes) = self.by_container.get_mut(&container) else { return false };
        if nodes.remove(&node).is_none() {
            return false;
        }
        if nodes.is_empty() {
            self.by_container.remove(&container);
        }
        let of_node = self.by_node.entry(node).or_default();
        of_node.containers.remove(&container);
        of_node.open.remove(&container);
        self.changed.insert(container);
        true
    }

    /// Takes note that the node starts anew: what it had stays known, and is no more relied upon until it has
    /// told all again.
    pub(crate) fn expect_full_report(&mut self, node: NodeId) {
        let of_node = self.by_node.entry(node).or_default();
        of_node.complete = false;
        of_node.incoming = None;
    }

    /// Whether all that the node has is known.
    pub(crate) fn is_complete(&self, node: NodeId) -> bool {
        self.by_node.get(&node).is_some_and(|of_node| of_node.complete)
    }

    /// Whether the node should begin a full report.
    pub(crate) fn wants_full_report(&self, node: NodeId) -> bool {
        self.by_node.get(&node).is_none_or(|of_node| !of_node.complete && of_node.incoming.is_none())
    }

    /// A container's replicas, in the order of their nodes.
    pub(crate) fn of(&self, container: ContainerId) -> impl Iterator<Item = (NodeId, &ContainerReplica)> {
        self.by_container.get(&container).into_iter().flatten().map(|(node, replica)| (*node, replica))
    }

    /// Pipelines that a node has open containers of.
    pub(crate) fn open_pipelines_on(&self, node: NodeId) -> impl Iterator<Item = PipelineId> {
        let open = self.by_node.get(&node).into_iter().flat_map(|of_node| &of_node.open);
        open.filter_map(move |container| Some(PipelineId(self.get(*container, node)?.pipeline)))
    }

    pub(crate) fn get(&self, container: ContainerId, node: NodeId) -> Option<&ContainerReplica> {
        self.by_container.get(&container)?.get(&node)
    }

    /// All replicas of the containers with these numbers.
    pub(crate) fn in_range(
        &self,
        range: Range<ContainerId>,
    ) -> impl Iterator<Item = (ContainerId, &ContainerReplica)> {
        let containers = self.by_container.range(range);
        containers.flat_map(|(container, nodes)| nodes.values().map(|replica| (*container, replica)))
    }

    /// Counts the replicas of containers that `is_known` does not know.
    pub(crate) fn count_unknown(&self, is_known: impl Fn(ContainerId) -> bool) -> usize {
        let unknown = self.by_container.iter().filter(|(container, _)| !is_known(**container));
        unknown.map(|(_, nodes)| nodes.len()).sum()
    }

    pub(crate) fn on(&self, node: NodeId) -> impl Iterator<Item = ContainerId> {
        self.by_node.get(&node).into_iter().flat_map(|of_node| &of_node.containers).copied()
    }

    /// The node's containers with higher numbers than `after`, in their order.
    pub(crate) fn on_after(&self, node: NodeId, after: ContainerId) -> impl Iterator<Item = ContainerId> {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        self.by_node.get(&node).into_iter().flat_map(move |of_node| of_node.containers.range(above)).copied()
    }

    pub(crate) fn count_on(&self, node: NodeId) -> usize {
        self.by_node.get(&node).map_or(0, |of_node| of_node.containers.len())
    }

    /// Takes up to `count_max` containers that reports have changed.
    pub(crate) fn take_changed(&mut self, count_max: usize) -> Vec<ContainerId> {
        std::iter::from_fn(|| self.changed.pop_first()).take(count_max).collect()
    }
}

/// Refuses a replica, as a message has it, that cannot be one.
pub(crate) fn check_replica(replica: &ContainerReplica) -> Result<(), String> {
    const TEXT_BYTES_MAX: usize = 1024;
    const TERMS_MAX: usize = 64;
    let container = replica.container;
    if container == 0 || replica.pipeline == 0 {
        return Err(format!("a replica of container {container} of pipeline {}", replica.pipeline));
    }
    if replica.state() == ReplicaState::Unspecified {
        return Err(format!("replica of container {container} has the unknown state {}", replica.state));
    }
    let terms = replica.terms.len().max(replica.terms_to_committed.len());
    if terms > TERMS_MAX {
        return Err(format!("{terms} terms of container {container}"));
    }
    if replica.hash.len() > TEXT_BYTES_MAX || replica.unhealthy.len() > TEXT_BYTES_MAX {
        return Err(format!("more than {TEXT_BYTES_MAX} bytes of text about container {container}"));
    }
    Ok(())
}

pub(crate) fn last_record(replica: &ContainerReplica) -> LastRecord {
    LastRecord { term: replica.last_term, index: replica.last_index }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn replica(container: u64, blocks: u64) -> ContainerReplica {
        let state = ReplicaState::ReplicaClosed as i32;
        ContainerReplica { container, pipeline: 1, state, blocks, ..ContainerReplica::default() }
    }

    fn part(containers: &[u64], begins: bool, ends: bool) -> ContainersReport {
        let replicas = containers.iter().map(|&container| replica(container, 1)).collect();
        ContainersReport { replicas, gone: Vec::new(), begins, ends }
    }

    fn on_node(replicas: &Replicas) -> Vec<u64> {
        replicas.on(NODE).map(|container| container.0).collect()
    }

    #[test]
    fn a_full_report_counts_when_it_has_ended() {
        let mut replicas = Replicas::default();
        assert!(replicas.wants_full_report(NODE));
        assert!(!replicas.report(NODE, part(&[1, 2], true, false)));
        assert!(!replicas.wants_full_report(NODE), "it has begun");
        assert!(!replicas.is_complete(NODE));
        assert!(replicas.report(NODE, part(&[3], false, true)));
        assert!(replicas.is_complete(NODE));
        assert_eq!(on_node(&replicas), [1, 2, 3]);

        // The next full report begins: what was known stays until it ends.
        replicas.report(NODE, part(&[2], true, false));
        assert_eq!(on_node(&replicas), [1, 2, 3]);
        assert!(replicas.report(NODE, part(&[4], false, true)));
        assert_eq!(on_node(&replicas), [2, 4]);
        assert_eq!(replicas.take_changed(100), [1, 2, 3, 4].map(ContainerId));
    }

    #[test]
    fn the_pipelines_of_open_replicas_are_known() {
        let mut replicas = Replicas::default();
        let open = |container, pipeline| {
            let state = ReplicaState::ReplicaOpen as i32;
            ContainerReplica { container, pipeline, state, ..ContainerReplica::default() }
        };
        let report = |replicas, gone| ContainersReport { replicas, gone, begins: false, ends: false };
        let on_node = |replicas: &Replicas| replicas.open_pipelines_on(NODE).collect::<Vec<_>>();
        replicas.report(NODE, report(vec![open(1, 1), open(2, 2), open(3, 3), replica(4, 1)], vec![]));
        assert_eq!(on_node(&replicas), [1, 2, 3].map(PipelineId));
        replicas.report(NODE, report(vec![replica(1, 1)], vec![3]));
        assert_eq!(on_node(&replicas), [PipelineId(2)], "one was closed, one is gone");
    }

    #[test]
    fn a_report_that_is_cut_off_begins_again() {
        let mut replicas = Replicas::default();
        replicas.report(NODE, part(&[1, 2], true, false));
        replicas.report(NODE, part(&[5], true, true));
        assert_eq!(on_node(&replicas), [5]);
        replicas.report(NODE, part(&[6], true, false));
        replicas.expect_full_report(NODE);
        assert!(replicas.wants_full_report(NODE) && !replicas.is_complete(NODE));
        assert_eq!(on_node(&replicas), [5], "what it had is known until it says otherwise");
    }

    #[test]
    fn what_changed_is_looked_at_once() {
        let mut replicas = Replicas::default();
        replicas.report(NODE, part(&[1, 2], true, true));
        replicas.take_changed(100);
        assert!(!replicas.report(NODE, part(&[1], false, false)), "the same again");
        let more =
            ContainersReport { replicas: vec![replica(1, 2)], gone: vec![2, 9], begins: false, ends: false };
        assert!(replicas.report(NODE, more));
        assert_eq!(replicas.take_changed(1), [ContainerId(1)]);
        assert_eq!(replicas.take_changed(100), [ContainerId(2)]);
        assert_eq!(replicas.of(ContainerId(1)).map(|(_, replica)| replica.blocks).collect::<Vec<_>>(), [2]);
        assert_eq!(replicas.count_on(NODE), 1);
    }

    #[test]
    fn replicas_without_sense_are_refused() {
        assert_eq!(check_replica(&replica(1, 1)), Ok(()));
        assert!(check_replica(&replica(0, 1)).is_err());
        assert!(check_replica(&ContainerReplica { state: 77, ..replica(1, 1) }).is_err());
        assert!(check_replica(&ContainerReplica { hash: "x".repeat(2000), ..replica(1, 1) }).is_err());
    }
}
