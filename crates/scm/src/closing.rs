//! Pipelines that must close, and closing ones that can end: pure decisions from one look at the world and
//! what was seen before.

use crate::member_view::{MAJORITY, MEMBERS, MemberView, PipelineView};
use crate::tables::{Tables, duty, is_live};
use crate::world::World;
use proto::scm::{
    ClosePipelineCommand, EndPipelineCommand, NodeDuty, PipelineRecord, PipelineState,
    QuasiClosePipelineCommand, scm_command::Command,
};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use types::{NodeId, PipelineId};

/// The times that a fault, the lack of a leader or silence about a pipeline must last before it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosingGraces {
    pub(crate) member_fault: Duration,
    pub(crate) quasi_close: Duration,
    /// A member that does not speak of a pipeline for this long after it began to close neither has it nor
    /// will.
    pub(crate) let_go: Duration,
}

/// The moments since which this leader has seen what goes away by itself in most cases.
pub(crate) struct Closing {
    graces: ClosingGraces,
    faults: HashMap<(PipelineId, NodeId), Instant>,
    leaderless: HashMap<PipelineId, Instant>,
    closing: HashMap<PipelineId, Instant>,
    /// The moment at which there were last too few places for another pipeline in a broken one's stead.
    lacked_good_places: Option<Instant>,
}

/// The time within which a leader comes to its pipeline's last roll, in times of
/// [`ClosingGraces::quasi_close`].
const ROLLS_WITHIN: u32 = 10;

/// A member's relation to the end of its pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Ended,
    /// The member cannot end: its node is dead, or what it needs is broken and stays so.
    Cannot,
    NotYet,
}

impl Closing {
    pub(crate) fn new(graces: ClosingGraces) -> Closing {
        Closing {
            graces,
            faults: HashMap::new(),
            leaderless: HashMap::new(),
            closing: HashMap::new(),
            lacked_good_places: None,
        }
    }

    /// The commands that are due now. In safe mode nothing new closes, what closes goes on.
    pub(crate) fn decide(&mut self, world: &World<'_>) -> Vec<Command> {
        let (pipelines, now) = (world.unended_pipelines(), world.now);
        self.observe(pipelines, now);
        let is_broken = |pipeline: &PipelineView<'_>| {
            is_live(pipeline.record)
                && pipeline.members.iter().any(|member| self.lost(pipeline, member, now).is_some())
        };
        if pipelines.iter().any(is_broken) && !world.has_good_places() {
            self.lacked_good_places = Some(now);
        }
        let of_pipeline = |pipeline: &PipelineView<'_>| match is_live(pipeline.record) {
            true if world.in_safe_mode => None,
            true => self.close(pipeline, world),
            false => self.end(pipeline, world).or_else(|| self.quasi_close(pipeline, now)),
        };
        pipelines.iter().filter_map(of_pipeline).collect()
    }

    /// Keeps what lasts and forgets what has passed.
    fn observe(&mut self, pipelines: &[PipelineView<'_>], now: Instant) {
        let (mut faults, mut leaderless, mut closing) = (HashMap::new(), HashMap::new(), HashMap::new());
        for pipeline in pipelines {
            let id = PipelineId(pipeline.record.pipeline);
            let is_closing = pipeline.record.state().is_closing();
            for member in &pipeline.members {
                let key = (id, member.node_id());
                let known = self.faults.get(&key).copied();
                // Neither silence nor another try mends anything: a member that comes back with its fault,
                // again and again, has had it all the time.
                let goes_on = known.filter(|_| !member.is_healthy() || member.is_opening());
                let begins = pipeline.fault(member).map(|_| known.unwrap_or(now));
                if let Some(since) = goes_on.or(begins) {
                    faults.insert(key, since);
                }
            }
            if !pipeline.is_led() && (is_closing || pipeline.could_elect()) {
                leaderless.insert(id, self.leaderless.get(&id).copied().unwrap_or(now));
            }
            if is_closing {
                closing.insert(id, self.closing.get(&id).copied().unwrap_or(now));
            }
        }
        (self.faults, self.leaderless, self.closing) = (faults, leaderless, closing);
    }

    fn close(&self, pipeline: &PipelineView<'_>, world: &World<'_>) -> Option<Command> {
        let reason = self.close_reason(pipeline, world)?;
        let (pipeline, at_ms) = (pipeline.record.pipeline, world.now_ms);
        Some(Command::ClosePipeline(ClosePipelineCommand { pipeline, reason, at_ms }))
    }

    fn close_reason(&self, pipeline: &PipelineView<'_>, world: &World<'_>) -> Option<String> {
        let settled = pipeline.members.iter().find_map(|member| has_to_close(member, world.tables));
        settled.or_else(|| self.loss(pipeline, world)).or_else(|| {
            let leaderless = self.leaderless.get(&PipelineId(pipeline.record.pipeline));
            lasts(leaderless, world.now, self.graces.quasi_close)
                .then(|| "its members elect no leader".to_owned())
        })
    }

    /// The loss of a member for which the pipeline is to close: another one then takes its place. Where there
    /// is no place for another, those that are left of this one go on, as long as they are a majority.
    fn loss(&self, pipeline: &PipelineView<'_>, world: &World<'_>) -> Option<String> {
        let mut lost = pipeline.members.iter().filter_map(|member| self.lost(pipeline, member, world.now));
        let first = lost.next()?;
        // A disk that is full now and then, or a node that comes and goes, is no place.
        let has_places =
            self.lacked_good_places.is_none_or(|at| lasts(Some(&at), world.now, self.graces.member_fault));
        (lost.count() + 1 + MAJORITY > MEMBERS || has_places).then_some(first)
    }

    /// The reason why the pipeline cannot count on a member any more.
    fn lost(&self, pipeline: &PipelineView<'_>, member: &MemberView<'_>, now: Instant) -> Option<String> {
        let (id, node) = (PipelineId(pipeline.record.pipeline), member.node_id());
        if member.is_dead() {
            return Some(format!("node {node} is dead"));
        }
        let lasts = lasts(self.faults.get(&(id, node)), now, self.graces.member_fault);
        lasts.then(|| pipeline.fault(member)).flatten()
    }

    /// Has the members of a closing pipeline end by themselves, each for itself: nobody leads it, or whoever
    /// does has not come to its last roll in ten times as long.
    fn quasi_close(&self, pipeline: &PipelineView<'_>, now: Instant) -> Option<Command> {
        let (record, grace) = (pipeline.record, self.graces.quasi_close);
        let id = PipelineId(record.pipeline);
        let is_rolled = || pipeline.members.iter().any(MemberView::has_applied_the_end);
        let is_stuck = lasts(self.leaderless.get(&id), now, grace)
            || lasts(self.closing.get(&id), now, ROLLS_WITHIN * grace) && !is_rolled();
        let due = record.state() == PipelineState::PipelineClosing && is_stuck;
        due.then_some(Command::QuasiClosePipeline(QuasiClosePipelineCommand { pipeline: record.pipeline }))
    }

    fn end(&self, pipeline: &PipelineView<'_>, world: &World<'_>) -> Option<Command> {
        let (record, now) = (pipeline.record, world.now);
        let endings = pipeline.members.iter().map(|member| self.ending(record, member, now));
        let endings: Vec<Ending> = endings.collect();
        let ended = endings.iter().filter(|ending| **ending == Ending::Ended).count();
        let is_quasi_closing = record.state() == PipelineState::PipelineQuasiClosing;
        // The last entry is committed once a member has applied it, though the others of its majority are
        // gone since.
        let is_committed = pipeline.members.iter().any(MemberView::has_applied_the_end);
        let is_decided = ended >= MAJORITY || is_committed || is_quasi_closing;
        let due = is_decided && !endings.contains(&Ending::NotYet);
        let ended = || pipeline.members.iter().filter_map(MemberView::end_to_note).collect();
        due.then(|| Command::EndPipeline(EndPipelineCommand { pipeline: record.pipeline, ended: ended() }))
    }

    fn ending(&self, record: &PipelineRecord, member: &MemberView<'_>, now: Instant) -> Ending {
        let (pipeline, node) = (PipelineId(record.pipeline), member.node_id());
        if member.has_ended() {
            return Ending::Ended;
        }
        if member.is_dead() {
            return Ending::Cannot;
        }
        let closing_since = self.closing.get(&pipeline).copied();
        if closing_since.is_some_and(|since| member.has_let_go(since + self.graces.let_go)) {
            return Ending::Ended;
        }
        let broken =
            member.is_healthy() && lasts(self.faults.get(&(pipeline, node)), now, self.graces.member_fault);
        // A stopped group that is asked to end by itself still may: it only has to read its log.
        match broken && (member.disk_works == Some(false) || self.had_time(record, now)) {
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

/// The reason why the pipeline has to close because of a member, whatever else there is: what operators want
/// of its node, or that it has ended.
fn has_to_close(member: &MemberView<'_>, tables: &Tables) -> Option<String> {
    let node = member.node_id();
    match tables.node(node).map(duty) {
        // The members of SCM that told it to end were given up in a forced reset.
        Some(NodeDuty::NodeInService) => member.has_ended().then(|| format!("it has ended on node {node}")),
        Some(NodeDuty::NodeDecommissioning | NodeDuty::NodeDecommissioned) => {
            Some(format!("node {node} is decommissioned"))
        }
        _ => Some(format!("node {node} goes into maintenance")),
    }
}

fn lasts(since: Option<&Instant>, now: Instant, grace: Duration) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(*since) >= grace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::oms::Oms;
    use crate::ops::testing::{close, create, disk, end, register, run, set_duty, three_nodes};
    use proto::scm::{DiskReport, DiskState, MemberEnd, MemberState, PipelineReport};

    const ENDED: i32 = MemberState::Ended as i32;
    const SECOND: Duration = Duration::from_secs(1);
    const GRACES: ClosingGraces = ClosingGraces {
        member_fault: Duration::from_secs(30),
        quasi_close: Duration::from_secs(60),
        let_go: Duration::from_secs(5),
    };

    /// Three nodes with a pipeline and a fourth with room for one, on a clock of their own.
    struct Fixture {
        tables: Tables,
        nodes: Nodes,
        closing: Closing,
        now: Instant,
        /// Nodes whose first disks are full, where their members are.
        full: Vec<u64>,
        /// Whether the fourth node speaks.
        has_fourth: bool,
    }

    impl Fixture {
        fn new() -> Fixture {
            let mut tables = three_nodes();
            run(&mut tables, register(4));
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
                has_fourth: true,
            }
        }

        /// Node and replica have the same number here.
        fn report(&self, node: u64, leader: u64) -> PipelineReport {
            PipelineReport {
                pipeline: 1,
                replica: node,
                term: 1,
                leader_replica: leader,
                state: MemberState::Runs as i32,
                ..PipelineReport::default()
            }
        }

        fn report_opening(&self, node: u64) -> PipelineReport {
            PipelineReport { state: MemberState::Opening as i32, ..self.report(node, 0) }
        }

        fn heartbeat(&mut self, node: u64, reports: Vec<PipelineReport>) {
            let disks = (0..2).map(|n| {
                let is_full = n == 0 && self.full.contains(&node);
                let state = if is_full { DiskState::Full } else { DiskState::Works } as i32;
                DiskReport { disk: disk(node, n), state, ..DiskReport::default() }
            });
            self.nodes.see(NodeId(node), disks.collect(), self.now);
            self.nodes.report_pipelines(NodeId(node), reports, &Default::default());
        }

        fn heartbeats(&mut self, nodes: &[u64], leader: u64) {
            for &node in nodes {
                self.heartbeat(node, vec![self.report(node, leader)]);
            }
        }

        fn decide(&mut self) -> Vec<Command> {
            if self.has_fourth {
                self.heartbeat(4, vec![]);
            }
            self.closing.decide(&World::at(&self.tables, &self.nodes, self.now))
        }

        /// Lets `seconds` go by in which `nodes` say that `leader` leads, and returns what was decided at
        /// last.
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

    fn said(replicas: &[u64]) -> Vec<MemberEnd> {
        replicas.iter().map(|&replica| MemberEnd { replica, ..MemberEnd::default() }).collect()
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
        let ended = |fixture: &Fixture, node| PipelineReport { state: ENDED, ..fixture.report(node, 1) };
        fixture.heartbeat(1, vec![ended(&fixture, 1)]);
        assert_eq!(fixture.decide(), [], "node 2 has not ended");
        fixture.heartbeat(2, vec![ended(&fixture, 2)]);
        let said_so = EndPipelineCommand { pipeline: 1, ended: said(&[1, 2]) };
        assert_eq!(fixture.decide(), [Command::EndPipeline(said_so)]);
    }

    /// Three nodes, of which one is dead for good: closing would leave nothing that can be written.
    #[test]
    fn two_members_go_on_where_no_third_node_is_there() {
        let mut fixture = Fixture::new();
        fixture.has_fourth = false;
        fixture.wait(10, &[1, 2, 3], 1);
        assert_eq!(fixture.wait(2000, &[1, 2], 1), []);
        // A member that is started anew is away for a moment, and the other elects nobody.
        assert_eq!(fixture.wait(59, &[2], 0), []);
        assert_eq!(fixture.wait(100, &[1, 2], 2), []);
        fixture.has_fourth = true;
        assert_eq!(fixture.wait(29, &[1, 2], 2), [], "it may go again");
        closes(&fixture.wait(1, &[1, 2], 2), "node 3 is dead");

        let mut fixture = Fixture::new();
        fixture.has_fourth = false;
        fixture.wait(10, &[1, 2, 3], 1);
        fixture.wait(700, &[1, 2], 1);
        closes(&fixture.wait(61, &[1, 2], 0), "elect no leader");
        assert_eq!(fixture.wait(1, &[1, 2], 1), []);
        closes(&fixture.wait(600, &[1], 0), "is dead");
    }

    /// The node of a broken member has another disk, on which a new pipeline finds its place.
    #[test]
    fn a_member_whose_node_has_another_disk_is_not_gone_on_without() {
        let mut fixture = Fixture::new();
        fixture.has_fourth = false;
        fixture.wait(3, &[1, 2, 3], 1);
        let stopped = PipelineReport { state: MemberState::Stopped as i32, ..fixture.report(3, 0) };
        let mut decided = Vec::new();
        for _ in 0..=30 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, vec![stopped.clone()]);
            decided = fixture.decide();
        }
        closes(&decided, "its group stopped on node 3");
    }

    /// The one disk of its node is a good place for another member: only this one's log is lost.
    #[test]
    fn a_member_that_has_stopped_is_closed_for_where_its_disk_is_the_only_other_place() {
        let mut fixture = Fixture::new();
        fixture.has_fourth = false;
        let mut reasons = Vec::new();
        for _ in 0..=31 {
            fixture.now += SECOND;
            let at = |node: u64, applied_index, state: MemberState| PipelineReport {
                last_index: 9,
                applied_index,
                state: state as i32,
                ..fixture.report(node, 1)
            };
            let runs = MemberState::Runs;
            let all = [(1, at(1, 9, runs)), (2, at(2, 9, runs)), (3, at(3, 0, MemberState::Stopped))];
            for (node, report) in all {
                let (disk, state) = (disk(node, 0), DiskState::Works as i32);
                let here = DiskReport { disk, state, ..DiskReport::default() };
                fixture.nodes.see(NodeId(node), vec![here], fixture.now);
                fixture.nodes.report_pipelines(NodeId(node), vec![report], &Default::default());
            }
            reasons.extend(fixture.decide());
        }
        closes(&reasons[..1], "its group stopped on node 3");
    }

    /// A node hears SCM, and not the others, or its disk hangs: in its place another member would stand
    /// still, too.
    #[test]
    fn a_member_that_stands_still_is_not_closed_for_where_there_is_no_better_place() {
        let stands_still = |has_fourth: bool, another_comes_on: bool| {
            let mut fixture = Fixture::new();
            fixture.has_fourth = has_fourth;
            run(&mut fixture.tables, create([1, 2, 3]));
            let mut reasons = Vec::new();
            for second in 1..=200 {
                fixture.now += SECOND;
                let first = |node: u64| PipelineReport {
                    last_index: 9,
                    applied_index: if node == 3 { 5 } else { 9 },
                    ..fixture.report(node, 1)
                };
                let other = |node: u64| PipelineReport {
                    pipeline: 2,
                    replica: 3 + node,
                    leader_replica: 4,
                    last_index: second,
                    applied_index: second,
                    ..fixture.report(node, 1)
                };
                let both = [1, 2, 3].map(|node| (node, first(node), another_comes_on.then(|| other(node))));
                for (node, first, other) in both {
                    let (disk, state) = (disk(node, 0), DiskState::Works as i32);
                    let here = DiskReport { disk, state, ..DiskReport::default() };
                    fixture.nodes.see(NodeId(node), vec![here], fixture.now);
                    let reports = [Some(first), other].into_iter().flatten().collect();
                    fixture.nodes.report_pipelines(NodeId(node), reports, &Default::default());
                }
                let decided = fixture.decide().into_iter();
                reasons.extend(
                    decided.filter(|it| matches!(it, Command::ClosePipeline(it) if it.pipeline == 1)),
                );
            }
            reasons
        };
        assert_eq!(stands_still(false, false), []);
        closes(&stands_still(true, false)[..1], "behind on node 3");
        closes(&stands_still(false, true)[..1], "behind on node 3");
    }

    #[test]
    fn nothing_new_closes_in_safe_mode() {
        let mut fixture = Fixture::new();
        fixture.now += 700 * SECOND;
        let world = World::of(&fixture.tables, &fixture.nodes, Oms::silent(), fixture.now, 7, true);
        assert_eq!(fixture.closing.decide(&world), []);
        closes(&fixture.decide(), "dead");
    }

    #[test]
    fn faults_of_members_close_it_when_they_last() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        let state = MemberState::Stopped as i32;
        let stopped = PipelineReport { state, why: "no space".into(), ..fixture.report(3, 0) };
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
        // The member is well again in time.
        let mut fixture = Fixture::new();
        for second in 0..100 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, if second % 20 == 0 { vec![fixture.report(3, 1)] } else { vec![] });
            assert_eq!(fixture.decide(), []);
        }
    }

    #[test]
    fn a_member_that_is_being_made_is_no_fault_and_mends_none() {
        // A slow disk makes its member late, which is no fault.
        let mut fixture = Fixture::new();
        for _ in 0..60 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, vec![fixture.report_opening(3)]);
            assert_eq!(fixture.decide(), []);
        }
        // A disk on which it fails, again and again.
        let mut fixture = Fixture::new();
        let mut decided = Vec::new();
        for second in 0..60 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, if second % 10 < 5 { vec![] } else { vec![fixture.report_opening(3)] });
            decided = fixture.decide();
            if !decided.is_empty() {
                break;
            }
        }
        closes(&decided, "node 3 does not have it");
        // A disk that hangs.
        let mut fixture = Fixture::new();
        let mut decided = Vec::new();
        for _ in 0..100 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 1);
            fixture.heartbeat(3, vec![fixture.report_opening(3)]);
            decided = fixture.decide();
            if !decided.is_empty() {
                break;
            }
        }
        closes(&decided, "node 3 has been making it for");
    }

    #[test]
    fn members_that_are_being_made_elect_nobody_and_are_given_time() {
        let mut fixture = Fixture::new();
        let mut seconds = 0;
        let decided = loop {
            fixture.now += SECOND;
            seconds += 1;
            fixture.heartbeats(&[1], 0);
            for node in [2, 3] {
                fixture.heartbeat(node, vec![fixture.report_opening(node)]);
            }
            let decided = fixture.decide();
            if !decided.is_empty() {
                break decided;
            }
        };
        closes(&decided, "node 2 has been making it for");
        assert_eq!(seconds, 1 + 60 + 30, "what takes a minute is a fault, and a fault lasts for its grace");
        // Two members are there: they have no leader for a reason that is not the third's.
        let mut fixture = Fixture::new();
        let mut decided = Vec::new();
        for _ in 0..=60 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1, 2], 0);
            fixture.heartbeat(3, vec![fixture.report_opening(3)]);
            decided = fixture.decide();
        }
        closes(&decided, "elect no leader");
    }

    /// Three nodes: one does not have the pipeline, another one is started anew.
    #[test]
    fn a_member_that_cannot_vote_elects_nobody() {
        let mut fixture = Fixture::new();
        fixture.has_fourth = false;
        fixture.wait(3, &[1, 2, 3], 1);
        for _ in 0..200 {
            fixture.now += SECOND;
            fixture.heartbeats(&[1], 0);
            fixture.heartbeat(3, vec![]);
            assert_eq!(fixture.decide(), []);
        }
        closes(&fixture.wait(61, &[1, 3], 0), "elect no leader");
    }

    /// A member that dies at the same entry each time it comes back.
    #[test]
    fn a_fault_that_comes_back_after_each_restart_has_lasted_all_the_time() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        let behind = PipelineReport { applied_index: 5, ..fixture.report(3, 1) };
        let ahead = |fixture: &Fixture, node| PipelineReport {
            applied_index: 9,
            last_index: 9,
            ..fixture.report(node, 1)
        };
        let mut decided = Vec::new();
        for second in 0..120 {
            fixture.now += SECOND;
            for node in [1, 2] {
                fixture.heartbeat(node, vec![ahead(&fixture, node)]);
            }
            // The member runs for 12 seconds and is gone for 8.
            if second % 20 < 12 {
                fixture.heartbeat(3, vec![behind.clone()]);
            }
            decided = fixture.decide();
            if !decided.is_empty() {
                break;
            }
        }
        closes(&decided, "it has been behind on node 3");
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

    #[test]
    fn two_full_disks_or_a_full_and_a_silent_one_leave_no_room() {
        let lacks = |full: &[u64], silent: &[u64]| {
            let mut fixture = Fixture::new();
            fixture.wait(3, &[1, 2, 3], 1);
            fixture.full = full.to_vec();
            let speak: Vec<u64> = (1..=3).filter(|node| !silent.contains(node)).collect();
            fixture.wait(6, &speak, 1);
            let record = fixture.tables.pipeline(PipelineId(1)).unwrap();
            PipelineView::of(record, &fixture.nodes, fixture.now).may_lack_room()
        };
        assert!(!lacks(&[], &[]));
        assert!(!lacks(&[1], &[]) && !lacks(&[], &[2, 3]), "of silence its leader hears itself");
        assert!(lacks(&[2, 3], &[]) && lacks(&[2], &[3]));
        // A leader of SCM that never heard the third.
        let mut fixture = Fixture::new();
        fixture.full = vec![2];
        let mut lacks_after = |seconds: u32| {
            fixture.wait(seconds, &[1, 2], 1);
            let record = fixture.tables.pipeline(PipelineId(1)).unwrap();
            PipelineView::of(record, &fixture.nodes, fixture.now).may_lack_room()
        };
        assert!(!lacks_after(4), "it may not have come to speak yet");
        assert!(lacks_after(1));
    }

    /// The members of SCM that told the nodes to end the pipeline were given up in a forced reset.
    #[test]
    fn one_that_has_ended_is_not_held_for_open() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        fixture.heartbeat(2, vec![PipelineReport { state: ENDED, ..fixture.report(2, 1) }]);
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
    fn a_leader_that_does_not_come_to_the_end_is_not_waited_for_for_ever() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        run(&mut fixture.tables, close(1, "test"));
        assert_eq!(fixture.wait(600, &[1, 2, 3], 1), []);
        let ends = fixture.wait(1, &[1, 2, 3], 1);
        assert_eq!(ends, [Command::QuasiClosePipeline(QuasiClosePipelineCommand { pipeline: 1 })]);
        // A member that is long in coming to the end that is there is waited for.
        let ended = PipelineReport { state: ENDED, ..fixture.report(1, 1) };
        for _ in 0..700 {
            fixture.now += SECOND;
            fixture.heartbeat(1, vec![ended.clone()]);
            fixture.heartbeats(&[2, 3], 1);
            assert_eq!(fixture.decide(), []);
        }
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
        let ended = PipelineReport { state: ENDED, ..fixture.report(3, 0) };
        for _ in 0..500 {
            fixture.now += SECOND;
            fixture.heartbeat(3, vec![ended.clone()]);
            assert_eq!(fixture.decide(), [], "nodes 1 and 2 may come back");
        }
        fixture.now += 600 * SECOND;
        fixture.heartbeat(3, vec![ended]);
        let said_so = EndPipelineCommand { pipeline: 1, ended: said(&[3]) };
        assert_eq!(fixture.decide(), [Command::EndPipeline(said_so)]);
    }

    /// Node 2 had the last entry in its log and is gone since; node 3 never gets it, its disk being full.
    #[test]
    fn one_member_that_has_applied_the_end_is_enough_where_no_other_can() {
        let mut fixture = Fixture::new();
        fixture.wait(3, &[1, 2, 3], 1);
        run(&mut fixture.tables, close(1, "test"));
        let at = |fixture: &Fixture, node, state: MemberState, index| PipelineReport {
            state: state as i32,
            applied_index: index,
            last_index: index,
            ..fixture.report(node, 1)
        };
        fixture.full = vec![3];
        for second in 0..600 {
            fixture.now += SECOND;
            fixture.heartbeat(1, vec![at(&fixture, 1, MemberState::Ended, 9)]);
            fixture.heartbeat(3, vec![at(&fixture, 3, MemberState::Runs, 5)]);
            let decided = fixture.decide();
            match second {
                0..599 => assert_eq!(decided, [], "node 2 may come back after {second} s"),
                _ => {
                    assert!(
                        matches!(&decided[..], [Command::EndPipeline(end)] if end.ended.len() == 1),
                        "{decided:?}"
                    )
                }
            }
        }
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
        let ended = |fixture: &Fixture, node| PipelineReport { state: ENDED, ..fixture.report(node, 1) };
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
                    [Command::EndPipeline(EndPipelineCommand { pipeline: 1, ended: said(&[1, 2]) })]
                ),
                _ => {}
            }
        }
    }
}
