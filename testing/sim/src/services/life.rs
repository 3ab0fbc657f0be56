use crate::world::{World, fix_entropy};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A life that held to its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub counts: Vec<(&'static str, u64)>,
    pub virtual_ms: u64,
    /// The hash of all events.
    pub hash: u64,
    /// The time that it took to be well again after the faults.
    pub settled_ms: u64,
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub seed: u64,
    pub at: Duration,
    pub what: String,
    /// The command that takes the same steps.
    pub replay: String,
    /// The events before the violation.
    pub recent: String,
}

impl Finished {
    /// The life as one line, as [`crate::seeds::Report`] reads it.
    pub fn line(&self) -> String {
        let Finished { counts, virtual_ms, hash, settled_ms } = self;
        let counts: String = counts.iter().map(|(name, count)| format!(" {name} {count}")).collect();
        format!("hash {hash} settled_ms {settled_ms} virtual_ms {virtual_ms}{counts}")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { seed, at, what, replay, recent } = self;
        writeln!(f, "seed {seed}, after {:.3} s: {what}\nevents before it:", at.as_secs_f64())?;
        write!(f, "{recent}replay: {replay}    (all events: --trace)")
    }
}

/// One life of a cluster, on the thread that it was begun on.
pub(crate) trait Life {
    fn world(&self) -> &World;

    /// Runs to its end, or to what breaks a rule.
    fn live(&mut self) -> Result<Finished, String>;
}

/// Begins a life and lets it take its course, on a thread of its own. Only the first one of a process takes
/// the same steps each time.
pub(crate) fn live<L: Life>(
    seed: u64,
    replay: String,
    begin: impl FnOnce() -> L + Send + 'static,
) -> Result<Finished, Violation> {
    let simulate = move || {
        fix_entropy(seed);
        let mut life = begin();
        // The simulation's own panics are violations too, for the sake of the seed.
        let result = catch_unwind(AssertUnwindSafe(|| life.live())).unwrap_or_else(|_| {
            let panicked = life.world().take_panic().unwrap_or_else(|| "panicked".to_owned());
            Err(format!("the simulation {panicked}"))
        });
        let (at, recent) = (life.world().now(), life.world().trace().recent());
        result.map_err(|what| Violation { seed, at, what, replay, recent })
    };
    std::thread::spawn(simulate).join().expect("panics of a life are caught")
}
