use super::plan::{CAPACITY_BYTES, Plan, Weights, random_disk};
use crate::world::{Crash, Link, Network, ProcessId};
use disk::sim::{Loss, Random, SimOptions};
use std::collections::BTreeMap;
use std::time::Duration;
use types::GroupId;

/// Something that goes wrong, for a while.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Nothing passes between the two sides, or only from the second to the first.
    Partition {
        side: Vec<ProcessId>,
        one_way: bool,
    },
    /// The leader of a group is on one side, alone.
    LoneLeader(GroupId, bool),
    BadLink {
        from: ProcessId,
        to: ProcessId,
        link: Link,
    },
    Crash {
        processes: Vec<ProcessId>,
        crash: Crash,
        disk: SimOptions,
        down: Duration,
    },
    FullDisk {
        process: ProcessId,
        free_bytes: u64,
    },
    Transfer(GroupId),
    /// The leader of a group is alone with a client that reads from it by lease, while another writes on the
    /// other side.
    SplitClients(GroupId),
    /// The next leader of a group is cut off when it is elected, and the others crash before they hear from
    /// it.
    UpsetElection(GroupId, SimOptions),
    Reopen {
        group: GroupId,
        process: ProcessId,
        pause: Duration,
    },
}

/// A random fault, and how long it lasts.
pub(super) fn random_fault(plan: &Plan, random: &mut Random) -> Option<(Fault, Duration)> {
    let Weights {
        partition,
        one_way,
        lone_leader,
        bad_link,
        crash_one,
        crash_some,
        full_disk,
        transfer,
        split_clients,
        upset_election,
        reopen,
    } = plan.weights;
    let weights = [
        partition,
        one_way,
        lone_leader,
        bad_link,
        crash_one,
        crash_some,
        full_disk,
        transfer,
        split_clients,
        upset_election,
        reopen,
    ];
    let mut chosen = random.below(weights.iter().sum());
    let kind = weights.iter().position(|weight| {
        let is_it = chosen < *weight;
        chosen = chosen.saturating_sub(*weight);
        is_it
    })?;
    let mut lasts = Duration::from_millis(100 + below_one_of(random, [500, 2000, 8000]));
    let process = ProcessId(random.below(plan.processes as u64) as usize);
    let group = random.pick(&plan.groups).clone();
    let fault = match kind {
        0 | 1 => Fault::Partition { side: random_side(plan, random), one_way: kind == 1 },
        2 => Fault::LoneLeader(group.id, random.one_in(3)),
        3 => {
            let to = ProcessId(random.below(plan.processes as u64) as usize);
            if to == process {
                return None;
            }
            Fault::BadLink { from: process, to, link: random_link(random) }
        }
        4 | 5 => {
            let processes = match kind {
                4 => vec![process],
                _ if random.one_in(3) => (0..plan.processes).map(ProcessId).collect(),
                _ => random_side(plan, random),
            };
            let crash = random_crash(random);
            let down = Duration::from_millis(below_one_of(random, [50, 1000, 6000]));
            Fault::Crash { processes, crash, disk: random_disk(random), down }
        }
        6 => Fault::FullDisk { process, free_bytes: random.below(80_000) },
        7 => Fault::Transfer(group.id),
        8 => {
            // The fault lasts long enough for an election on the other side.
            lasts += 2 * group.timing.election_max;
            Fault::SplitClients(group.id)
        }
        9 => {
            lasts += 2 * group.timing.election_max;
            Fault::UpsetElection(group.id, random_disk(random))
        }
        _ => {
            let pause = Duration::from_millis(random.below(1500));
            Fault::Reopen { group: group.id, process, pause }
        }
    };
    Some((fault, lasts))
}

pub(crate) fn random_crash(random: &mut Random) -> Crash {
    match random.below(5) {
        0 => Crash::Kill,
        1 => Crash::PowerLoss(Loss::AllUnsynced),
        _ => Crash::PowerLoss(Loss::Random(random.next_u64())),
    }
}

fn random_side(plan: &Plan, random: &mut Random) -> Vec<ProcessId> {
    (0..plan.processes).map(ProcessId).filter(|_| random.one_in(2)).collect()
}

pub(crate) fn random_link(random: &mut Random) -> Link {
    let delay_min = Duration::from_millis(1 + below_one_of(random, [5, 50, 300]));
    let spread = Duration::from_millis(below_one_of(random, [5, 50, 300]));
    let lost_per_mille = *random.pick(&[0, 5, 50, 300]);
    Link { delay_min, delay_max: delay_min + spread, lost_per_mille, is_cut: false }
}

/// The links of a cluster under all faults of the network that are there now.
pub(crate) struct Links {
    processes: usize,
    base: BTreeMap<(ProcessId, ProcessId), Link>,
    active: BTreeMap<u64, Vec<(ProcessId, ProcessId, Link)>>,
    made: u64,
}

impl Links {
    pub(crate) fn new(processes: usize, random: &mut Random) -> Links {
        let style = random.below(3);
        let mut links = Links { processes, base: BTreeMap::new(), active: BTreeMap::new(), made: 0 };
        for (from, to) in links.pairs() {
            let spread = Duration::from_millis(random.below([1, 4, 20][style as usize]));
            let delay_min = Duration::from_millis(1 + random.below(1 + style));
            let link = Link { delay_min, delay_max: delay_min + spread, lost_per_mille: 0, is_cut: false };
            links.base.insert((from, to), link);
        }
        links
    }

    fn pairs(&self) -> Vec<(ProcessId, ProcessId)> {
        let all = || (0..self.processes).map(ProcessId);
        all().flat_map(|from| all().map(move |to| (from, to))).filter(|(from, to)| from != to).collect()
    }

    /// Cuts one side off: what it sends does not arrive, and unless it is one-way, neither does what it is
    /// sent.
    pub(crate) fn cut(&mut self, side: &[ProcessId], one_way: bool) -> u64 {
        let is_crossing = |from: &ProcessId, to: &ProcessId| {
            let out = side.contains(from) && !side.contains(to);
            let into = side.contains(to) && !side.contains(from);
            out || (into && !one_way)
        };
        let cut = Link { is_cut: true, ..Link::FAST };
        let pairs = self.pairs().into_iter().filter(|(from, to)| is_crossing(from, to));
        let pairs = pairs.map(|(from, to)| (from, to, cut)).collect();
        self.add(pairs)
    }

    pub(crate) fn add(&mut self, links: Vec<(ProcessId, ProcessId, Link)>) -> u64 {
        self.made += 1;
        self.active.insert(self.made, links);
        self.made
    }

    pub(crate) fn remove(&mut self, fault: u64) {
        self.active.remove(&fault);
    }

    pub(crate) fn clear(&mut self) {
        self.active.clear();
    }

    pub(crate) fn apply_to(&self, network: &Network) {
        for (from, to) in self.pairs() {
            let mut link = self.base[&(from, to)];
            for (_, _, worse) in self.active.values().flatten().filter(|(a, b, _)| (*a, *b) == (from, to)) {
                link.is_cut |= worse.is_cut;
                link.lost_per_mille = link.lost_per_mille.max(worse.lost_per_mille);
                if worse.delay_max > link.delay_max {
                    (link.delay_min, link.delay_max) = (worse.delay_min, worse.delay_max);
                }
            }
            if network.link(from, to) != link {
                network.set_link(from, to, link);
            }
        }
    }
}

/// The end of a fault.
#[derive(Clone, Debug)]
pub(super) enum Remedy {
    Network(u64),
    Start(ProcessId),
    /// The disk has space again ...
    Space(ProcessId),
    /// ... and everybody has had time to notice.
    Ample(ProcessId),
}

pub(super) const FREE_BYTES: u64 = CAPACITY_BYTES / 2;

/// A number below one of these bounds: mostly small ones, and large ones too.
pub(crate) fn below_one_of(random: &mut Random, bounds: [u64; 3]) -> u64 {
    let end = *random.pick(&bounds);
    random.below(end)
}
