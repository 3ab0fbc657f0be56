//! Random messages from a seed.

use crate::batch::{Batch, Finding, Tally};
use crate::house::House;
use crate::learn::learn;
use crate::methods::{Method, Protocol};
use crate::processes::Processes;
use std::time::Duration;
use testkit::fuzz::Campaign;

const SEEDS_IN_TESTS: u64 = 1;
/// The beginning of the paths that `./dev fuzz om` tries.
const OM: &str = "/flotilla.om.";
/// The messages of one seed, of each of the two kinds.
const BATCH: u64 = 200;
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
    /// All that are tried.
    methods: Vec<Method>,
    /// Those of them that end nothing.
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
        let methods = if ground.kind == Kind::Rude { &self.harmless } else { &self.methods };
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
    peak_bytes: u64,
}

impl Sum {
    fn add(&mut self, result: Result<Tally, Finding>, campaign: &mut Campaign) {
        match result {
            Ok(more) => {
                self.tally.cases += more.cases;
                self.tally.done += more.done;
                self.tally.methods_done.extend(more.methods_done);
                self.tally.longest = more.longest.max(std::mem::take(&mut self.tally.longest));
            }
            Err(finding) => finding.tell(campaign),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn campaign() {
    let mut campaign = Campaign::asked(SEEDS_IN_TESTS);
    let protocol = Protocol::load();
    let mut methods = protocol.methods.clone();
    if campaign.part() == "om" {
        methods.retain(|method| method.path.starts_with(OM));
    }
    let harmless = methods.iter().filter(|method| method.may_end.is_none()).cloned().collect();
    let fuzzer = Fuzzer { protocol, methods, harmless };
    // Eight processes take their time to start.
    let rough = if campaign.is_slice() { Processes::start_one } else { Processes::start_many };
    let (mut rude, mut rough) =
        tokio::join!(Ground::new(Kind::Rude, Processes::start_one), Ground::new(Kind::Rough, rough));
    let mut sum = Sum::default();
    while let Some(seed) = campaign.next_seed(sum.tally.cases) {
        let rounds = tokio::join!(fuzzer.round(&mut rude, seed), fuzzer.round(&mut rough, seed));
        sum.add(rounds.0, &mut campaign);
        sum.add(rounds.1, &mut campaign);
    }
    let left = tokio::join!(rude.leave(), rough.leave());
    for left in [left.0, left.1] {
        match left {
            Ok(peak_bytes) => sum.peak_bytes = sum.peak_bytes.max(peak_bytes),
            Err(finding) => finding.tell(&mut campaign),
        }
    }
    let Sum { tally: Tally { cases, done, methods_done, longest }, peak_bytes } = sum;
    let counts = format!(
        "\"messages_done\": {done}, \"methods_done\": {}, \"memory_mib\": {}, \"longest_answer\": [{:.1}, {:?}]",
        methods_done.len(),
        peak_bytes >> 20,
        longest.0.as_secs_f64(),
        longest.1,
    );
    campaign.end(&[("handlers", cases)], &counts);
    assert!(done > cases / 50 && done < cases, "{done} of {cases} were done: it tries nothing");
}

impl Finding {
    fn of_all(why: String) -> Finding {
        Finding { why, said: vec!["all of this seed, or of one before it".to_owned()] }
    }

    fn tell(&self, campaign: &mut Campaign) {
        campaign.found("handlers", &self.why);
        self.said.iter().for_each(|said| println!("  said: {said}"));
    }
}
