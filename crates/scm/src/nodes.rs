use proto::scm::{DiskReport, NodeState, PipelineRecord, PipelineReport};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;
use types::{NodeId, PipelineId};

/// Which silence means what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    pub(crate) stale_after: Duration,
    pub(crate) dead_after: Duration,
}

/// What the nodes reported to this leader. A node that has said nothing yet counts as silent since the leader
/// started: it may have been well a moment ago.
pub(crate) struct Nodes {
    since: Instant,
    silence: Silence,
    reports: BTreeMap<NodeId, NodeReport>,
}

struct NodeReport {
    seen: Instant,
    disks: Vec<DiskReport>,
    pipelines: HashMap<PipelineId, PipelineReport>,
}

/// What the reports of its members say about a pipeline.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct PipelineSeen {
    pub(crate) leader: Option<NodeId>,
    /// The open container and its size; 0 until reported.
    pub(crate) container: u64,
    pub(crate) container_bytes: u64,
}

impl Nodes {
    pub(crate) fn new(silence: Silence, now: Instant) -> Nodes {
        Nodes { since: now, silence, reports: BTreeMap::new() }
    }

    /// The node is alive and has these disks. True when that makes a difference to where pipelines may go.
    pub(crate) fn see(&mut self, node: NodeId, disks: Vec<DiskReport>, now: Instant) -> bool {
        let healthy_before = self.state(node, now) == NodeState::NodeHealthy;
        let report = self.reports.entry(node).or_insert_with(|| NodeReport {
            seen: now,
            disks: Vec::new(),
            pipelines: HashMap::new(),
        });
        let changed = !healthy_before || usable(&report.disks).ne(usable(&disks));
        report.seen = now;
        report.disks = disks;
        changed
    }

    /// What a node that was just seen says about its pipelines. True when a leader or an open container changed.
    pub(crate) fn report_pipelines(&mut self, node: NodeId, pipelines: Vec<PipelineReport>) -> bool {
        let Some(report) = self.reports.get_mut(&node) else { return false };
        let pipelines: HashMap<PipelineId, PipelineReport> =
            pipelines.into_iter().map(|pipeline| (PipelineId(pipeline.pipeline), pipeline)).collect();
        let essence =
            |report: &PipelineReport| (report.replica, report.term, report.leader_replica, report.container);
        let changed = pipelines.len() != report.pipelines.len()
            || pipelines.iter().any(|(id, now)| report.pipelines.get(id).map(essence) != Some(essence(now)));
        report.pipelines = pipelines;
        changed
    }

    /// How long the node has been silent.
    pub(crate) fn age(&self, node: NodeId, now: Instant) -> Duration {
        now.saturating_duration_since(self.reports.get(&node).map_or(self.since, |report| report.seen))
    }

    pub(crate) fn state(&self, node: NodeId, now: Instant) -> NodeState {
        let age = self.age(node, now);
        if age >= self.silence.dead_after {
            NodeState::NodeDead
        } else if age >= self.silence.stale_after || !self.reports.contains_key(&node) {
            NodeState::NodeStale
        } else {
            NodeState::NodeHealthy
        }
    }

    pub(crate) fn disks(&self, node: NodeId) -> &[DiskReport] {
        self.reports.get(&node).map_or(&[], |report| &report.disks)
    }

    /// The newest term's word on the leader counts: an old leader that was cut off keeps believing in itself.
    pub(crate) fn pipeline_seen(&self, record: &PipelineRecord) -> PipelineSeen {
        let mut seen = PipelineSeen::default();
        let mut newest_term = 0;
        for member in &record.members {
            let report = self.reports.get(&NodeId(member.node));
            let report = report.and_then(|report| report.pipelines.get(&PipelineId(record.pipeline)));
            let Some(report) = report.filter(|report| report.replica == member.replica) else { continue };
            if report.leader_replica != 0 && report.term >= newest_term {
                newest_term = report.term;
                let leader = record.members.iter().find(|member| member.replica == report.leader_replica);
                seen.leader = leader.map(|leader| NodeId(leader.node));
            }
            (seen.container, seen.container_bytes) =
                (seen.container, seen.container_bytes).max((report.container, report.container_bytes));
        }
        seen
    }
}

fn usable(disks: &[DiskReport]) -> impl Iterator<Item = &bytes::Bytes> {
    disks.iter().filter(|disk| !disk.failed).map(|disk| &disk.disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proto::scm::PipelineMember;

    const SILENCE: Silence =
        Silence { stale_after: Duration::from_secs(5), dead_after: Duration::from_secs(600) };

    fn disk(number: u8, failed: bool) -> DiskReport {
        DiskReport { disk: Bytes::from(vec![number; 16]), failed, ..DiskReport::default() }
    }

    fn report(replica: u64, term: u64, leader_replica: u64) -> PipelineReport {
        PipelineReport { pipeline: 1, replica, term, leader_replica, ..PipelineReport::default() }
    }

    fn pipeline() -> PipelineRecord {
        let members =
            (1..=3).map(|n| PipelineMember { node: n, replica: 10 + n, ..PipelineMember::default() });
        PipelineRecord { pipeline: 1, members: members.collect(), ..PipelineRecord::default() }
    }

    #[test]
    fn silence_makes_a_node_stale_and_then_dead() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        let node = NodeId(1);
        assert_eq!(nodes.state(node, start), NodeState::NodeStale, "nothing heard yet");
        assert!(nodes.see(node, vec![disk(1, false)], start));
        assert_eq!(nodes.state(node, start + Duration::from_secs(4)), NodeState::NodeHealthy);
        assert_eq!(nodes.state(node, start + Duration::from_secs(5)), NodeState::NodeStale);
        assert_eq!(nodes.state(node, start + Duration::from_secs(600)), NodeState::NodeDead);
        let back = start + Duration::from_secs(700);
        assert!(nodes.see(node, vec![disk(1, false)], back), "coming back makes a difference");
        assert_eq!(nodes.state(node, back), NodeState::NodeHealthy);
        assert_eq!(nodes.state(NodeId(2), back), NodeState::NodeDead, "silent since the leader started");
    }

    #[test]
    fn only_a_change_of_usable_disks_matters_to_placement() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        nodes.see(NodeId(1), vec![disk(1, false)], start);
        let fuller = DiskReport { free_bytes: 7, ..disk(1, false) };
        assert!(!nodes.see(NodeId(1), vec![fuller], start));
        assert!(nodes.see(NodeId(1), vec![disk(1, true)], start));
        assert!(nodes.see(NodeId(1), vec![disk(1, true), disk(2, false)], start));
    }

    #[test]
    fn the_newest_term_names_the_leader() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        for node in 1..=3 {
            nodes.see(NodeId(node), Vec::new(), start);
        }
        assert_eq!(nodes.pipeline_seen(&pipeline()).leader, None);
        assert!(nodes.report_pipelines(NodeId(1), vec![report(11, 4, 11)]));
        assert_eq!(nodes.pipeline_seen(&pipeline()).leader, Some(NodeId(1)));
        assert!(nodes.report_pipelines(NodeId(3), vec![report(13, 5, 12)]));
        assert_eq!(nodes.pipeline_seen(&pipeline()).leader, Some(NodeId(2)));
        assert!(!nodes.report_pipelines(NodeId(3), vec![report(13, 5, 12)]), "the same again");
        nodes.report_pipelines(NodeId(1), vec![report(11, 6, 12)]);
        nodes.report_pipelines(NodeId(3), vec![report(13, 5, 13)]);
        assert_eq!(
            nodes.pipeline_seen(&pipeline()).leader,
            Some(NodeId(2)),
            "3 was cut off and does not know"
        );
        nodes.report_pipelines(NodeId(1), vec![report(11, 4, 11)]);
        nodes.report_pipelines(NodeId(3), vec![report(99, 9, 13)]);
        assert_eq!(nodes.pipeline_seen(&pipeline()).leader, Some(NodeId(1)), "not the pipeline's replica");
    }
}
