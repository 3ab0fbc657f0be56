use std::time::{Duration, Instant};

/// More of the same kind would only hide the first.
const FINDINGS_MAX: u64 = 5;

/// A campaign of inputs that are made up, each from a seed that stands for itself: `--seed S --minutes 0`
/// replays seed S alone.
pub struct Campaign {
    /// The part of all that is tried, as `./dev fuzz` names it; empty: all.
    part: String,
    extent: Extent,
    started: Instant,
    first_seed: u64,
    seeds: u64,
    findings: u64,
}

enum Extent {
    Cases(u64),
    Time(Duration),
    /// The slice of the test command.
    Seeds(u64),
}

impl Campaign {
    /// The campaign that `./dev fuzz` asks for: `FLOTILLA_FUZZ_CASES` says how many cases, or
    /// `FLOTILLA_FUZZ_MINUTES` for how long, and `FLOTILLA_FUZZ_SEED` with which seed to begin. Where nobody
    /// asks it is as many seeds as fit in a test. `FLOTILLA_FUZZ_PART` is what of all it is to try.
    pub fn asked(seeds_in_tests: u64) -> Campaign {
        let minutes = number("FLOTILLA_FUZZ_MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
        let extent = match (number("FLOTILLA_FUZZ_CASES"), minutes) {
            (Some(cases), _) => Extent::Cases(cases),
            (None, Some(time)) => Extent::Time(time),
            (None, None) => Extent::Seeds(seeds_in_tests),
        };
        let first_seed = number("FLOTILLA_FUZZ_SEED").unwrap_or(1);
        let part = std::env::var("FLOTILLA_FUZZ_PART").unwrap_or_default();
        Campaign { part, extent, started: Instant::now(), first_seed, seeds: 0, findings: 0 }
    }

    /// Whether this is the slice of the test command.
    pub fn is_slice(&self) -> bool {
        matches!(self.extent, Extent::Seeds(_))
    }

    pub fn part(&self) -> &str {
        &self.part
    }

    pub fn seeds(&self) -> u64 {
        self.seeds
    }

    /// The next seed, after as many cases; `None` when the campaign is over, or has found enough.
    pub fn next_seed(&mut self, cases: u64) -> Option<u64> {
        let is_over = match self.extent {
            Extent::Cases(wanted) => cases >= wanted,
            Extent::Time(time) => self.seeds > 0 && self.started.elapsed() >= time,
            Extent::Seeds(seeds) => self.seeds >= seeds,
        };
        let goes_on = !is_over && self.findings < FINDINGS_MAX;
        goes_on.then(|| {
            self.seeds += 1;
            self.last_seed()
        })
    }

    fn last_seed(&self) -> u64 {
        self.first_seed.wrapping_add(self.seeds - 1)
    }

    /// Notes that the last seed found something, and says how to see it again.
    pub fn found(&mut self, target: &str, why: &str) {
        self.findings += 1;
        let (part, seed) = (&self.part, self.last_seed());
        println!("finding in {target}, seed {seed}: {why}");
        println!("replay: ./dev fuzz {part} --minutes 0 --seed {seed}");
    }

    /// Prints what the campaign came to: the cases of each target, and whatever else its own counts are, as
    /// members of the line's object. Panics if there were findings.
    pub fn end(self, targets: &[(&str, u64)], counts: &str) {
        let cases: u64 = targets.iter().map(|(_, cases)| cases).sum();
        let (seed, seeds, findings) = (self.first_seed, self.seeds, self.findings);
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        let targets = json_counts(targets.iter().copied());
        let counts = if counts.is_empty() { String::new() } else { format!(", {counts}") };
        println!(
            "{{\"cases\": {cases}, \"seed\": {seed}, \"seeds\": {seeds}, \"minutes\": {minutes:.2}, \
             \"findings\": {findings}, \"targets\": {targets}{counts}}}"
        );
        assert_eq!(findings, 0, "see above");
    }
}

/// An object with a number for each name.
pub fn json_counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let members: Vec<String> = counts.map(|(name, count)| format!("\"{name}\": {count}")).collect();
    format!("{{{}}}", members.join(", "))
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
