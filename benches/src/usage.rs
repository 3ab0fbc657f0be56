use std::time::{Duration, Instant};

/// The units in which the kernel counts processor time, in a second (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// The use of a process so far.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    at: Instant,
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    /// The number of times that one of its threads went to sleep and was woken.
    pub(crate) wakeups: u64,
}

/// The use of a process between two moments.
pub(crate) struct Rates {
    pub(crate) cpu_percent: f64,
    pub(crate) wakeups_per_second: f64,
    pub(crate) over: Duration,
}

impl Usage {
    pub(crate) fn of(pid: u32) -> Usage {
        Usage {
            at: Instant::now(),
            cpu_seconds: cpu_seconds(&read(&format!("/proc/{pid}/stat"))),
            resident_bytes: Usage::resident_bytes_of(pid),
            wakeups: of_threads(pid, "status").map(|status| field(&status, "voluntary_ctxt_switches:")).sum(),
        }
    }

    /// Processor time of the threads with such names that a process has now, those of the kernel that work
    /// for it, too.
    pub(crate) fn cpu_seconds_of_threads(pid: u32, names: &[&str]) -> f64 {
        let stats = of_threads(pid, "stat");
        stats.filter(|stat| names.iter().any(|name| stat.contains(name))).map(|stat| cpu_seconds(&stat)).sum()
    }

    /// The resident bytes of a process, for which less is read than for all of its use.
    pub(crate) fn resident_bytes_of(pid: u32) -> u64 {
        field(&read(&format!("/proc/{pid}/status")), "VmRSS:") << 10
    }

    pub(crate) fn device_bytes_written_of(pid: u32) -> u64 {
        field(&read(&format!("/proc/{pid}/io")), "write_bytes:")
    }

    pub(crate) fn since(&self, earlier: &Usage) -> Rates {
        let over = self.at - earlier.at;
        Rates {
            cpu_percent: 100.0 * (self.cpu_seconds - earlier.cpu_seconds) / over.as_secs_f64(),
            // Threads that ended took their counts along.
            wakeups_per_second: self.wakeups.saturating_sub(earlier.wakeups) as f64 / over.as_secs_f64(),
            over,
        }
    }
}

/// User and system time, as `stat` tells them of a process or a thread.
fn cpu_seconds(stat: &str) -> f64 {
    // The name in parentheses may hold anything; these are fields 14 and 15.
    let after_name = stat.rsplit_once(')').expect("stat names the program").1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(number).sum();
    ticks as f64 / TICKS_PER_SECOND
}

fn of_threads(pid: u32, file: &'static str) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let files = tasks.flatten().map(move |task| std::fs::read_to_string(task.path().join(file)));
    // A thread may end meanwhile.
    files.flatten()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).expect("the kernel tells about a running process")
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the field is there");
    number(line.split_whitespace().next().expect("it has a value"))
}

fn number(text: &str) -> u64 {
    text.parse().expect("the kernel counts in numbers")
}
