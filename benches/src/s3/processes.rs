use super::Target;
use crate::usage::Usage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Seconds of processor time so far, by what is reported together.
pub(super) fn cpu_seconds(target: &Target) -> Vec<(&'static str, f64)> {
    let of = |pids: &Vec<u32>| pids.iter().map(|pid| Usage::of(*pid).cpu_seconds).sum();
    target.processes.iter().map(|(name, pids)| (*name, of(pids))).collect()
}

/// The clients' own.
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
}

/// Looks at the memory of a target's processes again and again, and keeps the most that they had together.
pub struct Watch {
    most: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(target: &Target) -> Watch {
        let pids: Vec<u32> = target.processes.iter().flat_map(|(_, pids)| pids.clone()).collect();
        let (most, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (most_here, over_here) = (most.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !over_here.load(Ordering::Relaxed) {
                let bytes = pids.iter().map(|pid| Usage::resident_bytes_of(*pid)).sum();
                most_here.fetch_max(bytes, Ordering::Relaxed);
                std::thread::sleep(LOOK_INTERVAL);
            }
        });
        Watch { most, over, thread: Some(thread) }
    }

    pub fn most_bytes(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
