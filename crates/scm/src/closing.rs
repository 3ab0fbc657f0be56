//! Pipelines that must close, and closing ones that can end: pure decisions from tables, reports and time.

use crate::nodes::Nodes;
use crate::tables::{Tables, duty, is_live};
use proto::scm::{
    ClosePipelineCommand, EndPipelineCommand, NodeDuty, NodeState, PipelineMember, PipelineRecord,
    PipelineState, QuasiClosePipelineCommand, scm_command::Command,
};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use types::{NodeId, PipelineId};

/// How long something lasts before it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosingGraces {
    pub(crate) member_fault: Duration,
    pub(crate) quasi_close: Duration,
    /// A member that does not speak of a pipeline for this long after it began to close neither has it nor will.
    pub(crate) let_go: Duration,
}

/// Since when this leader has seen what goes away by itself in most cases.
pub(crate) struct Closing {
    graces: ClosingGraces,
    faults: HashMap<(PipelineId, NodeId), Instant>,
    leaderless: HashMap<PipelineId, Instant>,
    closing: HashMap<PipelineId, Instant>,
}

/// How a member stands to the end of its pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Ended,
    /// It cannot end: dead, or what it needs is broken and stays so.
    Cannot,
    NotYet,
}

/// A member that is behind for a shorter time is only slow. Longer than a disk in order ever takes.
const STANDS_STILL_AFTER: Duration = Duration::from_secs(10);

const MEMBERS: usize = 3;
const MAJORITY: usize = MEMBERS / 2 + 1;

impl Closing {
    pub(crate) fn new(graces: ClosingGraces) -> Closing {
        Closing { graces, faults: HashMap::new(), leaderless: HashMap::new(), closing: HashMap::new() }
    }

    /// What is due now. `at_ms` is the date that goes into the record; `in_safe_mode` nothing new closes, what closes goes on.
    pub(crate) fn decide(
        &mut self,
        tables: &Tables,
        nodes: &Nodes,
        now: Instant,
        at_ms: u64,
        in_safe_mode: bool,
    ) -> Vec<Command> {
        self.observe(tables, nodes, now);
        let of_record = |record: &PipelineRecord| match is_live(record) {
            true if in_safe_mode => None,
            true => self.close(record, tables, nodes, now, at_ms),
            false => self.end(record, nodes, now).or_else(|| self.quasi_close(record, now)),
        };
        tables.unended_pipelines().filter_map(of_record).collect()
    }

    /// Keeps what lasts and forgets what has passed.
    fn observe(&mut self, tables: &Tables, nodes: &Nodes, now: Instant) {
        let (mut faults, mut leaderless, mut closing) = (HashMap::new(), HashMap::new(), HashMap::new());
        for record in tables.unended_pipelines() {
            let id = PipelineId(record.pipeline);
            for member in &record.members {
                let key = (id, NodeId(member.node));
                if member_fault(record, member, nodes, now).is_some() {
                    faults.insert(key, self.faults.get(&key).copied().unwrap_or(now));
                }
            }
            if !is_led(record, nodes, now)
                && (record.state() == PipelineState::PipelineClosing || could_lead(record, nodes, now))
            {
                leaderless.insert(id, self.leaderless.get(&id).copied().unwrap_or(now));
            }
            if record.state() == PipelineState::PipelineClosing {
                closing.insert(id, self.closing.get(&id).copied().unwrap_or(now));
            }
        }
        (self.faults, self.leaderless, self.closing) = (faults, leaderless, closing);
    }

    fn close(
        &self,
        record: &PipelineRecord,
        tables: &Tables,
        nodes: &Nodes,
        now: Instant,
        at_ms: u64,
    ) -> Option<Command> {
        let reason = self.close_reason(record, tables, nodes, now)?;
        Some(Command::ClosePipeline(ClosePipelineCommand { pipeline: record.pipeline, reason, at_ms }))
    }

    fn close_reason(
        &self,
        record: &PipelineRecord,
        tables: &Tables,
        nodes: &Nodes,
        now: Instant,
    ) -> Option<String> {
        for member in &record.members {
            let node = NodeId(member.node);
            if nodes.state(node, now) == NodeState::NodeDead {
                return Some(format!("node {node} is dead"));
            }
            match tables.node(node).map(duty) {
                Some(NodeDuty::NodeInService) => {}
                Some(NodeDuty::NodeDecommissioning | NodeDuty::NodeDecommissioned) => {
                    return Some(format!("node {node} is decommissioned"));
                }
                _ => return Some(format!("node {node} goes into maintenance")),
            }
            // Whoever told it to end was given up in a forced reset.
            if nodes.member_report(record, member).is_some_and(|report| report.ended) {
                return Some(format!("it has ended on node {node}"));
            }
            if lasts(self.faults.get(&(PipelineId(record.pipeline), node)), now, self.graces.member_fault) {
                return member_fault(record, member, nodes, now);
            }
        }
        let leaderless = self.leaderless.get(&PipelineId(record.pipeline));
        lasts(leaderless, now, self.graces.quasi_close).then(|| "its members elect no leader".to_owned())
    }

    fn quasi_close(&self, record: &PipelineRecord, now: Instant) -> Option<Command> {
        let pipeline = record.pipeline;
        let leaderless = self.leaderless.get(&PipelineId(pipeline));
        let due = !record.quasi_close && lasts(leaderless, now, self.graces.quasi_close);
        due.then_some(Command::QuasiClosePipeline(QuasiClosePipelineCommand { pipeline }))
    }

    fn end(&self, record: &PipelineRecord, nodes: &Nodes, now: Instant) -> Option<Command> {
        let endings = record.members.iter().map(|member| self.ending(record, member, nodes, now));
        let endings: Vec<Ending> = endings.collect();
        let says_so =
            |member: &&PipelineMember| nodes.member_report(record, member).is_some_and(|report| report.ended);
        let ended = endings.iter().filter(|ending| **ending == Ending::Ended).count();
        let due = !endings.contains(&Ending::NotYet) && (ended >= MAJORITY || record.quasi_close);
        let said = || record.members.iter().filter(says_so).map(|member| member.replica).collect();
        due.then(|| Command::EndPipeline(EndPipelineCommand { pipeline: record.pipeline, ended: said() }))
    }

    fn ending(
        &self,
        record: &PipelineRecord,
        member: &PipelineMember,
        nodes: &Nodes,
        now: Instant,
    ) -> Ending {
        let (pipeline, node) = (PipelineId(record.pipeline), NodeId(member.node));
        if nodes.member_report(record, member).is_some_and(|report| report.ended) {
            return Ending::Ended;
        }
        if nodes.state(node, now) == NodeState::NodeDead {
            return Ending::Cannot;
        }
        let closing_since = self.closing.get(&pipeline).copied();
        if closing_since.is_some_and(|since| has_let_go(record, member, nodes, since + self.graces.let_go)) {
            return Ending::Ended;
        }
        let broken = lasts(self.faults.get(&(pipeline, node)), now, self.graces.member_fault);
        // Asked to end by itself, a stopped group may still: it only has to read its log.
        match broken && (nodes.disk_works(node, &member.disk) == Some(false) || self.had_time(record, now)) {
            true => Ending::Cannot,
            false => Ending::NotYet,
        }
    }

    /// Whether a member that was asked to end by itself could have.
    fn had_time(&self, record: &PipelineRecord, now: Instant) -> bool {
        let grace = self.graces.quasi_close + self.graces.member_fault;
        lasts(self.closing.get(&PipelineId(record.pipeline)), now, grace)
    }
}

fn lasts(since: Option<&Instant>, now: Instant, grace: Duration) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(*since) >= grace)
}

/// Whether the member has spoken since `since` without a word of the pipeline, its disk being there: it let go of it, or never had it. A
/// member whose disk is gone has let go of nothing.
pub(crate) fn has_let_go(
    record: &PipelineRecord,
    member: &PipelineMember,
    nodes: &Nodes,
    since: Instant,
) -> bool {
    let node = NodeId(member.node);
    nodes.seen(node).is_some_and(|seen| seen >= since)
        && nodes.disk_works(node, &member.disk) == Some(true)
        && nodes.member_report(record, member).is_none()
}

/// What keeps a member, whose node speaks, from doing its part.
pub(crate) fn member_fault(
    record: &PipelineRecord,
    member: &PipelineMember,
    nodes: &Nodes,
    now: Instant,
) -> Option<String> {
    let node = NodeId(member.node);
    if nodes.state(node, now) != NodeState::NodeHealthy {
        return None;
    }
    if nodes.disk_works(node, &member.disk) == Some(false) {
        return Some(format!("its disk on node {node} failed or is missing"));
    }
    match nodes.member_report(record, member) {
        None => Some(format!("node {node} does not have it")),
        Some(report) if report.ended => None,
        Some(report) if report.stopped.is_empty() => {
            stands_still(record, member, nodes).or_else(|| leads_without_room(record, member, nodes))
        }
        Some(report) => Some(format!("its group stopped on node {node}: {}", report.stopped)),
    }
}

/// A member whose node speaks and whose group runs, and that nevertheless takes nothing, or, where it leads, can commit nothing: a full
/// disk, or one that hangs.
fn stands_still(record: &PipelineRecord, member: &PipelineMember, nodes: &Nodes) -> Option<String> {
    let for_long = nodes.stands_still(record, member);
    let (node, seconds) = (member.node, for_long.as_secs());
    (for_long >= STANDS_STILL_AFTER).then(|| {
        let why = if is_full(member, nodes) { ": its disk is full" } else { "" };
        format!("it has been behind on node {node} for {seconds} s without coming on{why}")
    })
}

fn is_full(member: &PipelineMember, nodes: &Nodes) -> bool {
    nodes.disks(NodeId(member.node)).iter().any(|disk| disk.disk == member.disk && disk.full)
}

/// A leader whose disk is full while others have room. It refuses writes and can write no roll, and is never behind.
fn leads_without_room(record: &PipelineRecord, member: &PipelineMember, nodes: &Nodes) -> Option<String> {
    let leads =
        nodes.member_report(record, member).is_some_and(|report| report.leader_replica == member.replica);
    // Where all are full another pipeline could take no more than this one.
    let has_room_elsewhere = record.members.iter().any(|member| !is_full(member, nodes));
    (leads && is_full(member, nodes) && has_room_elsewhere)
        .then(|| format!("it leads on node {}, and its disk there is full", member.node))
}

/// Whether a member that speaks and runs says of itself that it leads, and can. One that closes is not led by who has no room for its roll.
fn is_led(record: &PipelineRecord, nodes: &Nodes, now: Instant) -> bool {
    let Some(leader) = nodes.pipeline_seen(record, now).leader else { return false };
    let leads = |member: &PipelineMember| {
        let report = nodes.member_report(record, member);
        report.is_some_and(|report| report.leader_replica == member.replica && report.stopped.is_empty())
            && stands_still(record, member, nodes).is_none()
            && !(record.state() == PipelineState::PipelineClosing && is_full(member, nodes))
    };
    nodes.state(leader, now) == NodeState::NodeHealthy
        && record.members.iter().any(|member| member.node == leader.0 && leads(member))
}

/// Whether enough members are there for an election.
fn could_lead(record: &PipelineRecord, nodes: &Nodes, now: Instant) -> bool {
    let healthy = |member: &&PipelineMember| nodes.state(NodeId(member.node), now) == NodeState::NodeHealthy;
    record.members.iter().filter(healthy).count() >= MAJORITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Silence;
    use crate::ops::testing::{close, create, disk, end, run, set_duty, three_nodes};
    use proto::scm::{DiskReport, PipelineReport};

    const SECOND: Duration = Duration::from_secs(1);
    const GRACES: ClosingGraces = ClosingGraces {
        member_fault: Duration::from_secs(30),
        quasi_close: Duration::from_secs(60),
        let_go: Duration::from_secs(5),
    };

    /// Three nodes with a pipeline, on a clock of their own.
    struct Fixture {
        tables: Tables,
        nodes: Nodes,
        closing: Closing,
        now: Instant,
        /// Nodes whose disks are.
        full: Vec<u64>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let mut tables = three_nodes();
            run(&mut tables, create([1, 2, 3]));
            let now = Instant::now();
            let silence = Silence {
                stale_after: 5 * SECOND,
                dead_after: 600 * SECOND,
                disk_lost_after: std::time::Duration::from_secs(30),
            };
            Fixture {
                tables,
                nodes: Nodes::new(silence, now),
                closing: Closing::new(GRACES),
                now,
                full: Vec::new(),
            }
        }

        /// Node and replica have the same number here.
        fn report(&self, node: u64, leader: u64) -> PipelineReport {
            PipelineReport {
                pipeline: 1,
                replica: node,
                term: 1,
                leader_replica: leader,
                ..PipelineReport::default()
            }
        }

        fn heartbeat(&mut self, node: u64, reports: Vec<PipelineReport>) {
            let full = self.full.contains(&node);
            let disks = (0..2).map(|n| DiskReport { disk: disk(node, n), full, ..DiskReport::default() });
            self.nodes.see(NodeId(node), disks.collect(), self.now);
            self.nodes.report_pipelines(NodeId(node), reports, &Default::default());
        }

        fn heartbeats(&mut self, nodes: &[u64], leader: u64) {
            for &node in nodes {
                self.heartbeat(node, vec![self.report(node, leader)]);
            }
        }

        fn decide(&mut self) -> Vec<Command> {
            self.closing.decide(&self.tables, &self.nodes, self.now, 7, false)
        }

        /// `seconds` go by in which `nodes` say that `leader` leads; what was decided at last.
        fn wait(&mut self, seconds: u32, nodes: &[u64], leader: u64) -> Vec<Command> {
            for _ in 0..seconds {
                self.now += SECOND;
                self.heartbeats(nodes, leader);
                let decided = self.decide();
                if !decided.is_empty() {
                    return decided;
                }
            }
            Vec::new()
        }
    }

    fn closes(commands: &[Command], why: &str) {
        let [Command::ClosePipeline(close)] = commands else { panic!("{commands:?}") };
        assert!(close.reason.contains(why), "{close:?}");
    }

    #[test]
    fn a_healthy_pipeline_stays() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.wait(700, &[1, 2, 3], 2), []);
    }

    #[test]
    fn a_dead_member_closes_the_pipeline_and_two_members_end_it() {
        let mut fixture = Fixture::new();
        fixture.wait(10, &[1, 2, 3], 1);
        assert_eq!(fixture.wait(599, &[1, 2], 1), []);
        closes(&fixture.wait(1, &[1, 2], 1), "node 3 is dead");
        run(&mut fixture.tables, close(1, "node 3 is dead"));
        assert_eq!(fixture.wait(5, &[1, 2], 1), []);
        let ended = |fixture: &Fixture, node| PipelineReport { ended: true, ..fixture.report(node, 1) };
        fixture.heartbeat(1, vec![ended(&fixture, 1)]);
        assert_eq!(fixture.decide(), [], "node 2 has not ended");
        fixture.heartbeat(2, vec![ended(&fixture, 2)]);
        let said_so = EndPipelineCommand { pipeline: 1, ended: vec![1, 2] };
        assert_eq!(fixture.decide(), [Command::EndPipeline(said_so)]);
    }

    #[test]
    fn nothing_new_closes_in_safe_mode() {
        let mut fixture = Fixture::new();
        fixture.now += 700 * SECOND;
        let (tables, nodes) = (&fixture.tables, &fixture.nodes);
        assert_eq!(fixture.closing.decide(tables, nodes, fixture.now, 7, true), []);
        closes(&fixture.decide(), "dead");
    }

    #[test]
    fn faults_of_members_close_it_when_they_last() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        let stopped = PipelineReport { stopped: "no space".into(), ..fixture.report(3, 0) };
        for second in 0..=30 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, vec![stopped.clone()]);
            let decided = fixture.decide();
            match second {
                0..30 => assert_eq!(decided, [], "after {second} s"),
                _ => closes(&decided, "its group stopped on node 3: no space"),
            }
        }
        // Well again in time.
        let mut fixture = Fixture::new();
        for second in 0..100 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, if second % 20 == 0 { vec![fixture.report(3, 1)] } else { vec![] });
            assert_eq!(fixture.decide(), []);
        }
    }

    #[test]
    fn a_leader_on_a_full_disk_closes_it_where_others_have_room_and_does_not_end_it() {
        let mut fixture = Fixture::new();
        fixture.full = vec![1, 2, 3];
        assert_eq!(fixture.wait(700, &[1, 2, 3], 1), [], "no other pipeline would have more room");
        fixture.full = vec![2];
        assert_eq!(
            fixture.wait(700, &[1, 2, 3], 1),
            [],
            "who follows says that it is full by standing still"
        );
        fixture.full = vec![1];
        assert_eq!(fixture.wait(30, &[1, 2, 3], 1), [], "it may be for a moment");
        closes(&fixture.wait(1, &[1, 2, 3], 1), "it leads on node 1, and its disk there is full");
        run(&mut fixture.tables, close(1, "full"));
        assert_eq!(fixture.wait(60, &[1, 2, 3], 1), [], "its roll may be on its way");
        let ends = fixture.wait(1, &[1, 2, 3], 1);
        assert_eq!(ends, [Command::QuasiClosePipeline(QuasiClosePipelineCommand { pipeline: 1 })]);
    }

    /// Whoever told them to end it was given up in a forced reset.
    #[test]
    fn one_that_has_ended_is_not_held_for_open() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        fixture.heartbeat(2, vec![PipelineReport { ended: true, ..fixture.report(2, 1) }]);
        closes(&fixture.decide(), "it has ended on node 2");
    }

    #[test]
    fn a_node_that_leaves_takes_its_pipelines_along() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        run(&mut fixture.tables, set_duty(2, NodeDuty::NodeDecommissioning));
        closes(&fixture.decide(), "node 2 is decommissioned");
    }

    #[test]
    fn members_without_a_leader_end_by_themselves() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        run(&mut fixture.tables, close(1, "test"));
        // Node 1 leads until it is gone; 2 goes too, so that nobody can lead.
        assert_eq!(fixture.wait(20, &[1, 2, 3], 1), []);
        let decided = fixture.wait(70, &[3], 0);
        assert_eq!(decided, [Command::QuasiClosePipeline(QuasiClosePipelineCommand { pipeline: 1 })]);
        run(&mut fixture.tables, decided.into_iter().next().unwrap());
        let ended = PipelineReport { ended: true, ..fixture.report(3, 0) };
        for _ in 0..500 {
            fixture.now += SECOND;
            fixture.heartbeat(3, vec![ended.clone()]);
            assert_eq!(fixture.decide(), [], "nodes 1 and 2 may come back");
        }
        fixture.now += 600 * SECOND;
        fixture.heartbeat(3, vec![ended]);
        let said_so = EndPipelineCommand { pipeline: 1, ended: vec![3] };
        assert_eq!(fixture.decide(), [Command::EndPipeline(said_so)]);
    }

    #[test]
    fn who_never_had_it_has_let_go_of_it() {
        let mut fixture = Fixture::new();
        run(&mut fixture.tables, close(1, "operator"));
        for node in 1..=3 {
            fixture.heartbeat(node, vec![]);
        }
        assert_eq!(fixture.decide(), [], "an order to create it may still be under way");
        fixture.now += 6 * SECOND;
        for node in 1..=3 {
            fixture.heartbeat(node, vec![]);
        }
        assert_eq!(fixture.decide(), [end(1)]);
    }

    #[test]
    fn a_lost_disk_lets_go_of_nothing_and_is_not_waited_for() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        run(&mut fixture.tables, close(1, "test"));
        let ended = |fixture: &Fixture, node| PipelineReport { ended: true, ..fixture.report(node, 1) };
        for second in 0..=31 {
            fixture.now += SECOND;
            for node in [1, 2] {
                fixture.heartbeat(node, vec![ended(&fixture, node)]);
            }
            fixture.nodes.see(NodeId(3), Vec::new(), fixture.now);
            fixture.nodes.report_pipelines(NodeId(3), Vec::new(), &Default::default());
            let decided = fixture.decide();
            match second {
                0..30 => assert_eq!(decided, [], "after {second} s"),
                30 => assert_eq!(
                    decided,
                    [Command::EndPipeline(EndPipelineCommand { pipeline: 1, ended: vec![1, 2] })]
                ),
                _ => {}
            }
        }
    }
}
