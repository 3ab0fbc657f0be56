use super::planted::Planted;
use super::scheme::Scheme;
use super::sweep_plan::Sweeps;
use crate::services::{Ahead, MemoryStore, MemoryTables, OmProcess, ScmProcess};
use datanode::DatanodeOptions;
use disk::sim::{Random, SimDirectory};
use om::OmOptions;
use raft::{HostOptions, SnapshotPolicy, Timing};
use raftlog::LogSpaceOptions;
use scm::ScmOptions;
use statedb::{DbMemory, DbOptions};
use std::sync::Arc;
use std::time::Duration;
use types::ManualClock;

/// One seed in so many has OMs.
const WITH_OM_ONE_IN: u64 = 4;
/// Memory of each database. Nothing is flushed but by its owner: what RocksDB did on its own would be done at
/// another moment each time.
const DB_BYTES: usize = 8 << 20;

/// Everything about a run that is decided before it begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Members of SCM: one or three.
    pub(super) scms: usize,
    /// The number of disks of each datanode.
    pub(super) disks: Vec<usize>,
    /// OMs: none, one or three. With them come clients that put, read and delete objects.
    pub(super) oms: usize,
    /// Of all that has to do with it: other seeds' steps are the same with and without it.
    pub(super) object_seed: u64,
    /// Whether blocks are deleted, too.
    pub(super) deletes: bool,
    /// The times of a run that sweeps, if it does: what no key names goes, and plain writers' blocks with it.
    pub(super) sweeps: Option<Sweeps>,
    /// Whether OMs have their troubles.
    pub(super) om_faults: bool,
    pub(super) writers: u64,
    pub(super) readers: u64,
    pub(super) think_ms_max: u64,
    pub(super) chunk_bytes_max: u64,
    pub(super) faults_last: Duration,
    pub(super) fault_pause_ms: u64,
    pub(super) weights: Weights,
    pub(super) scheme: Option<Scheme>,
    /// Whether faults come by chance while a scheme lasts.
    pub(super) more_beside_scheme: bool,
    pub(super) datanode: DatanodeOptions,
    pub(super) scm: ScmOptions,
    pub(super) space: LogSpaceOptions,
    pub(super) host: HostOptions,
}

/// The weight of each kind of fault: 0 is never, and 3 is the most that chance gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) partition: u64,
    pub(super) one_way: u64,
    pub(super) bad_link: u64,
    pub(super) crash_one: u64,
    pub(super) crash_some: u64,
    pub(super) crash_all: u64,
    pub(super) crash_scm: u64,
    pub(super) long_away: u64,
    pub(super) full_disk: u64,
    pub(super) failed_disk: u64,
    pub(super) decommission: u64,
    /// The weight of what cannot be undone: a disk or a node that is lost.
    pub(super) loss: u64,
    pub(super) crash_copying: u64,
    pub(super) flip: u64,
    pub(super) pause: u64,
    pub(super) harmed_index: u64,
    pub(super) misread: u64,
}

impl Weights {
    fn new(random: &mut Random, planted: Option<Planted>) -> Weights {
        let mut weight = || *random.pick(&[0, 1, 1, 3]);
        let weights = Weights {
            partition: weight(),
            one_way: weight(),
            bad_link: weight(),
            crash_one: weight(),
            crash_some: weight(),
            crash_all: weight(),
            crash_scm: weight(),
            long_away: weight(),
            full_disk: weight(),
            failed_disk: weight(),
            decommission: weight(),
            loss: 3,
            crash_copying: weight(),
            flip: 2,
            pause: weight(),
            harmed_index: 2,
            misread: 1,
        };
        let none = Weights {
            partition: 0,
            one_way: 0,
            bad_link: 0,
            crash_one: 0,
            crash_some: 0,
            crash_all: 0,
            crash_scm: 0,
            long_away: 0,
            full_disk: 0,
            failed_disk: 0,
            decommission: 0,
            loss: 0,
            crash_copying: 0,
            flip: 0,
            pause: 0,
            harmed_index: 0,
            misread: 0,
        };
        match planted {
            None => weights,
            // Each bug gets the faults that it needs to show. A copy goes bad when its target loses power in
            // the middle, and goes on with what is left.
            Some(Planted::ImportsUnverified) => {
                Weights { crash_copying: 9, decommission: 9, long_away: 2, ..none }
            }
            // One member is away, the others go on and leave too, and it comes back alone.
            Some(Planted::QuasiClosedIsClosed) => Weights { long_away: 9, crash_some: 1, ..none },
            // A node is away, or not heard, while others discard.
            Some(Planted::GoneEarly | Planted::DiscardsNotTaken) => {
                Weights { one_way: 3, long_away: 6, partition: 3, ..none }
            }
            Some(Planted::CopiesCountEarly) => Weights { loss: 9, decommission: 3, long_away: 3, ..weights },
            // OM's own troubles show these bugs, ...
            Some(Planted::RequestIdsIgnored | Planted::FreezeLeftOut | Planted::RequestsLeftBehind) => none,
            // ... or clients that are slow.
            Some(
                Planted::FencesIgnored
                | Planted::MovesOverlooked
                | Planted::NamedBlocksGo
                | Planted::LessIsOverlooked,
            ) => none,
            // Chunks that are sent again, and elections, leave records in a container that are no block's.
            Some(Planted::CompactionLosesRecords) => {
                Weights { partition: 3, one_way: 3, crash_one: 3, crash_some: 3, ..none }
            }
            // Schemes of their own show these bugs.
            Some(
                Planted::TailsAreRead
                | Planted::LogsNeedNoProof
                | Planted::BegunIsForgotten
                | Planted::ComingForEver
                | Planted::NumbersDrawnAgain,
            ) => none,
        }
    }

    pub(super) fn all(&self) -> [u64; 17] {
        [
            self.partition,
            self.one_way,
            self.bad_link,
            self.crash_one,
            self.crash_some,
            self.crash_all,
            self.crash_scm,
            self.long_away,
            self.full_disk,
            self.failed_disk,
            self.decommission,
            self.loss,
            self.crash_copying,
            self.flip,
            self.pause,
            self.harmed_index,
            self.misread,
        ]
    }
}

impl Plan {
    /// How far the clock of a machine is ahead of the world's time. Nothing is decided by clocks: so machines
    /// of half the clusters have others.
    pub(super) fn clock_ahead(&self, address: &str) -> Duration {
        const AHEAD_MS_MAX: u64 = 2 * 3600 * 1000;
        let machine =
            address.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let mut random = Random::new(self.object_seed ^ machine);
        let are_apart = Random::new(self.object_seed).one_in(2);
        Duration::from_millis(if are_apart { random.below(AHEAD_MS_MAX) } else { 0 })
    }

    pub(super) fn new(seed: u64, random: &mut Random, planted: Option<Planted>, memory: DbMemory) -> Plan {
        let nodes = 5 + random.below(3);
        let disks: Vec<usize> = (0..nodes).map(|_| 1 + random.below(2) as usize).collect();
        let db = DbOptions {
            block_cache_bytes: 1 << 20,
            write_buffer_bytes: DB_BYTES,
            shared: None,
            memory: Some(memory),
        };
        let quick = Timing {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(500),
            election_max: Duration::from_millis(800),
        };
        let timing = *random.pick(&[quick, quick, Timing::PIPELINE]);
        let space = LogSpaceOptions {
            segment_bytes_max: *random.pick(&[64 << 10, 128 << 10]),
            cache_bytes_per_log_max: *random.pick(&[16 << 10, 1 << 20]),
            cache_bytes_max: 4 << 20,
            shared: None,
            unflushed_bytes_max: 4 << 20,
            reserve_bytes: 256 << 10,
            spare_bytes_max: *random.pick(&[0, 256 << 10]),
        };
        let datanode = DatanodeOptions {
            heartbeat: Duration::from_millis(*random.pick(&[200, 500])),
            memory_bytes_max: 16 << 20,
            pipeline_timing: timing,
            container_bytes_max: *random.pick(&[200 << 10, 500 << 10]),
            read_wait: Duration::from_millis(500),
            scrub_bytes_per_second: 4 << 20,
            scrub_interval: Duration::from_secs(*random.pick(&[4, 10])),
            compact_above_percent: [1, 20, 50][seed as usize % 3],
            deletion_pause: Duration::from_millis(500),
            compact_bytes_per_second: 1 << 20,
            copy_bytes_per_second: *random.pick(&[200 << 10, 2 << 20]),
            log_tail_bytes: *random.pick(&[20 << 10, 100 << 10]),
            forget_interval: Duration::from_secs(1),
            log: space.clone(),
            db: db.clone(),
            ..DatanodeOptions::default()
        };
        let om_groups = om_groups(seed, planted);
        let scm = ScmOptions {
            pipelines_per_disk: 1 + random.below(2) as u32,
            om_groups,
            stale_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            member_fault_grace: Duration::from_secs(3),
            quasi_close_after: Duration::from_secs(6),
            task_within: Duration::from_secs(15),
            ahead_kept: Duration::from_secs(5),
            leader_move_interval: Duration::from_secs(10),
            timing: quick,
            snapshots: SnapshotPolicy { log_bytes_max: 16 << 10, tail_bytes: 4 << 10 },
            db,
            ..ScmOptions::default()
        };
        let object_seed = seed ^ 0x6f62_6a65_6374_7300;
        let sweeps = is_swept(seed, planted).then(|| {
            let random = &mut Random::new(object_seed ^ 4);
            Sweeps::random(random, (oms(seed, planted), om_groups), planted)
        });
        let scheme = Scheme::random(random, planted).filter(|_| sweeps.is_none());
        let plan = Plan {
            scms: *random.pick(&[1, 3, 3]),
            oms: oms(seed, planted),
            object_seed,
            disks,
            deletes: match planted {
                None => scheme.is_none() && sweeps.is_none(),
                Some(planted) => planted.is_of_discards(),
            },
            sweeps,
            om_faults: !planted.is_some_and(Planted::is_of_sweeps),
            writers: 2 + random.below(4),
            readers: 1 + random.below(3),
            think_ms_max: *random.pick(&[50, 200, 600]),
            chunk_bytes_max: *random.pick(&[3_000, 20_000, 80_000]),
            // A scheme sets another end when it begins.
            faults_last: match scheme {
                None => Duration::from_secs(20 + random.below(40)),
                Some(_) => Duration::from_secs(10 + random.below(20)),
            },
            fault_pause_ms: *random.pick(&[1000, 2500, 6000]),
            weights: Weights::new(random, planted),
            scheme,
            more_beside_scheme: planted.is_none() && random.one_in(3),
            datanode,
            scm,
            space,
            host: HostOptions {
                doze_after: random.pick(&[None, Some(1500)]).map(Duration::from_millis),
                // Terms stay far below where this clock would be asked.
                clock: Arc::new(ManualClock::at_ms(0)),
                ..HostOptions::default()
            },
        };
        match planted {
            Some(Planted::ImportsUnverified) => plan.with_long_copies(),
            _ if plan.sweeps.is_some() => plan.for_sweeps(planted),
            _ => plan.for_scheme(quick),
        }
    }

    /// The plan with what its scheme needs: quick elections, so that a pipeline goes on before SCM notices
    /// anything; members of SCM that can be lost.
    fn for_scheme(mut self, quick: Timing) -> Plan {
        match self.scheme {
            Some(Scheme::Diverge { .. }) => self.datanode.pipeline_timing = quick,
            Some(Scheme::ResetScm { .. }) => (self.scms, self.more_beside_scheme) = (3, false),
            Some(Scheme::Pause { .. }) => self.more_beside_scheme = false,
            _ => {}
        }
        self
    }

    /// The plan of a run that sweeps: little has no name; where a bug is planted, containers are small and
    /// soon over.
    fn for_sweeps(mut self, planted: Option<Planted>) -> Plan {
        const CHUNK_BYTES_MAX: u64 = 20_000;
        (self.writers, self.readers, self.think_ms_max) = (1, 1, 600);
        self.chunk_bytes_max = self.chunk_bytes_max.min(CHUNK_BYTES_MAX);
        if planted.is_some() {
            self.faults_last =
                Duration::from_secs(if planted == Some(Planted::MovesOverlooked) { 30 } else { 16 });
            (self.datanode.container_bytes_max, self.datanode.compact_above_percent) = (200 << 10, 1);
        }
        self
    }

    /// The plan with copies of files that come in several messages of 1 MiB, some with nothing but a part of
    /// a record's body: a loss of power in the middle finds them written and not synced, while of damage to a
    /// head indexing would tell.
    fn with_long_copies(mut self) -> Plan {
        self.space.segment_bytes_max = 8 << 20;
        self.datanode.log.segment_bytes_max = 8 << 20;
        self.datanode.container_bytes_max = 6 << 20;
        self.datanode.copy_bytes_per_second = 1 << 20;
        self.scm.pipelines_per_disk = 1;
        (self.writers, self.think_ms_max, self.chunk_bytes_max) = (2, 2000, 2 << 20);
        (self.faults_last, self.fault_pause_ms) = (Duration::from_secs(40), 1000);
        self
    }

    /// The process of a member of SCM.
    pub(super) fn scm_process(
        &self,
        directory: SimDirectory,
        place: MemoryStore,
        address: String,
    ) -> ScmProcess {
        let ahead = Ahead::by(self.clock_ahead(&address));
        let options = ScmOptions { address, members: self.scm_addresses(), ..self.scm.clone() };
        let (space, host) = (self.space.clone(), self.host.clone());
        ScmProcess { options, space, host, directory, place, ahead }
    }

    pub(super) fn om_process(
        &self,
        directory: SimDirectory,
        tables: MemoryTables,
        address: String,
    ) -> OmProcess {
        let ahead = Ahead::by(self.clock_ahead(&address));
        let options = OmOptions {
            address,
            scm: self.scm_addresses().join(","),
            timing: self.scm.timing,
            snapshots: self.scm.snapshots,
            db: self.scm.db.clone(),
            ..OmOptions::default()
        };
        let options = match self.sweeps {
            None => options,
            Some(Sweeps { reclaim_after, after, every, .. }) => {
                OmOptions { reclaim_after, sweep_after: after, sweep_every: Some(every), ..options }
            }
        };
        let (space, host) = (self.space.clone(), self.host.clone());
        OmProcess { options, space, host, directory, tables, ahead }
    }

    /// Machines: those of SCM first, then the datanodes', then the clients', then the operator's.
    pub(super) fn nodes(&self) -> std::ops::Range<usize> {
        self.scms..self.scms + self.disks.len()
    }

    pub(super) fn clients(&self) -> usize {
        self.nodes().end
    }

    pub(super) fn operator(&self) -> usize {
        self.clients() + 1
    }

    /// The machines of OMs, which are the last ones.
    pub(super) fn oms(&self) -> std::ops::Range<usize> {
        let first = self.operator() + 1;
        first..first + self.oms
    }

    pub(super) fn om_addresses(&self) -> Vec<String> {
        self.oms().map(|machine| self.address(machine)).collect()
    }

    pub(super) fn scm_addresses(&self) -> Vec<String> {
        (0..self.scms).map(|machine| self.address(machine)).collect()
    }

    pub(super) fn address(&self, machine: usize) -> String {
        match machine {
            machine if machine < self.scms => format!("scm{machine}:1"),
            machine if self.nodes().contains(&machine) => format!("dn{machine}:1"),
            machine if machine == self.clients() => "clients:1".to_owned(),
            machine if self.oms().contains(&machine) => format!("om{machine}:1"),
            _ => "operator:1".to_owned(),
        }
    }
}

fn oms(seed: u64, planted: Option<Planted>) -> usize {
    let object_seed = seed / WITH_OM_ONE_IN;
    match planted {
        None if seed % WITH_OM_ONE_IN != WITH_OM_ONE_IN - 1 => 0,
        None => [1, 3, 3][(object_seed % 3) as usize],
        Some(planted) => {
            let shows =
                planted == Planted::RequestIdsIgnored || planted.is_of_moves() || planted.is_of_sweeps();
            usize::from(shows)
        }
    }
}

fn om_groups(seed: u64, planted: Option<Planted>) -> usize {
    match planted {
        // The more groups there are, the more often a bucket is past each of them when that is asked.
        Some(Planted::MovesOverlooked) => 5,
        Some(planted) if planted.is_of_moves() => 3,
        Some(planted) if planted.is_of_sweeps() => 1,
        _ if (seed / WITH_OM_ONE_IN / 3).is_multiple_of(2) => 1,
        _ => 3,
    }
}

/// Whether a run sweeps, and has no scheme: every other one of those with OMs.
fn is_swept(seed: u64, planted: Option<Planted>) -> bool {
    match planted {
        None => oms(seed, None) > 0 && (seed / WITH_OM_ONE_IN).is_multiple_of(2),
        Some(planted) => planted.is_of_sweeps(),
    }
}

/// The datanode's machine with an address.
pub(super) fn machine_at(address: &str) -> Option<usize> {
    address.strip_prefix("dn")?.strip_suffix(":1")?.parse().ok()
}
