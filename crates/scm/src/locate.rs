//! The answer to `LocateContainers`: the replicas that a container can be read from.

use crate::nodes::Nodes;
use crate::quality::{Quality, is_shared, quality};
use crate::replication::all_known;
use crate::tables::container_state;
use crate::view;
use crate::world::World;
use proto::scm::{
    ContainerLocation, ContainerRecord, ContainerReplica, ContainerState, NodeState, PipelineRecord,
};
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// Says where the container can be read; `None` for containers that hold nothing.
pub(crate) fn locate(world: &World<'_>, container: ContainerId) -> Option<ContainerLocation> {
    let World { tables, nodes, now, .. } = *world;
    let record = tables.container(container)?;
    let pipeline = tables.pipeline(PipelineId(record.pipeline))?;
    let incomplete = !all_known(world.node_views());
    let candidates = candidates(record, pipeline, nodes, now);
    // Only replicas that nobody has told of yet may have what such a container had.
    let may_be_told = incomplete && !record.emptied;
    let found = candidates.or_else(|| may_be_told.then(Candidates::default))?;
    let Candidates { good, damaged, others, diverged } = found;
    let with_state = |among: &[NodeId], state: NodeState| -> Vec<NodeId> {
        among.iter().copied().filter(|node| nodes.state(*node, now) == state).collect()
    };
    // Silent nodes only when there is no other: each costs its reader a time-out.
    let silent = |among: &[NodeId]| {
        let found = [NodeState::NodeStale, NodeState::NodeDead].map(|state| with_state(among, state));
        found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    };
    let speaking = |among: &[NodeId]| with_state(among, NodeState::NodeHealthy);
    // What is not damaged of a replica is right, and is there at once.
    let mut tiers = vec![speaking(&good), speaking(&damaged)];
    if tiers[0].is_empty() {
        tiers.extend([silent(&good), speaking(&others)]);
    }
    if tiers.iter().all(Vec::is_empty) {
        tiers.extend([silent(&others), silent(&damaged)]);
    }
    let mut tiers = tiers.into_iter().filter(|tier| !tier.is_empty());
    let first = tiers.next().unwrap_or_default();
    let diverged = Some(speaking(&diverged)).filter(|found| !found.is_empty()).unwrap_or(silent(&diverged));
    let last = tiers.chain([diverged]).flatten().collect();
    let [replicas, last] = [first, last].map(|of| view::node_addresses(tables, of));
    Some(ContainerLocation { container: container.0, pipeline: record.pipeline, replicas, last, incomplete })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Candidates {
    /// Nodes with a good replica, or, of a container that is not closed, with one that may be.
    good: Vec<NodeId>,
    /// Nodes whose replica is what the container is, but for what is damaged in it.
    damaged: Vec<NodeId>,
    /// The members that had it first, where no good replica is known: a new leader of SCM has not heard of
    /// replicas yet, or there are none.
    others: Vec<NodeId>,
    /// Nodes that have, or may have, what was acknowledged and the others lost. What only such a node has is
    /// read there; whoever asks it for a block that only the others have hears that it has another one.
    diverged: Vec<NodeId>,
}

fn candidates(
    record: &ContainerRecord,
    pipeline: &PipelineRecord,
    nodes: &Nodes,
    now: Instant,
) -> Option<Candidates> {
    let container = ContainerId(record.container);
    // Nobody reads what is on a lost disk.
    let there = || {
        let replicas = nodes.replicas().of(container);
        replicas.filter(|(node, replica)| !nodes.disk_is_lost(*node, &replica.disk, now))
    };
    let of_quality = |is_so: fn(Quality) -> bool| -> Vec<NodeId> {
        there().filter(|(_, replica)| is_so(quality(record, replica))).map(|(node, _)| node).collect()
    };
    let members = || -> Vec<NodeId> { pipeline.members.iter().map(|member| NodeId(member.node)).collect() };
    let (good, damaged) = match container_state(record) {
        ContainerState::ContainerDeleted => {
            let diverged = of_quality(|quality| quality == Quality::Diverged);
            let (good, damaged, others) = Default::default();
            return (!diverged.is_empty()).then_some(Candidates { good, damaged, others, diverged });
        }
        ContainerState::ContainerClosed => {
            (of_quality(Quality::is_good), of_quality(|quality| quality == Quality::Bad))
        }
        ContainerState::ContainerQuasiClosed => (there().map(|(node, _)| node).collect(), Vec::new()),
        ContainerState::ContainerOpen | ContainerState::Unspecified => (members(), Vec::new()),
    };
    let others = match good.is_empty() {
        true => members().into_iter().filter(|node| !damaged.contains(node)).collect(),
        false => Vec::new(),
    };
    let is_good = |replica: &ContainerReplica| quality(record, replica).is_good();
    let of_good = || there().map(|(_, replica)| replica).filter(|replica| is_good(replica));
    // Where the terms that are told do not reach back so far, nobody knows whether a replica has more.
    let has_more = |(node, replica): &(NodeId, &ContainerReplica)| {
        container_state(record) == ContainerState::ContainerClosed
            && !is_good(replica)
            && !damaged.contains(node)
            && is_shared(replica, of_good()) != Some(true)
    };
    let diverged = there().filter(has_more).map(|(node, _)| node).collect();
    Some(Candidates { good, damaged, others, diverged })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::{
        close, create, disk, end, good_replica, one_closed_container, run, three_nodes,
    };
    use crate::replicas::ContainersReport;
    use crate::tables::TablesMut;
    use proto::scm::{DiskReport, DiskState, ReplicaState, TermEnd};
    use std::time::Duration;

    const SILENCE: Silence = Silence {
        stale_after: Duration::from_secs(5),
        dead_after: Duration::from_secs(600),
        disk_lost_after: Duration::from_secs(30),
    };

    /// Nodes with the container's replica on their first disk, which some of them call broken.
    fn hear(nodes: &mut Nodes, of: impl IntoIterator<Item = u64>, broken: &[u64], now: Instant) {
        for node in of {
            let mut here = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
            if broken.contains(&node) {
                here.set_state(DiskState::Failed);
            }
            nodes.see(NodeId(node), vec![here], now);
            let replica = ContainerReplica {
                container: 1,
                pipeline: 1,
                state: ReplicaState::ReplicaQuasiClosed as i32,
                disk: disk(node, 0),
                ..ContainerReplica::default()
            };
            let report = ContainersReport { replicas: vec![replica], gone: vec![], begins: true, ends: true };
            nodes.report_containers(NodeId(node), report);
        }
    }

    /// Good and diverged ones, and no others.
    fn of([good, diverged]: [&[u64]; 2]) -> Candidates {
        let [good, diverged] = [good, diverged].map(|of| of.iter().copied().map(NodeId).collect());
        Candidates { good, damaged: vec![], others: vec![], diverged }
    }

    #[test]
    fn nobody_is_sent_to_a_lost_disk() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let record = ContainerRecord {
            state: ContainerState::ContainerQuasiClosed as i32,
            ..tables.container(ContainerId(1)).unwrap().clone()
        };
        let pipeline = tables.pipeline(PipelineId(1)).unwrap();
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        hear(&mut nodes, 1..=3, &[2], start);
        let found = |nodes: &Nodes, seconds: u64| {
            let at = start + Duration::from_secs(seconds);
            let mut found = candidates(&record, pipeline, nodes, at).unwrap().good;
            found.sort();
            found.into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(found(&nodes, 29), [1, 2, 3]);
        assert_eq!(found(&nodes, 30), [1, 3]);
    }

    /// The container was begun in a history that the others have lost.
    #[test]
    fn a_container_that_others_know_as_empty_is_read_where_something_is_known_committed() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let record = ContainerRecord {
            state: ContainerState::ContainerDeleted as i32,
            ..tables.container(ContainerId(1)).unwrap().clone()
        };
        let pipeline = tables.pipeline(PipelineId(1)).unwrap();
        let start = Instant::now();
        let found = |committed_index: u64| {
            let mut nodes = Nodes::new(SILENCE, start);
            hear(&mut nodes, 2..=3, &[], start);
            let replica = nodes.replicas().get(ContainerId(1), NodeId(3)).unwrap();
            let replica =
                ContainerReplica { blocks: 4, committed_term: 1, committed_index, ..replica.clone() };
            let report = ContainersReport { replicas: vec![replica], gone: vec![], begins: true, ends: true };
            nodes.report_containers(NodeId(3), report);
            candidates(&record, pipeline, &nodes, start)
        };
        assert_eq!(found(9), Some(of([&[], &[3]])));
        assert_eq!(found(0), None);
    }

    /// Bytes have names: a node that is asked for some and has others says so.
    #[test]
    fn who_may_have_what_the_good_ones_lack_is_asked_last() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let record = ContainerRecord {
            state: ContainerState::ContainerClosed as i32,
            last_term: 41,
            last_index: 186,
            ..tables.container(ContainerId(1)).unwrap().clone()
        };
        let pipeline = tables.pipeline(PipelineId(1)).unwrap();
        let start = Instant::now();
        let found = |good_since: u64| {
            let mut nodes = Nodes::new(SILENCE, start);
            hear(&mut nodes, 1..=3, &[], start);
            for node in 1..=3 {
                let here = nodes.replicas().get(ContainerId(1), NodeId(node)).unwrap().clone();
                let ends = |terms: &[(u64, u64)]| {
                    let end = |&(term, last_index): &(u64, u64)| TermEnd { term, last_index, mark: 0 };
                    terms.iter().map(end).collect::<Vec<_>>()
                };
                let replica = match node {
                    3 => ContainerReplica {
                        last_term: 2,
                        last_index: 52,
                        committed_term: 2,
                        committed_index: 51,
                        terms: ends(&[(2, 52)]),
                        ..here
                    },
                    _ => ContainerReplica {
                        terms: ends(&[(good_since, 60), (41, 186)]),
                        lacks_earlier_terms: good_since > 2,
                        last_term: 41,
                        last_index: 186,
                        ..here
                    },
                };
                let report =
                    ContainersReport { replicas: vec![replica], gone: vec![], begins: true, ends: true };
                nodes.report_containers(NodeId(node), report);
            }
            candidates(&record, pipeline, &nodes, start).unwrap()
        };
        assert_eq!(found(9), of([&[1, 2], &[3]]), "not known");
        assert_eq!(found(2), of([&[1, 2], &[]]), "it is shared");
    }

    /// One good replica on a node that was off hid all that could be read, a bad bit in each.
    #[test]
    fn what_is_damaged_is_read_where_no_good_one_speaks_and_last_where_one_does() {
        let tables = one_closed_container();
        let start = Instant::now();
        let found = |damaged: &[u64], silent: &[u64]| {
            let mut nodes = Nodes::new(SILENCE, start);
            let now = start + SILENCE.stale_after;
            for node in 1..=3 {
                let unhealthy = if damaged.contains(&node) { "a bad bit" } else { "" }.to_owned();
                let replica = ContainerReplica { unhealthy, ..good_replica() };
                let at = if silent.contains(&node) { start } else { now };
                nodes.tell(node, vec![replica], at);
            }
            let found = locate(&World::at(&tables, &nodes, now), ContainerId(1)).unwrap();
            [found.replicas, found.last].map(|of| of.iter().map(|node| node.node).collect::<Vec<_>>())
        };
        assert_eq!(found(&[], &[]), [vec![1, 2, 3], vec![]]);
        assert_eq!(found(&[1], &[]), [vec![2, 3], vec![1]]);
        assert_eq!(found(&[1, 2], &[3]), [vec![1, 2], vec![3]]);
        assert_eq!(found(&[1, 2, 3], &[]), [vec![1, 2, 3], vec![]]);
        assert_eq!(found(&[1], &[1, 3]), [vec![2], vec![]]);
        assert_eq!(found(&[], &[1, 2, 3]), [vec![1, 2, 3], vec![]]);
        assert_eq!(found(&[1, 2, 3], &[1, 2, 3]), [vec![1, 2, 3], vec![]]);
        assert_eq!(found(&[1, 2, 3], &[1]), [vec![2, 3], vec![]]);
    }

    /// Replicas move away from their pipeline's members, of which a new leader of SCM has not heard.
    #[test]
    fn what_members_do_not_have_may_be_where_somebody_has_yet_to_tell() {
        let tables = one_closed_container();
        let start = Instant::now();
        let is_incomplete = |silent: u64, with: &[u64], after: Duration| {
            let (mut nodes, now) = (Nodes::new(SILENCE, start), start + after);
            for node in tables.nodes().keys().filter(|node| node.0 != silent) {
                let replicas = with.contains(&node.0).then(good_replica);
                nodes.tell(node.0, replicas.into_iter().collect(), now);
            }
            locate(&World::at(&tables, &nodes, now), ContainerId(1)).unwrap().incomplete
        };
        assert!(is_incomplete(1, &[], Duration::ZERO));
        let record = tables.container(ContainerId(1)).unwrap().clone();
        for (emptied, is_said) in [(false, true), (true, false)] {
            let mut deleted = one_closed_container();
            let state = ContainerState::ContainerDeleted as i32;
            TablesMut::new(&mut deleted).put_container(ContainerRecord { state, emptied, ..record.clone() });
            let found = locate(&World::at(&deleted, &Nodes::new(SILENCE, start), start), ContainerId(1));
            assert_eq!(found.is_some_and(|found| found.incomplete), is_said);
        }
        assert!(is_incomplete(1, &[2], Duration::ZERO), "what a good one lacks another may have");
        assert!(!is_incomplete(0, &[], Duration::ZERO), "all have told");
        assert!(!is_incomplete(1, &[], SILENCE.dead_after), "it is dead");
    }
}
