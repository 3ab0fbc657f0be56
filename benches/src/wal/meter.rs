use std::time::Duration;

/// The units in which the kernel counts CPU time, in a second (USER_HZ).
const TICKS_PER_SECOND: u32 = 100;

/// The use of this process so far, as the kernel counts it. Contenders take turns and are idle otherwise, so
/// what a turn adds is its contender's.
#[derive(Clone, Copy, Default)]
pub(super) struct Usage {
    /// Bytes of pages made dirty: what goes to the device, but for the file system's journal.
    pub(super) device_bytes: u64,
    pub(super) cpu: Duration,
    pub(super) resident_bytes: u64,
    /// The most memory since [`reset_peak`].
    pub(super) resident_bytes_peak: u64,
}

impl Usage {
    pub(super) fn now() -> Usage {
        let (io, status, stat) = (proc("io"), proc("status"), proc("stat"));
        // The name in parentheses may hold anything; user and system time are fields 14 and 15.
        let after_name = stat.rsplit_once(')').expect("stat names the program").1;
        let ticks: u32 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u32>().expect("ticks are a number"))
            .sum();
        Usage {
            device_bytes: field(&io, "write_bytes:"),
            cpu: Duration::from_secs(1) * ticks / TICKS_PER_SECOND,
            resident_bytes: field(&status, "VmRSS:") << 10,
            resident_bytes_peak: field(&status, "VmHWM:") << 10,
        }
    }
}

/// Begins a new peak of memory.
pub(super) fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("the kernel resets the peak of memory");
}

fn proc(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/{name}")).expect("the kernel tells about this process")
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the field is there");
    line.split_whitespace().next().and_then(|value| value.parse().ok()).expect("its value is a number")
}
