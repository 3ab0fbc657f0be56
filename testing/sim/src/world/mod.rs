//! A world of simulated processes on one thread: their clocks, disks, and the network between them.
//!
//! Each process is a tokio runtime with a paused clock. The world moves in ticks: what arrives at the
//! beginning of a tick is handed over, then each process in turn runs until its clock has moved by the tick,
//! or a little more or less where it drifts. No frame takes less than a tick, so that it makes no difference
//! who is first. A crash drops the runtime, and with it all that the process was doing.
//!
//! Nothing here knows what the processes do. All chance comes from the seed.

mod body;
mod connector;
mod entropy;
mod link;
mod network;
mod panics;
mod process;
mod trace;

pub use connector::SimConnector;
pub(crate) use entropy::fix_entropy;
pub use link::Link;
pub use network::{Direction, Network, Observer, ProcessId, SILENCE_MAX, Sent, SlowCalls};
pub use process::{Context, Process, running};
pub use trace::Trace;

use panics::Panics;

use disk::sim::{Loss, Random, SimDisk, SimOptions};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tonic::service::Routes;

/// The time by which all clocks move at once; frames take at least as long.
pub const TICK: Duration = Duration::from_millis(1);

/// The way in which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, its machine lives on: nothing written is lost, and peers see their connections
    /// reset.
    Kill,
    /// The machine loses power, and peers hear nothing any more. What was not synced is lost as said.
    PowerLoss(Loss),
}

pub struct World {
    now: Duration,
    random: Random,
    network: Network,
    trace: Trace,
    processes: Vec<Process>,
    panics: Panics,
    panicked: Option<String>,
}

impl World {
    pub fn new(seed: u64, trace: Trace) -> World {
        let mut random = Random::new(seed);
        let network = Network::new(random.next_u64(), trace.clone());
        World {
            now: Duration::ZERO,
            random,
            network,
            trace,
            processes: Vec::new(),
            panics: Panics::watch(),
            panicked: None,
        }
    }

    pub fn now(&self) -> Duration {
        self.now
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Adds a machine that is off, under an address, whose clock runs faster than the world's by `drift_ppm`
    /// parts per million. The seed of `disk` is chosen here.
    pub fn add(&mut self, address: String, disk: SimOptions, drift_ppm: i64) -> ProcessId {
        self.add_with_disks(address, &[disk], drift_ppm)
    }

    /// [`World::add`] for a machine with several disks, at least one.
    pub fn add_with_disks(&mut self, address: String, disks: &[SimOptions], drift_ppm: i64) -> ProcessId {
        assert!(!disks.is_empty(), "a machine has a disk");
        let id = self.network.add(address);
        let disks = disks.iter().map(|disk| self.blank(*disk)).collect();
        self.processes.push(Process { id, disks, runtime: None, drift_ppm, owed_nanos: 0, is_frozen: false });
        id
    }

    fn blank(&mut self, disk: SimOptions) -> SimDisk {
        SimDisk::new(SimOptions { seed: self.random.next_u64(), ..disk })
    }

    /// Puts an empty disk in the place of one, in a machine that is off.
    pub fn replace_disk(&mut self, process: ProcessId, number: usize, disk: SimOptions) {
        assert!(!self.is_up(process), "{process} is up");
        self.processes[process.0].disks[number] = self.blank(disk);
    }

    /// Puts another disk in the place of one, in a machine that is off, and returns that one.
    pub fn put_disk(&mut self, process: ProcessId, number: usize, disk: SimDisk) -> SimDisk {
        assert!(!self.is_up(process), "{process} is up");
        std::mem::replace(&mut self.processes[process.0].disks[number], disk)
    }

    pub fn processes(&self) -> impl Iterator<Item = ProcessId> + use<> {
        (0..self.processes.len()).map(ProcessId)
    }

    pub fn disk(&self, process: ProcessId) -> &SimDisk {
        &self.processes[process.0].disks[0]
    }

    pub fn disks(&self, process: ProcessId) -> &[SimDisk] {
        &self.processes[process.0].disks
    }

    pub fn is_up(&self, process: ProcessId) -> bool {
        self.processes[process.0].runtime.is_some()
    }

    /// Starts a process; `main` answers with what it serves to others.
    pub fn start<F>(&mut self, process: ProcessId, main: impl FnOnce(Context) -> F)
    where
        F: Future<Output = Routes> + Send + 'static,
    {
        self.trace.event(format_args!("{process} starts"));
        self.processes[process.0].start(&self.network, &self.trace, main);
    }

    /// A process's way to others.
    pub fn connector(&self, process: ProcessId) -> Arc<SimConnector> {
        Arc::new(SimConnector { network: self.network.clone(), from: process })
    }

    /// Runs something inside a process, which must be up.
    pub fn spawn(&self, process: ProcessId, task: impl Future<Output = ()> + Send + 'static) {
        let runtime =
            self.processes[process.0].runtime.as_ref().expect("only a process that is up runs things");
        runtime.spawn(task);
    }

    /// Ends a process where it stands. Its disks, as the next start finds them, get `disk`'s properties.
    pub fn crash(&mut self, id: ProcessId, crash: Crash, disk: SimOptions) {
        self.trace.event(format_args!("{id} crashes: {crash:?}"));
        self.network.down(id, crash == Crash::Kill);
        let process = &mut self.processes[id.0];
        // First the disks: what the runtime drops must not write any more.
        for of_process in &mut process.disks {
            let options = SimOptions { seed: self.random.next_u64(), ..disk };
            self.trace.mix(of_process.trace_hash());
            *of_process = match crash {
                Crash::Kill => of_process.kill(options),
                Crash::PowerLoss(loss) => of_process.lose_power(loss, options),
            };
        }
        process.runtime = None;
        process.is_frozen = false;
        self.look_for_panics(id);
    }

    /// Stops a machine where it stands, as when it is moved to another host. It gets what it was sent; what
    /// it answers comes later.
    pub fn freeze(&mut self, id: ProcessId) {
        self.trace.event(format_args!("{id} stands still"));
        self.processes[id.0].is_frozen = true;
    }

    /// Lets a machine go on; all its timers that came due meanwhile are late.
    pub fn thaw(&mut self, id: ProcessId) {
        if self.processes[id.0].is_frozen {
            self.trace.event(format_args!("{id} goes on"));
            self.processes[id.0].thaw(TICK);
            self.look_for_panics(id);
        }
    }

    /// Moves the world by one tick.
    pub fn advance(&mut self) {
        self.trace.set_now(self.now);
        self.network.advance(self.now);
        for at in 0..self.processes.len() {
            self.processes[at].advance(TICK);
            self.look_for_panics(ProcessId(at));
        }
        self.now += TICK;
        self.trace.set_now(self.now);
    }

    /// The first panic in any process, be it in a task that nobody awaits.
    pub fn panicked(&self) -> Option<&str> {
        self.panicked.as_deref()
    }

    /// A panic outside of the processes, in whoever moves the world, on its thread.
    pub fn take_panic(&self) -> Option<String> {
        self.panics.take()
    }

    fn look_for_panics(&mut self, process: ProcessId) {
        if let Some(why) = self.panics.take() {
            self.trace.event(format_args!("{process} {why}"));
            self.panicked.get_or_insert(format!("{process} {why}"));
        }
    }

    /// The hash of everything that has happened so far.
    pub fn trace_hash(&self) -> u64 {
        for disk in self.processes.iter().flat_map(|process| &process.disks) {
            self.trace.mix(disk.trace_hash());
        }
        self.trace.hash()
    }
}
