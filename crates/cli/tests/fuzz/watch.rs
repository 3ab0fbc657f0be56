use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use testkit::Process;

/// A process that must live, say nothing of a panic, and keep to its memory.
pub(crate) struct Watch {
    pid: u32,
    log: PathBuf,
    read_bytes: u64,
    memory_bytes_max: u64,
    /// The most memory that it was seen with.
    pub(crate) peak_bytes: u64,
}

impl Watch {
    /// Watches a process of which all that it says goes to `log`.
    pub(crate) fn new(process: &Process, log: PathBuf, memory_bytes_max: u64) -> Watch {
        Watch { pid: process.pid(), log, read_bytes: 0, memory_bytes_max, peak_bytes: 0 }
    }

    /// Whether nothing has happened to it since it was looked at last.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        let said = self.said();
        if let Some(at) = said.find("panicked") {
            let around: String = said[..at].lines().last().unwrap_or_default().to_owned();
            let rest: String = said[at..].chars().take(400).collect();
            return Err(format!("a panic: {around}{rest}"));
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let figure = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // One that has ended and of which nobody has taken note has a state, and no memory.
        let Some(peak) = figure("VmHWM:") else {
            return Err(format!("it has ended: {}", tail(&said)));
        };
        let kib = peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB");
        self.peak_bytes = self.peak_bytes.max(kib << 10);
        match self.peak_bytes <= self.memory_bytes_max {
            true => Ok(()),
            false => Err(format!(
                "{} MiB of memory, at most {} were to be",
                self.peak_bytes >> 20,
                self.memory_bytes_max >> 20
            )),
        }
    }

    /// What it said since the last look.
    fn said(&mut self) -> String {
        let Ok(mut log) = fs::File::open(&self.log) else { return String::new() };
        let mut bytes = Vec::new();
        if log.seek(SeekFrom::Start(self.read_bytes)).is_ok() {
            let _ = log.read_to_end(&mut bytes);
        }
        self.read_bytes += bytes.len() as u64;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
