//! Random messages from a seed, as in crates/proto/tests/fuzz/campaign.rs: `FLOTILLA_FUZZ_MINUTES` says for
//! how long, or `FLOTILLA_FUZZ_CASES` how many, and `FLOTILLA_FUZZ_SEED` with which seed to begin.

use crate::batch::{Batch, Finding, Tally};
use crate::house::House;
use crate::learn::learn;
use crate::methods::{Method, Protocol};
use crate::processes::Processes;
use std::time::{Duration, Instant};

const SEEDS_IN_TESTS: u64 = 1;
/// The messages of one seed, of each of the two kinds.
const BATCH: u64 = 200;
const FINDINGS_MAX: u64 = 5;
/// Longer than any server of ours tries something that it cannot do: an acknowledgement of all replicas is
/// waited for half a minute.
const ANSWERED_MAX: Duration = Duration::from_secs(40);
const FURNISHED_MAX: Duration = Duration::from_secs(5);
/// A cluster with which strangers did anything is of no use after a while.
const ROUGH_BATCHES_MAX: u64 = 6;

/// A kind of strangers.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// They ask only what ends nothing, and an honest client is served beside them.
    Rude,
    /// They ask anything, of a cluster that is thrown away: it does not break, and answers.
    Rough,
}

/// A cluster that one kind of strangers has.
struct Ground {
    kind: Kind,
    start: fn() -> Processes,
    house: House,
    batches: u64,
    /// The most memory of this cluster and those before it.
    peak_bytes: u64,
}

struct Fuzzer {
    protocol: Protocol,
    /// Methods that end nothing.
    harmless: Vec<Method>,
}

impl Fuzzer {
    /// Has one kind of strangers say what a seed comes to, and gives them another cluster if that one is used
    /// up, or broken.
    async fn round(&self, ground: &mut Ground, seed: u64) -> Result<Tally, Finding> {
        let result = self.batch(ground, seed).await;
        ground.batches += 1;
        let is_used = ground.kind == Kind::Rough && ground.batches >= ROUGH_BATCHES_MAX;
        if result.is_err() || is_used {
            let used = std::mem::replace(ground, Ground::new(ground.kind, ground.start).await);
            ground.peak_bytes = used.peak_bytes;
            // What comes of a finding is none of its own.
            if result.is_ok() {
                ground.peak_bytes = used.leave().await?;
            }
        }
        result
    }

    async fn batch(&self, ground: &mut Ground, seed: u64) -> Result<Tally, Finding> {
        let house = &mut ground.house;
        // Where strangers do anything, nothing may be to be had any more.
        let _ = tokio::time::timeout(FURNISHED_MAX, house.furnish()).await;
        let known = learn(&self.protocol, &house.reach, &house.cluster).await;
        let methods = if ground.kind == Kind::Rude { &self.harmless } else { &self.protocol.methods };
        let batch = Batch { reach: &house.reach, methods, known: &known, answered_max: ANSWERED_MAX };
        let tally = batch.run(seed, BATCH, &mut house.watch).await?;
        if ground.kind == Kind::Rude {
            house.serves().await.map_err(Finding::of_all)?;
        }
        ground.peak_bytes = ground.peak_bytes.max(house.watch.peak_bytes);
        Ok(tally)
    }
}

impl Ground {
    async fn new(kind: Kind, start: fn() -> Processes) -> Ground {
        Ground { kind, start, house: House::start(start).await, batches: 0, peak_bytes: 0 }
    }

    /// A process that was told all that must come back with it. Answers the most memory that was seen.
    async fn leave(self) -> Result<u64, Finding> {
        let peak_bytes = self.house.starts_again(self.kind == Kind::Rude).await.map_err(Finding::of_all)?;
        Ok(self.peak_bytes.max(peak_bytes))
    }
}

/// What a campaign has come to.
#[derive(Default)]
struct Sum {
    tally: Tally,
    findings: u64,
    peak_bytes: u64,
}

impl Sum {
    fn add(&mut self, seed: u64, result: Result<Tally, Finding>) {
        match result {
            Ok(more) => {
                self.tally.cases += more.cases;
                self.tally.done += more.done;
                self.tally.methods_done.extend(more.methods_done);
                self.tally.longest = more.longest.max(std::mem::take(&mut self.tally.longest));
            }
            Err(finding) => self.tell(seed, &finding),
        }
    }

    fn tell(&mut self, seed: u64, finding: &Finding) {
        self.findings += 1;
        println!("finding in handlers, seed {seed}: {}", finding.why);
        finding.said.iter().for_each(|said| println!("  said: {said}"));
        println!("replay: ./dev fuzz --minutes 0 --seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaign() {
    let number = |name: &str| {
        let text = std::env::var(name).ok();
        text.map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let (minutes, cases_wanted) = (number("FLOTILLA_FUZZ_MINUTES"), number("FLOTILLA_FUZZ_CASES"));
    let first_seed = number("FLOTILLA_FUZZ_SEED").unwrap_or(1);
    let started = Instant::now();
    let is_over = |seeds: u64, cases: u64| match (cases_wanted, minutes) {
        (Some(wanted), _) => cases >= wanted,
        (None, Some(minutes)) => seeds > 0 && started.elapsed() >= Duration::from_secs(60 * minutes),
        (None, None) => seeds >= SEEDS_IN_TESTS,
    };
    let protocol = Protocol::load();
    let harmless = protocol.methods.iter().filter(|method| method.may_end.is_none()).cloned().collect();
    let fuzzer = Fuzzer { protocol, harmless };
    // Eight processes take their time to start.
    let is_campaign = minutes.is_some() || cases_wanted.is_some();
    let rough = if is_campaign { Processes::start_many } else { Processes::start_one };
    let (mut rude, mut rough) =
        tokio::join!(Ground::new(Kind::Rude, Processes::start_one), Ground::new(Kind::Rough, rough));
    let (mut seeds, mut sum) = (0, Sum::default());
    while !is_over(seeds, sum.tally.cases) && sum.findings < FINDINGS_MAX {
        let seed = first_seed.wrapping_add(seeds);
        let rounds = tokio::join!(fuzzer.round(&mut rude, seed), fuzzer.round(&mut rough, seed));
        sum.add(seed, rounds.0);
        sum.add(seed, rounds.1);
        seeds += 1;
    }
    let left = tokio::join!(rude.leave(), rough.leave());
    for left in [left.0, left.1] {
        match left {
            Ok(peak_bytes) => sum.peak_bytes = sum.peak_bytes.max(peak_bytes),
            Err(finding) => sum.tell(first_seed.wrapping_add(seeds - 1), &finding),
        }
    }
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let Sum { tally: Tally { cases, done, methods_done, longest }, findings, peak_bytes } = sum;
    println!(
        "{{\"cases\": {cases}, \"seed\": {first_seed}, \"seeds\": {seeds}, \"minutes\": {minutes:.2}, \"findings\": {findings}, \
         \"targets\": {{\"handlers\": {cases}}}, \"messages_done\": {done}, \"methods_done\": {}, \"memory_mib\": {}, \
         \"longest_answer\": [{:.1}, {:?}]}}",
        methods_done.len(),
        peak_bytes >> 20,
        longest.0.as_secs_f64(),
        longest.1,
    );
    assert_eq!(findings, 0, "see above");
    assert!(done > cases / 50 && done < cases, "{done} of {cases} were done: it tries nothing");
}

impl Finding {
    fn of_all(why: String) -> Finding {
        Finding { why, said: vec!["all of this seed, or of one before it".to_owned()] }
    }
}
