//! Moves closed containers from full nodes to empty ones: a copy to the emptiest, after which the replication
//! manager finds one replica too many and deletes that of the fullest.

use crate::options::ScmOptions;
use crate::quality::{Quality, quality};
use crate::racks::spread as spread_of_racks;
use crate::replication::{self, Copies, NodeView, NodeViews, Order, REPLICAS, Tasks};
use crate::world::World;
use proto::scm::TaskKind;
use types::{ContainerId, NodeId};

/// The most containers of the fullest node that one look considers; the next look goes on behind them.
const CANDIDATES_MAX: usize = 10_000;

/// The balancer's thresholds and limits, and the place where its next look goes on.
pub(crate) struct Balancer {
    threshold_percent: u64,
    moves_max: usize,
    copies_per_node_max: usize,
    keep_free_percent: u64,
    cursor: ContainerId,
}

/// The fullest, the emptiest and the mean of the nodes that the balancer looks at, in millionths full.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Spread {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) mean: u64,
}

impl Balancer {
    pub(crate) fn new(options: &ScmOptions) -> Balancer {
        Balancer {
            threshold_percent: options.balancer_threshold_percent,
            moves_max: options.balancer_moves_max,
            copies_per_node_max: options.copies_per_node_max,
            keep_free_percent: options.keep_free_percent,
            cursor: ContainerId(0),
        }
    }

    /// The next copy and where it goes, if the nodes are uneven and not enough are under way.
    pub(crate) fn plan(&mut self, world: &World<'_>, tasks: &Tasks) -> Option<(NodeId, Order)> {
        if !world.may_move_data() || !world.tables.switches().balancer {
            return None;
        }
        self.next_move(world, tasks)
    }

    fn next_move(&mut self, world: &World<'_>, tasks: &Tasks) -> Option<(NodeId, Order)> {
        let views = world.node_views();
        let spread = spread(views);
        let threshold = self.threshold_percent * 10_000;
        let is_even =
            spread.max - spread.mean <= threshold && spread.mean.saturating_sub(spread.min) <= threshold;
        if is_even || moves_under_way(tasks) >= self.moves_max {
            return None;
        }
        let nodes_by_use = by_utilization(views);
        let (from, fullest) = *nodes_by_use.last()?;
        let copies = tasks.copies();
        let candidates: Vec<ContainerId> =
            world.nodes.replicas().on_after(from, self.cursor).take(CANDIDATES_MAX).collect();
        self.cursor = if candidates.len() < CANDIDATES_MAX { ContainerId(0) } else { *candidates.last()? };
        candidates.into_iter().find_map(|container| {
            let known = replication::known(container, world)?;
            let bytes = movable_bytes(&known, from, views, tasks)?;
            let sources: Vec<NodeId> = sources(&known, from, &copies, self.copies_per_node_max);
            let (to, _) = *nodes_by_use.iter().find(|(to, view)| {
                let evens =
                    is_worth(bytes, &fullest, view) && view.has_room_for(bytes, self.keep_free_percent);
                let takes = copies.to(*to) < self.copies_per_node_max
                    && !tasks.avoids(*to, TaskKind::TaskCopy, container, world.now);
                let is_new = !known.replicas.iter().any(|(holder, _)| holder == to);
                let had = known.on_lost_disks.contains(to) || known.behind.contains(to);
                evens && takes && is_new && !had && keeps_racks(&known, from, *to, views)
            })?;
            let order = replication::copy(&known, &sources, bytes, true);
            self.cursor = container;
            (!sources.is_empty()).then_some((to, order))
        })
    }
}

/// The nodes in service that speak and whose replicas are known, the emptiest first.
fn by_utilization(views: &NodeViews) -> Vec<(NodeId, NodeView)> {
    let firm = views.iter().filter(|(_, view)| view.is_firm() && view.capacity_bytes > 0);
    let mut firm: Vec<(NodeId, NodeView)> = firm.map(|(node, view)| (*node, *view)).collect();
    firm.sort_by_key(|(node, view)| (view.utilization(), *node));
    firm
}

pub(crate) fn spread(views: &NodeViews) -> Spread {
    let nodes = by_utilization(views);
    let (Some((_, first)), Some((_, last))) = (nodes.first(), nodes.last()) else { return Spread::default() };
    let sum = |of: fn(&NodeView) -> u64| nodes.iter().map(|(_, view)| u128::from(of(view))).sum::<u128>();
    let (free, capacity) = (sum(|view| view.free_bytes), sum(|view| view.capacity_bytes));
    let mean = (capacity.saturating_sub(free) * 1_000_000 / capacity.max(1)) as u64;
    Spread { min: first.utilization(), max: last.utilization(), mean }
}

pub(crate) fn moves_under_way(tasks: &Tasks) -> usize {
    let to_balance = |order: &Order| matches!(order, Order::Copy { to_balance: true, .. });
    tasks.all().filter(|(_, asked)| to_balance(&asked.order)).count()
}

/// The container's size, if it has just the replicas it should have, nothing goes on with it, and `from` may
/// delete its own.
fn movable_bytes(
    known: &replication::ContainerView<'_>,
    from: NodeId,
    views: &NodeViews,
    tasks: &Tasks,
) -> Option<u64> {
    let container = ContainerId(known.record.container);
    let firm = |node: &NodeId| views.get(node).is_some_and(NodeView::is_firm);
    let good = |(node, replica): &&(NodeId, &proto::scm::ContainerReplica)| {
        firm(node) && quality(known.record, replica) == Quality::Good
    };
    let may_go = known.replicas.iter().any(|(node, replica)| *node == from && replica.released);
    let is_settled = known.replicas.len() == REPLICAS
        && known.replicas.iter().filter(good).count() == REPLICAS
        && !known.good_ones_differ(views);
    let quiet = [TaskKind::TaskCopy, TaskKind::TaskDelete]
        .iter()
        .all(|kind| tasks.nodes_with(*kind, container).is_empty());
    let bytes = replication::bytes_of(known);
    (may_go && is_settled && quiet && bytes > 0).then_some(bytes)
}

fn sources(
    known: &replication::ContainerView<'_>,
    from: NodeId,
    copies: &Copies,
    per_node_max: usize,
) -> Vec<NodeId> {
    let mut sources: Vec<NodeId> = known.replicas.iter().map(|(node, _)| *node).collect();
    sources.retain(|node| copies.from(*node) < per_node_max);
    sources.sort_by_key(|node| (copies.from(*node), *node != from));
    sources
}

/// Whether the replicas stand in enough racks after the move, or in as many as before.
fn keeps_racks(known: &replication::ContainerView<'_>, from: NodeId, to: NodeId, views: &NodeViews) -> bool {
    let racks = |nodes: Vec<NodeId>| {
        spread_of_racks(nodes.iter().filter_map(|node| views.get(node)).map(|view| view.rack))
    };
    let before: Vec<NodeId> = known.replicas.iter().map(|(node, _)| *node).collect();
    let after = before.iter().copied().filter(|node| *node != from).chain([to]).collect();
    racks(after) >= racks(before).min(replication::racks_wanted(views))
}

/// Whether the move leaves the two nodes closer to each other, not the other way round.
fn is_worth(bytes: u64, from: &NodeView, to: &NodeView) -> bool {
    let after = |view: &NodeView, free_bytes: u64| NodeView { free_bytes, ..*view }.utilization();
    let from_after = after(from, from.free_bytes.saturating_add(bytes));
    let to_after = after(to, to.free_bytes.saturating_sub(bytes));
    from_after >= to_after
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::ops::testing::{create, disk, register, run, three_nodes};
    use crate::replicas::ContainersReport;
    use crate::tables::Tables;
    use proptest::prelude::*;
    use proto::scm::{
        ContainerReplica, ContainerState, DiskReport, RackOfHost, ReplicaState, SetRacksCommand,
        SettleContainersCommand, SettledContainer, scm_command::Command,
    };
    use std::time::Duration;
    use tokio::time::Instant;

    fn balancer() -> Balancer {
        Balancer {
            threshold_percent: 10,
            moves_max: 2,
            copies_per_node_max: 2,
            keep_free_percent: 5,
            cursor: ContainerId(0),
        }
    }

    /// Four nodes of 1 000 bytes, of which each has `free`; one closed container of 50 bytes on the first
    /// three.
    fn cluster(free: [u64; 4], released: bool) -> (Tables, Nodes, Instant) {
        cluster_of(free, released, &[(50, [1, 2, 3])])
    }

    /// Four nodes of 1 000 bytes, of which each has `free`; closed containers of so many bytes on three of
    /// them each.
    fn cluster_of(
        free: [u64; 4],
        released: bool,
        containers: &[(u64, [u64; 3])],
    ) -> (Tables, Nodes, Instant) {
        let mut tables = three_nodes();
        run(&mut tables, register(4));
        let numbered = || (1..).zip(containers);
        for (container, _) in numbered() {
            run(&mut tables, create([1, 2, 3]));
            let state = ContainerState::ContainerClosed as i32;
            let closed = SettledContainer { container, state, last_term: 1, last_index: 9 };
            let settle = SettleContainersCommand { containers: vec![closed] };
            run(&mut tables, Command::SettleContainers(settle));
        }
        let now = Instant::now();
        let mut nodes = Nodes::new(
            Silence {
                stale_after: Duration::from_secs(2),
                dead_after: Duration::from_secs(18),
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            now,
        );
        for (node, free_bytes) in (1..).zip(free) {
            let disk =
                DiskReport { disk: disk(node, 0), capacity_bytes: 1000, free_bytes, ..DiskReport::default() };
            nodes.see(NodeId(node), vec![disk], now);
            let replica = |(container, (disk_bytes, _)): (u64, &(u64, _))| ContainerReplica {
                container,
                pipeline: container,
                state: ReplicaState::ReplicaClosed as i32,
                last_term: 1,
                last_index: 9,
                disk_bytes: *disk_bytes,
                released,
                ..ContainerReplica::default()
            };
            let replicas = numbered().filter(|(_, (_, on))| on.contains(&node)).map(replica).collect();
            nodes.report_containers(
                NodeId(node),
                ContainersReport { replicas, gone: vec![], begins: true, ends: true },
            );
        }
        (tables, nodes, now)
    }

    fn check(free: [u64; 4], released: bool, expect: Option<(u64, u64)>) {
        let (tables, nodes, now) = cluster(free, released);
        let found = balancer().next_move(&World::at(&tables, &nodes, now), &Tasks::default());
        let brief = found.map(|(to, order)| {
            let Order::Copy { sources, to_balance: true, .. } = order else { panic!("{order:?}") };
            (to.0, sources[0].0)
        });
        assert_eq!(brief, expect);
    }

    #[test]
    fn the_fullest_gives_to_the_emptiest() {
        check([500, 200, 500, 800], true, Some((4, 2)));
        check([500, 200, 500, 800], false, None);
        check([500, 450, 500, 550], true, None);
    }

    #[test]
    fn no_move_puts_all_replicas_into_one_rack() {
        let (mut tables, nodes, now) = cluster([500, 200, 500, 800], true);
        for (rack_of_4, is_moved) in [("a", false), ("b", true)] {
            let rack = |(host, rack): (&str, &str)| RackOfHost { host: host.into(), rack: rack.into() };
            let hosts = [("node1", "a"), ("node2", "b"), ("node3", "a"), ("node4", rack_of_4)].map(rack);
            let racks = SetRacksCommand { hosts: hosts.into(), replace: true };
            assert_eq!(run(&mut tables, Command::SetRacks(racks)).refused, "");
            let found = balancer().next_move(&World::at(&tables, &nodes, now), &Tasks::default());
            assert_eq!(found.map(|(to, _)| to.0), is_moved.then_some(4), "node 4 in rack {rack_of_4}");
        }
    }

    #[test]
    fn a_move_that_only_swaps_is_not_made() {
        // The two nodes are 40 bytes apart, the container has 50, and the other nodes make the cluster
        // uneven.
        check([900, 440, 900, 480], true, None);
    }

    #[test]
    fn a_node_keeps_its_share_free_beyond_a_move_as_beyond_a_copy() {
        let (tables, nodes, now) = cluster([500, 200, 500, 800], true);
        for (keep_free_percent, is_moved) in [(75, true), (76, false)] {
            let mut balancer = Balancer { keep_free_percent, ..balancer() };
            let found = balancer.next_move(&World::at(&tables, &nodes, now), &Tasks::default());
            assert_eq!(found.is_some(), is_moved, "{keep_free_percent}");
        }
    }

    #[test]
    fn a_few_at_a_time() {
        let (tables, nodes, now) = cluster([500, 200, 500, 800], true);
        let mut tasks = Tasks::default();
        let (to, order) = balancer().next_move(&World::at(&tables, &nodes, now), &tasks).unwrap();
        tasks.ask(to, order, now);
        assert_eq!(moves_under_way(&tasks), 1);
        assert_eq!(balancer().next_move(&World::at(&tables, &nodes, now), &tasks), None, "it is on its way");
    }

    proptest! {
        /// The replica that a move makes one too many is deleted where it takes most, as replication does.
        #[test]
        fn each_move_evens_out_and_they_end(
            containers in prop::collection::vec((10u64..100, 1u64..=4), 0..7),
            others in prop::array::uniform4(0u64..300),
        ) {
            let without = |node: u64| (1..=4).filter(|on| *on != node).collect::<Vec<u64>>();
            let mut on: Vec<(u64, [u64; 3])> =
                containers.into_iter().map(|(bytes, not)| (bytes, without(not).try_into().unwrap())).collect();
            let mut unevenness = u64::MAX;
            loop {
                let of_node = |node: u64| on.iter().filter(move |(_, on)| on.contains(&node));
                let used = [1, 2, 3, 4].map(|node| {
                    others[node as usize - 1] + of_node(node).map(|(bytes, _)| bytes).sum::<u64>()
                });
                let squares = used.iter().map(|used| used * used).sum();
                prop_assert!(squares < unevenness, "a move has evened out nothing: {:?}", used);
                unevenness = squares;
                let (tables, nodes, now) = cluster_of(used.map(|used| 1000 - used), true, &on);
                let moved = balancer().next_move(&World::at(&tables, &nodes, now), &Tasks::default());
                let Some((to, Order::Copy { container, .. })) = moved else { break };
                let (_, holders) = &mut on[container.0 as usize - 1];
                prop_assert!(!holders.contains(&to.0), "there is a replica on {} already", to);
                let fullest = holders.iter_mut().max_by_key(|node| (used[**node as usize - 1], **node));
                *fullest.unwrap() = to.0;
            }
        }
    }

    #[test]
    fn the_spread_is_of_nodes_in_service() {
        let (tables, nodes, now) = cluster([500, 200, 500, 800], true);
        let world = World::at(&tables, &nodes, now);
        assert_eq!(spread(world.node_views()), Spread { min: 200_000, max: 800_000, mean: 500_000 });
    }
}
