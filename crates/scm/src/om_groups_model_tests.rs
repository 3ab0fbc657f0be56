//! Random histories of OMs, of the groups that they have, and of SCM, which forgets, is reset to an older
//! state, and hears late or not at all: names are founded once, and nothing of them is deleted that counts.

use crate::om_groups::{OmGroups, has_names};
use crate::om_orders::answer;
use crate::om_view::{is_well, leader};
use crate::oms::Oms;
use crate::ops::testing::{give_up, members, run, set_om_duty, uuid};
use crate::tables::{OM_MEMBERS, OmReplica, Tables, TablesMut};
use crate::world::World;
use proptest::prelude::*;
use proto::scm::{
    NodeDuty, OmGroup, OmHeartbeatResponse, OmMember, OmReplicaReport, RegisterOmCommand,
    scm_command::Command,
};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use types::NodeId;

const STALE_AFTER: Duration = Duration::from_secs(5);
const DEAD_AFTER: Duration = Duration::from_secs(20);
const ROUND: Duration = Duration::from_secs(2);
/// The number of rounds after which whoever was silent is dead.
const LONG: u32 = 12;
const OMS_MAX: usize = 7;

#[derive(Clone, Debug)]
enum Step {
    Rounds(u32),
    Add,
    Stop(usize),
    Start(usize),
    /// An OM cannot reach SCM, or can again.
    Mute(usize, bool),
    Empty(usize),
    Decommission(usize),
    Return(usize),
    /// Leaders carry nothing out, or do again.
    Stall(bool),
    /// A report of an OM is heard after its next one.
    Late(usize),
    ScmElects,
    /// The last decisions are lost.
    ScmReset(usize),
    /// A person resets the group on an OM, which speaks before it leads, or after that.
    PersonResets(usize, bool),
}

/// The contents of SCM's log.
enum Entry {
    Command(Command),
    Reset,
}

/// An OM's process, and its directory.
#[derive(Clone)]
struct Om {
    uuid: u8,
    address: String,
    number: u64,
    runs: bool,
    mute: bool,
    here: Option<Here>,
    /// Replicas that a person gave up.
    given_up: BTreeSet<u64>,
    told: Option<OmGroup>,
    late: Option<(u64, Vec<OmReplicaReport>)>,
}

/// An OM's replica of group 0.
#[derive(Clone, Copy)]
struct Here {
    replica: u64,
    /// The number of the group that the replica belongs to; `None` while it waits for a leader.
    raft: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Stable,
    /// Two sets of voters must agree.
    Joint,
    /// The leader's log has the new set, and nobody else's yet.
    Ending,
}

/// A group as it is, whatever SCM thinks.
struct Raft {
    voters: BTreeSet<OmReplica>,
    before: BTreeSet<OmReplica>,
    stage: Stage,
    term: u64,
    last_index: u64,
    /// The entry with the new set, while that is ending.
    ending_at: u64,
    leader: Option<OmReplica>,
    is_founded: bool,
    /// Whether a person has reset the group, and this is the one of the replicas that were given up.
    is_past: bool,
}

struct Model {
    tables: Tables,
    log: Vec<Entry>,
    heard: Oms,
    planner: OmGroups,
    now: Instant,
    oms: Vec<Om>,
    rafts: Vec<Raft>,
    drawn: BTreeSet<u64>,
    /// All replicas that were ever opened.
    opened: BTreeSet<OmReplica>,
    stalled: bool,
    uuids: u8,
    given_up: bool,
}

impl Model {
    fn new() -> Model {
        let now = Instant::now();
        Model {
            tables: Tables::default(),
            log: Vec::new(),
            heard: Oms::new(STALE_AFTER, DEAD_AFTER, now),
            planner: OmGroups::new(Duration::from_millis(200), 1),
            now,
            oms: Vec::new(),
            rafts: Vec::new(),
            drawn: BTreeSet::new(),
            opened: BTreeSet::new(),
            stalled: false,
            uuids: 0,
            given_up: false,
        }
    }

    fn run(&mut self, command: Command) -> proto::scm::ScmReply {
        self.log.push(Entry::Command(command.clone()));
        run(&mut self.tables, command)
    }

    fn step(&mut self, step: &Step) {
        let count = self.oms.len();
        let at = |number: &usize| number % count.max(1);
        match step {
            Step::Add if count < OMS_MAX => self.add(),
            Step::Add => {}
            Step::Rounds(rounds) => (0..*rounds).for_each(|_| self.round()),
            Step::Stall(stalled) => self.stalled = *stalled,
            Step::ScmElects => self.scm_begins(),
            // SCM is not to lose the word of a person.
            Step::ScmReset(lost) if self.oms.iter().all(|om| !self.is_past(om)) => self.scm_reset(*lost),
            Step::ScmReset(_) => {}
            _ if count == 0 => {}
            Step::Stop(om) => self.oms[at(om)].runs = false,
            Step::Start(om) => self.oms[at(om)].runs = self.may_run(&self.oms[at(om)]),
            Step::Mute(om, mute) => self.oms[at(om)].mute = *mute,
            Step::Empty(om) => self.empty(at(om)),
            Step::Decommission(om) => self.set_duty(at(om), NodeDuty::NodeDecommissioning),
            Step::Return(om) => self.set_duty(at(om), NodeDuty::NodeInService),
            Step::Late(om) => {
                let om = at(om);
                self.oms[om].late = Some((self.oms[om].number, self.reports(om)));
            }
            Step::PersonResets(om, speaks_first) => self.person_resets(at(om), *speaks_first),
        }
        self.elect();
    }

    /// Whether the OM has a replica that a person gave up.
    fn is_past(&self, om: &Om) -> bool {
        let raft = om.here.and_then(|here| here.raft);
        raft.is_some_and(|raft| self.rafts[raft].is_past)
    }

    /// Whether the OM may run: a person who resets a group keeps the others away until SCM knows of that.
    fn may_run(&self, om: &Om) -> bool {
        let record = self.tables.om_group(0);
        let is_noted = |replica: &u64| record.is_some_and(|record| record.given_up.contains(replica));
        !self.is_past(om) || self.oms.iter().flat_map(|om| &om.given_up).all(is_noted)
    }

    fn new_uuid(&mut self) -> u8 {
        self.uuids += 1;
        self.uuids
    }

    fn add(&mut self) {
        let uuid = self.new_uuid();
        self.oms.push(Om {
            uuid,
            address: format!("om{uuid}:1"),
            number: 0,
            runs: true,
            mute: false,
            here: None,
            given_up: BTreeSet::new(),
            told: None,
            late: None,
        });
    }

    fn empty(&mut self, om: usize) {
        let uuid = self.new_uuid();
        let given_up = BTreeSet::new();
        self.oms[om] = Om { uuid, number: 0, here: None, given_up, told: None, ..self.oms[om].clone() };
    }

    fn set_duty(&mut self, om: usize, duty: NodeDuty) {
        let number = self.oms[om].number;
        if self.tables.om(NodeId(number)).is_some() {
            self.run(set_om_duty(number, duty));
        }
    }

    fn scm_begins(&mut self) {
        self.heard = Oms::new(STALE_AFTER, DEAD_AFTER, self.now);
        self.planner = OmGroups::new(Duration::from_millis(200), 1);
    }

    fn scm_reset(&mut self, lost: usize) {
        // A second reset does not undo the first: who is left has that in its log.
        let since = self.log.iter().rposition(|entry| matches!(entry, Entry::Reset)).map_or(0, |at| at + 1);
        self.log.truncate(self.log.len().saturating_sub(lost).max(since));
        self.log.push(Entry::Reset);
        self.tables = Tables::default();
        for entry in &self.log {
            match entry {
                Entry::Command(command) => drop(run(&mut self.tables, command.clone())),
                Entry::Reset => TablesMut::new(&mut self.tables).reset(),
            }
        }
        self.scm_begins();
    }

    /// A person makes a replica the only member of its group, where nobody else is there. Replicas that are
    /// given up keep what they have, and may come back with it.
    fn person_resets(&mut self, om: usize, speaks_first: bool) {
        if self.is_past(&self.oms[om]) {
            return;
        }
        for (at, other) in self.oms.iter_mut().enumerate() {
            other.runs = at == om;
        }
        self.elect();
        let Some(Here { replica, raft: Some(at) }) = self.oms[om].here else { return };
        let here = OmReplica { replica, om: self.oms[om].number };
        let is_lost = self.rafts[at].leader.is_none() && self.oms[om].runs;
        let past = &mut self.rafts[at];
        if !is_lost || !past.is_founded || past.is_past || !past.voters.contains(&here) {
            return;
        }
        past.is_past = true;
        let others = past.voters.iter().chain(&past.before).map(|other| other.replica);
        let given_up: Vec<u64> = others.filter(|other| *other != replica).collect();
        let reset = Raft {
            voters: BTreeSet::from([here]),
            before: BTreeSet::new(),
            stage: Stage::Stable,
            leader: None,
            is_past: false,
            last_index: past.last_index + 1,
            ..*past
        };
        let om = &mut self.oms[om];
        om.here = Some(Here { replica, raft: Some(self.rafts.len()) });
        om.given_up.extend(given_up);
        // The OM's process was stopped for that.
        om.told = None;
        self.rafts.push(reset);
        if speaks_first {
            self.beat(self.oms.iter().position(|om| om.runs).expect("it runs"));
        }
    }

    fn round(&mut self) {
        self.now += ROUND;
        for om in 0..self.oms.len() {
            self.beat(om);
            self.decide();
            self.elect();
        }
        for raft in 0..self.rafts.len() {
            if !self.stalled {
                self.lead(raft);
            }
        }
        self.elect();
    }

    fn beat(&mut self, at: usize) {
        let Om { uuid: uuid_of, address, number, runs: true, mute: false, .. } = self.oms[at].clone() else {
            return;
        };
        if number == 0 || self.tables.om_address(NodeId(number)) != address {
            let command = RegisterOmCommand { uuid: uuid(uuid_of), address, om: number };
            let drawn = self.run(Command::RegisterOm(command)).om;
            assert!(number == 0 || drawn == number, "its replicas' memberships have {number}, not {drawn}");
            self.oms[at].number = drawn;
        }
        let om = NodeId(self.oms[at].number);
        let reports = self.reports(at);
        self.heard.hear(om, reports, self.now);
        let answer = answer(&World::of_oms(&self.tables, &self.heard, self.now), om);
        self.obey(at, answer);
        if let Some((_, reports)) = self.oms[at].late.take_if(|(number, _)| *number == om.0) {
            self.heard.hear(om, reports, self.now);
        }
    }

    fn reports(&self, at: usize) -> Vec<OmReplicaReport> {
        let om = &self.oms[at];
        let Some(Here { replica, raft }) = om.here else { return Vec::new() };
        let told = om.told.iter().flat_map(|told| &told.members);
        let wanted = told.map(|member| member.replica).collect();
        let given_up = om.given_up.iter().copied().collect();
        let report = OmReplicaReport { replica, wanted, given_up, ..OmReplicaReport::default() };
        let Some(raft) = raft.map(|raft| &self.rafts[raft]) else { return vec![report] };
        let is_changing = raft.stage == Stage::Joint;
        let voters = raft.voters.iter().chain(raft.before.iter().filter(|_| is_changing));
        let member = |member: &OmReplica| OmMember {
            replica: member.replica,
            om: member.om,
            is_voter: true,
            address: String::new(),
        };
        let here = OmReplica { replica, om: om.number };
        let is_member = raft.voters.contains(&here) || raft.before.contains(&here);
        let leader = raft.leader.filter(|_| is_member);
        let applied_index = if raft.stage == Stage::Ending { raft.ending_at - 1 } else { raft.last_index };
        vec![OmReplicaReport {
            term: raft.term,
            leader_replica: leader.map_or(0, |leader| leader.replica),
            last_index: raft.last_index,
            applied_index,
            members: voters.collect::<BTreeSet<_>>().into_iter().map(member).collect(),
            is_changing,
            is_founded: raft.is_founded,
            ..report
        }]
    }

    fn obey(&mut self, at: usize, answer: OmHeartbeatResponse) {
        let number = self.oms[at].number;
        for gone in &answer.gone {
            let here = self.oms[at].here.filter(|here| here.replica == gone.replica).expect("it said so");
            let name = OmReplica { replica: here.replica, om: number };
            let raft = here.raft.map(|raft| &self.rafts[raft]);
            let votes = |raft: &Raft| raft.voters.contains(&name) || raft.before.contains(&name);
            let counts = raft.is_some_and(|raft| raft.is_founded && !raft.is_past && votes(raft));
            let record = self.tables.om_group(0).expect("it is told of");
            assert!(!counts && !name.is_in(&record.members), "{name:?} votes, and is told to go");
            self.oms[at].here = None;
        }
        self.oms[at].told = answer.groups.into_iter().next();
        let Some(told) = self.oms[at].told.clone() else { return };
        let mine = told.members.iter().find(|member| member.om == number);
        if let (None, Some(mine)) = (self.oms[at].here, mine) {
            let replica = OmReplica { replica: mine.replica, om: number };
            assert!(self.opened.insert(replica), "{replica:?} begins again with nothing");
        }
        match (self.oms[at].here, mine) {
            (None, Some(mine)) if told.is_founded => {
                self.oms[at].here = Some(Here { replica: mine.replica, raft: None });
            }
            (None, Some(mine)) => {
                let record = self.tables.om_group(0).expect("it is told of");
                assert!(!record.is_founded && told.members.len() == 1, "{told:?} is to be begun");
                let only = OmReplica { replica: mine.replica, om: number };
                self.oms[at].here = Some(Here { replica: mine.replica, raft: Some(self.rafts.len()) });
                self.rafts.push(Raft {
                    voters: BTreeSet::from([only]),
                    before: BTreeSet::new(),
                    stage: Stage::Stable,
                    term: 1,
                    last_index: 1,
                    ending_at: 0,
                    leader: Some(only),
                    is_founded: false,
                    is_past: false,
                });
            }
            (Some(Here { replica, raft: Some(raft) }), _) if told.is_founded => {
                let leads = self.rafts[raft].leader == Some(OmReplica { replica, om: number });
                if leads && !self.rafts[raft].is_founded {
                    assert!(mine.is_some(), "it would serve names that are not its own");
                    self.rafts[raft].is_founded = true;
                    self.rafts[raft].last_index += 1;
                }
            }
            _ => {}
        }
        let founded = self.rafts.iter().filter(|raft| raft.is_founded && !raft.is_past).count();
        assert!(founded <= 1 || self.given_up, "names were founded beside the names");
    }

    /// Lets SCM decide, checks and carries it out.
    fn decide(&mut self) {
        let world = World::of_oms(&self.tables, &self.heard, self.now);
        let commands = self.planner.decide(&world);
        for command in &commands {
            if let Command::ChangeOmGroup(change) = command {
                let record = self.tables.om_group(0).expect("it changes");
                let wanted = OmReplica::all(&record.members);
                let leader = leader(&world, record).expect("its leader has said who its members are");
                let said = leader.voters();
                let growth =
                    said.len() == 1 || record.members.iter().filter(|member| !member.has_voted).count() == 2;
                let differ = wanted.difference(&said).count().max(said.difference(&wanted).count());
                assert!(differ <= 1 || growth, "{change:?}: {wanted:?} is wanted, and {said:?} are there");
                for leaving in record.members.iter().filter(|member| change.removed.contains(&member.replica))
                {
                    assert!(!is_well(&world, NodeId(leaving.om)), "{leaving:?} is well, and is replaced");
                }
            }
        }
        for command in commands {
            let draws = matches!(command, Command::FoundOmGroup(_) | Command::ChangeOmGroup(_));
            let before: BTreeSet<u64> = self.replicas();
            let refused = self.run(command.clone()).refused;
            assert_eq!(refused, "", "{command:?}");
            for drawn in self.replicas().difference(&before).filter(|_| draws) {
                assert!(self.drawn.insert(*drawn), "{drawn} was drawn before");
            }
        }
    }

    fn replicas(&self) -> BTreeSet<u64> {
        let record = self.tables.om_group(0);
        record.into_iter().flat_map(|record| &record.members).map(|member| member.replica).collect()
    }

    fn is_there(&self, raft: usize, replica: &OmReplica) -> bool {
        let has =
            |om: &Om| om.here.is_some_and(|here| here.replica == replica.replica && here.raft == Some(raft));
        self.oms.iter().any(|om| om.runs && om.number == replica.om && has(om))
    }

    fn has_majority(&self, raft: usize, voters: &BTreeSet<OmReplica>) -> bool {
        voters.iter().filter(|voter| self.is_there(raft, voter)).count() > voters.len() / 2
    }

    /// Whether a group can elect and go on.
    fn is_up(&self, at: usize) -> bool {
        let raft = &self.rafts[at];
        self.has_majority(at, &raft.voters) && (raft.before.is_empty() || self.has_majority(at, &raft.before))
    }

    fn elect(&mut self) {
        for at in 0..self.rafts.len() {
            let raft = &self.rafts[at];
            let leader = raft.leader.filter(|leader| self.is_there(at, leader));
            let is_up = self.is_up(at);
            if is_up && leader.is_some() {
                continue;
            }
            // Voters that leave lead as well, until they have left.
            let next = raft.before.iter().chain(&raft.voters).find(|voter| self.is_there(at, voter)).copied();
            let raft = &mut self.rafts[at];
            if leader.is_none() && raft.stage == Stage::Ending {
                raft.stage = Stage::Joint;
            }
            raft.leader = next.filter(|_| is_up);
            if raft.leader.is_some() {
                raft.term += 1;
                raft.last_index += 1;
            }
        }
    }

    /// The leader comes on with what it was told.
    fn lead(&mut self, at: usize) {
        let raft = &self.rafts[at];
        let Some(leader) = raft.leader.filter(|_| self.is_up(at)) else { return };
        match raft.stage {
            Stage::Joint => {
                let raft = &mut self.rafts[at];
                raft.stage = Stage::Ending;
                raft.last_index += 1;
                raft.ending_at = raft.last_index;
            }
            Stage::Ending => {
                let raft = &mut self.rafts[at];
                raft.stage = Stage::Stable;
                raft.before.clear();
                if !raft.voters.contains(&leader) {
                    raft.leader = None;
                }
            }
            Stage::Stable => self.lead_change(at, leader),
        }
    }

    fn lead_change(&mut self, at: usize, leader: OmReplica) {
        let told = self.oms.iter().find(|om| om.number == leader.om).and_then(|om| om.told.clone());
        let Some(told) = told.filter(|told| told.is_founded) else { return };
        let wanted: BTreeSet<OmReplica> =
            told.members.iter().map(|member| OmReplica { replica: member.replica, om: member.om }).collect();
        let voters = &self.rafts[at].voters;
        if wanted == *voters {
            return;
        }
        let joining: Vec<OmReplica> = wanted.difference(voters).copied().collect();
        let here = self.oms.iter().find(|om| om.number == leader.om).expect("it leads");
        if joining.iter().any(|new| here.given_up.contains(&new.replica)) {
            return;
        }
        for new in &joining {
            let has = |om: &&mut Om| {
                om.runs && om.number == new.om && om.here.is_some_and(|here| here.replica == new.replica)
            };
            let Some(here) = self.oms.iter_mut().find(has).and_then(|om| om.here.as_mut()) else { return };
            let is_strange = here.raft.is_some_and(|raft| raft != at);
            if is_strange && self.rafts[at].is_past {
                return;
            }
            assert!(!is_strange, "{new:?} has the names of another group");
            here.raft = Some(at);
        }
        if self.has_majority(at, &wanted) {
            let raft = &mut self.rafts[at];
            raft.before = std::mem::replace(&mut raft.voters, wanted);
            raft.stage = Stage::Joint;
            raft.last_index += 1;
        }
    }

    /// Everything is well for long; whatever can be is as it is to be.
    fn settle(&mut self) {
        self.stalled = false;
        for _ in 0..2 {
            for at in 0..self.oms.len() {
                let runs = self.may_run(&self.oms[at]);
                (self.oms[at].runs, self.oms[at].mute) = (runs, false);
            }
            (0..LONG).for_each(|_| self.round());
        }
        let is_now = |raft: &Raft| raft.is_founded && !raft.is_past;
        let names: Vec<usize> = (0..self.rafts.len()).filter(|raft| is_now(&self.rafts[*raft])).collect();
        if let [names] = names[..] {
            self.elect();
            if !self.is_up(names) {
                // These names are for a person to give up.
                return;
            }
        } else if self.tables.om_group(0).is_some_and(|record| record.is_founded) {
            // The OM was emptied before it heard that it had founded the names.
            return;
        }
        let reports: Vec<OmReplicaReport> = (0..self.oms.len()).flat_map(|om| self.reports(om)).collect();
        if self.tables.names_may_be_elsewhere(0).is_some() && !reports.iter().any(has_names) {
            self.given_up = true;
            self.run(give_up(0));
        }
        for _ in 0..OM_MEMBERS {
            self.add();
        }
        (0..3 * LONG).for_each(|_| self.round());
        let record = self.tables.om_group(0).expect("names are founded");
        let wanted = OmReplica::all(&record.members);
        let world = World::of_oms(&self.tables, &self.heard, self.now);
        assert!(record.is_founded && record.members.iter().all(|member| member.has_voted), "{record:?}");
        assert_eq!(record.members.len(), OM_MEMBERS, "{record:?}");
        assert!(record.members.iter().all(|member| is_well(&world, NodeId(member.om))), "{record:?}");
        let led: Vec<&Raft> =
            self.rafts.iter().filter(|raft| is_now(raft) && raft.voters == wanted).collect();
        assert_eq!(led.len(), 1, "{:?} are wanted", members(&self.tables, 0));
        let leaving = self.tables.oms().values().filter(|om| om.duty() == NodeDuty::NodeDecommissioning);
        assert_eq!(leaving.count(), 0, "whoever leaves has left");
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let om = || 0..OMS_MAX;
    prop_oneof![
        8 => (1..4u32).prop_map(Step::Rounds),
        2 => Just(Step::Rounds(LONG)),
        4 => Just(Step::Add),
        3 => om().prop_map(Step::Stop),
        3 => om().prop_map(Step::Start),
        2 => (om(), any::<bool>()).prop_map(|(om, mute)| Step::Mute(om, mute)),
        2 => om().prop_map(Step::Empty),
        2 => om().prop_map(Step::Decommission),
        1 => om().prop_map(Step::Return),
        1 => any::<bool>().prop_map(Step::Stall),
        2 => om().prop_map(Step::Late),
        1 => Just(Step::ScmElects),
        1 => (0..12usize).prop_map(Step::ScmReset),
        2 => (om(), any::<bool>()).prop_map(|(om, speaks)| Step::PersonResets(om, speaks)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn names_are_founded_once_and_have_three_members_in_the_end(
        oms in 0..4usize,
        steps in prop::collection::vec(any_step(), 0..50),
    ) {
        let mut model = Model::new();
        (0..oms).for_each(|_| model.add());
        steps.iter().for_each(|step| model.step(step));
        model.settle();
    }
}
