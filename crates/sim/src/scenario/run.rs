use super::client::Client;
use super::counts::Counts;
use super::faults::{FREE_BYTES, Fault, Links, Remedy, random_fault};
use super::node::{Node, Replica};
use super::oracle::{Oracle, content_of};
use super::plan::{Plan, random_disk};
use super::planted::Planted;
use super::wire;
use crate::mem_tables::MemTables;
use crate::world::{Crash, ProcessId, SILENCE_MAX, Trace, World};
use disk::sim::{Random, SimOptions};
use raft::{GroupStatus, Role};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::{GroupId, LogIndex, Term};

/// How long a group may take to be well again, after the last fault. The sum of what may follow one another:
/// a connection that is noticed to be dead (5 s), an append that its follower left unanswered (10 s), the pauses before an
/// unreachable follower (1 s) and a full disk (1 s) are tried again, a client's patience twice (6 s), the recovery of some
/// hundred small segments with three seeks each (10 s), and elections: a lease, the longest wait of somebody who saw a longer
/// log, and two that are split.
fn settled_within(plan: &Plan) -> Duration {
    SILENCE_MAX + Duration::from_secs(10 + 1 + 1 + 6 + 10) + plan.election_max() * (1 + 4 + 2 * 2)
}

/// Between a disk that has space again and the last error that this excuses.
const SHORT_AFTERMATH: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub seed: u64,
    /// Prints every event.
    pub is_printed: bool,
    pub planted: Option<Planted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub counts: Counts,
    /// Of all events.
    pub hash: u64,
    /// How long the slowest group took after the faults.
    pub settled_ms: u64,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub seed: u64,
    pub at: Duration,
    pub what: String,
    /// The events before it.
    pub recent: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { seed, at, what, recent } = self;
        writeln!(f, "seed {seed}, after {:.3} s: {what}\nevents before it:", at.as_secs_f64())?;
        write!(f, "{recent}replay: ./dev sim --seed {seed} --seeds 1    (all events: --trace)")
    }
}

/// One cluster's life.
pub fn run(options: Options) -> Result<Finished, Violation> {
    let mut run = Run::new(options);
    let result = run.live();
    result.map_err(|what| Violation {
        seed: options.seed,
        at: run.world.now(),
        what,
        recent: run.world.trace().recent(),
    })
}

struct Run {
    world: World,
    plan: Arc<Plan>,
    oracle: Oracle,
    nodes: Vec<Node>,
    tables: BTreeMap<(ProcessId, GroupId), MemTables>,
    statuses: BTreeMap<(ProcessId, GroupId), Watch>,
    clients: Vec<Client>,
    links: Links,
    remedies: BTreeMap<(Duration, u64), Remedy>,
    remedies_made: u64,
    /// Of faults, and of clients.
    random: Random,
    client_random: Random,
    next_fault: Duration,
}

/// A replica's status, as last looked at.
struct Watch {
    replica: Replica,
    statuses: watch::Receiver<GroupStatus>,
    seen: Option<(Role, Term)>,
}

impl Run {
    fn new(options: Options) -> Run {
        let mut random = Random::new(options.seed);
        raft::seed_thread(random.next_u64());
        let plan = Arc::new(Plan::new(&mut random, options.planted));
        let trace = Trace::new(options.is_printed);
        trace.event(format_args!("{plan:?}"));
        let oracle = Oracle::new(trace.clone());
        let mut world = World::new(random.next_u64(), trace);
        world.network().observe(wire::observer(oracle.clone()));
        for number in 1..=plan.processes {
            let disk = random_disk(&mut random);
            world.add(format!("n{number}"), disk);
        }
        let mut tables = BTreeMap::new();
        let mut clients = Vec::new();
        for group in &plan.groups {
            for process in &group.members {
                tables.insert((*process, group.id), MemTables::default());
            }
            for _ in 0..plan.clients_per_group {
                clients.push(Client::new(clients.len() as u64, group.id));
            }
        }
        let links = Links::new(plan.processes, &mut random);
        links.apply_to(world.network());
        let nodes = world.processes().map(|_| Node::new(oracle.clone())).collect();
        let client_random = Random::new(random.next_u64());
        Run {
            world,
            plan,
            oracle,
            nodes,
            tables,
            statuses: BTreeMap::new(),
            clients,
            links,
            remedies: BTreeMap::new(),
            remedies_made: 0,
            random,
            client_random,
            next_fault: Duration::from_secs(1),
        }
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
        counts.virtual_ms = self.world.now().as_millis() as u64;
        counts.events = self.world.trace().events();
        Ok(Finished { counts, hash: self.world.trace_hash(), settled_ms: settled.as_millis() as u64 })
    }

    /// One tick of everything but faults.
    fn step(&mut self, is_ending: bool) -> Result<(), String> {
        self.clients_step(is_ending);
        self.world.advance();
        self.look();
        match self.oracle.violation() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    fn start(&mut self, process: ProcessId) {
        let node = Node::new(self.oracle.clone());
        self.nodes[process.0] = node.clone();
        let plan = self.plan.clone();
        let groups = plan.groups_of(process).map(|group| group.id);
        let tables = groups.map(|group| (group, self.tables[&(process, group)].clone())).collect();
        self.world.start(process, |context| node.run(context, plan, tables));
    }

    fn crash(&mut self, process: ProcessId, crash: Crash, disk: SimOptions) {
        self.statuses.retain(|(on, _), _| *on != process);
        self.world.crash(process, crash, disk);
        self.nodes[process.0] = Node::new(self.oracle.clone());
        for ((on, _), tables) in &mut self.tables {
            if *on == process {
                *tables = tables.lose_power(&mut self.random);
            }
        }
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
                    if self.world.is_up(process) {
                        self.oracle.count(|counts| counts.crashes += 1);
                        self.crash(process, crash, disk);
                        self.later(self.world.now() + down, Remedy::Start(process));
                    }
                }
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

    fn cut(&mut self, side: &[ProcessId], one_way: bool, until: Duration) {
        self.oracle.count(|counts| counts.partitions += 1);
        let fault = self.links.cut(side, one_way);
        self.links.apply_to(self.world.network());
        self.later(until, Remedy::Network(fault));
    }

    fn transfer(&mut self, group: GroupId) {
        let Some(leader) = self.leader(group) else { return };
        let others = self.plan.group(group).members.iter().filter(|member| **member != leader);
        let others: Vec<_> = others.copied().collect();
        let to = self.plan.group(group).replica_on(*self.random.pick(&others));
        let Some(replica) = self.nodes[leader.0].replica(group) else { return };
        self.oracle.count(|counts| counts.transfers += 1);
        self.world.spawn(leader, async move {
            // It may fail for many reasons, and must do no harm.
            let _ = replica.group.transfer_leader(to).await;
        });
    }

    /// Who takes itself for the leader in the highest term.
    fn leader(&self, group: GroupId) -> Option<ProcessId> {
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

    fn stop_faults(&mut self) {
        self.world.trace().event(format_args!("all faults stop"));
        self.links.clear();
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
        let mut attempts = Vec::new();
        for client in &mut self.clients {
            if !client.poll(now, &self.plan, &mut self.client_random, &self.oracle) {
                continue;
            }
            let group = self.plan.group(client.group);
            let told = client.leader().and_then(|leader| group.process_of(leader));
            let random = &mut self.client_random;
            let process = told.filter(|_| !random.one_in(10)).unwrap_or(*random.pick(&group.members));
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
            for (group, replica) in self.nodes[process.0].take_opened() {
                let statuses = replica.group.watch();
                self.statuses.insert((process, group), Watch { replica, statuses, seen: None });
            }
        }
        let mut elected = Vec::new();
        for ((process, group), watch) in &mut self.statuses {
            if watch.seen.is_some() && !watch.statuses.has_changed().unwrap_or(false) {
                continue;
            }
            let status = watch.statuses.borrow_and_update().clone();
            if let Some(why) = &status.failure {
                self.oracle.fail(format!("{group:?} on {process} stopped by itself: {why}"));
            }
            let seen = Some((status.role, status.term));
            if seen == watch.seen {
                continue;
            }
            watch.seen = seen;
            let (role, term) = (status.role, status.term);
            self.world.trace().event(format_args!("{group:?} on {process}: {role:?} in term {term}"));
            if role == Role::Leader {
                let replica = self.plan.group(*group).replica_on(*process);
                self.oracle.leads(*group, term, replica);
                elected.push((*process, *group, term, watch.replica.clone()));
            }
        }
        for (process, group, term, replica) in elected {
            let check = check_log(self.oracle.clone(), process, group, replica, Some(term));
            self.world.spawn(process, check);
        }
    }
}

/// The end.
impl Run {
    /// Without faults, all groups are well again in time.
    fn settle(&mut self) -> Result<Duration, String> {
        self.stop_faults();
        let began = self.world.now();
        let within = settled_within(&self.plan);
        for group in &self.plan.groups {
            self.clients.push(Client::probe(self.clients.len() as u64, group.id));
        }
        loop {
            self.step(true)?;
            let unsettled = self.unsettled();
            let took = self.world.now() - began;
            match unsettled {
                None => return Ok(took),
                Some(why) if took > within => {
                    return Err(format!("no fault for {:.1} s, and {why}", took.as_secs_f64()));
                }
                Some(_) => {}
            }
        }
    }

    /// What is still to come before all is well.
    fn unsettled(&self) -> Option<String> {
        if let Some(client) = self.clients.iter().find(|client| !client.is_idle()) {
            return Some(format!("a client of {:?} is not done", client.group));
        }
        for group in &self.plan.groups {
            let last = self.oracle.last_applied(group.id);
            for process in &group.members {
                let watch = self.statuses.get(&(*process, group.id));
                let applied =
                    watch.and_then(|watch| *watch.replica.applied.lock().expect("no holder panics"));
                if applied < last {
                    let id = group.id;
                    return Some(format!("{process} has applied {id:?} up to {applied:?} of {last:?}"));
                }
            }
        }
        None
    }

    /// Tables and logs of all members, against what everybody agreed on.
    fn check_end(&mut self) -> Result<(), String> {
        for ((process, group), watch) in &self.statuses {
            let at = *watch.replica.applied.lock().expect("no holder panics");
            let found = kv::records(&*watch.replica.tables).map_err(|error| format!("{error:#}"))?;
            self.oracle.check_tables(*group, &process.to_string(), at, &found.into_iter().collect());
            let check = check_log(self.oracle.clone(), *process, *group, watch.replica.clone(), None);
            self.world.spawn(*process, check);
        }
        let ticks = 200;
        for _ in 0..ticks {
            self.step(true)?;
        }
        Ok(())
    }
}

/// Reads a replica's whole log; a leader's must have all that was committed before.
async fn check_log(
    oracle: Oracle,
    process: ProcessId,
    group: GroupId,
    replica: Replica,
    leads: Option<Term>,
) {
    const PIECE_COUNT: usize = 256;
    let log = replica.group.log();
    let name = process.to_string();
    let state = log.state();
    let mut before = state.purged.map(|purged| purged.term);
    let mut next = state.purged.map_or(LogIndex(0), |purged| purged.index.next());
    let end = state.last.map_or(next, |last| last.index.next());
    let mut found = BTreeMap::new();
    while next < end {
        // Truncated or purged or closed meanwhile, or the machine is down: somebody else's matter.
        let Ok(metas) = log.read_meta(next..end, PIECE_COUNT).await else { return };
        for meta in metas {
            oracle.entry(group, meta.id, content_of(meta.kind.into(), &meta.meta), before, &name);
            before = Some(meta.id.term);
            found.insert(meta.id.index, meta.id.term);
            next = meta.id.index.next();
        }
    }
    if let Some(term) = leads
        && replica.group.status().term == term
    {
        oracle.check_leader(group, &name, term, &found);
    }
}
