//! Metrics of this process from the kernel, under the names that every Prometheus client gives them.

// /proc is no data file: reading it waits for no disk.
#![allow(clippy::disallowed_methods)]

use metrics::{Exposition, Metric};

/// The kernel's unit of CPU time for user space, the same on all architectures Flotilla runs on.
const TICKS_PER_SECOND: f64 = 100.0;

const CPU: Metric = Metric { name: "process_cpu_seconds_total", help: "User and system CPU time spent." };
const MEMORY: Metric = Metric { name: "process_resident_memory_bytes", help: "Resident memory." };
const THREADS: Metric = Metric { name: "process_threads", help: "Threads." };
const OPEN_FILES: Metric = Metric { name: "process_open_fds", help: "Open file descriptors." };
const OPEN_FILES_MAX: Metric = Metric { name: "process_max_fds", help: "Limit of open file descriptors." };

/// Shows the metrics; one that cannot be read is left out.
pub(crate) fn expose(exposition: &mut Exposition) {
    exposition.scope(&[]);
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    if let Some(seconds) = cpu_seconds(&read("stat")) {
        exposition.counter_seconds(CPU, &[], seconds);
    }
    let status = read("status");
    if let Some(kib) = number_after(&status, "VmRSS:") {
        exposition.gauge(MEMORY, &[], kib * 1024);
    }
    if let Some(threads) = number_after(&status, "Threads:") {
        exposition.gauge(THREADS, &[], threads);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        exposition.gauge(OPEN_FILES, &[], files.count() as u64);
    }
    if let Some(max) = number_after(&read("limits"), "Max open files") {
        exposition.gauge(OPEN_FILES_MAX, &[], max);
    }
}

/// The CPU time of user and system so far, in seconds; 0 where the kernel does not say.
pub(crate) fn cpu_seconds_used() -> f64 {
    std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_seconds(&stat)).unwrap_or_default()
}

/// The CPU time in a `stat` file, in seconds: `utime` and `stime`, the 14th and 15th field. The second field,
/// the name, is in parentheses and may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / TICKS_PER_SECOND)
}

fn number_after(text: &str, label: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let stat = "12 (a (b) c) S 1 12 12 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 5 0 7 1 2";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(number_after("Name:\tx\nVmRSS:\t  2048 kB\n", "VmRSS:"), Some(2048));
        assert_eq!(
            number_after("Max open files            1024    4096    files", "Max open files"),
            Some(1024)
        );
        assert_eq!((cpu_seconds("nonsense"), number_after("", "VmRSS:")), (None, None));
    }
}
