use super::callers::Caller;
use super::histories::Histories;
use super::lossy::LossyConnector;
use super::movers::Mover;
use super::plan::Plan;
use super::planted::{Planted, plant};
use super::record::Record;
use super::troubles::Remedy;
use super::view::View;
use crate::scenario::Links;
use crate::services::{
    Ahead, Finished, Life, MemoryStore, MemoryTables, ScmCalls, Violation, empty_directory, live, logs,
    random_disk,
};
use crate::world::{ProcessId, SimConnector, Trace, World};
use clap::ValueEnum;
use client::{Client, ClientOptions, OmReads};
use disk::sim::{Random, SimDirectory, SimOptions};
use statedb::DbMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::service::Routes;

/// A call that is not answered is repeated so often until its deadline.
const TRIES: u32 = 4;
const MOVERS: u64 = 2;
/// The place among a machine's callers of the one that changes nothing.
const ONLY_ASKS: u64 = 1;
/// The time by which groups have grown.
const FIRST_FAULT: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub seed: u64,
    /// Prints every event.
    pub is_printed: bool,
    pub planted: Option<Planted>,
}

/// Runs one namespace from its beginning to its end.
pub fn run(options: Options) -> Result<Finished, Violation> {
    let mut replay = format!("./dev sim om --seed {} --seeds 1", options.seed);
    if let Some(name) = options.planted.and_then(|planted| planted.to_possible_value()) {
        replay += &format!(" --planted {}", name.get_name());
    }
    live(options.seed, replay, move || Run::new(options))
}

pub(super) struct Run {
    pub(super) world: World,
    pub(super) plan: Arc<Plan>,
    pub(super) record: Record,
    pub(super) histories: Histories,
    pub(super) view: View,
    pub(super) random: Random,
    pub(super) links: Links,
    pub(super) remedies: BTreeMap<(Duration, u64), Remedy>,
    pub(super) remedies_made: u64,
    next_fault: Duration,
    /// The directories of the machines of SCM and OMs.
    directories: BTreeMap<usize, SimDirectory>,
    scm_places: Vec<MemoryStore>,
    /// The tables of each OM, by its machine.
    pub(super) tables: BTreeMap<usize, MemoryTables>,
    /// The clocks on the machines' walls.
    pub(super) clocks: Vec<Ahead>,
    /// The number of directories that were ever made.
    made: u64,
    /// The time when an OM was emptied last.
    pub(super) emptied_at: Option<Duration>,
    /// OMs whose disk failed in this life.
    pub(super) failed: BTreeSet<usize>,
    /// A token that all clients hold while they are at work.
    pub(super) at_work: Arc<()>,
}

impl Run {
    fn new(options: Options) -> Run {
        let mut random = Random::new(options.seed);
        types::random::seed_thread(random.next_u64());
        plant(options.planted);
        let memory = DbMemory::new().expect("RocksDB makes an environment in memory");
        let plan = Arc::new(Plan::new(&mut random, options.planted, memory));
        let trace = Trace::new(options.is_printed);
        if options.is_printed {
            logs::print(&trace);
        }
        trace.event(format_args!("{plan:?}"));
        let record = Record::new(trace.clone());
        let mut world = World::new(random.next_u64(), trace);
        for (machine, drift_ppm) in plan.drifts_ppm.iter().enumerate() {
            world.add(plan.address(machine), random_disk(&mut random), *drift_ppm);
        }
        let touched = world.processes().count();
        world.add(plan.address(plan.operator()), SimOptions::default(), 0);
        let links = Links::new(touched, &mut random);
        links.apply_to(world.network());
        let scm_places = plan.scms().map(|machine| MemoryStore::new(format!("/scm{machine}"))).collect();
        let mut run = Run {
            world,
            record,
            histories: Histories::new(),
            view: View::default(),
            random,
            links,
            remedies: BTreeMap::new(),
            remedies_made: 0,
            next_fault: FIRST_FAULT,
            directories: BTreeMap::new(),
            scm_places,
            tables: BTreeMap::new(),
            clocks: plan.ahead.iter().map(|ahead| Ahead::by(*ahead)).collect(),
            plan,
            made: 0,
            emptied_at: None,
            failed: BTreeSet::new(),
            at_work: Arc::new(()),
        };
        for machine in 0..run.plan.oms().end {
            run.empty(machine);
        }
        run
    }

    /// Gives a machine an empty directory, and an OM empty tables.
    pub(super) fn empty(&mut self, machine: usize) {
        self.made += 1;
        let root = format!("/machine{machine}.{}", self.made);
        if self.plan.oms().contains(&machine) {
            self.tables.insert(machine, MemoryTables::new(format!("{root}/db")));
        }
        let directory = empty_directory(&self.world, machine, root, &mut self.random);
        self.directories.insert(machine, directory);
    }

    /// The directory of a machine, over its disk as it is after a crash.
    fn directory(&mut self, machine: usize) -> SimDirectory {
        let directory = self.directories.get_mut(&machine).expect("only servers are asked");
        *directory = directory.over(self.world.disk(ProcessId(machine)).clone());
        directory.clone()
    }

    pub(super) fn start(&mut self, machine: usize) {
        let (plan, process) = (self.plan.clone(), ProcessId(machine));
        self.failed.remove(&machine);
        if plan.scms().contains(&machine) {
            let (directory, ahead) = (self.directory(machine), self.clocks[machine].clone());
            let start = plan.scm_process(machine, directory, self.scm_places[machine].clone(), ahead);
            self.world.start(process, |context| start.run(context));
        } else if plan.oms().contains(&machine) {
            let (directory, ahead) = (self.directory(machine), self.clocks[machine].clone());
            let start = plan.om_process(machine, directory, self.tables[&machine].clone(), ahead);
            self.world.start(process, |context| start.run(context));
        } else if plan.clients().contains(&machine) {
            let clients = self.clients(machine);
            self.world.start(process, |_| async move {
                clients.start();
                Routes::default()
            });
        } else {
            let (view, record, scm) = (self.view.clone(), self.record.clone(), self.scm_calls());
            self.world.start(process, |context| async move {
                let trace = context.trace.clone();
                tokio::spawn(view.follow(scm, record, move || trace.now()));
                Routes::default()
            });
        }
    }

    /// The operator's way to SCM.
    pub(super) fn scm_calls(&self) -> ScmCalls {
        ScmCalls::new(self.world.connector(ProcessId(self.plan.operator())), self.plan.scm_addresses())
    }

    fn clients(&mut self, machine: usize) -> Clients {
        Clients {
            plan: self.plan.clone(),
            record: self.record.clone(),
            histories: self.histories.clone(),
            connector: self.world.connector(ProcessId(machine)),
            random: Random::new(self.random.next_u64()),
            nth: (machine - self.plan.clients().start) as u64,
            at_work: self.at_work.clone(),
        }
    }

    /// One tick of everything but faults.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.world.advance();
        if let Some(panicked) = self.world.panicked() {
            return Err(panicked.to_owned());
        }
        self.histories.check_full()?;
        match self.record.violation() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }

    fn faults_step(&mut self) {
        let now = self.world.now();
        while let Some(first) = self.remedies.first_entry().filter(|first| first.key().0 <= now) {
            let remedy = first.remove();
            self.remedy(remedy);
        }
        if now >= self.next_fault {
            self.next_fault =
                now + Duration::from_millis(1 + self.random.below(2 * self.plan.fault_pause_ms));
            self.draw_fault();
        }
    }
}

impl Life for Run {
    fn world(&self) -> &World {
        &self.world
    }

    fn live(&mut self) -> Result<Finished, String> {
        for machine in 0..=self.plan.operator() {
            self.start(machine);
        }
        while self.world.now() < self.plan.faults_last {
            self.faults_step();
            self.step()?;
        }
        let settled = self.settle()?;
        let mut counts = self.record.counts();
        counts.events = self.world.trace().events();
        counts.histories = self.histories.count() as u64;
        counts.snapshots = self.tables.values().map(MemoryTables::replaced).sum();
        Ok(Finished {
            counts: counts.named(),
            virtual_ms: self.world.now().as_millis() as u64,
            hash: self.world.trace_hash(),
            settled_ms: settled.as_millis() as u64,
        })
    }
}

/// The clients on one machine.
struct Clients {
    plan: Arc<Plan>,
    record: Record,
    histories: Histories,
    connector: Arc<SimConnector>,
    random: Random,
    /// The place of this machine among those of clients.
    nth: u64,
    at_work: Arc<()>,
}

impl Clients {
    /// Starts this machine's callers and movers, each with a client that knows only what it has learned
    /// itself.
    fn start(mut self) {
        let machines = self.plan.clients().len() as u64;
        for number in (self.nth..self.plan.callers).step_by(machines as usize) {
            let caller = Caller {
                client: self.client(self.plan.deadlines[number as usize % 3], reads_of(number / machines)),
                histories: self.histories.clone(),
                record: self.record.clone(),
                random: Random::new(self.random.next_u64()),
                number,
                writes: 0,
                think_ms_max: self.plan.think_ms_max,
                full_disks_min: if self.plan.oms < 3 { 1 } else { 2 },
                only_asks: number / machines == ONLY_ASKS,
                at_work: self.at_work.clone(),
            };
            tokio::spawn(caller.run());
        }
        for _ in (self.nth..MOVERS).step_by(machines as usize) {
            let mover = Mover {
                client: self.client(self.plan.deadlines[0], OmReads::Leader),
                histories: self.histories.clone(),
                record: self.record.clone(),
                random: Random::new(self.random.next_u64()),
                pause_ms_max: self.plan.move_pause_ms_max,
                connector: self.connector.clone(),
                oms: self.plan.om_addresses(),
                places: BTreeMap::new(),
                at_work: self.at_work.clone(),
            };
            tokio::spawn(mover.run());
        }
    }

    fn client(&mut self, deadline: Duration, om_reads: OmReads) -> Client {
        let random = Arc::new(Mutex::new(Random::new(self.random.next_u64())));
        let connector = LossyConnector { inner: self.connector.clone(), record: self.record.clone(), random };
        Client::over(ClientOptions { om_reads, ..options(&self.plan, deadline) }, Arc::new(connector))
    }
}

/// The members that a machine's caller asks: every second one any, and the one that only asks the leader.
fn reads_of(nth: u64) -> OmReads {
    if nth.is_multiple_of(2) { OmReads::Any } else { OmReads::Leader }
}

/// The options of a client that gives calls up after a time.
pub(super) fn options(plan: &Plan, deadline: Duration) -> ClientOptions {
    ClientOptions {
        scm: plan.scm_addresses().join(","),
        write_deadline: deadline,
        call_timeout: deadline / TRIES,
        ..ClientOptions::default()
    }
}
