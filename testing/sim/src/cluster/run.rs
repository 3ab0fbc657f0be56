use super::deletions::Holdings;
use super::faults::{Fault, random_fault};
use super::ledger::Ledger;
use super::losses::Losses;
use super::machine::{ClientsStart, DatanodeSlot, DatanodeStart, ScmStart, run_operator};
use super::namers::Names;
use super::object_faults::ObjectFaults;
use super::objects::Objects;
use super::om_copy::OmCopy;
use super::plan::Plan;
use super::planted::{Planted, plant};
use super::scheme::Step;
use super::unnamed::Unnamed;
use super::view::Views;
use crate::scenario::Links;
use crate::services::{
    CAPACITY_BYTES, Finished, Life, MemoryStore, ScmCalls, Violation, live, logs, random_disk,
};
use crate::world::{Crash, ProcessId, Trace, World};
use clap::ValueEnum;
use disk::Stamp;
use disk::sim::{Random, SimDirectory, SimOptions};
use proto::scm::{DatanodeInfo, NodeDuty, NodeState, SetNodeDutyRequest};
use statedb::DbMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use types::DiskId;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub seed: u64,
    /// Prints every event.
    pub is_printed: bool,
    pub planted: Option<Planted>,
}

/// Runs one cluster from its beginning to its end.
pub fn run(options: Options) -> Result<Finished, Violation> {
    let mut replay = format!("./dev sim cluster --seed {} --seeds 1", options.seed);
    if let Some(name) = options.planted.and_then(|planted| planted.to_possible_value()) {
        replay += &format!(" --planted {}", name.get_name());
    }
    live(options.seed, replay, move || Run::new(options))
}

pub(super) struct Run {
    pub(super) world: World,
    pub(super) plan: Arc<Plan>,
    pub(super) ledger: Ledger,
    pub(super) views: Views,
    scm: ScmCalls,
    pub(super) random: Random,
    /// The datanode on each machine where one runs.
    pub(super) slots: BTreeMap<usize, DatanodeSlot>,
    /// Data directories of the machines that have some: of SCM, of datanodes.
    directories: BTreeMap<usize, Vec<SimDirectory>>,
    scm_places: Vec<MemoryStore>,
    disks_made: u64,
    pub(super) links: Links,
    remedies: BTreeMap<(Duration, u64), Remedy>,
    remedies_made: u64,
    next_fault: Duration,
    /// The time until which faults come.
    pub(super) faults_until: Duration,
    pub(super) scheme_began: Option<Duration>,
    pub(super) steps: BTreeMap<(Duration, u64), Step>,
    pub(super) steps_made: u64,
    /// The number of clients that schemes have made.
    pub(super) clients_made: u64,
    /// Machines that do not come back.
    pub(super) gone: BTreeSet<usize>,
    /// Machines whose disk failed in this life.
    failed: BTreeSet<usize>,
    /// Nodes that operators want empty.
    pub(super) leaving: BTreeSet<usize>,
    /// Disks that stay full, by machine and number, and how much room they have.
    pub(super) full: BTreeMap<(usize, usize), u64>,
    /// When something was damaged or lost last.
    pub(super) harmed_at: Option<Duration>,
    /// Indexes that an operator will have recreated, by machine and number.
    rebuilds: BTreeMap<(usize, usize), Rebuild>,
    pub(super) holdings: Holdings,
    pub(super) losses: Losses,
    pub(super) objects: Objects,
    pub(super) gateway_objects: Objects,
    pub(super) names: Names,
    /// The look for blocks that no key names, once it is known what keys name.
    pub(super) unnamed: Option<Unnamed>,
    pub(super) object_faults: ObjectFaults,
    /// The directory of the only OM, as it was once.
    pub(super) om_copy: Option<OmCopy>,
    /// The member of SCM that is left when the others are lost; and the time when it was made the only one.
    pub(super) scm_survivor: Option<usize>,
    pub(super) scm_reset_at: Option<Duration>,
}

/// An index that is to be recreated, from some moment on, until it is done.
struct Rebuild {
    at: Duration,
    is_done: Arc<AtomicBool>,
}

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Remedy {
    Network(u64),
    Start(usize),
    Space(usize, usize),
    Recommission(usize),
    /// A machine goes on, and its network with it.
    Thaw(usize, u64),
    ReadsRight(usize, usize),
}

impl Run {
    fn new(options: Options) -> Run {
        let mut random = Random::new(options.seed);
        types::random::seed_thread(random.next_u64());
        plant(options.planted);
        let memory = DbMemory::new().expect("RocksDB makes an environment in memory");
        let plan = Arc::new(Plan::new(options.seed, &mut random, options.planted, memory));
        let trace = Trace::new(options.is_printed);
        if options.is_printed {
            logs::print(&trace);
        }
        trace.event(format_args!("{plan:?}"));
        let ledger = Ledger::new(trace.clone(), plan.sweeps.is_some());
        let mut world = World::new(random.next_u64(), trace);
        let disks = std::iter::repeat_n(1, plan.scms).chain(plan.disks.iter().copied());
        for (machine, disks) in disks.enumerate() {
            let disks: Vec<_> = (0..disks).map(|_| random_disk(&mut random)).collect();
            world.add_with_disks(plan.address(machine), &disks, 0);
        }
        world.add(plan.address(plan.clients()), SimOptions::default(), 0);
        let touched = world.processes().count();
        world.add(plan.address(plan.operator()), SimOptions::default(), 0);
        let mut object_faults = ObjectFaults::new(plan.object_seed, plan.oms());
        for om in plan.oms() {
            world.add_with_disks(plan.address(om), &[object_faults.random_disk()], 0);
        }
        let scm_places = (0..plan.scms).map(|machine| MemoryStore::new(format!("/scm{machine}"))).collect();
        let links = Links::new(touched, &mut random);
        links.apply_to(world.network());
        let scm = ScmCalls::new(world.connector(ProcessId(plan.operator())), plan.scm_addresses());
        let mut run = Run {
            world,
            plan,
            ledger,
            views: Views::default(),
            scm,
            random,
            slots: BTreeMap::new(),
            directories: BTreeMap::new(),
            scm_places,
            disks_made: 0,
            links,
            remedies: BTreeMap::new(),
            remedies_made: 0,
            next_fault: Duration::from_secs(5),
            faults_until: Duration::ZERO,
            scheme_began: None,
            steps: BTreeMap::new(),
            steps_made: 0,
            clients_made: 0,
            gone: BTreeSet::new(),
            failed: BTreeSet::new(),
            leaving: BTreeSet::new(),
            full: BTreeMap::new(),
            harmed_at: None,
            rebuilds: BTreeMap::new(),
            holdings: Holdings::default(),
            losses: Losses::default(),
            objects: Objects::default(),
            gateway_objects: Objects::default(),
            names: Names::default(),
            unnamed: None,
            object_faults,
            om_copy: None,
            scm_survivor: None,
            scm_reset_at: None,
        };
        for machine in 0..run.nodes().end {
            let uuid = run.random_u128();
            let disks = run.world.disks(ProcessId(machine)).len();
            let directories = (0..disks).map(|number| run.directory(machine, number, uuid)).collect();
            run.directories.insert(machine, directories);
        }
        run.plan.oms().for_each(|om| run.empty_om(om));
        run
    }
}

impl Life for Run {
    fn world(&self) -> &World {
        &self.world
    }

    fn live(&mut self) -> Result<Finished, String> {
        for machine in 0..self.plan.oms().end {
            self.start(machine);
        }
        self.begin_sweeps();
        while self.world.now() < self.plan.faults_last.max(self.faults_until) {
            self.faults_step();
            self.close_to_sweep();
            self.copy_om()?;
            self.step()?;
        }
        let mut settled = self.settle()?;
        settled += self.check_names()?;
        self.check_end()?;
        let mut counts = self.ledger.counts();
        counts.events = self.world.trace().events();
        Ok(Finished {
            counts: counts.named(),
            virtual_ms: self.world.now().as_millis() as u64,
            hash: self.world.trace_hash(),
            settled_ms: settled.as_millis() as u64,
        })
    }
}

impl Run {
    /// One tick of everything but faults.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.world.advance();
        if let Some(panicked) = self.world.panicked() {
            return Err(panicked.to_owned());
        }
        self.look_at_view();
        self.look_for_deletions();
        match self.ledger.violation() {
            Some(violation) => Err(violation),
            None => Ok(()),
        }
    }
}

/// Machines and what runs on them.
impl Run {
    pub(super) fn nodes(&self) -> std::ops::Range<usize> {
        self.plan.nodes()
    }

    pub(super) fn operator(&self) -> ProcessId {
        ProcessId(self.plan.operator())
    }

    /// The operator's way to SCM; all its handles know where SCM's leader was found last.
    pub(super) fn scm_calls(&self) -> ScmCalls {
        self.scm.clone()
    }

    fn random_u128(&mut self) -> u128 {
        u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64())
    }

    /// An empty, formatted directory on a disk of a machine.
    fn directory(&mut self, machine: usize, number: usize, node_uuid: u128) -> SimDirectory {
        self.disks_made += 1;
        let stamp = Stamp { disk: DiskId(self.random_u128()), cluster: String::new(), node_uuid, node: 0 };
        let disk = self.world.disks(ProcessId(machine))[number].clone();
        SimDirectory::new(format!("/machine{machine}/disk{number}.{}", self.disks_made), disk, stamp)
    }

    /// Gives an OM a directory with nothing in it.
    pub(super) fn empty_om(&mut self, om: usize) {
        let uuid = self.object_faults.random_u128();
        let disk = DiskId(self.object_faults.random_u128());
        let stamp = Stamp { disk, cluster: String::new(), node_uuid: uuid, node: 0 };
        let nth = self.object_faults.emptied(om);
        let disk = self.world.disks(ProcessId(om))[0].clone();
        self.directories.insert(om, vec![SimDirectory::new(format!("/om{om}.{nth}"), disk, stamp)]);
    }

    /// The directories of a machine, over the disks as they are after a crash.
    pub(super) fn directories(&mut self, machine: usize) -> Vec<SimDirectory> {
        let disks = self.world.disks(ProcessId(machine));
        let directories = self.directories.get_mut(&machine).expect("only machines with disks are asked");
        for (directory, disk) in directories.iter_mut().zip(disks) {
            *directory = directory.over(disk.clone());
        }
        directories.clone()
    }

    pub(super) fn start(&mut self, machine: usize) {
        let (plan, ledger) = (self.plan.clone(), self.ledger.clone());
        let process = ProcessId(machine);
        self.failed.remove(&machine);
        let address = plan.address(machine);
        if machine < plan.scms {
            let directory = self.directories(machine).remove(0);
            let place = self.scm_places[machine].clone();
            let is_reset = self.scm_survivor == Some(machine) && self.scm_reset_at.is_none();
            if is_reset {
                self.scm_reset_at = Some(self.world.now());
            }
            let process_of = plan.scm_process(directory, place, address);
            let start = ScmStart { ledger, process: process_of, is_reset };
            self.world.start(process, |context| start.run(context));
        } else if self.nodes().contains(&machine) {
            let directories = self.directories(machine);
            let slot = DatanodeSlot::default();
            self.slots.insert(machine, slot.clone());
            let scm = plan.scm_addresses().join(",");
            let rebuilds = self.rebuilds_due(machine);
            let start = DatanodeStart { plan, ledger, machine, directories, rebuilds, address, scm, slot };
            self.world.start(process, |context| start.run(context));
        } else if machine == plan.clients() {
            let datanodes = self.nodes().map(|node| plan.address(node)).collect();
            let random = Random::new(self.random.next_u64());
            let scms = plan.scm_addresses();
            let (objects, gateway_objects) = (self.objects.clone(), self.gateway_objects.clone());
            let (views, names) = (self.views.clone(), self.names.clone());
            let start = ClientsStart {
                plan,
                ledger,
                scms,
                datanodes,
                objects,
                gateway_objects,
                names,
                views,
                random,
            };
            self.world.start(process, |context| start.run(context));
        } else if plan.oms().contains(&machine) {
            let directory = self.directories(machine).remove(0);
            let tables = self.object_faults.tables(machine);
            let start = plan.om_process(directory, tables, address);
            self.world.start(process, |context| start.run(context));
        } else {
            let (views, scm) = (self.views.clone(), self.scm_calls());
            self.world.start(process, |context| run_operator(context, views, scm, ledger));
        }
    }

    pub(super) fn crash(&mut self, machine: usize, crash: Crash, disk: SimOptions) {
        self.ledger.count(|counts| counts.crashes += 1);
        self.ledger.count(|counts| counts.slow_disks += u64::from(disk.device.is_some()));
        if machine < self.plan.scms {
            self.ledger.count(|counts| counts.scm_crashes += 1);
        }
        if let Some(slot) = self.slots.remove(&machine) {
            drop(slot.lock().expect("no holder panics").take());
        }
        self.world.crash(ProcessId(machine), crash, disk);
        for ((_, number), free_bytes) in self.full.range((machine, 0)..(machine + 1, 0)) {
            self.world.disks(ProcessId(machine))[*number].set_free_bytes(*free_bytes);
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
        self.object_faults_step();
        self.schemes_step();
        if now < self.next_fault || self.scheme_comes_first() {
            return;
        }
        self.next_fault = now + Duration::from_millis(1 + self.random.below(2 * self.plan.fault_pause_ms));
        let plan = self.plan.clone();
        if let Some((fault, lasts)) = random_fault(&plan, &mut self.random) {
            self.fault(fault, now + lasts);
        }
    }

    fn fault(&mut self, fault: Fault, until: Duration) {
        let (now, ledger) = (self.world.now(), self.ledger.clone());
        self.world.trace().event(format_args!("{fault:?} until {} ms", until.as_millis()));
        match fault {
            Fault::Partition { side, one_way } => {
                ledger.count(|counts| counts.partitions += 1);
                let side: Vec<_> = side.into_iter().map(ProcessId).collect();
                let cut = self.links.cut(&side, one_way);
                self.later(until, Remedy::Network(cut));
            }
            Fault::BadLink { from, to, link } => {
                ledger.count(|counts| counts.bad_links += 1);
                let bad = self.links.add(vec![(ProcessId(from), ProcessId(to), link)]);
                self.later(until, Remedy::Network(bad));
            }
            Fault::Crash { machines, crash, disk, down } => {
                if machines.len() == self.nodes().end {
                    ledger.count(|counts| counts.all_crashed += 1);
                }
                for machine in machines {
                    self.crash_for(machine, crash, disk, down);
                }
            }
            Fault::CrashCopying { crash, disk, down } => {
                if let Some(machine) = self.copying() {
                    ledger.count(|counts| counts.crashed_copying += 1);
                    self.crash_for(machine, crash, disk, down);
                }
            }
            Fault::FullDisk { node, disk, .. } if self.full.contains_key(&(node, disk)) => {}
            Fault::FullDisk { node, disk, free_bytes } => {
                ledger.count(|counts| counts.full_disks += 1);
                self.world.disks(ProcessId(node))[disk].set_free_bytes(free_bytes);
                self.later(until, Remedy::Space(node, disk));
            }
            Fault::FailedDisk { node, disk, steps, at_sync, restarts_after, power_lost_after } => {
                if self.world.is_up(ProcessId(node)) {
                    ledger.count(|counts| counts.disks_failed += 1);
                    self.failed.insert(node);
                    ledger.damage(node);
                    let disk = &self.world.disks(ProcessId(node))[disk];
                    match at_sync {
                        true => disk.fail_sync_from(disk.steps() + steps),
                        false => disk.fail_at(disk.steps() + steps),
                    }
                    if let Some(after) = restarts_after {
                        self.at(now + after, Step::Restart { machine: node });
                    }
                    if let Some(after) = power_lost_after {
                        self.at(now + after, Step::LosePower { machine: node });
                    }
                }
            }
            Fault::Decommission { node } => self.decommission(node, until),
            Fault::LostDisk { node, disk, crash, options, down } => {
                if self.may_harm() && !self.leaving.contains(&node) {
                    ledger.count(|counts| counts.disks_lost += 1);
                    self.crash_for(node, crash, options, down);
                    self.lose_disk(node, disk, options);
                    self.harmed_at = Some(now);
                }
            }
            Fault::LostNode { node, crash } => {
                if self.may_harm() && self.staying() > 4 && !self.leaving.contains(&node) {
                    self.lose_node(node, crash);
                }
            }
            Fault::Flip => self.flip_soon(),
            Fault::HarmedIndex {
                node,
                disk,
                harm,
                crash,
                options,
                down,
                rebuilt_after,
                power_lost_after,
            } => {
                let is_full = self.full.contains_key(&(node, disk));
                if self.may_harm() && !self.leaving.contains(&node) && !is_full {
                    self.crash_for(node, crash, options, down);
                    self.harm_index(node, disk, harm, rebuilt_after, power_lost_after);
                }
            }
            Fault::Pause { machine } => self.pause_until(machine, until),
            Fault::Misread { node, disk, one_in } => {
                if self.may_harm() {
                    ledger.count(|counts| counts.disks_misread += 1);
                    ledger.damage(node);
                    self.world.disks(ProcessId(node))[disk].flip_bits_on_read(Some(one_in));
                    self.harmed_at = Some(now);
                    self.later(until, Remedy::ReadsRight(node, disk));
                }
            }
        }
        self.links.apply_to(self.world.network());
    }

    /// Crashes a machine, unless it is down already, and starts it after `down`.
    pub(super) fn crash_for(&mut self, machine: usize, crash: Crash, disk: SimOptions, down: Duration) {
        if self.world.is_up(ProcessId(machine)) {
            self.crash(machine, crash, disk);
            self.later(self.world.now() + down, Remedy::Start(machine));
        }
    }

    /// A node that is up and has part of a copy, if there is one.
    fn copying(&mut self) -> Option<usize> {
        let has_part = |node: &usize| {
            let disks = self.world.disks(ProcessId(*node));
            let mut files = disks.iter().flat_map(|disk| disk.files());
            files.any(|(path, bytes)| path.starts_with("incoming/") && path.ends_with(".seg") && bytes > 0)
        };
        let copying: Vec<usize> =
            self.nodes().filter(|node| self.is_running(*node)).filter(has_part).collect();
        (!copying.is_empty()).then(|| *self.random.pick(&copying))
    }

    /// The number of nodes that are there and are to stay.
    pub(super) fn staying(&self) -> usize {
        let full = self.full.keys().filter(|(node, _)| !self.gone.contains(node)).count();
        (self.nodes().len() - self.gone.len()).saturating_sub(self.leaving.len() + full)
    }

    /// Whether something may be destroyed: all that was destroyed before is made up for, and nobody is away.
    pub(super) fn may_harm(&self) -> bool {
        self.all_are_there() && self.unsound().is_none()
    }

    /// Whether nobody is away, and nothing was destroyed that SCM may not have noticed yet.
    pub(super) fn all_are_there(&self) -> bool {
        let now = self.world.now();
        let noticed = self.plan.scm.dead_after + Duration::from_secs(5);
        let is_early = self.harmed_at.is_some_and(|harmed_at| now < harmed_at + noticed);
        let all_up = self
            .nodes()
            .all(|node| self.gone.contains(&node) || self.is_running(node) && self.is_healthy(node));
        !is_early && all_up && self.failed.is_empty()
    }

    /// Whether SCM knows that a node is there: what SCM counts as a replica may be one too many a moment
    /// after its node is back.
    pub(super) fn is_healthy(&self, node: usize) -> bool {
        let Some(view) = self.views.newest() else { return false };
        let address = self.plan.address(node);
        let is_it = |info: &DatanodeInfo| info.address == address && info.state() == NodeState::NodeHealthy;
        view.datanodes.iter().any(is_it)
    }

    pub(super) fn is_running(&self, node: usize) -> bool {
        self.slots.get(&node).is_some_and(|slot| slot.lock().expect("no holder panics").is_some())
    }

    pub(super) fn rebuild_at(&mut self, at: Duration, machine: usize, number: usize) {
        self.rebuilds.insert((machine, number), Rebuild { at, is_done: Arc::default() });
    }

    /// The rebuilds that are due on a machine that starts.
    fn rebuilds_due(&mut self, machine: usize) -> Vec<(usize, Arc<AtomicBool>)> {
        let now = self.world.now();
        self.rebuilds.retain(|_, rebuild| !rebuild.is_done.load(Ordering::Relaxed));
        let of_machine = self.rebuilds.range((machine, 0)..(machine + 1, 0));
        let due = of_machine.filter(|(_, rebuild)| rebuild.at <= now);
        due.map(|((_, number), rebuild)| (*number, rebuild.is_done.clone())).collect()
    }

    /// Puts an empty disk into the place of one in a machine. When it was its only one, nobody knows which
    /// node it was.
    fn lose_disk(&mut self, node: usize, number: usize, options: SimOptions) {
        self.note_lost_disk(node, number);
        self.full.remove(&(node, number));
        self.rebuilds.remove(&(node, number));
        self.world.replace_disk(ProcessId(node), number, options);
        self.holdings.forget(node);
        let others = &self.directories[&node];
        let uuid = match others.len() {
            1 => None,
            _ => Some(disk::DataDirectory::stamp(&others[1 - number]).node_uuid),
        };
        let uuid = uuid.unwrap_or_else(|| self.random_u128());
        let empty = self.directory(node, number, uuid);
        self.directories.get_mut(&node).expect("nodes have directories")[number] = empty;
    }

    /// Has SCM's members but one lose their disks, all at once; the one that is left is made the only one,
    /// and empty ones join it.
    pub(super) fn lose_scm(&mut self, survivor: usize) {
        self.ledger.count(|counts| counts.scm_resets += 1);
        self.scm_survivor = Some(survivor);
        for machine in 0..self.plan.scms {
            if self.world.is_up(ProcessId(machine)) {
                let disk = random_disk(&mut self.random);
                self.crash(machine, Crash::Kill, disk);
            }
            let pause = match machine == survivor {
                true => Duration::from_millis(300),
                false => Duration::from_millis(500 + self.random.below(6000)),
            };
            self.later(self.world.now() + pause, Remedy::Start(machine));
            if machine != survivor {
                let disk = random_disk(&mut self.random);
                self.world.replace_disk(ProcessId(machine), 0, disk);
                let uuid = self.random_u128();
                let empty = self.directory(machine, 0, uuid);
                self.directories.insert(machine, vec![empty]);
                self.scm_places[machine] = MemoryStore::new(format!("/scm{machine}.{}", self.disks_made));
            }
        }
    }

    pub(super) fn decommission(&mut self, node: usize, until: Duration) {
        if self.leaving.contains(&node) || self.gone.contains(&node) || self.staying() <= 4 {
            return;
        }
        self.ledger.count(|counts| counts.decommissions += 1);
        self.leaving.insert(node);
        self.set_duty(node, NodeDuty::NodeDecommissioning);
        // Some nodes stay empty.
        if !self.random.one_in(3) {
            self.later(until + Duration::from_secs(5), Remedy::Recommission(node));
        }
    }

    /// Asks SCM once to set a node's duty; an operator may fail too.
    fn set_duty(&self, node: usize, duty: NodeDuty) {
        let Some(view) = self.views.newest() else { return };
        let numbers: Vec<u64> = view
            .datanodes
            .iter()
            .filter(|info| info.address == self.plan.address(node))
            .map(|info| info.node)
            .collect();
        let (scm, ledger) = (self.scm_calls(), self.ledger.clone());
        self.world.spawn(self.operator(), async move {
            for node in numbers {
                let request = SetNodeDutyRequest { node, duty: duty as i32, for_ms: 0, force: false };
                let set = scm.call(|mut scm| async move { scm.set_node_duty(request).await }).await;
                if let Err(failure) = set {
                    ledger.event(format_args!("node {node} stays as it is: {}", failure.message));
                }
            }
        });
    }

    pub(super) fn pause_until(&mut self, machine: usize, until: Duration) {
        if self.world.is_up(ProcessId(machine)) {
            self.ledger.count(|counts| counts.machines_paused += 1);
            let cut = self.links.cut(&[ProcessId(machine)], false);
            self.links.apply_to(self.world.network());
            self.world.freeze(ProcessId(machine));
            self.later(until, Remedy::Thaw(machine, cut));
        }
    }

    pub(super) fn later(&mut self, at: Duration, remedy: Remedy) {
        self.remedies_made += 1;
        self.remedies.insert((at, self.remedies_made), remedy);
    }

    fn remedy(&mut self, remedy: Remedy) {
        match remedy {
            Remedy::Network(fault) => {
                self.links.remove(fault);
                self.links.apply_to(self.world.network());
            }
            Remedy::Start(machine) => {
                if !self.world.is_up(ProcessId(machine)) && !self.gone.contains(&machine) {
                    self.start(machine);
                }
            }
            Remedy::Space(node, disk) if self.full.contains_key(&(node, disk)) => {}
            Remedy::Space(node, disk) => {
                self.world.disks(ProcessId(node))[disk].set_free_bytes(CAPACITY_BYTES / 2);
            }
            Remedy::Recommission(node) => {
                self.leaving.remove(&node);
                self.set_duty(node, NodeDuty::NodeInService);
            }
            Remedy::Thaw(machine, cut) => {
                self.world.thaw(ProcessId(machine));
                self.links.remove(cut);
                self.links.apply_to(self.world.network());
            }
            Remedy::ReadsRight(node, disk) => {
                self.world.disks(ProcessId(node))[disk].flip_bits_on_read(None);
            }
        }
    }

    /// Mends all that can be mended.
    pub(super) fn stop_faults(&mut self) {
        self.world.trace().event(format_args!("all faults stop"));
        self.mend_way_of_om();
        self.world.network().slow_calls(None);
        self.links.clear();
        self.links.apply_to(self.world.network());
        self.steps.clear();
        for (_, remedy) in std::mem::take(&mut self.remedies) {
            self.remedy(remedy);
        }
        let now = self.world.now();
        self.rebuilds.values_mut().for_each(|rebuild| rebuild.at = now);
        let to_rebuild = self.rebuilds.keys().map(|(machine, _)| *machine);
        let to_restart: BTreeSet<usize> = self.failed.iter().copied().chain(to_rebuild).collect();
        for machine in to_restart {
            if self.world.is_up(ProcessId(machine)) {
                let disk = random_disk(&mut self.random);
                self.crash(machine, Crash::Kill, disk);
                self.start(machine);
            }
        }
    }
}
