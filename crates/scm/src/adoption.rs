//! Adoption takes back what a forced reset of SCM has lost and datanodes have: a pure decision from one look
//! at the world.
//!
//! The member of SCM that was left may have fallen behind: it does not know what the others drew and decided
//! since then. It remembers the numbers that they may have drawn ([`Tables::is_lost_container`]): a replica
//! with one of these is of a container that was drawn by this cluster and that nobody here has deleted. So
//! one node's word is enough for a container to be known again. *What it is* is decided as ever, by
//! `resolution`.
//!
//! One member's word is enough for a pipeline, too: members are told once, before they begin, and never
//! change.

use crate::nodes::Nodes;
use crate::ops::adopt::{ADOPTED_MAX, check_pipeline};
use crate::tables::Tables;
use crate::world::World;
use proto::scm::{AdoptCommand, AdoptedContainer, PipelineDescription, PipelineMember};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use tracing::error;
use types::{NodeId, PipelineId};

/// The moments since which this leader has known of lost pipelines that nobody describes.
pub(crate) struct Adoption {
    described_within: Duration,
    undescribed: HashMap<PipelineId, Instant>,
    complained: BTreeSet<PipelineId>,
}

impl Adoption {
    /// A lost pipeline that no node has, and that nobody has described for `described_within`, is over.
    pub(crate) fn new(described_within: Duration) -> Adoption {
        Adoption { described_within, undescribed: HashMap::new(), complained: BTreeSet::new() }
    }

    /// The pipelines and containers to adopt now, as many as one command takes.
    pub(crate) fn decide(&mut self, world: &World<'_>) -> Option<AdoptCommand> {
        let World { tables, nodes, now, now_ms: at_ms, .. } = *world;
        tables.lost_containers().next()?;
        let found: BTreeMap<u64, AdoptedContainer> =
            lost_containers(tables, nodes).map(|container| (container.container, container)).collect();
        let spoken_of = nodes.all_pipelines().chain(found.values().map(|it| PipelineId(it.pipeline)));
        let unknown: BTreeSet<PipelineId> =
            spoken_of.filter(|pipeline| is_to_be_described(tables, *pipeline)).collect();
        self.undescribed.retain(|pipeline, _| unknown.contains(pipeline));
        let mut pipelines = Vec::new();
        for &pipeline in &unknown {
            pipelines.extend(self.pipeline(pipeline, tables, nodes, now));
        }
        pipelines.truncate(ADOPTED_MAX);
        let is_coming = |pipeline: u64| pipelines.iter().any(|described| described.pipeline == pipeline);
        let room = ADOPTED_MAX - pipelines.len();
        let containers = found.into_values().filter(|container| {
            tables.pipeline(PipelineId(container.pipeline)).is_some() || is_coming(container.pipeline)
        });
        let containers: Vec<_> = containers.take(room).collect();
        let is_empty = pipelines.is_empty() && containers.is_empty();
        (!is_empty).then_some(AdoptCommand { pipelines, containers, at_ms })
    }

    fn pipeline(
        &mut self,
        pipeline: PipelineId,
        tables: &Tables,
        nodes: &Nodes,
        now: Instant,
    ) -> Option<PipelineDescription> {
        let (mut said, mut doubt) = (Vec::new(), None);
        for (node, described) in nodes.described(pipeline) {
            match check(node, described, tables) {
                Ok(()) => said.push(described),
                Err(why) => doubt = Some(why),
            }
        }
        if !said.windows(2).all(|two| is_same(two[0], two[1])) {
            said.clear();
            doubt = Some("its members say different things of it".to_owned());
        }
        if let Some(doubt) = &doubt
            && self.complained.insert(pipeline)
        {
            error!(%pipeline, doubt, "a description of a lost pipeline is not believed");
        }
        if let Some(described) = said.first() {
            return Some((*described).clone());
        }
        if doubt.is_some() {
            return None;
        }
        let is_here = nodes.has_pipeline(pipeline);
        let is_known = tables.pipeline(pipeline).is_some();
        let since = *self.undescribed.entry(pipeline).or_insert(now);
        let is_over = !is_here && !is_known && now.saturating_duration_since(since) >= self.described_within;
        is_over.then(|| PipelineDescription { pipeline: pipeline.0, ..PipelineDescription::default() })
    }
}

/// Whether the pipeline is lost, or known by its containers alone: a node that has it is to say what it is.
pub(crate) fn is_to_be_described(tables: &Tables, pipeline: PipelineId) -> bool {
    tables.is_lost_pipeline(pipeline)
        || tables.pipeline(pipeline).is_some_and(|record| record.members.is_empty())
}

/// Counts the replicas that nobody reads, copies or deletes: those of containers that SCM does not know, and
/// has not adopted.
pub(crate) fn count_unknown_replicas(tables: &Tables, nodes: &Nodes) -> usize {
    nodes.replicas().count_unknown(|container| tables.container(container).is_some())
}

fn lost_containers(tables: &Tables, nodes: &Nodes) -> impl Iterator<Item = AdoptedContainer> {
    let replicas = tables.lost_containers().flat_map(|range| nodes.replicas().in_range(range));
    let lost = replicas.filter(|(container, _)| tables.is_lost_container(*container));
    lost.map(|(container, replica)| AdoptedContainer { container: container.0, pipeline: replica.pipeline })
}

/// Refuses a description that does not name the node that gives it as a member, or that names what cannot
/// have been lost.
fn check(node: NodeId, described: &PipelineDescription, tables: &Tables) -> Result<(), String> {
    let is_node = |member: &&PipelineMember| {
        let node = NodeId(member.node);
        tables.node(node).is_some() || tables.is_lost_node(node)
    };
    if !described.members.iter().any(|member| member.node == node.0) {
        return Err(format!("node {node}, which says so, is none of its members"));
    }
    if let Some(member) = described.members.iter().find(|member| !is_node(member)) {
        return Err(format!("there was never a node {}", member.node));
    }
    check_pipeline(tables, described)
}

fn is_same(one: &PipelineDescription, other: &PipelineDescription) -> bool {
    let member = |member: &PipelineMember| (member.node, member.replica, member.disk.clone());
    one.first_container == other.first_container
        && one.members.iter().map(member).eq(other.members.iter().map(member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::{create, disk, run, three_nodes};
    use crate::replicas::ContainersReport;
    use crate::tables::TablesMut;
    use proto::scm::{
        ContainerReplica, DiskReport, MemberState, PipelineReport, ReplicaState, scm_command::Command,
    };
    use types::ContainerId;

    const WITHIN: Duration = Duration::from_secs(5);

    /// SCM knows nodes 1 to 3, pipeline 1 and container 1.
    struct Fixture {
        tables: Tables,
        nodes: Nodes,
        adoption: Adoption,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Fixture {
            let mut tables = three_nodes();
            run(&mut tables, create([1, 2, 3]));
            TablesMut::new(&mut tables).skip_numbers();
            let now = Instant::now();
            let silence =
                Silence { stale_after: WITHIN, dead_after: 100 * WITHIN, disk_lost_after: 6 * WITHIN };
            Fixture { tables, nodes: Nodes::new(silence, now), adoption: Adoption::new(WITHIN), now }
        }

        /// Notes what a node says: pipelines it has, containers with their pipelines, and descriptions.
        fn says(
            &mut self,
            node: u64,
            pipelines: &[u64],
            containers: &[(u64, u64)],
            described: Vec<PipelineDescription>,
        ) {
            let of_disk = DiskReport { disk: disk(node, 0), ..DiskReport::default() };
            self.nodes.see(NodeId(node), vec![of_disk], self.now);
            let report = |&pipeline: &u64| PipelineReport {
                pipeline,
                replica: 3 + node,
                state: MemberState::Runs as i32,
                ..PipelineReport::default()
            };
            let reports = pipelines.iter().map(report).collect();
            self.nodes.report_pipelines(NodeId(node), reports, &Default::default());
            self.nodes.describe(NodeId(node), described);
            let state = ReplicaState::ReplicaQuasiClosed as i32;
            let replica = |&(container, pipeline): &(u64, u64)| ContainerReplica {
                container,
                pipeline,
                state,
                ..ContainerReplica::default()
            };
            let replicas = containers.iter().map(replica).collect();
            let report = ContainersReport { replicas, gone: vec![], begins: true, ends: true };
            self.nodes.report_containers(NodeId(node), report);
        }

        /// The pipelines and the containers that are adopted.
        fn decide(&mut self) -> (Vec<u64>, Vec<u64>) {
            let command = self.adoption.decide(&World::at(&self.tables, &self.nodes, self.now));
            let Some(command) = command else { return (vec![], vec![]) };
            let pipelines = command.pipelines.iter().map(|described| described.pipeline).collect();
            let containers = command.containers.iter().map(|container| container.container).collect();
            let reply = run(&mut self.tables, Command::Adopt(command));
            assert_eq!(reply.refused, "", "what is decided is carried out");
            (pipelines, containers)
        }
    }

    fn described(pipeline: u64) -> PipelineDescription {
        let member = |node| PipelineMember {
            node,
            replica: 3 + node,
            disk: disk(node, 0),
            ..PipelineMember::default()
        };
        PipelineDescription { pipeline, first_container: 2, members: (1..=3).map(member).collect() }
    }

    #[test]
    fn containers_of_known_pipelines_need_one_word() {
        let mut fixture = Fixture::new();
        fixture.says(2, &[1], &[(1, 1), (9, 1)], vec![]);
        assert_eq!(fixture.decide(), (vec![], vec![9]));
        assert_eq!(fixture.decide(), (vec![], vec![]));
        assert!(fixture.tables.container(ContainerId(9)).unwrap().adopted);
    }

    #[test]
    fn pipelines_wait_until_a_member_has_named_the_members() {
        let mut fixture = Fixture::new();
        fixture.says(2, &[2], &[(2, 2)], vec![]);
        for _ in 0..100 {
            assert_eq!(fixture.decide(), (vec![], vec![]), "it has it, so it will say");
            fixture.now += WITHIN;
        }
        fixture.says(2, &[2], &[(2, 2)], vec![described(2)]);
        assert_eq!(fixture.decide(), (vec![2], vec![2]));
        assert_eq!(fixture.decide(), (vec![], vec![]));
    }

    #[test]
    fn members_that_contradict_each_other_are_not_believed() {
        let mut fixture = Fixture::new();
        let mut other = described(2);
        other.members[2].replica = 77;
        fixture.says(1, &[2], &[(2, 2)], vec![described(2)]);
        fixture.says(2, &[2], &[(2, 2)], vec![other]);
        assert_eq!(fixture.decide(), (vec![], vec![]));
        // A node that is no member is not believed either.
        let mut fixture = Fixture::new();
        TablesMut::new(&mut fixture.tables)
            .put_node(proto::scm::NodeRecord { node: 4, ..Default::default() });
        fixture.says(4, &[2], &[(2, 2)], vec![described(2)]);
        assert_eq!(fixture.decide(), (vec![], vec![]));
    }

    #[test]
    fn one_that_is_refused_holds_up_no_other() {
        let mut fixture = Fixture::new();
        let mut without_disks = described(2);
        without_disks.members[1].disk.clear();
        let other = PipelineDescription {
            members: described(3)
                .members
                .into_iter()
                .map(|member| PipelineMember { replica: member.replica + 10, ..member })
                .collect(),
            ..described(3)
        };
        fixture.says(2, &[2, 3], &[(2, 2), (3, 3), (9, 1)], vec![without_disks, other]);
        assert_eq!(fixture.decide(), (vec![3], vec![3, 9]));
        assert_eq!(fixture.decide(), (vec![], vec![]));
    }

    #[test]
    fn a_pipeline_that_nobody_has_is_over_and_its_containers_are_known() {
        let mut fixture = Fixture::new();
        fixture.says(1, &[], &[(2, 2)], vec![]);
        assert_eq!(fixture.decide(), (vec![], vec![]), "a member may be about to speak");
        fixture.now += WITHIN;
        assert_eq!(fixture.decide(), (vec![2], vec![2]));
        // Node 3 was away.
        fixture.says(3, &[2], &[(3, 2)], vec![]);
        assert_eq!(fixture.decide(), (vec![], vec![3]));
        fixture.says(3, &[2], &[(3, 2)], vec![described(2)]);
        assert_eq!(fixture.decide(), (vec![2], vec![]));
        assert_eq!(fixture.tables.pipeline(PipelineId(2)).unwrap().members.len(), 3);
    }

    #[test]
    fn what_was_never_drawn_or_is_known_is_left_alone() {
        let mut fixture = Fixture::new();
        fixture.says(1, &[1, 5_000_000], &[(1, 1), (5_000_000, 1), (7, 5_000_000)], vec![]);
        assert_eq!(fixture.decide(), (vec![], vec![]));
        fixture.now += 2 * WITHIN;
        assert_eq!(fixture.decide(), (vec![], vec![]));
    }
}
