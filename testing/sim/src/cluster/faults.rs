use super::harm::IndexHarm;
use super::plan::Plan;
use crate::scenario::{below_one_of, random_crash, random_link};
use crate::services::random_disk;
use crate::world::{Crash, Link};
use disk::sim::{Random, SimOptions};
use std::time::Duration;

/// Something that goes wrong, on machines as [`Plan::nodes`] numbers them.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Partition {
        side: Vec<usize>,
        one_way: bool,
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
    /// A machine that is being given a copy of a container, if there is one.
    CrashCopying {
        crash: Crash,
        disk: SimOptions,
        down: Duration,
    },
    FullDisk {
        node: usize,
        disk: usize,
        free_bytes: u64,
    },
    /// A disk fails after so many more changes, or with the first sync after them, until its process starts
    /// again. A service manager may start it, and then the machine may lose power.
    FailedDisk {
        node: usize,
        disk: usize,
        steps: u64,
        at_sync: bool,
        restarts_after: Option<Duration>,
        power_lost_after: Option<Duration>,
    },
    Decommission {
        node: usize,
    },
    LostDisk {
        node: usize,
        disk: usize,
        crash: Crash,
        options: SimOptions,
        down: Duration,
    },
    LostNode {
        node: usize,
        crash: Crash,
    },
    Flip,
    /// The index of a disk is lost; an operator has it recreated, be it after SCM gave the disk up. Then the
    /// machine may lose power.
    HarmedIndex {
        node: usize,
        disk: usize,
        harm: IndexHarm,
        crash: Crash,
        options: SimOptions,
        down: Duration,
        rebuilt_after: Duration,
        power_lost_after: Option<Duration>,
    },
    /// A machine stands still: nothing on it moves, and nothing gets to it.
    Pause {
        machine: usize,
    },
    /// One read in so many, of one disk, gets a flipped bit.
    Misread {
        node: usize,
        disk: usize,
        one_in: u64,
    },
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
    let nodes = plan.nodes();
    // A partition may have SCM and the clients on either side.
    let all = plan.clients() + 1;
    let number = random.below(nodes.len() as u64) as usize;
    let (node, disk) = (nodes.start + number, random.below(plan.disks[number] as u64) as usize);
    let lasts = Duration::from_millis(200 + below_one_of(random, [1000, 4000, 12_000]));
    let down = Duration::from_millis(below_one_of(random, [100, 2000, 5000]));
    let crash = random_crash(random);
    let options = random_disk(random);
    let fault = match kind {
        0 | 1 => Fault::Partition { side: some(0..all, random), one_way: kind == 1 },
        2 => {
            let (from, to) = (random.below(all as u64) as usize, random.below(all as u64) as usize);
            if from == to {
                return None;
            }
            Fault::BadLink { from, to, link: random_link(random) }
        }
        3 => Fault::Crash { machines: vec![node], crash, disk: options, down },
        4 => Fault::Crash { machines: some(nodes, random), crash, disk: options, down },
        5 => Fault::Crash { machines: (0..nodes.end).collect(), crash, disk: options, down },
        6 => Fault::Crash {
            machines: vec![random.below(plan.scms as u64) as usize],
            crash,
            disk: options,
            down,
        },
        7 => {
            // SCM has given the machines up by the time they are back.
            let machines = if random.one_in(2) { vec![node] } else { some(nodes, random) };
            let down = plan.scm.dead_after + Duration::from_millis(random.below(15_000));
            Fault::Crash { machines, crash, disk: options, down }
        }
        8 => Fault::FullDisk { node, disk, free_bytes: random.below(600_000) },
        9 => {
            let restarts_after = (!random.one_in(3)).then(|| Duration::from_millis(100 + random.below(4000)));
            let power_lost_after = restarts_after.filter(|_| random.one_in(2));
            let power_lost_after =
                power_lost_after.map(|after| after + Duration::from_millis(200 + random.below(4000)));
            let (steps, at_sync) = (random.below(200), random.one_in(2));
            Fault::FailedDisk { node, disk, steps, at_sync, restarts_after, power_lost_after }
        }
        10 => Fault::Decommission { node },
        11 if random.one_in(3) => Fault::LostNode { node, crash },
        11 => Fault::LostDisk { node, disk, crash, options, down },
        12 => Fault::CrashCopying { crash, disk: options, down },
        13 => Fault::Flip,
        14 => {
            let machine = random.below(nodes.end as u64) as usize;
            // The longest pauses are such that no connection, no lease and no order outlives them.
            let pause = Duration::from_millis(500 + below_one_of(random, [5000, 15_000, 60_000]));
            return Some((Fault::Pause { machine }, pause));
        }
        15 => {
            let rebuilt_after = Duration::from_millis(below_one_of(random, [100, 5000, 25_000]));
            let power_lost_after = random.one_in(3).then(|| Duration::from_millis(random.below(1500)));
            let harm = IndexHarm::random(random);
            Fault::HarmedIndex { node, disk, harm, crash, options, down, rebuilt_after, power_lost_after }
        }
        _ => Fault::Misread { node, disk, one_in: 5 + random.below(100) },
    };
    Some((fault, lasts))
}

fn some(range: std::ops::Range<usize>, random: &mut Random) -> Vec<usize> {
    range.filter(|_| random.one_in(2)).collect()
}
