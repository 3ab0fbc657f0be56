use crate::clock_apart::ClockApart;
use crate::replicas::{ContainersReport, Replicas};
use crate::twins::Twins;
use bytes::Bytes;
use planted::Bug;
use proto::scm::{
    DiskReport, DiskState, MemberState, NodeState, PipelineDescription, PipelineMember, PipelineRecord,
    PipelineReport,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;
use types::{NodeId, PipelineId};

/// The lengths of silence, and what each means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    pub(crate) stale_after: Duration,
    pub(crate) dead_after: Duration,
    /// The time after which a disk that its node calls broken is lost, with the replicas on it. A silent node
    /// at whose address another node speaks is dead after it, too.
    pub(crate) disk_lost_after: Duration,
}

/// The time after which a member that is behind stands still; before, it is only slow. Longer than a disk in
/// order ever takes.
pub(crate) const STANDS_STILL_AFTER: Duration = Duration::from_secs(10);
/// The time within which a member is made, also where many wait for one slow disk.
pub(crate) const OPENS_WITHIN: Duration = Duration::from_secs(60);

/// The longest text that passes for a version; a longer one, or one with other than visible letters, is none.
const VERSION_BYTES_MAX: usize = 64;

/// The most pipelines that one heartbeat asks about, or describes.
pub(crate) const DESCRIBED_MAX: usize = 1000;

/// All that the nodes reported to this leader. A node that has said nothing yet counts as silent since the
/// leader started: it may have been well a moment ago. One that SCM's log calls dead is dead before that.
pub(crate) struct Nodes {
    since: Instant,
    silence: Silence,
    reports: BTreeMap<NodeId, NodeReport>,
    /// Nodes that were dead to an earlier leader.
    known_dead: BTreeSet<NodeId>,
    /// Silent nodes at whose address another node speaks, since when, and which.
    replaced: BTreeMap<NodeId, (Instant, NodeId)>,
    /// The highest index that any member has said its pipeline is applied up to.
    applied: HashMap<PipelineId, u64>,
    replicas: Replicas,
    twins: Twins,
    last: HashMap<NodeId, LastHeartbeat>,
}

/// The heartbeat of a node that was taken last, and the process that the node had before that one.
#[derive(Default)]
struct LastHeartbeat {
    process: Option<u64>,
    number: u64,
    process_before: Option<u64>,
}

struct NodeReport {
    seen: Instant,
    clock: ClockApart,
    /// The version of the node's software; empty where it does not say.
    version: String,
    disks: Vec<DiskReport>,
    /// The moments since which the node calls disks broken.
    broken: HashMap<Bytes, Instant>,
    pipelines: HashMap<PipelineId, PipelineReport>,
    /// The node's answer, in its last heartbeat, about pipelines that it was asked to describe.
    described: Vec<PipelineDescription>,
    /// The node's members of pipelines that are behind.
    behind: HashMap<PipelineId, Behind>,
    /// The time between the node's last two heartbeats; zero if it was silent in between.
    heard_for: Duration,
    /// The moments at which members last stood still here, for another reason than a full disk.
    stood_still: HashMap<PipelineId, Instant>,
    /// The moments at which members were last seen to have come on here.
    came_on: HashMap<PipelineId, Instant>,
}

/// A member that has not applied all that others have.
#[derive(Clone, Copy)]
struct Behind {
    /// The highest index that the member was ever applied up to.
    applied: u64,
    /// The time for which the member has stood there. Neither silence counts nor entries that it applies
    /// again after a restart: it comes on when it gets further.
    stood: Duration,
}

/// A pipeline as the reports of its members show it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct PipelineSeen {
    pub(crate) leader: Option<NodeId>,
    /// The open container, which has `container_bytes`; both are 0 until reported.
    pub(crate) container: u64,
    pub(crate) container_bytes: u64,
}

impl Behind {
    fn at(applied: u64, stood: Duration, before: Option<&Behind>) -> Behind {
        match before {
            Some(before) if applied <= before.applied => Behind { stood: before.stood + stood, ..*before },
            _ => Behind { applied, stood: Duration::ZERO },
        }
    }
}

impl Nodes {
    pub(crate) fn new(silence: Silence, now: Instant) -> Nodes {
        let (reports, known_dead, replaced, twins, applied, replicas, last) = Default::default();
        Nodes { since: now, silence, reports, known_dead, replaced, twins, applied, replicas, last }
    }

    /// Notes that these were dead to the leader before: they need not be waited for as long again.
    pub(crate) fn know_dead(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.known_dead.extend(nodes);
    }

    /// Nodes of which none has said anything.
    #[cfg(test)]
    pub(crate) fn silent() -> &'static Nodes {
        const SILENCE: Silence =
            Silence { stale_after: Duration::MAX, dead_after: Duration::MAX, disk_lost_after: Duration::MAX };
        static SILENT: std::sync::LazyLock<Nodes> =
            std::sync::LazyLock::new(|| Nodes::new(SILENCE, Instant::now()));
        &SILENT
    }

    /// Notes the heartbeat as the node's last. False where a later one was taken, or one of a process that
    /// came after this one: what was held up on its way says what is no more. The same one may come again.
    pub(crate) fn note_heartbeat(&mut self, node: NodeId, process: u64, number: u64) -> bool {
        let last = self.last.entry(node).or_default();
        let is_same = last.process == Some(process);
        let is_late = last.process_before == Some(process) || is_same && number < last.number;
        if number != 0 && is_late {
            return false;
        }
        last.number = number;
        if !is_same {
            last.process_before = last.process.replace(process);
        }
        true
    }

    /// Begins to count the heartbeats of a process that registers.
    pub(crate) fn begin_heartbeats(&mut self, node: NodeId, process: u64) {
        let last = self.last.entry(node).or_default();
        if last.process_before == Some(process) {
            last.process_before = None;
        }
        last.number = 0;
        if last.process != Some(process) {
            last.process_before = last.process.replace(process);
        }
    }

    /// Notes that the node is alive and has these disks. True when that makes a difference to where pipelines
    /// may go.
    pub(crate) fn see(&mut self, node: NodeId, disks: Vec<DiskReport>, now: Instant) -> bool {
        let healthy_before = self.state(node, now) == NodeState::NodeHealthy;
        self.replaced.remove(&node);
        let report = self.reports.entry(node).or_insert_with(|| NodeReport {
            seen: now,
            clock: ClockApart::default(),
            version: String::new(),
            disks: Vec::new(),
            broken: HashMap::new(),
            pipelines: HashMap::new(),
            described: Vec::new(),
            behind: HashMap::new(),
            heard_for: Duration::ZERO,
            stood_still: HashMap::new(),
            came_on: HashMap::new(),
        });
        let changed = !healthy_before || usable(&report.disks).ne(usable(&disks));
        let between = now.saturating_duration_since(report.seen);
        report.heard_for = if between < self.silence.stale_after { between } else { Duration::ZERO };
        report.seen = now;
        let broken = disks.iter().filter(|disk| disk.state() == DiskState::Failed).map(|disk| &disk.disk);
        report.broken =
            broken.map(|disk| (disk.clone(), report.broken.get(disk).copied().unwrap_or(now))).collect();
        report.disks = disks;
        changed
    }

    /// Notes how far the clock of a node that was just seen is from this process's. True when that became a
    /// problem.
    pub(crate) fn see_clock(&mut self, node: NodeId, clock: ClockApart) -> bool {
        let Some(report) = self.reports.get_mut(&node) else { return false };
        let before = std::mem::replace(&mut report.clock, clock);
        before.problem().is_none() && clock.problem().is_some()
    }

    pub(crate) fn clock(&self, node: NodeId) -> ClockApart {
        self.reports.get(&node).map(|report| report.clock).unwrap_or_default()
    }

    /// Notes the version of a node that was just seen.
    pub(crate) fn see_version(&mut self, node: NodeId, version: &str) {
        if let Some(report) = self.reports.get_mut(&node)
            && is_version(version)
            && report.version != version
        {
            report.version = version.to_owned();
        }
    }

    /// The version of the node's software; empty where this leader does not know it.
    pub(crate) fn version(&self, node: NodeId) -> &str {
        self.reports.get(&node).map_or("", |report| &report.version)
    }

    /// Notes that `by` speaks where `node` did before: the disks of `node` are gone, or `by` goes by a wrong
    /// address.
    pub(crate) fn replace(&mut self, node: NodeId, by: NodeId, now: Instant) {
        if self.state(node, now) == NodeState::NodeHealthy || self.replaced.contains_key(&node) {
            return;
        }
        warn!(%node, %by, "another datanode speaks at the address of one that is silent: it was wiped, or got its address");
        self.replaced.insert(node, (now, by));
    }

    pub(crate) fn twins_mut(&mut self) -> &mut Twins {
        &mut self.twins
    }

    /// The problem, in words, that a person should know of beside a node's state.
    pub(crate) fn problem(&self, node: NodeId, now: Instant) -> Option<String> {
        if let Some(address) = self.twins.lately(node, now, 2 * self.silence.stale_after) {
            return Some(format!(
                "another process has its directories, at {address}, and waits: one of the two is a copy; stop that one, and delete its directories"
            ));
        }
        let replaced = self.replaced.get(&node).map(|(_, by)| {
            let grace = self.silence.disk_lost_after.as_secs();
            match self.state(node, now) {
                NodeState::NodeDead => {
                    format!("node {by} speaks at its address; `flotilla admin datanode decommission {node}` takes it off")
                }
                _ => format!("node {by} speaks at its address: unless it comes back elsewhere it counts as dead after {grace} s"),
            }
        });
        replaced.or_else(|| self.clock(node).problem())
    }

    /// Takes in what a node that was just seen says about its pipelines; it is no member of those in
    /// `strangers`, and nothing is reckoned by what it says of them. True when a leader, an open container or
    /// what runs there changed.
    pub(crate) fn report_pipelines(
        &mut self,
        node: NodeId,
        pipelines: Vec<PipelineReport>,
        strangers: &HashSet<PipelineId>,
    ) -> bool {
        let Some(report) = self.reports.get_mut(&node) else { return false };
        let pipelines: HashMap<PipelineId, PipelineReport> =
            pipelines.into_iter().map(|pipeline| (PipelineId(pipeline.pipeline), pipeline)).collect();
        let essence = |report: &PipelineReport| {
            (report.replica, report.term, report.leader_replica, report.container, report.state)
        };
        let changed = pipelines.len() != report.pipelines.len()
            || pipelines.iter().any(|(id, now)| report.pipelines.get(id).map(essence) != Some(essence(now)));
        for gone in report.pipelines.keys().filter(|id| !pipelines.contains_key(id)) {
            // Other nodes that still have the pipeline say how far it is with their next heartbeats.
            self.applied.remove(gone);
        }
        let has_full_disk = report.disks.iter().any(|disk| disk.state() == DiskState::Full);
        let mut behind = HashMap::new();
        for (id, told) in pipelines.iter().filter(|(id, _)| !strangers.contains(id)) {
            let furthest = self.applied.entry(*id).or_default();
            *furthest = told.applied_index.max(*furthest);
            // A leader that cannot commit what it has is behind itself.
            let leads = told.leader_replica == told.replica;
            let goal = match told.state() {
                // A member that is being made has nothing yet, and is behind even where nobody is ahead.
                MemberState::Opening => told.applied_index.max(*furthest) + 1,
                _ if leads => told.last_index.max(*furthest),
                _ => *furthest,
            };
            let before = report.pipelines.get(id);
            if before.is_some_and(|before| before.applied_index < told.applied_index) {
                report.came_on.insert(*id, report.seen);
            }
            if told.applied_index < goal {
                // A group that has stopped or ended has its own reasons.
                let comes_on_within = match told.state() {
                    MemberState::Opening => OPENS_WITHIN,
                    MemberState::Runs => STANDS_STILL_AFTER,
                    _ => Duration::MAX,
                };
                // A member that has been made since has come on.
                let is_opening = |report: &PipelineReport| report.state() == MemberState::Opening;
                let before = report.pipelines.get(id).filter(|it| is_opening(it) == is_opening(told));
                let has_stood = before.is_some_and(|before| before.applied_index == told.applied_index);
                let stood = if has_stood { report.heard_for } else { Duration::ZERO };
                let known = before.and_then(|_| report.behind.get(id));
                let behind_now = Behind::at(told.applied_index, stood, known);
                // A leader may lack the others' answers, and a full disk is told of itself.
                if behind_now.stood >= comes_on_within && !leads && !has_full_disk {
                    report.stood_still.insert(*id, report.seen);
                }
                behind.insert(*id, behind_now);
            }
        }
        // A node that is no place for new members for so long is as good as dead to them.
        let (seen, lately) = (report.seen, self.silence.dead_after);
        let is_lately = |at: &Instant| seen.saturating_duration_since(*at) < lately;
        report.stood_still.retain(|_, at| is_lately(at));
        report.came_on.retain(|_, at| is_lately(at));
        report.behind = behind;
        report.pipelines = pipelines;
        changed
    }

    /// Takes in the answer of a node that was just seen about pipelines that it was asked to describe.
    pub(crate) fn describe(&mut self, node: NodeId, described: Vec<PipelineDescription>) {
        if let Some(report) = self.reports.get_mut(&node) {
            report.described = described;
        }
    }

    /// The descriptions of a pipeline that nodes have given.
    pub(crate) fn described(
        &self,
        pipeline: PipelineId,
    ) -> impl Iterator<Item = (NodeId, &PipelineDescription)> {
        let all =
            self.reports.iter().flat_map(|(node, report)| report.described.iter().map(|it| (*node, it)));
        all.filter(move |(_, described)| described.pipeline == pipeline.0)
    }

    /// All pipelines that any node has said it has.
    pub(crate) fn all_pipelines(&self) -> impl Iterator<Item = PipelineId> {
        self.reports.values().flat_map(|report| report.pipelines.keys().copied())
    }

    pub(crate) fn has_pipeline(&self, pipeline: PipelineId) -> bool {
        self.reports.values().any(|report| report.pipelines.contains_key(&pipeline))
    }

    /// The time for which a member that runs, or is being made, has been behind without coming on.
    pub(crate) fn stands_still(&self, record: &PipelineRecord, member: &PipelineMember) -> Duration {
        if planted::has(Bug::ComingForEver) {
            return Duration::ZERO;
        }
        let report = self.reports.get(&NodeId(member.node));
        let behind = report.and_then(|report| report.behind.get(&PipelineId(record.pipeline)));
        behind.map_or(Duration::ZERO, |behind| behind.stood)
    }

    /// The members that stood still lately, and when they last did.
    pub(crate) fn stood_still_lately(&self) -> impl Iterator<Item = (NodeId, PipelineId, Instant)> {
        self.reports.iter().flat_map(|(&node, report)| {
            report.stood_still.iter().map(move |(&pipeline, &at)| (node, pipeline, at))
        })
    }

    /// The members on a node that have come on since another one there began to stand still, which last did
    /// at `at`.
    pub(crate) fn came_on_beside(&self, node: NodeId, at: Instant) -> impl Iterator<Item = PipelineId> {
        let came_on = self.reports.get(&node).into_iter().flat_map(|report| &report.came_on);
        came_on.filter(move |(_, came_on)| **came_on + STANDS_STILL_AFTER > at).map(|(&pipeline, _)| pipeline)
    }

    /// Takes in what the node says about its containers. True when that changes what is known.
    pub(crate) fn report_containers(&mut self, node: NodeId, report: ContainersReport) -> bool {
        self.replicas.report(node, report)
    }

    pub(crate) fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    pub(crate) fn replicas_mut(&mut self) -> &mut Replicas {
        &mut self.replicas
    }

    /// The time at which the node last spoke; `None` if it did not yet.
    pub(crate) fn seen(&self, node: NodeId) -> Option<Instant> {
        self.reports.get(&node).map(|report| report.seen)
    }

    /// A member's report on its pipeline, from the node's last heartbeat.
    pub(crate) fn member_report(
        &self,
        record: &PipelineRecord,
        member: &PipelineMember,
    ) -> Option<&PipelineReport> {
        let report = self.reports.get(&NodeId(member.node))?;
        let report = report.pipelines.get(&PipelineId(record.pipeline))?;
        (report.replica == member.replica).then_some(report)
    }

    /// Whether this leader began so lately that a healthy node need not have spoken to it yet.
    pub(crate) fn is_young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.silence.stale_after
    }

    /// The node's reports on all of its pipelines.
    pub(crate) fn pipeline_reports(&self, node: NodeId) -> impl Iterator<Item = &PipelineReport> {
        self.reports.get(&node).into_iter().flat_map(|report| report.pipelines.values())
    }

    /// The pipelines that the node reported.
    pub(crate) fn pipelines_on(&self, node: NodeId) -> impl Iterator<Item = PipelineId> {
        self.reports.get(&node).into_iter().flat_map(|report| report.pipelines.keys().copied())
    }

    /// Whether the disk is there and works, as the node said last; `None` if it has said nothing yet.
    pub(crate) fn disk_works(&self, node: NodeId, disk: &[u8]) -> Option<bool> {
        let report = self.reports.get(&node)?;
        Some(report.disks.iter().any(|here| here.disk == disk && here.state() != DiskState::Failed))
    }

    /// The reason why a disk that is there does not work, as the node tells it.
    pub(crate) fn disk_why(&self, node: NodeId, disk: &[u8]) -> Option<&str> {
        let failed = |here: &&DiskReport| here.disk == disk && here.state() == DiskState::Failed;
        self.disks(node).iter().find(failed).map(|here| here.why.as_str())
    }

    /// Whether the node says that the disk has failed, or hangs: what is on it cannot be read for now.
    pub(crate) fn disk_is_failing(&self, node: NodeId, disk: &[u8]) -> bool {
        let fails = |state| matches!(state, DiskState::Failed | DiskState::Hangs);
        self.disks(node).iter().any(|here| here.disk == disk && fails(here.state()))
    }

    /// Whether the node has called the disk broken for so long that what is on it counts no more.
    pub(crate) fn disk_is_lost(&self, node: NodeId, disk: &[u8], now: Instant) -> bool {
        let since = self.reports.get(&node).and_then(|report| report.broken.get(disk));
        since.is_some_and(|since| now.saturating_duration_since(*since) >= self.silence.disk_lost_after)
    }

    /// The time for which the node has been silent.
    pub(crate) fn age(&self, node: NodeId, now: Instant) -> Duration {
        now.saturating_duration_since(self.reports.get(&node).map_or(self.since, |report| report.seen))
    }

    pub(crate) fn state(&self, node: NodeId, now: Instant) -> NodeState {
        let age = self.age(node, now);
        let is_replaced = self
            .replaced
            .get(&node)
            .is_some_and(|(since, _)| now.saturating_duration_since(*since) >= self.silence.disk_lost_after);
        // One that SCM's log calls dead may have spoken to the last leader a moment ago.
        let is_known_dead =
            !self.reports.contains_key(&node) && self.known_dead.contains(&node) && !self.is_young(now);
        if age >= self.silence.dead_after || is_replaced || is_known_dead {
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

    /// The pipeline as its members see it. The newest term's word on the leader counts: an old leader that
    /// was cut off keeps believing in itself. A silent node says nothing, and leads nothing.
    pub(crate) fn pipeline_seen(&self, record: &PipelineRecord, now: Instant) -> PipelineSeen {
        let speaks = |node: &NodeId| self.state(*node, now) == NodeState::NodeHealthy;
        let mut seen = PipelineSeen::default();
        let mut newest_term = 0;
        for member in &record.members {
            let Some(report) = self.member_report(record, member) else { continue };
            let is_word = report.leader_replica != 0 && speaks(&NodeId(member.node));
            if is_word && report.term >= newest_term {
                newest_term = report.term;
                let leader = record.members.iter().find(|member| member.replica == report.leader_replica);
                seen.leader = leader.map(|leader| NodeId(leader.node)).filter(speaks);
            }
            (seen.container, seen.container_bytes) =
                (seen.container, seen.container_bytes).max((report.container, report.container_bytes));
        }
        seen
    }
}

pub(crate) fn is_version(text: &str) -> bool {
    text.len() <= VERSION_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether new pipelines may go to the disk.
pub(crate) fn takes_pipelines(disk: &DiskReport) -> bool {
    disk.state() == DiskState::Works
}

fn usable(disks: &[DiskReport]) -> impl Iterator<Item = &Bytes> {
    disks.iter().filter(|disk| takes_pipelines(disk)).map(|disk| &disk.disk)
}

#[cfg(test)]
impl Nodes {
    /// A node speaks, and tells that these are all its replicas.
    pub(crate) fn tell(&mut self, node: u64, replicas: Vec<proto::scm::ContainerReplica>, now: Instant) {
        self.see(NodeId(node), vec![], now);
        let report = ContainersReport { replicas, gone: vec![], begins: true, ends: true };
        self.report_containers(NodeId(node), report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proto::scm::PipelineMember;

    const SILENCE: Silence = Silence {
        stale_after: Duration::from_secs(5),
        dead_after: Duration::from_secs(600),
        disk_lost_after: std::time::Duration::from_secs(30),
    };

    fn disk(number: u8, failed: bool) -> DiskReport {
        let state = if failed { DiskState::Failed } else { DiskState::Works } as i32;
        DiskReport { disk: Bytes::from(vec![number; 16]), state, ..DiskReport::default() }
    }

    fn report(replica: u64, term: u64, leader_replica: u64) -> PipelineReport {
        let state = MemberState::Runs as i32;
        PipelineReport { pipeline: 1, replica, term, leader_replica, state, ..PipelineReport::default() }
    }

    fn pipeline() -> PipelineRecord {
        let members =
            (1..=3).map(|n| PipelineMember { node: n, replica: 10 + n, ..PipelineMember::default() });
        PipelineRecord { pipeline: 1, members: members.collect(), ..PipelineRecord::default() }
    }

    #[test]
    fn a_clock_that_is_apart_is_told_once() {
        let mut nodes = Nodes::new(SILENCE, Instant::now());
        let node = NodeId(1);
        assert!(!nodes.see_clock(node, ClockApart::of(0, 10_000)), "it has not spoken");
        nodes.see(node, vec![], Instant::now());
        let mut see = |theirs, ours| {
            (nodes.see_clock(node, ClockApart::of(theirs, ours)), nodes.problem(node, Instant::now()))
        };
        assert_eq!(see(10_000, 14_900), (false, None), "the heartbeat may have been under way as long");
        assert_eq!(see(10_000, 71_000), (true, Some("its clock is 61 s behind SCM's".to_owned())));
        assert_eq!(see(80_000, 10_000), (false, Some("its clock is 70 s ahead of SCM's".to_owned())));
        assert_eq!(see(10_000, 10_001), (false, None));
        assert!(see(u64::MAX, 0).0);
    }

    /// A heartbeat that waited for SCM's lock behind a later one says what was so before.
    #[test]
    fn a_heartbeat_that_comes_after_a_later_one_is_not_taken() {
        let mut nodes = Nodes::new(SILENCE, Instant::now());
        let note =
            |nodes: &mut Nodes, node, process, number| nodes.note_heartbeat(NodeId(node), process, number);
        assert!(note(&mut nodes, 1, 100, 1) && note(&mut nodes, 1, 100, 3));
        assert!(!note(&mut nodes, 1, 100, 2));
        assert!(note(&mut nodes, 1, 100, 3), "it is repeated: its answer was lost");
        assert!(note(&mut nodes, 2, 100, 2), "that is another node");
        assert!(note(&mut nodes, 1, 50, 1), "the process is another, whatever its clock says");
        assert!(!note(&mut nodes, 1, 100, 4), "the process before it");
        assert!(note(&mut nodes, 1, 50, 2));
        nodes.begin_heartbeats(NodeId(1), 100);
        assert!(note(&mut nodes, 1, 100, 1), "it has registered again");
        assert!(!note(&mut nodes, 1, 50, 3), "which makes that the one before it");
        nodes.begin_heartbeats(NodeId(1), 70);
        assert!(!note(&mut nodes, 1, 100, 2) && note(&mut nodes, 1, 70, 1));
        assert!(note(&mut nodes, 1, 0, 0) && note(&mut nodes, 1, 0, 0), "an older version has no numbers");
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
    fn a_node_that_was_dead_to_the_leader_before_is_dead_unless_it_speaks() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        nodes.know_dead([NodeId(1), NodeId(2)]);
        let soon = start + SILENCE.stale_after;
        assert_eq!(nodes.state(NodeId(1), start), NodeState::NodeStale, "it may have come back a moment ago");
        nodes.see(NodeId(2), vec![disk(2, false)], start);
        let states = [1, 2, 3].map(|node| nodes.state(NodeId(node), soon));
        assert_eq!(states, [NodeState::NodeDead, NodeState::NodeStale, NodeState::NodeStale]);
    }

    #[test]
    fn only_a_change_of_usable_disks_matters_to_placement() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        nodes.see(NodeId(1), vec![disk(1, false)], start);
        let fuller = DiskReport { free_bytes: 7, ..disk(1, false) };
        assert!(!nodes.see(NodeId(1), vec![fuller], start));
        let full = DiskReport { state: DiskState::Full as i32, ..disk(1, false) };
        assert!(nodes.see(NodeId(1), vec![full], start));
        assert!(nodes.see(NodeId(1), vec![disk(1, false)], start), "there is room again");
        assert!(nodes.see(NodeId(1), vec![disk(1, true)], start));
        assert!(nodes.see(NodeId(1), vec![disk(1, true), disk(2, false)], start));
    }

    #[test]
    fn a_disk_is_lost_when_it_stays_broken() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        let (node, at) = (NodeId(1), |seconds| start + Duration::from_secs(seconds));
        let is_lost = |nodes: &Nodes, now| nodes.disk_is_lost(node, &disk(1, true).disk, now);
        nodes.see(node, vec![disk(1, true)], at(0));
        nodes.see(node, vec![disk(1, true)], at(29));
        assert!(!is_lost(&nodes, at(29)));
        assert!(is_lost(&nodes, at(30)), "since it was first called broken");
        nodes.see(node, vec![disk(1, false)], at(31));
        nodes.see(node, vec![disk(1, true)], at(32));
        assert!(!is_lost(&nodes, at(61)), "it was well in between");
        assert!(!nodes.disk_is_lost(node, &disk(2, true).disk, at(100)), "another disk");
    }

    #[test]
    fn the_newest_term_names_the_leader() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        for node in 1..=3 {
            nodes.see(NodeId(node), Vec::new(), start);
        }
        assert_eq!(nodes.pipeline_seen(&pipeline(), start).leader, None);
        assert!(nodes.report_pipelines(NodeId(1), vec![report(11, 4, 11)], &HashSet::new()));
        assert_eq!(nodes.pipeline_seen(&pipeline(), start).leader, Some(NodeId(1)));
        assert!(nodes.report_pipelines(NodeId(3), vec![report(13, 5, 12)], &HashSet::new()));
        assert_eq!(nodes.pipeline_seen(&pipeline(), start).leader, Some(NodeId(2)));
        assert!(
            !nodes.report_pipelines(NodeId(3), vec![report(13, 5, 12)], &HashSet::new()),
            "the same again"
        );
        nodes.report_pipelines(NodeId(1), vec![report(11, 6, 12)], &HashSet::new());
        nodes.report_pipelines(NodeId(3), vec![report(13, 5, 13)], &HashSet::new());
        assert_eq!(
            nodes.pipeline_seen(&pipeline(), start).leader,
            Some(NodeId(2)),
            "3 was cut off and does not know"
        );
        nodes.report_pipelines(NodeId(1), vec![report(11, 4, 11)], &HashSet::new());
        nodes.report_pipelines(NodeId(3), vec![report(99, 9, 13)], &HashSet::new());
        assert_eq!(
            nodes.pipeline_seen(&pipeline(), start).leader,
            Some(NodeId(1)),
            "not the pipeline's replica"
        );
    }

    #[test]
    fn who_is_replaced_at_its_address_is_dead_after_the_grace_of_a_disk() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        for node in [1, 2] {
            nodes.see(NodeId(node), vec![], at(0));
        }
        nodes.replace(NodeId(1), NodeId(3), at(1));
        assert_eq!(
            nodes.problem(NodeId(1), at(1)),
            None,
            "it still speaks: somebody is wrong about an address"
        );
        nodes.replace(NodeId(1), NodeId(3), at(10));
        assert!(nodes.problem(NodeId(1), at(10)).unwrap().starts_with("node 3 speaks at its address"));
        nodes.replace(NodeId(1), NodeId(3), at(30));
        assert_eq!(nodes.state(NodeId(1), at(39)), NodeState::NodeStale);
        assert_eq!(nodes.state(NodeId(1), at(40)), NodeState::NodeDead);
        assert!(nodes.problem(NodeId(1), at(40)).unwrap().contains("decommission 1"));
        nodes.see(NodeId(1), vec![], at(41));
        assert_eq!(nodes.state(NodeId(1), at(41)), NodeState::NodeHealthy, "it has moved");
    }

    #[test]
    fn who_is_silent_leads_nothing() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        for node in 1..=3 {
            nodes.see(NodeId(node), Vec::new(), start);
            nodes.report_pipelines(NodeId(node), vec![report(10 + node, 4, 11)], &HashSet::new());
        }
        let later = start + SILENCE.stale_after;
        let leader = |nodes: &Nodes| nodes.pipeline_seen(&pipeline(), later).leader;
        assert_eq!(leader(&nodes), None, "all are silent");
        for node in [2, 3] {
            nodes.see(NodeId(node), Vec::new(), later);
        }
        assert_eq!(leader(&nodes), None, "the others still name it");
        nodes.report_pipelines(NodeId(2), vec![report(12, 5, 13)], &HashSet::new());
        assert_eq!(leader(&nodes), Some(NodeId(3)));
    }

    #[test]
    fn a_member_that_is_behind_and_does_not_come_on_stands_still() {
        let start = Instant::now();
        let mut nodes = Nodes::new(SILENCE, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        let record = pipeline();
        let mut tell = |node: u64, last_index, applied_index, seconds| {
            nodes.see(NodeId(node), Vec::new(), at(seconds));
            let report = PipelineReport { last_index, applied_index, ..report(10 + node, 1, 11) };
            nodes.report_pipelines(NodeId(node), vec![report], &HashSet::new());
            nodes.stands_still(&record, &record.members[node as usize - 1]).as_secs()
        };
        assert_eq!(tell(1, 10, 10, 0), 0);
        assert_eq!(tell(2, 10, 10, 0), 0);
        // Nothing is written for a while.
        for at in (4..100).step_by(4) {
            assert_eq!((tell(1, 10, 10, at), tell(2, 10, 10, at)), (0, 0));
        }
        assert_eq!((tell(1, 20, 20, 100), tell(2, 10, 10, 100)), (0, 0), "it may not have heard yet");
        assert_eq!((tell(1, 20, 20, 103), tell(2, 10, 10, 103)), (0, 3), "of what it heard at 100");
        for at in (106..=130).step_by(4) {
            assert_eq!(tell(2, 10, 10, at), at - 100);
        }
        assert_eq!(tell(2, 10, 10, 140), 30, "it was silent, which is neither to stand nor to come on");
        assert_eq!((tell(2, 10, 4, 144), tell(2, 10, 9, 148)), (30, 30), "it applies again what it had");
        assert_eq!(tell(2, 10, 10, 152), 30);
        assert_eq!((tell(2, 10, 10, 155), tell(2, 10, 11, 156)), (33, 0), "it comes on");
        assert_eq!((tell(1, 30, 20, 156), tell(1, 30, 20, 157)), (0, 1), "silence does not count");
        assert_eq!(tell(1, 40, 20, 161), 5, "a leader that cannot commit");
        assert_eq!(tell(1, 40, 40, 162), 0);
        // Nobody is behind because of what a stranger says.
        let strange = PipelineReport { last_index: 999, applied_index: 999, ..report(99, 1, 0) };
        nodes.see(NodeId(9), Vec::new(), at(150));
        nodes.report_pipelines(NodeId(9), vec![strange], &HashSet::from([PipelineId(1)]));
        for at_seconds in [151, 154] {
            nodes.see(NodeId(1), Vec::new(), at(at_seconds));
            let told = PipelineReport { last_index: 40, applied_index: 40, ..report(11, 1, 11) };
            nodes.report_pipelines(NodeId(1), vec![told], &HashSet::new());
        }
        assert_eq!(nodes.stands_still(&record, &record.members[0]), Duration::ZERO);
    }

    #[test]
    fn a_member_that_is_coming_for_ever_is_found() {
        planted::plant(Some(Bug::ComingForEver));
        let found = std::panic::catch_unwind(a_member_that_is_behind_and_does_not_come_on_stands_still);
        planted::plant(None);
        assert!(found.is_err());
    }
}
