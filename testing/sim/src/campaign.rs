use crate::scenario::{Counts, Finished, Options, Planted, Violation, run};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// One seed in so many is run twice, to see that it takes the same steps.
const REPEATED_ONE_IN: u64 = 16;

/// A campaign of many seeds, several of which may run at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    pub first_seed: u64,
    pub seeds: u64,
    pub threads: usize,
    /// Prints the events of each run.
    pub is_printed: bool,
    pub planted: Option<Planted>,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seeds: u64,
    pub counts: Counts,
    pub settled_ms_max: u64,
    pub repeated: u64,
    pub violations: Vec<String>,
    pub elapsed: Duration,
}

impl Campaign {
    /// Runs until all seeds are done, or one of them finds something.
    pub fn run(self) -> Report {
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
                    Ok((finished, is_repeated)) => report.add(finished, is_repeated),
                    Err(why) => {
                        is_over.store(true, Ordering::Relaxed);
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

    fn run_seed(self, seed: u64) -> Result<(Finished, bool), String> {
        let options = Options { seed, is_printed: self.is_printed, planted: self.planted };
        let finished = run(options).map_err(|violation: Violation| violation.to_string())?;
        let is_repeated = seed.is_multiple_of(REPEATED_ONE_IN);
        if is_repeated {
            let again = run(Options { is_printed: false, ..options });
            let again = again.map_err(|violation| format!("the second time only: {violation}"))?;
            if again != finished {
                return Err(format!("seed {seed} took other steps the second time: {finished:?}, {again:?}"));
            }
        }
        Ok((finished, is_repeated))
    }
}

impl Report {
    fn add(&mut self, finished: Finished, is_repeated: bool) {
        self.seeds += 1;
        self.repeated += u64::from(is_repeated);
        self.settled_ms_max = self.settled_ms_max.max(finished.settled_ms);
        self.counts += finished.counts;
    }
}

/// The report as one line of JSON.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seeds, counts, settled_ms_max, repeated, violations, elapsed } = self;
        write!(f, "{{\"seeds\": {seeds}, \"virtual_seconds\": {}, ", counts.virtual_ms / 1000)?;
        for (name, count) in counts.named() {
            write!(f, "\"{name}\": {count}, ")?;
        }
        let (seconds, violations) = (elapsed.as_secs_f64(), violations.len());
        write!(f, "\"settled_ms_max\": {settled_ms_max}, \"repeated\": {repeated}, ")?;
        write!(f, "\"violations\": {violations}, \"elapsed_seconds\": {seconds:.1}}}")
    }
}
