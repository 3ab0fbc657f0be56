use super::planted::Planted;
use super::seats::member;
use crate::world::ProcessId;
use disk::sim::{DeviceModel, Keeping, Random, SimOptions};
use raft::{GroupSpec, GroupStart, HostOptions, SnapshotPolicy, Timing};
use raftlog::{LogSpaceOptions, LogSpec};
use std::sync::Arc;
use std::time::Duration;
use types::{GroupId, ManualClock, OwnerId, ReplicaId};

const CLUSTER: &str = "simulated";
/// Enough for all that a run writes; a full disk is one of the faults.
pub(super) const CAPACITY_BYTES: u64 = 1 << 30;

/// Everything about a run that is decided before it begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) processes: usize,
    pub(super) groups: Vec<GroupPlan>,
    pub(super) space: LogSpaceOptions,
    pub(super) host: HostOptions,
    pub(super) clients_per_group: u64,
    pub(super) keys_per_group: u64,
    pub(super) think_ms_max: u64,
    /// The time for which there are faults, and the mean pause between them.
    pub(super) faults_last: Duration,
    pub(super) fault_pause_ms: u64,
    /// The mean pause between changes of a group's members, where they change.
    pub(super) change_pause_ms: u64,
    /// How often each kind of fault is chosen.
    pub(super) weights: Weights,
    /// How much faster than the world's the processes' clocks run, in parts per million.
    pub(super) drifts_ppm: Vec<i64>,
    /// Clients work and rest in turn.
    pub(super) works: Duration,
    pub(super) rests: Duration,
    pub(super) snapshot_filler_bytes: usize,
    pub(super) planted: Option<Planted>,
}

/// Leases are safe when clocks differ by less than a ninth (docs/adr/0005): two that drift apart by this much
/// differ by 8.3 %, and a tick more at times, because they move in ticks.
const DRIFT_PPM_MAX: u64 = 40_000;

#[derive(Clone, Debug)]
pub(super) struct GroupPlan {
    pub(super) id: GroupId,
    pub(super) first_members: Vec<ProcessId>,
    pub(super) changes_members: bool,
    /// Whether what removed members have is deleted.
    pub(super) removes: bool,
    pub(super) timing: Timing,
    pub(super) lease_reads: bool,
    pub(super) snapshots: Option<SnapshotPolicy>,
}

/// The weight of each kind of fault, from 0, never, to 3.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weights {
    pub(super) partition: u64,
    pub(super) one_way: u64,
    pub(super) lone_leader: u64,
    pub(super) bad_link: u64,
    pub(super) crash_one: u64,
    pub(super) crash_some: u64,
    pub(super) full_disk: u64,
    pub(super) transfer: u64,
    pub(super) split_clients: u64,
    pub(super) upset_election: u64,
    pub(super) reopen: u64,
}

impl Plan {
    pub(super) fn new(random: &mut Random, planted: Option<Planted>) -> Plan {
        let processes = 3 + random.below(4) as usize;
        let mut groups: Vec<GroupPlan> =
            (1..=1 + random.below(3)).map(|number| GroupPlan::new(number, 3, processes, random)).collect();
        if processes >= 5 {
            groups.push(GroupPlan::new(9, 5, processes, random));
        }
        let cache = *random.pick(&[0, 4 << 10, 1 << 20]);
        let space = LogSpaceOptions {
            segment_bytes_max: *random.pick(&[8 << 10, 64 << 10, 1 << 20]),
            cache_bytes_per_log_max: cache,
            cache_bytes_max: 2 * cache,
            shared: None,
            unflushed_bytes_max: 1 << 20,
            reserve_bytes: 64 << 10,
            spare_bytes_max: *random.pick(&[0, 64 << 10]),
        };
        if planted == Some(Planted::LeasesTooLong) {
            groups.iter_mut().for_each(|group| group.lease_reads = true);
        }
        let host = HostOptions {
            proposal_bytes_per_group_max: 256 << 10,
            window_bytes: *random.pick(&[1 << 10, 64 << 10, 1 << 20]),
            append_bytes_max: *random.pick(&[1 << 10, 64 << 10]),
            doze_after: random.pick(&[None, Some(300), Some(1500)]).map(Duration::from_millis),
            snapshot_bytes_per_second: *random.pick(&[1 << 20, 64 << 20]),
            // Terms stay far below where this clock would be asked.
            clock: Arc::new(ManualClock::at_ms(0)),
            ..HostOptions::default()
        };
        Plan {
            processes,
            groups,
            space,
            host,
            clients_per_group: 2 + random.below(3),
            keys_per_group: 1 + random.below(4),
            think_ms_max: *random.pick(&[20, 60, 200]),
            faults_last: Duration::from_secs(6 + random.below(13)),
            fault_pause_ms: *random.pick(&[300, 700, 1500, 3000]),
            change_pause_ms: *random.pick(&[500, 1500, 4000]),
            weights: Weights::for_planted(planted, random),
            drifts_ppm: drifts(processes, planted, random),
            works: Duration::from_millis(*random.pick(&[1000, 3000])),
            rests: Duration::from_millis(*random.pick(&[0, 0, 2000, 4000])),
            snapshot_filler_bytes: *random.pick(&[0, 2000, 600_000]),
            planted,
        }
    }

    pub(super) fn group(&self, id: GroupId) -> &GroupPlan {
        self.groups.iter().find(|group| group.id == id).expect("groups are planned")
    }

    /// Whether clients rest: groups may doze.
    pub(super) fn is_quiet(&self, now: Duration) -> bool {
        let phase = now.as_millis() % (self.works + self.rests).as_millis();
        phase >= self.works.as_millis()
    }

    pub(super) fn election_max(&self) -> Duration {
        self.groups.iter().map(|group| group.timing.election_max).max().unwrap_or_default()
    }
}

/// The drift of every third clock where [`Planted::LeasesTooLong`]: a lease of such a leader lasts four times
/// as long as its followers wait, most of whom have better clocks.
const SLOW_PPM: i64 = -750_000;

fn drifts(processes: usize, planted: Option<Planted>, random: &mut Random) -> Vec<i64> {
    if planted == Some(Planted::LeasesTooLong) {
        return (0..processes).map(|number| if number % 3 == 1 { SLOW_PPM } else { 0 }).collect();
    }
    let drifts = random.one_in(2);
    let drift =
        |_| if drifts { random.below(2 * DRIFT_PPM_MAX + 1) as i64 - DRIFT_PPM_MAX as i64 } else { 0 };
    (0..processes).map(drift).collect()
}

/// Replica ids say on which process a replica is, and its number among all that were ever there: see
/// [`GroupPlan::replica_on`].
const IDS_PER_PROCESS: u64 = 1000;
const IDS_PER_GROUP: u64 = 10 * IDS_PER_PROCESS;

impl GroupPlan {
    fn new(number: u64, size: usize, processes: usize, random: &mut Random) -> GroupPlan {
        let first = random.below(processes as u64) as usize;
        let first_members = (0..size).map(|at| ProcessId((first + at) % processes)).collect();
        let quick = Timing {
            heartbeat: Duration::from_millis(60),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(450),
        };
        let timing = *random.pick(&[quick, quick, Timing::METADATA]);
        GroupPlan {
            id: GroupId::om(number),
            first_members,
            changes_members: random.one_in(2),
            removes: !random.one_in(4),
            timing,
            lease_reads: random.one_in(2),
            snapshots: (!random.one_in(4)).then(|| {
                let log_bytes_max = *random.pick(&[4 << 10, 16 << 10, 64 << 10]);
                SnapshotPolicy { log_bytes_max, tail_bytes: *random.pick(&[0, log_bytes_max / 4]) }
            }),
        }
    }

    /// The `number`th replica of the group on a process, from 0.
    pub(super) fn replica_on(&self, process: ProcessId, number: u64) -> ReplicaId {
        ReplicaId(self.id.number * IDS_PER_GROUP + (process.0 as u64 + 1) * IDS_PER_PROCESS + number)
    }

    pub(super) fn process_of(&self, replica: ReplicaId) -> ProcessId {
        ProcessId((replica.0 % IDS_PER_GROUP / IDS_PER_PROCESS).saturating_sub(1) as usize)
    }

    pub(super) fn spec(&self, replica: ReplicaId) -> GroupSpec {
        let first = |process: &ProcessId| member(*process, self.replica_on(*process, 0));
        let first: Vec<_> = self.first_members.iter().map(first).collect();
        let is_first = first.iter().any(|member| member.replica == replica);
        GroupSpec {
            cluster: CLUSTER.into(),
            group: self.id,
            replica,
            timing: self.timing,
            campaign: first[0].replica == replica,
            start: if is_first { GroupStart::First(first) } else { GroupStart::Join },
            snapshots: self.snapshots,
            lease_reads: self.lease_reads,
        }
    }

    pub(super) fn log_spec(&self) -> LogSpec {
        let number = self.id.number;
        LogSpec {
            log: self.id.to_u64(),
            dir: format!("g{number}/log"),
            owners_dir: format!("g{number}/owners"),
            first_owner: OwnerId(1),
        }
    }
}

impl Weights {
    /// Most bugs show under whatever comes; a lease that lasts too long only to those who ask a leader that
    /// was cut off.
    fn for_planted(planted: Option<Planted>, random: &mut Random) -> Weights {
        let weights = Weights::new(random);
        if planted != Some(Planted::LeasesTooLong) {
            return weights;
        }
        Weights { split_clients: 9, transfer: 1, ..Weights::default() }
    }

    fn new(random: &mut Random) -> Weights {
        let mut weight = || *random.pick(&[0, 1, 1, 3]);
        Weights {
            partition: weight(),
            one_way: weight(),
            lone_leader: weight(),
            bad_link: weight(),
            crash_one: weight(),
            crash_some: weight(),
            full_disk: weight(),
            transfer: weight(),
            split_clients: weight(),
            upset_election: weight(),
            reopen: weight(),
        }
    }
}

/// The qualities of a machine's disk from one start to the next.
pub(super) fn random_disk(random: &mut Random) -> SimOptions {
    let devices = [None, None, Some(DeviceModel::SSD), Some(DeviceModel::HDD)];
    SimOptions {
        seed: random.next_u64(),
        capacity_bytes: CAPACITY_BYTES,
        polls_max: random.below(3),
        device: *random.pick(&devices),
        keeping: Keeping::Contents,
    }
}
