//! Many seeds, each simulated in a process of its own, and what came of them.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The last one of so many seeds, in which a cluster has an OM, is run twice, to see that it takes the same
/// steps.
const REPEATED_ONE_IN: u64 = 16;

/// The subject of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simulated {
    Groups,
    Clusters,
    Names,
}

impl Simulated {
    /// The verb of `flotilla-sim` that simulates one seed.
    fn verb(self) -> &'static str {
        match self {
            Simulated::Groups => "groups-seed",
            Simulated::Clusters => "cluster-seed",
            Simulated::Names => "om-seed",
        }
    }
}

/// A campaign of many seeds, several of which may run at the same time, each in a process of its own: so the
/// same seed takes the same steps, and nothing is left of one when the next begins.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The path of `flotilla-sim`.
    pub program: PathBuf,
    pub simulated: Simulated,
    pub first_seed: u64,
    pub seeds: u64,
    pub threads: usize,
    /// Prints the events of each run.
    pub is_printed: bool,
    /// The name of a bug that is to be found.
    pub planted: Option<String>,
    /// Goes on after a violation.
    pub keeps_going: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seeds: u64,
    pub virtual_ms: u64,
    /// The counts by name, in the order in which seeds name them.
    pub counts: Vec<(String, u64)>,
    pub settled_ms_max: u64,
    pub repeated: u64,
    pub violations: Vec<String>,
    pub elapsed: Duration,
}

/// The line that the process of a seed prints when all went well, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said(String);

impl Campaign {
    /// Runs until all seeds are done, or one of them finds something.
    pub fn run(&self) -> Report {
        let started = Instant::now();
        let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let report = Mutex::new(Report::default());
        let work = || {
            while !is_over.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= self.seeds {
                    return;
                }
                let result = self.run_seed(self.first_seed.wrapping_add(at));
                let mut report = report.lock().expect("no holder of the report panics");
                match result {
                    Ok((said, is_repeated)) => report.add(&said, is_repeated),
                    Err(why) => {
                        is_over.store(!self.keeps_going, Ordering::Relaxed);
                        if self.keeps_going {
                            eprintln!("{why}");
                        }
                        report.violations.push(why);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(work);
            }
        });
        let mut report = report.into_inner().expect("no holder of the report panics");
        report.elapsed = started.elapsed();
        report
    }

    fn run_seed(&self, seed: u64) -> Result<(Said, bool), String> {
        let said = self.run_process(seed, self.is_printed)?;
        let is_repeated = seed % REPEATED_ONE_IN == REPEATED_ONE_IN - 1;
        if is_repeated {
            let again =
                self.run_process(seed, false).map_err(|why| format!("the second time only: {why}"))?;
            if again != said {
                return Err(format!(
                    "seed {seed} took other steps the second time:\n{}\n{}",
                    said.0, again.0
                ));
            }
        }
        Ok((said, is_repeated))
    }

    fn run_process(&self, seed: u64, is_printed: bool) -> Result<Said, String> {
        let mut command = Command::new(&self.program);
        command.args([self.simulated.verb(), "--seed", &seed.to_string()]);
        if let Some(planted) = &self.planted {
            command.args(["--planted", planted]);
        }
        if is_printed {
            command.arg("--trace").stderr(std::process::Stdio::inherit());
        }
        let output =
            command.output().map_err(|error| format!("start {}: {error}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        match output.status.success() {
            true => Ok(Said(said)),
            false if said.is_empty() => {
                let last = String::from_utf8_lossy(&output.stderr);
                Err(format!("the process of seed {seed} ended with {}: {last}", output.status))
            }
            false => Err(said),
        }
    }
}

impl Report {
    fn add(&mut self, said: &Said, is_repeated: bool) {
        self.seeds += 1;
        self.repeated += u64::from(is_repeated);
        let words: Vec<&str> = said.0.split(' ').collect();
        for pair in words.chunks_exact(2) {
            let count: u64 = pair[1].parse().unwrap_or(0);
            match pair[0] {
                "hash" => {}
                "settled_ms" => self.settled_ms_max = self.settled_ms_max.max(count),
                "virtual_ms" => self.virtual_ms += count,
                name => self.count(name, count),
            }
        }
    }
}

impl Report {
    fn count(&mut self, name: &str, count: u64) {
        match self.counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => self.counts.push((name.to_owned(), count)),
        }
    }
}

/// The report as one line of JSON.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seeds, virtual_ms, counts, settled_ms_max, repeated, violations, elapsed } = self;
        write!(f, "{{\"seeds\": {seeds}, \"virtual_seconds\": {}, ", virtual_ms / 1000)?;
        for (name, count) in counts {
            write!(f, "\"{name}\": {count}, ")?;
        }
        let (seconds, violations) = (elapsed.as_secs_f64(), violations.len());
        write!(f, "\"settled_ms_max\": {settled_ms_max}, \"repeated\": {repeated}, ")?;
        write!(f, "\"violations\": {violations}, \"elapsed_seconds\": {seconds:.1}}}")
    }
}
