use super::planted::Planted;
use crate::services::{Ahead, MemoryStore, MemoryTables, OmProcess, ScmProcess};
use disk::sim::{Random, SimDirectory};
use om::OmOptions;
use raft::{HostOptions, SnapshotPolicy, Timing};
use raftlog::LogSpaceOptions;
use scm::ScmOptions;
use statedb::{DbMemory, DbOptions};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use types::ManualClock;

/// Memory of each database. Nothing is flushed but by its owner: what RocksDB did on its own would be done at
/// another moment each time.
const DB_BYTES: usize = 8 << 20;
/// Clocks that differ by a ninth break leases (docs/adr/0005): two that drift apart by this much differ by
/// 8.3 %.
const DRIFT_PPM_MAX: u64 = 40_000;
const AHEAD_MS_MAX: u64 = 2 * 3600 * 1000;
/// The machines of clients.
const CLIENT_MACHINES: usize = 2;

/// Everything about a run that is decided before it begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Members of SCM: one or three.
    pub(super) scms: usize,
    /// The number of OMs: three, or one more, which takes the place of one that is dead.
    pub(super) oms: usize,
    pub(super) callers: u64,
    pub(super) think_ms_max: u64,
    /// The times after which callers give a call up. Faults last for some seconds: with the last ones a
    /// caller outlasts them.
    pub(super) deadlines: [Duration; 3],
    pub(super) move_pause_ms_max: u64,
    pub(super) faults_last: Duration,
    pub(super) fault_pause_ms: u64,
    pub(super) weights: Weights,
    /// How much faster than the world's each machine's clock runs, in parts per million.
    pub(super) drifts_ppm: Vec<i64>,
    /// How far ahead of the world's time the clock on each machine's wall is.
    pub(super) ahead: Vec<Duration>,
    pub(super) scm: ScmOptions,
    pub(super) om: OmOptions,
    pub(super) space: LogSpaceOptions,
    pub(super) host: HostOptions,
}

/// How often each fault is chosen, from 0, never, to 3.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) partition: u64,
    pub(super) one_way: u64,
    pub(super) lone_leader: u64,
    pub(super) bad_link: u64,
    pub(super) crash_one: u64,
    pub(super) crash_some: u64,
    pub(super) crash_all: u64,
    pub(super) crash_scm: u64,
    pub(super) long_away: u64,
    pub(super) emptied: u64,
    pub(super) full_disk: u64,
    pub(super) failed_disk: u64,
    pub(super) pause: u64,
    pub(super) transfer: u64,
    pub(super) clock_jump: u64,
    pub(super) new_group: u64,
}

impl Weights {
    const NONE: Weights = Weights {
        partition: 0,
        one_way: 0,
        lone_leader: 0,
        bad_link: 0,
        crash_one: 0,
        crash_some: 0,
        crash_all: 0,
        crash_scm: 0,
        long_away: 0,
        emptied: 0,
        full_disk: 0,
        failed_disk: 0,
        pause: 0,
        transfer: 0,
        clock_jump: 0,
        new_group: 0,
    };

    fn new(random: &mut Random, planted: Option<Planted>) -> Weights {
        let mut weight = || *random.pick(&[0, 1, 1, 3]);
        let weights = Weights {
            partition: weight(),
            one_way: weight(),
            lone_leader: weight(),
            bad_link: weight(),
            crash_one: weight(),
            crash_some: weight(),
            crash_all: weight(),
            crash_scm: weight(),
            long_away: weight(),
            emptied: weight(),
            full_disk: weight(),
            failed_disk: weight(),
            pause: weight(),
            transfer: weight(),
            clock_jump: weight(),
            new_group: weight().min(1),
        };
        match planted {
            None => weights,
            // A leader that others do not hear, and clients do, shows the bug.
            Some(Planted::LeasesNotChecked) => Weights { lone_leader: 1, ..Weights::NONE },
            // Moves and lost answers show these bugs.
            Some(_) => Weights { transfer: 1, ..Weights::NONE },
        }
    }

    pub(super) fn all(&self) -> [u64; 16] {
        [
            self.partition,
            self.one_way,
            self.lone_leader,
            self.bad_link,
            self.crash_one,
            self.crash_some,
            self.crash_all,
            self.crash_scm,
            self.long_away,
            self.emptied,
            self.full_disk,
            self.failed_disk,
            self.pause,
            self.transfer,
            self.clock_jump,
            self.new_group,
        ]
    }
}

impl Plan {
    pub(super) fn new(random: &mut Random, planted: Option<Planted>, memory: DbMemory) -> Plan {
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
        let timing = *random.pick(&[quick, Timing::METADATA]);
        let snapshots = *random.pick(&[
            SnapshotPolicy { log_bytes_max: 8 << 10, tail_bytes: 2 << 10 },
            SnapshotPolicy { log_bytes_max: 64 << 10, tail_bytes: 16 << 10 },
        ]);
        let (scms, oms) = (*random.pick(&[1, 3]), *random.pick(&[3, 3, 4]));
        let machines = scms + oms + CLIENT_MACHINES;
        let (drift, are_apart) = (random.one_in(2), random.one_in(2));
        let of_each = |random: &mut Random, is_any: bool, end: u64| -> Vec<u64> {
            (0..machines).map(|_| if is_any { random.below(end) } else { end / 2 }).collect()
        };
        let drifts = of_each(random, drift, 2 * DRIFT_PPM_MAX);
        let ahead = of_each(random, are_apart, AHEAD_MS_MAX);
        let plan = Plan {
            scms,
            oms,
            callers: 4 + random.below(5),
            think_ms_max: *random.pick(&[50, 150, 500]),
            deadlines: [1500, 8_000, 20_000].map(Duration::from_millis),
            move_pause_ms_max: *random.pick(&[300, 1000, 3000]),
            faults_last: Duration::from_secs(15 + random.below(30)),
            fault_pause_ms: *random.pick(&[700, 1500, 4000]),
            weights: Weights::new(random, planted),
            drifts_ppm: drifts.into_iter().map(|ppm| ppm as i64 - DRIFT_PPM_MAX as i64).collect(),
            ahead: ahead.into_iter().map(Duration::from_millis).collect(),
            scm: ScmOptions {
                om_groups: 2 + random.below(3) as usize,
                stale_after: Duration::from_secs(2),
                dead_after: Duration::from_secs(6),
                timing: quick,
                snapshots: SnapshotPolicy { log_bytes_max: 16 << 10, tail_bytes: 4 << 10 },
                db: db.clone(),
                ..ScmOptions::default()
            },
            om: OmOptions { timing, snapshots, db, ..OmOptions::default() },
            space: LogSpaceOptions {
                segment_bytes_max: *random.pick(&[32 << 10, 128 << 10]),
                cache_bytes_per_log_max: *random.pick(&[16 << 10, 1 << 20]),
                cache_bytes_max: 4 << 20,
                unflushed_bytes_max: 4 << 20,
                reserve_bytes: 256 << 10,
                spare_bytes_max: *random.pick(&[0, 256 << 10]),
                shared: None,
            },
            host: HostOptions {
                doze_after: random.pick(&[None, Some(1500)]).map(Duration::from_millis),
                // Terms stay far below where this clock would be asked.
                clock: Arc::new(ManualClock::at_ms(0)),
                ..HostOptions::default()
            },
        };
        if planted.is_some() { plan.busy() } else { plan }
    }

    /// The plan with clients who meet all the time, and buckets that move as often as they can: a bug shows
    /// soon.
    fn busy(mut self) -> Plan {
        const CALLERS: u64 = 8;
        (self.callers, self.think_ms_max, self.move_pause_ms_max) = (CALLERS, 40, 200);
        (self.scm.om_groups, self.fault_pause_ms) = (2, 4000);
        self
    }

    /// Machines: those of SCM first, then those of OMs, of clients, and the operator's, which no fault
    /// touches.
    pub(super) fn scms(&self) -> Range<usize> {
        0..self.scms
    }

    pub(super) fn oms(&self) -> Range<usize> {
        self.scms..self.scms + self.oms
    }

    pub(super) fn clients(&self) -> Range<usize> {
        let first = self.oms().end;
        first..first + CLIENT_MACHINES
    }

    pub(super) fn operator(&self) -> usize {
        self.clients().end
    }

    pub(super) fn address(&self, machine: usize) -> String {
        let role = match machine {
            _ if self.scms().contains(&machine) => "scm",
            _ if self.oms().contains(&machine) => "om",
            _ if self.clients().contains(&machine) => "clients",
            _ => "operator",
        };
        format!("{role}{machine}:1")
    }

    pub(super) fn machine_at(&self, address: &str) -> Option<usize> {
        (0..=self.operator()).find(|machine| self.address(*machine) == address)
    }

    pub(super) fn scm_addresses(&self) -> Vec<String> {
        self.scms().map(|machine| self.address(machine)).collect()
    }

    pub(super) fn om_addresses(&self) -> Vec<String> {
        self.oms().map(|machine| self.address(machine)).collect()
    }

    pub(super) fn scm_process(
        &self,
        machine: usize,
        directory: SimDirectory,
        place: MemoryStore,
        ahead: Ahead,
    ) -> ScmProcess {
        let (address, members) = (self.address(machine), self.scm_addresses());
        let options = ScmOptions { address, members, ..self.scm.clone() };
        let (space, host) = (self.space.clone(), self.host.clone());
        ScmProcess { options, space, host, directory, place, ahead }
    }

    pub(super) fn om_process(
        &self,
        machine: usize,
        directory: SimDirectory,
        tables: MemoryTables,
        ahead: Ahead,
    ) -> OmProcess {
        let (address, scm) = (self.address(machine), self.scm_addresses().join(","));
        let options = OmOptions { address, scm, ..self.om.clone() };
        let (space, host) = (self.space.clone(), self.host.clone());
        OmProcess { options, space, host, directory, tables, ahead }
    }
}
