use super::client::{Client, Part};
use super::ending::check_log;
use super::faults::{FREE_BYTES, Fault, Links, Remedy, random_crash, random_fault};
use super::node::{Node, Replica, SnapshotStage};
use super::operator::Operator;
use super::oracle::Oracle;
use super::plan::{Plan, random_disk};
use super::planted::Planted;
use super::seats::Seats;
use super::wire;
use crate::services::{Finished, Life, Violation, live};
use crate::world::{Crash, ProcessId, Trace, World};
use clap::ValueEnum;
use disk::sim::{Random, SimOptions};
use planted::Bug;
use raft::{GroupStatus, Role};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::{GroupId, Term};

/// One attempt of a client in so many is made with any replica, whoever was said to lead.
const ANYWHERE_ONE_IN: u64 = 4;
/// The interval at which it is looked which replicas doze.
const DOZE_LOOK_MS: u128 = 50;

/// The time between a disk that has space again and the last error that this excuses.
const SHORT_AFTERMATH: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub seed: u64,
    /// Prints every event.
    pub is_printed: bool,
    pub planted: Option<Planted>,
}

/// Runs one cluster from its beginning to its end.
pub fn run(options: Options) -> Result<Finished, Violation> {
    let mut replay = format!("./dev sim --seed {} --seeds 1", options.seed);
    if let Some(name) = options.planted.and_then(|planted| planted.to_possible_value()) {
        replay += &format!(" --planted {}", name.get_name());
    }
    live(options.seed, replay, move || Run::new(options))
}

pub(super) struct Run {
    pub(super) world: World,
    pub(super) plan: Arc<Plan>,
    pub(super) oracle: Oracle,
    pub(super) nodes: Vec<Node>,
    pub(super) seats: Seats,
    pub(super) operators: Vec<Operator>,
    pub(super) statuses: BTreeMap<(ProcessId, GroupId), Watch>,
    pub(super) clients: Vec<Client>,
    pub(super) links: Links,
    pub(super) remedies: BTreeMap<(Duration, u64), Remedy>,
    pub(super) remedies_made: u64,
    /// The randomness of faults, and that of clients.
    pub(super) random: Random,
    pub(super) client_random: Random,
    pub(super) next_fault: Duration,
    splits: BTreeMap<GroupId, Split>,
    upsets: BTreeMap<GroupId, Upset>,
}

/// A split in which a leader is alone with those of its group's clients that read by lease; others write
/// elsewhere.
struct Split {
    leader: ProcessId,
    until: Duration,
}

/// The sequel of a group's next election: a leader that is cut off for so long, and crashes of all others.
struct Upset {
    lasts: Duration,
    disk: SimOptions,
}

/// A replica's status, as last looked at.
pub(super) struct Watch {
    pub(super) replica: Replica,
    pub(super) statuses: watch::Receiver<GroupStatus>,
    pub(super) seen: Option<(Role, Term)>,
    /// The time when what a removed replica has is to be deleted.
    pub(super) removed_at: Option<Duration>,
    pub(super) is_dozing: bool,
    pub(super) stage: Option<SnapshotStage>,
}

impl Run {
    fn new(options: Options) -> Run {
        let mut random = Random::new(options.seed);
        types::random::seed_thread(random.next_u64());
        planted::plant((options.planted == Some(Planted::LeadersRestored)).then_some(Bug::LeadersRestored));
        let plan = Arc::new(Plan::new(&mut random, options.planted));
        let trace = Trace::new(options.is_printed);
        trace.event(format_args!("{plan:?}"));
        let oracle = Oracle::new(trace.clone());
        let mut world = World::new(random.next_u64(), trace);
        world.network().observe(wire::observer(oracle.clone()));
        for (number, drift_ppm) in plan.drifts_ppm.iter().enumerate() {
            let disk = random_disk(&mut random);
            world.add(format!("n{}", number + 1), disk, *drift_ppm);
        }
        let mut seats = Seats::default();
        let mut clients = Vec::new();
        for group in &plan.groups {
            for process in &group.first_members {
                seats.give(*process, group);
            }
            let ordinary = std::iter::repeat_n(Part::Anything, plan.clients_per_group as usize);
            for part in ordinary.chain([Part::ReadByLease, Part::WriteElsewhere]) {
                clients.push(Client::new(clients.len() as u64, group.id, part));
            }
        }
        let operators = plan.groups.iter().map(Operator::new).collect();
        let links = Links::new(plan.processes, &mut random);
        links.apply_to(world.network());
        let nodes = world.processes().map(|_| Node::new(oracle.clone())).collect();
        let client_random = Random::new(random.next_u64());
        Run {
            world,
            plan,
            oracle,
            nodes,
            seats,
            operators,
            statuses: BTreeMap::new(),
            clients,
            links,
            remedies: BTreeMap::new(),
            remedies_made: 0,
            random,
            client_random,
            next_fault: Duration::from_secs(1),
            splits: BTreeMap::new(),
            upsets: BTreeMap::new(),
        }
    }

    /// One tick of everything but faults.
    pub(super) fn step(&mut self, is_ending: bool) -> Result<(), String> {
        self.clients_step(is_ending);
        self.operators_step(is_ending);
        self.world.advance();
        // First of all: whoever panicked may hold what all else needs.
        if let Some(panicked) = self.world.panicked() {
            return Err(panicked.to_owned());
        }
        self.look();
        match self.oracle.violation() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    fn start(&mut self, process: ProcessId) {
        let node = self.nodes[process.0].next();
        self.nodes[process.0] = node.clone();
        let plan = self.plan.clone();
        let seats = self.seats.on(process);
        self.world.start(process, |context| node.run(context, plan, seats));
    }

    fn crash(&mut self, process: ProcessId, crash: Crash, disk: SimOptions) {
        self.oracle.count(|counts| counts.crashes += 1);
        for group in &self.plan.groups {
            if let Some(replica) = self.nodes[process.0].replica(group.id) {
                self.oracle.count(|counts| replica.crashes(counts));
            }
        }
        self.statuses.retain(|(on, _), _| *on != process);
        self.world.crash(process, crash, disk);
        self.nodes[process.0] = self.nodes[process.0].next();
        self.seats.lose_power(process, &mut self.random);
    }
}

impl Life for Run {
    fn world(&self) -> &World {
        &self.world
    }

    fn live(&mut self) -> Result<Finished, String> {
        for process in self.world.processes() {
            self.start(process);
        }
        while self.world.now() < self.plan.faults_last {
            self.faults_step();
            self.step(false)?;
        }
        let settled = self.settle()?;
        self.check_end()?;
        let mut counts = self.oracle.counts();
        counts.events = self.world.trace().events();
        Ok(Finished {
            counts: counts.named(),
            virtual_ms: self.world.now().as_millis() as u64,
            hash: self.world.trace_hash(),
            settled_ms: settled.as_millis() as u64,
        })
    }
}

/// Faults and what ends them.
impl Run {
    fn faults_step(&mut self) {
        let now = self.world.now();
        while let Some(first) = self.remedies.first_entry().filter(|first| first.key().0 <= now) {
            let remedy = first.remove();
            self.remedy(remedy);
        }
        if self.plan.weights.crash_one > 0 {
            self.disturb_snapshots();
        }
        if now < self.next_fault {
            return;
        }
        let pause = self.plan.fault_pause_ms;
        self.next_fault = now + Duration::from_millis(1 + self.random.below(2 * pause));
        if let Some((fault, lasts)) = random_fault(&self.plan, &mut self.random) {
            self.fault(fault, now + lasts);
        }
    }

    fn fault(&mut self, fault: Fault, until: Duration) {
        self.world.trace().event(format_args!("{fault:?} until {} ms", until.as_millis()));
        match fault {
            Fault::Partition { side, one_way } => self.cut(&side, one_way, until),
            Fault::LoneLeader(group, one_way) => {
                if let Some(leader) = self.leader(group) {
                    self.cut(&[leader], one_way, until);
                }
            }
            Fault::BadLink { from, to, link } => {
                let fault = self.links.add(vec![(from, to, link)]);
                self.links.apply_to(self.world.network());
                self.later(until, Remedy::Network(fault));
            }
            Fault::Crash { processes, crash, disk, down } => {
                for process in processes {
                    self.crash_for(process, crash, disk, down);
                }
            }
            Fault::SplitClients(group) => {
                if let Some(leader) = self.leader(group) {
                    self.oracle.count(|counts| counts.split_clients += 1);
                    self.cut(&[leader], false, until);
                    self.splits.insert(group, Split { leader, until });
                }
            }
            Fault::UpsetElection(group, disk) => {
                let lasts = until - self.world.now();
                self.upsets.insert(group, Upset { lasts, disk });
            }
            Fault::FullDisk { process, free_bytes } => {
                self.oracle.count(|counts| counts.full_disks += 1);
                self.world.disk(process).set_free_bytes(free_bytes);
                self.nodes[process.0].set_disk_short(true);
                self.later(until, Remedy::Space(process));
            }
            Fault::Transfer(group) => self.transfer(group),
            Fault::Reopen { group, process, pause } => {
                if self.world.is_up(process) {
                    let node = self.nodes[process.0].clone();
                    self.world.spawn(process, node.reopen(group, pause));
                }
            }
        }
    }

    /// Crashes a machine, unless it is down already, and starts it after `down`.
    fn crash_for(&mut self, process: ProcessId, crash: Crash, disk: SimOptions, down: Duration) {
        if self.world.is_up(process) {
            self.crash(process, crash, disk);
            self.later(self.world.now() + down, Remedy::Start(process));
        }
    }

    /// Crashes machines while they write, receive or install snapshots: that takes so little time that other
    /// crashes hardly ever hit it.
    fn disturb_snapshots(&mut self) {
        const DISTURBED_ONE_IN: u64 = 8;
        const DOWN_MS_MAX: u64 = 1000;
        let mut hit = Vec::new();
        for ((process, _), watch) in &mut self.statuses {
            let stage = watch.replica.snapshot_stage();
            if stage.is_some() && stage != watch.stage && self.random.one_in(DISTURBED_ONE_IN) {
                hit.push(*process);
            }
            watch.stage = stage;
        }
        for process in hit {
            let (crash, disk) = (random_crash(&mut self.random), random_disk(&mut self.random));
            let down = Duration::from_millis(1 + self.random.below(DOWN_MS_MAX));
            self.crash_for(process, crash, disk, down);
        }
    }

    /// Upsets an election: the new leader has heard of it, and nobody has heard of the leader.
    fn upset(&mut self, leader: ProcessId, group: GroupId) {
        const DOWN_MS_MAX: u64 = 50;
        let Some(Upset { lasts, disk }) = self.upsets.remove(&group) else { return };
        self.world.trace().event(format_args!("{group:?}: the election of {leader} is upset"));
        self.oracle.count(|counts| counts.upset_elections += 1);
        self.cut(&[leader], false, self.world.now() + lasts);
        for (process, _) in self.seats.of(group) {
            let down = Duration::from_millis(1 + self.random.below(DOWN_MS_MAX));
            if process != leader {
                let crash = random_crash(&mut self.random);
                self.crash_for(process, crash, disk, down);
            }
        }
    }

    fn cut(&mut self, side: &[ProcessId], one_way: bool, until: Duration) {
        self.oracle.count(|counts| counts.partitions += 1);
        let fault = self.links.cut(side, one_way);
        self.links.apply_to(self.world.network());
        self.later(until, Remedy::Network(fault));
    }

    fn transfer(&mut self, group: GroupId) {
        let Some(leader) = self.leader(group) else { return };
        let mut others = self.seats.of(group);
        others.retain(|(process, _)| *process != leader);
        if others.is_empty() {
            return;
        }
        let (_, to) = *self.random.pick(&others);
        let Some(replica) = self.nodes[leader.0].replica(group) else { return };
        self.oracle.count(|counts| counts.transfers += 1);
        self.world.spawn(leader, async move {
            // A transfer may fail for many reasons, and must do no harm.
            let _ = replica.group.transfer_leader(to).await;
        });
    }

    /// The process that takes itself for the leader in the highest term.
    pub(super) fn leader(&self, group: GroupId) -> Option<ProcessId> {
        let leaders = self.statuses.iter().filter_map(|((process, of), watch)| match watch.seen {
            Some((Role::Leader, term)) if *of == group => Some((term, *process)),
            _ => None,
        });
        leaders.max().map(|(_, process)| process)
    }

    fn later(&mut self, at: Duration, remedy: Remedy) {
        self.remedies_made += 1;
        self.remedies.insert((at, self.remedies_made), remedy);
    }

    fn remedy(&mut self, remedy: Remedy) {
        match remedy {
            Remedy::Network(fault) => {
                self.links.remove(fault);
                self.links.apply_to(self.world.network());
            }
            Remedy::Start(process) => {
                if !self.world.is_up(process) {
                    self.start(process);
                }
            }
            Remedy::Space(process) => {
                self.world.disk(process).set_free_bytes(FREE_BYTES);
                self.later(self.world.now() + SHORT_AFTERMATH, Remedy::Ample(process));
            }
            Remedy::Ample(process) => self.nodes[process.0].set_disk_short(false),
        }
    }

    pub(super) fn stop_faults(&mut self) {
        self.world.trace().event(format_args!("all faults stop"));
        self.splits.clear();
        self.upsets.clear();
        self.links.clear();
        if self.plan.planted == Some(Planted::CutStays) {
            self.links.cut(&[ProcessId(0)], false);
        }
        self.links.apply_to(self.world.network());
        for (_, remedy) in std::mem::take(&mut self.remedies) {
            self.remedy(remedy);
        }
    }
}

/// Clients, and what is seen of replicas.
impl Run {
    fn clients_step(&mut self, is_ending: bool) {
        let now = self.world.now();
        let is_quiet = !is_ending && self.plan.is_quiet(now);
        let mut attempts = Vec::new();
        for client in &mut self.clients {
            let split = self.splits.get(&client.group).filter(|split| now < split.until);
            let rests = if client.part == Part::Anything { is_quiet } else { split.is_none() };
            if rests && client.is_idle() {
                continue;
            }
            if !client.poll(now, &self.plan, &mut self.client_random, &self.oracle)
                || rests && client.is_idle()
            {
                continue;
            }
            let group = self.plan.group(client.group);
            let told = client.leader().map(|leader| group.process_of(leader));
            let random = &mut self.client_random;
            let (anybody, _) = *random.pick(&self.seats.of(group.id));
            let process = match split {
                Some(split) if client.part == Part::ReadByLease => split.leader,
                // A leader that is alone answers no client on the other side.
                Some(split) if client.part == Part::WriteElsewhere && anybody == split.leader => continue,
                Some(split) if client.part == Part::WriteElsewhere => {
                    told.filter(|told| *told != split.leader).unwrap_or(anybody)
                }
                _ => told.filter(|_| !random.one_in(ANYWHERE_ONE_IN)).unwrap_or(anybody),
            };
            match self.nodes[process.0].replica(client.group) {
                Some(replica) if self.world.is_up(process) => {
                    let attempt = client.attempt(&self.plan, random, is_ending);
                    attempts.extend(attempt.map(|attempt| (process, replica, attempt)));
                }
                _ => client.wait(now),
            }
        }
        for (process, replica, attempt) in attempts {
            self.world.spawn(process, attempt.make(replica, self.oracle.clone(), self.plan.planted));
        }
    }

    fn look(&mut self) {
        for process in self.world.processes() {
            for group in self.nodes[process.0].take_removed() {
                self.oracle.count(|counts| counts.removals += 1);
                self.seats.left(process, group);
            }
            for (group, replica) in self.nodes[process.0].take_opened() {
                let statuses = replica.group.watch();
                let watch =
                    Watch { replica, statuses, seen: None, removed_at: None, is_dozing: false, stage: None };
                self.statuses.insert((process, group), watch);
            }
        }
        self.look_who_dozes();
        let mut elected = Vec::new();
        for ((process, group), watch) in &mut self.statuses {
            // A replica that stopped tells its last word by dropping the channel, too.
            if watch.seen.is_some() && !watch.statuses.has_changed().unwrap_or(true) {
                continue;
            }
            let status = watch.statuses.borrow_and_update().clone();
            if let Some(why) = &status.failure {
                self.oracle.fail(format!("{group:?} on {process} stopped by itself: {why}"));
            }
            // A replica that was told to stop is none of this node's any more.
            if status.role == Role::Stopped && self.nodes[process.0].replica(*group).is_some() {
                self.oracle.fail(format!("{group:?} on {process} stopped by itself"));
            }
            let removes = status.is_removed && self.plan.group(*group).removes;
            watch.removed_at = match watch.removed_at.filter(|_| removes) {
                None if removes => Some(self.world.now() + Duration::from_millis(self.random.below(3000))),
                known => known,
            };
            let seen = Some((status.role, status.term));
            if seen == watch.seen {
                continue;
            }
            watch.seen = seen;
            let (role, term) = (status.role, status.term);
            self.world.trace().event(format_args!("{group:?} on {process}: {role:?} in term {term}"));
            if role == Role::Leader {
                self.oracle.leads(*group, term, watch.replica.group.replica());
                elected.push((*process, *group, term, watch.replica.clone()));
            }
        }
        for (process, group, term, replica) in elected {
            self.upset(process, group);
            if !self.world.is_up(process) {
                continue;
            }
            let check = check_log(self.oracle.clone(), process, group, replica, Some(term));
            self.world.spawn(process, check);
        }
    }

    fn look_who_dozes(&mut self) {
        if !self.world.now().as_millis().is_multiple_of(DOZE_LOOK_MS) {
            return;
        }
        for watch in self.statuses.values_mut() {
            let is_dozing = watch.replica.group.status().is_dozing;
            if is_dozing && !watch.is_dozing {
                self.oracle.count(|counts| counts.dozes += 1);
            }
            watch.is_dozing = is_dozing;
        }
    }
}
