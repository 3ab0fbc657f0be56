use super::plan::Plan;
use crate::scenario::{below_one_of, random_crash, random_link};
use crate::services::random_disk;
use crate::world::{Crash, Link};
use disk::sim::{Random, SimOptions};
use std::ops::Range;
use std::time::Duration;

/// Something that goes wrong, on machines as [`Plan`] numbers them.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Partition {
        side: Vec<usize>,
        one_way: bool,
    },
    /// The leader of a group, by its place among all, is cut off from other OMs and SCM. Clients reach it,
    /// and so does a machine of clients that is cut off with it, and hears of no other leader.
    LoneLeader {
        group: usize,
        clients: Option<usize>,
    },
    BadLink {
        from: usize,
        to: usize,
        link: Link,
    },
    Crash {
        machines: Vec<usize>,
        crash: Crash,
        disk: SimOptions,
        down: Duration,
    },
    /// An OM crashes and comes back with nothing, if that loses no names.
    Emptied {
        om: usize,
        crash: Crash,
        disk: SimOptions,
        down: Duration,
    },
    FullDisk {
        om: usize,
        free_bytes: u64,
    },
    /// A disk fails after so many more changes, or with the first sync after them, until its process starts
    /// again.
    FailedDisk {
        om: usize,
        steps: u64,
        at_sync: bool,
        crash: Crash,
        disk: SimOptions,
    },
    /// A machine stands still: nothing on it moves, and nothing gets to it.
    Pause {
        machine: usize,
    },
    /// Another member of a group is to lead.
    Transfer {
        group: usize,
    },
    /// The clock on the machine's wall jumps, not the one by which time passes.
    ClockJump {
        machine: usize,
        ahead: Duration,
    },
    NewGroup,
}

/// A random fault, and how long it lasts.
pub(super) fn random_fault(plan: &Plan, random: &mut Random) -> Option<(Fault, Duration)> {
    let weights = plan.weights.all();
    let mut chosen = random.below(weights.iter().sum());
    let kind = weights.iter().position(|weight| {
        let is_it = chosen < *weight;
        chosen = chosen.saturating_sub(*weight);
        is_it
    })?;
    let servers = 0..plan.oms().end;
    let all = plan.operator();
    let om = plan.oms().start + random.below(plan.oms as u64) as usize;
    let group = random.below(plan.scm.om_groups as u64 + 1) as usize;
    let lasts = Duration::from_millis(200 + below_one_of(random, [1000, 4000, 10_000]));
    let down = Duration::from_millis(below_one_of(random, [100, 2000, 5000]));
    let (crash, disk) = (random_crash(random), random_disk(random));
    let machine = random.below(servers.end as u64) as usize;
    let fault = match kind {
        0 | 1 => Fault::Partition { side: some(0..all, random), one_way: kind == 1 },
        2 => {
            let of_all = plan.clients();
            let clients = of_all.start + random.below(of_all.len() as u64) as usize;
            let clients = random.one_in(2).then_some(clients);
            // The fault lasts long enough for an election among the others.
            return Some((Fault::LoneLeader { group, clients }, lasts + 3 * plan.om.timing.election_max));
        }
        3 => {
            let (from, to) = (random.below(all as u64) as usize, random.below(all as u64) as usize);
            if from == to {
                return None;
            }
            Fault::BadLink { from, to, link: random_link(random) }
        }
        4 => Fault::Crash { machines: vec![om], crash, disk, down },
        5 => Fault::Crash { machines: some(plan.oms(), random), crash, disk, down },
        6 => Fault::Crash { machines: servers.collect(), crash, disk, down },
        7 => Fault::Crash { machines: some(plan.scms(), random), crash, disk, down },
        8 => {
            let down = plan.scm.dead_after + Duration::from_millis(random.below(8_000));
            Fault::Crash { machines: vec![om], crash, disk, down }
        }
        9 => Fault::Emptied { om, crash, disk, down },
        10 => Fault::FullDisk { om, free_bytes: random.below(400_000) },
        11 => Fault::FailedDisk { om, steps: random.below(100), at_sync: random.one_in(2), crash, disk },
        12 => {
            let pause = Duration::from_millis(200 + below_one_of(random, [2000, 6000, 20_000]));
            return Some((Fault::Pause { machine }, pause));
        }
        13 => Fault::Transfer { group },
        14 => {
            let ahead_ms = below_one_of(random, [10_000, 1_000_000, 10_000_000]);
            Fault::ClockJump { machine, ahead: Duration::from_millis(ahead_ms) }
        }
        _ => Fault::NewGroup,
    };
    Some((fault, lasts))
}

fn some(range: Range<usize>, random: &mut Random) -> Vec<usize> {
    range.filter(|_| random.one_in(2)).collect()
}
