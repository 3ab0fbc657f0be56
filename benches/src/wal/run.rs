use super::meter::{Usage, reset_peak};
use super::{Case, Contender, Limits, open_contender};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// The length of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of turns that each contender has in each case; one more comes first and is not counted.
    pub rounds: usize,
    pub limits: Limits,
}

impl Plan {
    pub const FULL: Plan =
        Plan { rounds: 5, limits: Limits { duration: Duration::from_millis(500), payload_bytes: 1 << 30 } };
    pub const QUICK: Plan =
        Plan { rounds: 2, limits: Limits { duration: Duration::from_millis(200), payload_bytes: 256 << 20 } };
}

/// All turns of one contender in a case.
pub struct Rounds {
    pub name: String,
    pub case: Case,
    /// The rate of each round.
    pub appends_per_second: Vec<f64>,
    pub appends: u64,
    pub syncs: u64,
    pub device_bytes: u64,
    pub cpu: Duration,
    /// The latencies, sorted.
    pub latencies: Vec<Duration>,
    /// The most memory that the contender ever had beyond what it began with, its appenders' included.
    pub memory_bytes_peak: u64,
}

/// Lets all contenders append in turn, so that neighbours in time are compared; who begins changes with the
/// round.
pub fn run_case(case: Case, plan: Plan, names: &[&str], dir: &Path) -> Vec<Rounds> {
    let open = |name: &&str| open_contender(name, case, plan.limits, &dir.join(name));
    let mut contenders: Vec<_> = names.iter().map(open).collect();
    let mut memory = vec![Memory::default(); contenders.len()];
    let mut rounds: Vec<_> = names.iter().map(|name| Rounds::new(name, case)).collect();
    for round in 0..=plan.rounds {
        for turn in 0..contenders.len() {
            let nth = (round + turn) % contenders.len();
            let warming_up = round == 0;
            rounds[nth].turn(&mut *contenders[nth], plan.limits, &mut memory[nth], warming_up);
            settle(dir);
        }
    }
    rounds.iter_mut().for_each(|rounds| rounds.latencies.sort_unstable());
    rounds
}

/// Resident bytes that a contender added, in all its turns together.
#[derive(Clone, Copy, Default)]
struct Memory {
    now: i64,
    peak: i64,
}

impl Rounds {
    fn new(name: &str, case: Case) -> Rounds {
        Rounds {
            name: name.to_owned(),
            case,
            appends_per_second: Vec::new(),
            appends: 0,
            syncs: 0,
            device_bytes: 0,
            cpu: Duration::ZERO,
            latencies: Vec::new(),
            memory_bytes_peak: 0,
        }
    }

    fn turn(&mut self, contender: &mut dyn Contender, limits: Limits, memory: &mut Memory, warming_up: bool) {
        reset_peak();
        let (syncs, before) = (contender.syncs(), Usage::now());
        let appended = contender.append(limits);
        let after = Usage::now();
        if !warming_up {
            self.appends_per_second.push(appended.appends as f64 / appended.elapsed.as_secs_f64());
            self.appends += appended.appends;
            self.syncs += contender.syncs() - syncs;
            self.device_bytes += after.device_bytes - before.device_bytes;
            self.cpu += after.cpu - before.cpu;
            self.latencies.extend(appended.latencies);
        }
        memory.peak =
            memory.peak.max(memory.now + after.resident_bytes_peak as i64 - before.resident_bytes as i64);
        contender.reclaim();
        memory.now += Usage::now().resident_bytes as i64 - before.resident_bytes as i64;
        self.memory_bytes_peak = memory.peak.max(0) as u64;
    }
}

/// Waits until the file system has nothing left to do for the turn before.
fn settle(dir: &Path) {
    File::open(dir).and_then(|dir| dir.sync_all()).expect("sync the directory");
}
