//! Random histories of a pipeline by Raft's rules, and of what its members say afterwards: wherever SCM ends
//! a container, all that was acknowledged is in it.

use crate::member_view::{MemberView, PipelineView};
use crate::nodes::{Nodes, Silence};
use crate::ops::testing::{close, create, disk, end, run, three_nodes};
use crate::replicas::ContainersReport;
use crate::resolution::Resolution;
use crate::tables::Tables;
use crate::world::World;
use planted::Bug;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use proto::scm::{
    AllocateContainerCommand, ContainerRecord, ContainerReplica, ContainerState, DiskReport,
    EndPipelineCommand, LogEnd, MemberState, NoteBegunCommand, NoteLostLogCommand, PipelineReplica,
    PipelineReport, ReplicaState, SettleContainersCommand, scm_command::Command,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::{NodeId, PipelineId};

const CONTAINERS: u64 = 4;
/// The container that never holds data: SCM hears of nothing in it.
const END: u64 = 99;
const LET_GO: Duration = Duration::from_secs(5);
/// The time of a round: longer than anything that is waited for.
const ROUND: Duration = Duration::from_secs(90);

/// A record of the log; its index is its place, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    term: u64,
    container: u64,
    is_roll: bool,
    /// Whether the roll is the pipeline's last: it leads to [`END`].
    ends: bool,
}

impl Record {
    /// The container of the record that follows.
    fn next_container(&self) -> u64 {
        if self.ends { END } else { self.container + u64::from(self.is_roll) }
    }
}

/// A member leads, after an election where it did not, appends, and is followed by who is reached.
#[derive(Clone, Debug)]
struct Step {
    leader: usize,
    records: usize,
    rolls: bool,
    ends: bool,
    /// Whether those that are reached take what was appended; they vote before that.
    sends: bool,
    reached: [bool; 3],
}

/// The things that a member may make known of itself in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    Nothing,
    Runs,
    Ended,
    /// The member has ended, and its report on its last container is late.
    EndedLate,
    /// The member speaks, and not of the pipeline.
    LetGo,
    /// A piece of the container is lost, with what stood behind it.
    Damaged(u64),
    /// The member's node speaks, and has an empty disk in place of its own.
    LostDisk,
    /// All but this many records of its log are lost, for good.
    LostLog(usize),
}

#[derive(Default, Debug)]
struct History {
    logs: [Vec<Record>; 3],
    acknowledged: Vec<Record>,
    term: u64,
    leader: Option<usize>,
}

impl History {
    fn of(steps: &[Step]) -> History {
        let mut history = History::default();
        steps.iter().for_each(|step| history.step(step));
        history
    }

    fn end(&self, member: usize) -> (u64, usize) {
        let log = &self.logs[member];
        (log.last().map_or(0, |record| record.term), log.len())
    }

    fn step(&mut self, step: &Step) {
        let leader = step.leader;
        let reached: Vec<usize> =
            (0..3).filter(|member| *member != leader && step.reached[*member]).collect();
        if self.leader != Some(leader) {
            if !reached.iter().any(|voter| self.end(*voter) <= self.end(leader)) {
                return;
            }
            self.term += 1;
            self.leader = Some(leader);
        }
        for number in 0..step.records {
            let container = self.logs[leader].last().map_or(1, Record::next_container);
            let ends = step.ends && number == 0 && container != END;
            let is_roll = ends || step.rolls && number == 0 && container < CONTAINERS;
            self.logs[leader].push(Record { term: self.term, container, is_roll, ends });
        }
        if !step.sends {
            return;
        }
        for &follower in &reached {
            self.logs[follower] = self.logs[leader].clone();
        }
        // Raft counts copies of records of the leader's own term only.
        let is_own = self.logs[leader].last().is_some_and(|last| last.term == self.term);
        if !reached.is_empty() && is_own {
            assert!(self.logs[leader].starts_with(&self.acknowledged), "the model breaks Raft's rules");
            self.acknowledged = self.logs[leader].clone();
        }
    }

    /// The replicas that a log makes: each container with the term and the index of its last record, and
    /// whether it ends in a roll that was acknowledged.
    fn replicas(&self, log: &[Record]) -> BTreeMap<u64, (u64, u64, bool)> {
        let replica = |(at, record): (usize, &Record)| {
            let is_ended = record.is_roll && self.acknowledged.get(at) == Some(record);
            (record.container, (record.term, at as u64 + 1, is_ended))
        };
        log.iter().enumerate().filter(|(_, record)| record.container != END).map(replica).collect()
    }
}

impl History {
    /// Whether the log has the pipeline's last roll, and that was committed.
    fn has_committed_end(&self, log: &[Record]) -> bool {
        let at = log.iter().position(|record| record.ends);
        at.is_some_and(|at| self.acknowledged.get(at) == Some(&log[at]))
    }
}

struct Model {
    history: History,
    tables: Tables,
    nodes: Nodes,
    resolution: Resolution,
    now: Instant,
    lost: BTreeMap<usize, usize>,
    decided: BTreeSet<u64>,
}

impl Model {
    fn new(history: History) -> Model {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        // So none lets go before its end is noted, unless it has lost all it had.
        let begun = (1..=3).map(|replica| PipelineReplica { pipeline: 1, replica });
        run(&mut tables, Command::NoteBegun(NoteBegunCommand { members: begun.collect() }));
        for after in 1..CONTAINERS {
            run(&mut tables, Command::AllocateContainer(AllocateContainerCommand { pipeline: 1, after }));
        }
        run(&mut tables, close(1, ""));
        run(&mut tables, end(1));
        let now = Instant::now();
        let silence = Silence { stale_after: LET_GO, dead_after: 7 * ROUND, disk_lost_after: ROUND };
        let (nodes, resolution) = (Nodes::new(silence, now), Resolution::new(LET_GO));
        Model { history, tables, nodes, resolution, now, lost: BTreeMap::new(), decided: BTreeSet::new() }
    }

    fn say(&mut self, member: usize, says: Says, knows_ends: bool) {
        let node = member as u64 + 1;
        if let Says::LostLog(left) = says
            && !self.lost.contains_key(&member)
        {
            self.lost.insert(member, left);
            let note = NoteLostLogCommand { pipeline: 1, replica: node };
            run(&mut self.tables, Command::NoteLostLog(note));
        }
        if says == Says::Nothing {
            return;
        }
        let disk = disk(node, u8::from(says == Says::LostDisk));
        let told = DiskReport { disk: disk.clone(), ..DiskReport::default() };
        self.nodes.see(NodeId(node), vec![told], self.now);
        if says == Says::LostDisk {
            self.nodes.report_pipelines(NodeId(node), vec![], &Default::default());
            let report = ContainersReport { replicas: vec![], gone: vec![], begins: true, ends: true };
            self.nodes.report_containers(NodeId(node), report);
            return;
        }
        let log = &self.history.logs[member];
        let left = self.lost.get(&member).map_or(log.len(), |left| *left.min(&log.len()));
        let is_whole = left == log.len() && !self.lost.contains_key(&member);
        let state = match says {
            _ if !is_whole => MemberState::LogLost,
            Says::Runs => MemberState::Runs,
            _ if knows_ends && self.history.has_committed_end(log) => MemberState::Ended,
            _ => MemberState::QuasiClosed,
        };
        let let_go = says == Says::LetGo && is_whole;
        let report = PipelineReport {
            pipeline: 1,
            replica: node,
            state: state as i32,
            end: log_end(&log[..left]),
            ..PipelineReport::default()
        };
        let reports = if let_go { vec![] } else { vec![report] };
        self.nodes.report_pipelines(NodeId(node), reports, &Default::default());
        let mut replicas = self.history.replicas(&log[..left]);
        if is_whole && says == Says::EndedLate {
            replicas.pop_last();
        }
        let replica = |(&container, &(last_term, last_index, is_ended)): (&u64, &(u64, u64, bool))| {
            let state = match () {
                () if !is_whole => ReplicaState::ReplicaWithoutLog,
                () if is_ended && knows_ends => ReplicaState::ReplicaClosed,
                () if says == Says::Runs => ReplicaState::ReplicaOpen,
                () => ReplicaState::ReplicaQuasiClosed,
            };
            let is_damaged = says == Says::Damaged(container);
            // Damage is found in what is ended, and takes the end away with it.
            let last_index = last_index - u64::from(is_damaged && state != ReplicaState::ReplicaClosed);
            let unhealthy = if is_damaged { "a piece of a file".to_owned() } else { String::new() };
            ContainerReplica {
                container,
                pipeline: 1,
                state: state as i32,
                last_term,
                last_index,
                disk: disk.clone(),
                unhealthy,
                blocks: 1,
                ..ContainerReplica::default()
            }
        };
        let replicas = replicas.iter().map(replica).collect();
        let report = ContainersReport { replicas, gone: vec![], begins: true, ends: true };
        self.nodes.report_containers(NodeId(node), report);
    }

    /// Notes the ends of those who have ended: what that deletes has nothing that was acknowledged.
    fn note_ends(&mut self) {
        let record = self.tables.pipeline(PipelineId(1)).unwrap();
        let view = PipelineView::of(record, &self.nodes, self.now);
        let ended = view.members.iter().filter_map(MemberView::end_to_note).collect();
        let before = self.deleted();
        run(&mut self.tables, Command::EndPipeline(EndPipelineCommand { pipeline: 1, ended }));
        let acknowledged = self.history.replicas(&self.history.acknowledged);
        for container in self.deleted().difference(&before) {
            assert!(!acknowledged.contains_key(container), "{container} has what was acknowledged");
            assert!(self.decided.insert(*container), "{container} was decided before");
        }
    }

    fn deleted(&self) -> BTreeSet<u64> {
        let is_deleted = |record: &&ContainerRecord| record.state() == ContainerState::ContainerDeleted;
        self.tables.containers().values().filter(is_deleted).map(|record| record.container).collect()
    }

    /// Decides, checks and carries it out.
    fn decide(&mut self) {
        let containers = self.resolution.decide(&World::at(&self.tables, &self.nodes, self.now));
        let acknowledged = self.history.replicas(&self.history.acknowledged);
        for closed in &containers {
            let needed = acknowledged.get(&closed.container).map(|(term, index, _)| (*index, *term));
            match closed.state() {
                ContainerState::ContainerClosed => {
                    let end = Some((closed.last_index, closed.last_term));
                    assert!(end >= needed, "{closed:?} lacks what was acknowledged: {needed:?}");
                    if acknowledged.get(&closed.container).is_some_and(|(_, _, is_ended)| *is_ended) {
                        assert_eq!(end, needed, "the roll was acknowledged");
                    }
                }
                ContainerState::ContainerDeleted => {
                    assert_eq!(needed, None, "{closed:?} has what was acknowledged");
                }
                _ => continue,
            }
            assert!(self.decided.insert(closed.container), "{closed:?} was decided before");
        }
        if !containers.is_empty() {
            run(&mut self.tables, Command::SettleContainers(SettleContainersCommand { containers }));
        }
    }
}

fn log_end(log: &[Record]) -> Option<LogEnd> {
    let (last, told) = (log.last()?, log.iter().rposition(|record| record.container != END)?);
    let (container, term) = (log[told].container, log[told].term);
    let (log_term, log_index) = (last.term, log.len() as u64);
    Some(LogEnd { container, term, index: told as u64 + 1, log_term, log_index })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = (any::<bool>(), prop::bool::weighted(0.3), prop::bool::weighted(0.7));
    let step = (0..3usize, 0..4usize, flags, any::<[bool; 3]>());
    let step = step.prop_map(|(leader, records, (rolls, ends, sends), reached)| Step {
        leader,
        records,
        rolls,
        ends,
        sends,
        reached,
    });
    prop::collection::vec(step, 1..12)
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![
        2 => Just(Says::Nothing),
        1 => Just(Says::Runs),
        5 => Just(Says::Ended),
        1 => Just(Says::EndedLate),
        1 => Just(Says::LetGo),
        1 => Just(Says::LostDisk),
        1 => (1..=CONTAINERS).prop_map(Says::Damaged),
        1 => (0..12usize).prop_map(Says::LostLog),
    ]
}

/// A history, what members say in each round and whether they know their ends, and whether SCM notes those.
type Case = (Vec<Step>, Vec<[(Says, bool); 3]>, bool);

fn cases() -> impl Strategy<Value = Case> {
    let round = prop::array::uniform3((says(), any::<bool>()));
    (steps(), prop::collection::vec(round, 1..4), any::<bool>())
}

fn check((steps, rounds, are_noted): Case) {
    let mut model = Model::new(History::of(&steps));
    model.decide();
    for round in rounds {
        for (member, (says, knows_ends)) in round.into_iter().enumerate() {
            model.say(member, says, knows_ends);
        }
        if are_noted {
            model.note_ends();
        }
        model.decide();
        model.now += ROUND;
    }
    model.decide();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn wherever_a_container_ends_it_has_what_was_acknowledged(case in cases()) {
        check(case);
    }
}

#[test]
fn a_log_that_is_lost_and_proves_something_would_be_found() {
    planted::plant(Some(Bug::LogsNeedNoProof));
    let config = Config { cases: 4000, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let found = TestRunner::new_with_rng(config, random).run(&cases(), |case| {
        check(case);
        Ok(())
    });
    planted::plant(None);
    assert!(matches!(found, Err(TestError::Fail(..))), "{found:?}");
}
