//! Placement of new pipelines: a pure function, so that it can be tested without a cluster.
//!
//! Each pipeline takes one disk of three different nodes, of different racks where they have room. The nodes
//! with the most room for pipelines go first, which keeps nodes of one kind even and fills as many places as
//! can be filled; among equals those that share the fewest pipelines with the members chosen already (so that
//! the loss of a node burdens all others, not two of them), then those with the most free space. The first
//! member stands for the first election, so that role goes round.

use crate::racks::Rack;
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use types::NodeId;

/// A disk and the pipelines on it.
#[derive(Clone, Debug)]
pub(crate) struct DiskLoad {
    pub(crate) disk: Bytes,
    pub(crate) pipelines: u32,
    pub(crate) free_bytes: u64,
}

/// A node with its disks: healthy ones, unless it is away.
#[derive(Clone, Debug)]
pub(crate) struct NodeLoad {
    pub(crate) node: NodeId,
    /// Whether the node is dead, or none of its disks works.
    pub(crate) is_away: bool,
    pub(crate) rack: Rack,
    pub(crate) disks: Vec<DiskLoad>,
}

/// The node and disk of one member of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberPlace {
    pub(crate) node: NodeId,
    pub(crate) disk: Bytes,
}

/// The members of pipelines that exist, first member first.
pub(crate) type Existing = Vec<Vec<NodeId>>;

/// Plans new pipelines, at most `count_max`, until no three nodes have a disk with fewer than `per_disk` of
/// them.
pub(crate) fn plan(
    nodes: Vec<NodeLoad>,
    existing: &Existing,
    per_disk: u32,
    count_max: usize,
) -> Vec<[MemberPlace; 3]> {
    let mut plan = Plan::new(nodes, per_disk);
    for members in existing {
        plan.remember(members);
    }
    std::iter::from_fn(|| plan.next_pipeline()).take(count_max).collect()
}

struct Plan {
    nodes: BTreeMap<NodeId, NodeLoad>,
    per_disk: u32,
    /// The number of pipelines that two nodes share.
    shared: HashMap<(NodeId, NodeId), u32>,
    /// The number of pipelines that start with the node as their leader.
    first: HashMap<NodeId, u32>,
}

impl Plan {
    fn new(nodes: Vec<NodeLoad>, per_disk: u32) -> Plan {
        let nodes = nodes.into_iter().map(|node| (node.node, node)).collect();
        Plan { nodes, per_disk, shared: HashMap::new(), first: HashMap::new() }
    }

    fn remember(&mut self, members: &[NodeId]) {
        for &one in members {
            for &other in members {
                *self.shared.entry((one, other)).or_default() += 1;
            }
        }
        if let Some(&first) = members.first() {
            *self.first.entry(first).or_default() += 1;
        }
    }

    fn next_pipeline(&mut self) -> Option<[MemberPlace; 3]> {
        let mut chosen = BTreeSet::new();
        for _ in 0..3 {
            chosen.insert(self.choose_node(&chosen)?);
        }
        let leads = |node: &&NodeId| (self.nodes[*node].is_away, self.first.get(node).copied().unwrap_or(0));
        let first = *chosen.iter().min_by_key(leads)?;
        let mut members = vec![first];
        members.extend(chosen.into_iter().filter(|&node| node != first));
        self.remember(&members);
        let places: Vec<MemberPlace> = members.into_iter().map(|node| self.take_disk(node)).collect();
        Some(places.try_into().expect("three members were chosen"))
    }

    fn choose_node(&self, chosen: &BTreeSet<NodeId>) -> Option<NodeId> {
        let candidates = self.nodes.values().filter(|load| !chosen.contains(&load.node));
        let with_room = candidates.filter(|load| self.room(load) > 0);
        let best = with_room.min_by_key(|load| {
            let same_rack = chosen.iter().filter(|other| self.nodes[other].rack == load.rack).count();
            let shared: u32 =
                chosen.iter().map(|&other| self.shared.get(&(load.node, other)).copied().unwrap_or(0)).sum();
            let free_bytes: u64 = load.disks.iter().map(|disk| disk.free_bytes).fold(0, u64::saturating_add);
            (same_rack, Reverse(self.room(load)), shared, Reverse(free_bytes), load.node)
        });
        best.map(|load| load.node)
    }

    /// The number of pipelines that the node can still take.
    fn room(&self, load: &NodeLoad) -> u32 {
        load.disks.iter().map(|disk| self.per_disk.saturating_sub(disk.pipelines)).sum()
    }

    /// Takes a place on the node's disk with the fewest pipelines and, among those, the most free space.
    fn take_disk(&mut self, node: NodeId) -> MemberPlace {
        let load = self.nodes.get_mut(&node).expect("the chosen node is a candidate");
        let disk = load.disks.iter_mut().min_by_key(|disk| (disk.pipelines, Reverse(disk.free_bytes)));
        let disk = disk.expect("a node with room has a disk");
        disk.pipelines += 1;
        MemberPlace { node, disk: disk.disk.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(nodes: u64, disks: u8) -> Vec<NodeLoad> {
        let disk = |node: u64, n: u8| DiskLoad {
            disk: Bytes::from(format!("{node}/{n}")),
            pipelines: 0,
            // A real cluster's disks are never equally full.
            free_bytes: 1_000_000 - node * 7 - u64::from(n) * 3,
        };
        (1..=nodes)
            .map(|node| NodeLoad {
                node: NodeId(node),
                is_away: false,
                rack: Rack::default(),
                disks: (0..disks).map(|n| disk(node, n)).collect(),
            })
            .collect()
    }

    #[derive(Default)]
    struct Counts {
        per_disk: BTreeMap<Bytes, u32>,
        first: BTreeMap<NodeId, u32>,
        shared: BTreeMap<(NodeId, NodeId), u32>,
    }

    fn count(pipelines: &[[MemberPlace; 3]]) -> Counts {
        let mut counts = Counts::default();
        for places in pipelines {
            let nodes: BTreeSet<NodeId> = places.iter().map(|place| place.node).collect();
            assert_eq!(nodes.len(), 3, "two members on one node: {places:?}");
            *counts.first.entry(places[0].node).or_default() += 1;
            for place in places {
                *counts.per_disk.entry(place.disk.clone()).or_default() += 1;
                for other in places.iter().filter(|other| other.node > place.node) {
                    *counts.shared.entry((place.node, other.node)).or_default() += 1;
                }
            }
        }
        counts
    }

    #[test]
    fn three_nodes_with_two_disks_get_four_pipelines() {
        let pipelines = plan(cluster(3, 2), &vec![], 2, 100);
        assert_eq!(pipelines.len(), 4);
        let counts = count(&pipelines);
        assert_eq!(counts.per_disk.len(), 6);
        assert!(counts.per_disk.values().all(|&count| count == 2), "{:?}", counts.per_disk);
        let mut first: Vec<u32> = counts.first.into_values().collect();
        first.sort_unstable();
        assert_eq!(first, [1, 1, 2]);
    }

    #[test]
    fn five_nodes_with_three_disks_are_even() {
        let pipelines = plan(cluster(5, 3), &vec![], 2, 100);
        assert_eq!(pipelines.len(), 10);
        let counts = count(&pipelines);
        assert_eq!(counts.per_disk.len(), 15);
        assert!(counts.per_disk.values().all(|&count| count == 2), "{:?}", counts.per_disk);
        assert!(counts.first.values().all(|&count| count == 2), "{:?}", counts.first);
        // Ten pairs of nodes, thirty pairs of members.
        assert!(counts.shared.values().all(|&count| (2..=4).contains(&count)), "{:?}", counts.shared);
    }

    #[test]
    fn a_full_cluster_gets_nothing_more() {
        let mut nodes = cluster(3, 1);
        for node in &mut nodes {
            node.disks[0].pipelines = 2;
        }
        assert!(plan(nodes, &vec![], 2, 100).is_empty());
        assert!(plan(cluster(2, 8), &vec![], 2, 100).is_empty(), "two nodes are too few");
    }

    #[test]
    fn a_late_node_gets_what_the_others_have_room_for() {
        // Three nodes are full; two new ones cannot make a pipeline, three can.
        let mut nodes = cluster(6, 1);
        for node in &mut nodes[..3] {
            node.disks[0].pipelines = 2;
        }
        let existing = vec![vec![NodeId(1), NodeId(2), NodeId(3)]; 2];
        assert!(plan(nodes[..5].to_vec(), &existing, 2, 100).is_empty());
        let pipelines = plan(nodes, &existing, 2, 100);
        assert_eq!(pipelines.len(), 2);
        assert!(pipelines.iter().flatten().all(|place| place.node > NodeId(3)));
    }

    #[test]
    fn the_node_with_the_most_room_is_in_every_pipeline_when_it_must_be() {
        let mut nodes = cluster(5, 1);
        let mut second = nodes[4].disks[0].clone();
        second.disk = Bytes::from("5/1");
        nodes[4].disks.push(second);
        // The fullest node, so that room decides and not free space.
        nodes[4].disks.iter_mut().for_each(|disk| disk.free_bytes = 1);
        // Twelve places; without the large node in each pipeline some would stay empty.
        let pipelines = plan(nodes, &vec![], 2, 100);
        assert_eq!(pipelines.len(), 4, "{pipelines:?}");
        assert!(pipelines.iter().all(|places| places.iter().any(|place| place.node == NodeId(5))));
    }

    fn racks_of(pipelines: &[[MemberPlace; 3]], rack: impl Fn(NodeId) -> u32) -> Vec<usize> {
        let spread = |places: &[MemberPlace; 3]| {
            places.iter().map(|place| rack(place.node)).collect::<BTreeSet<_>>().len()
        };
        pipelines.iter().map(spread).collect()
    }

    #[test]
    fn members_stand_in_as_many_racks_as_there_are() {
        for racks in [2u64, 3] {
            let mut nodes = cluster(6, 2);
            for load in &mut nodes {
                load.rack = Rack((load.node.0 % racks) as u32);
            }
            let pipelines = plan(nodes, &vec![], 2, 100);
            assert_eq!(pipelines.len(), 8, "no place stays empty");
            let spread = racks_of(&pipelines, |node| (node.0 % racks) as u32);
            assert!(spread.iter().all(|spread| *spread as u64 == racks), "{racks} racks: {spread:?}");
        }
    }

    #[test]
    fn where_one_rack_is_full_pipelines_go_into_the_other_alone() {
        let mut nodes = cluster(4, 1);
        nodes[0].rack = Rack(1);
        let pipelines = plan(nodes, &vec![], 2, 100);
        assert_eq!(racks_of(&pipelines, |node| u32::from(node == NodeId(1))), [2, 2]);
        let mut nodes = cluster(4, 1);
        nodes[0].rack = Rack(1);
        nodes[0].disks[0].pipelines = 2;
        assert_eq!(plan(nodes, &vec![], 2, 100).len(), 2);
    }

    #[test]
    fn groups_overlap_instead_of_repeating() {
        let pipelines = plan(cluster(6, 1), &vec![], 2, 100);
        assert_eq!(pipelines.len(), 4);
        let members =
            |places: &[MemberPlace; 3]| places.iter().map(|place| place.node).collect::<BTreeSet<_>>();
        let sets: BTreeSet<_> = pipelines.iter().map(members).collect();
        assert_eq!(sets.len(), 4, "{pipelines:?}");
    }

    #[test]
    fn nodes_of_different_size_are_filled_as_far_as_possible() {
        let mut nodes = cluster(4, 4);
        nodes[3].disks.truncate(1);
        // 2 × 13 places: eight pipelines use 24 of them.
        assert_eq!(plan(nodes, &vec![], 2, 100).len(), 8);
    }
}
