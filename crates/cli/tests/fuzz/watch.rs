use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use testkit::Process;

/// Processes that must live, say nothing of a panic, and keep to their memory.
pub(crate) struct Watch {
    watched: Vec<Watched>,
    memory_bytes_max: u64,
    /// The most memory that one of them was seen with.
    pub(crate) peak_bytes: u64,
}

struct Watched {
    pid: u32,
    log: PathBuf,
    read_bytes: u64,
}

impl Watch {
    /// Watches processes of which all that they say goes to these logs.
    pub(crate) fn new<'a>(
        processes: impl IntoIterator<Item = (&'a Process, PathBuf)>,
        memory_bytes_max: u64,
    ) -> Watch {
        let watched =
            |(process, log): (&Process, PathBuf)| Watched { pid: process.pid(), log, read_bytes: 0 };
        Watch { watched: processes.into_iter().map(watched).collect(), memory_bytes_max, peak_bytes: 0 }
    }

    /// Whether nothing has happened to them since they were looked at last.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        for watched in &mut self.watched {
            let name = watched.log.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let peak_bytes = watched.look().map_err(|why| format!("{name}: {why}"))?;
            self.peak_bytes = self.peak_bytes.max(peak_bytes);
            if peak_bytes > self.memory_bytes_max {
                let [peak, most] = [peak_bytes, self.memory_bytes_max].map(|bytes| bytes >> 20);
                return Err(format!("{name}: {peak} MiB of memory, at most {most} were to be"));
            }
        }
        Ok(())
    }
}

impl Watched {
    /// The most memory that it has had.
    fn look(&mut self) -> Result<u64, String> {
        let said = self.said();
        if let Some(at) = said.find("panicked") {
            let around: String = said[..at].lines().last().unwrap_or_default().to_owned();
            let rest: String = said[at..].chars().take(400).collect();
            return Err(format!("a panic: {around}{rest}"));
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        // One that has ended and of which nobody has taken note has a state, and no memory.
        match status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
            Some(peak) => {
                let kib = peak.trim().trim_end_matches(" kB").parse::<u64>();
                Ok(kib.expect("a number of KiB") << 10)
            }
            None => Err(format!("it has ended: {}", tail(&said))),
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
