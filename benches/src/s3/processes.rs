use super::Target;
use crate::Peak;
use crate::usage::Usage;
use std::time::Duration;

/// The time between two looks at memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Seconds of processor time so far, by what is reported together.
pub(super) fn cpu_seconds(target: &Target) -> Vec<(&'static str, f64)> {
    let of = |pids: &Vec<u32>| pids.iter().map(|pid| Usage::of(*pid).cpu_seconds).sum();
    target.processes.iter().map(|(name, pids)| (*name, of(pids))).collect()
}

/// The seconds of processor time of the clients, which are in this process.
pub(super) fn own_cpu_seconds() -> f64 {
    Usage::of(std::process::id()).cpu_seconds
}

/// Resident bytes of a target's processes.
#[derive(Clone, Debug)]
pub struct Memory {
    pub each: Vec<(&'static str, u64)>,
}

impl Memory {
    pub fn of(target: &Target) -> Memory {
        let of = |pids: &Vec<u32>| pids.iter().map(|pid| Usage::resident_bytes_of(*pid)).sum();
        Memory { each: target.processes.iter().map(|(name, pids)| (*name, of(pids))).collect() }
    }

    pub fn bytes(&self) -> u64 {
        self.each.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The most that a target's processes have together.
    pub fn peak(target: &Target) -> Peak {
        let pids: Vec<u32> = target.processes.iter().flat_map(|(_, pids)| pids.clone()).collect();
        Peak::watch(LOOK_INTERVAL, move || pids.iter().map(|pid| Usage::resident_bytes_of(*pid)).sum())
    }
}
