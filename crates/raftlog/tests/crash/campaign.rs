//! Random lives from a seed.
//!
//! `FLOTILLA_CRASH_POINTS` says how many crashes, `FLOTILLA_CRASH_SEED` with which seed to begin; `./dev
//! crash` sets them. Each seed is a world of its own, so `--seed S --points 1` replays seed S alone.

use crate::driver::Action;
use crate::liar::Lie;
use crate::world::{World, block_on, random_death, random_point, sim};
use disk::sim::{Random, SimOptions};
use raftlog::LogSpaceOptions;
use tokio::time::Instant;

const LIVES_PER_SEED: u64 = 12;
const POINTS_IN_TESTS: u64 = 3000;

#[test]
fn the_same_seed_takes_the_same_steps() {
    let trace = |seed| run_seed(seed, Lie::Honest).unwrap().trace_hash;
    let traces: Vec<_> = (1..=30).map(trace).collect();
    assert_eq!((1..=30).map(trace).collect::<Vec<_>>(), traces);
    assert!(traces.windows(2).all(|pair| pair[0] != pair[1]), "seeds differ");
}

#[test]
fn campaign() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is no number")))
    };
    let points_min = number("FLOTILLA_CRASH_POINTS").unwrap_or(POINTS_IN_TESTS);
    let first_seed = number("FLOTILLA_CRASH_SEED").unwrap_or(1);
    let started = Instant::now();
    let (mut points, mut seeds, mut in_recovery) = (0, 0, 0);
    while points < points_min {
        let seed = first_seed.wrapping_add(seeds);
        let run = run_seed(seed, Lie::Honest).unwrap_or_else(|why| panic!("{why}"));
        (points, seeds, in_recovery) = (points + run.crashes, seeds + 1, in_recovery + run.in_recovery);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{{\"points\": {points}, \"seeds\": {seeds}, \"first_seed\": {first_seed}, \"crashes\": {points}, \
         \"crashes_in_recovery\": {in_recovery}, \"seconds\": {seconds:.2}}}"
    );
}

pub(crate) struct Run {
    pub(crate) crashes: u64,
    in_recovery: u64,
    trace_hash: u64,
}

/// Some lives of some logs; the error says everything needed to see it again.
pub(crate) fn run_seed(seed: u64, lie: Lie) -> Result<Run, String> {
    let mut random = Random::new(seed);
    let mut world = random_world(&mut random, lie);
    block_on(async {
        let mut run = Run { crashes: 0, in_recovery: 0, trace_hash: 0 };
        for life in 0..LIVES_PER_SEED {
            let lived = live(&mut world, &mut random).await;
            let in_recovery = lived.map_err(|why| {
                let story = world.story();
                format!(
                    "seed {seed}, life {life}: {why}\n{story}\nreplay: ./dev crash --points 1 --seed {seed}"
                )
            })?;
            (run.crashes, run.in_recovery) = (run.crashes + in_recovery + 1, run.in_recovery + in_recovery);
        }
        run.trace_hash = world.trace_hash();
        Ok(run)
    })
}

pub(crate) fn random_world(random: &mut Random, lie: Lie) -> World {
    let cache = *random.pick(&[0, 3000, 1 << 20]);
    let options = LogSpaceOptions {
        segment_bytes_max: *random.pick(&[400, 2000, 5000, 5000, 200_000]),
        cache_bytes_per_log_max: cache,
        cache_bytes_max: 3 * cache,
        reserve_bytes: 0,
        spare_bytes_max: *random.pick(&[0, 3000, 1 << 20]),
        ..LogSpaceOptions::default()
    };
    let logs = 1 + random.below(5);
    World::new(0..logs, options, sim(random.next_u64(), random.below(4)), lie)
}

/// The end that a life is to have, if it does not end of itself.
enum End {
    Crash,
    /// The disk gives an I/O error and takes nothing after it.
    Error,
    /// The disk fills up; there may be space again before the end.
    Full,
}

/// Lives from one start to one crash; answers how many more crashes there were during the start.
pub(crate) async fn live(world: &mut World, random: &mut Random) -> Result<u64, String> {
    let in_recovery = world.start_through_crashes(random, 3).await?;
    let end = match random.below(10) {
        0 => End::Error,
        1 => End::Full,
        _ => End::Crash,
    };
    let steps_max = *random.pick(&[5, 20, 60, 200]);
    let step = world.disk.steps() + random.below(steps_max);
    match end {
        End::Crash => world.disk.crash_at(random_point(random, step)),
        End::Error => world.disk.fail_at(step),
        End::Full => world.fill_disk(random.below(40_000)),
    }
    let relieved_at = random.below(2 * steps_max);
    for turn in 0..steps_max {
        if world.is_over() {
            break;
        }
        if matches!(end, End::Full) && turn == relieved_at {
            world.relieve_disk();
            world.settle().await?;
        }
        let log = random.below(world.drivers.len() as u64) as usize;
        let action = random_action(random, world.drivers[log].is_metadata);
        world.act(log, &action).await?;
        if let Some(why) = world.unexpected() {
            if matches!(end, End::Full) {
                break;
            }
            return Err(format!("{action:?} of log {log} failed: {why}"));
        }
        for _ in 0..random.below(4) {
            tokio::task::yield_now().await;
        }
    }
    world.check_spares()?;
    let death = random_death(random);
    world.die(death, SimOptions { ..sim(random.next_u64(), random.below(4)) }).await;
    Ok(in_recovery)
}

fn random_action(random: &mut Random, metadata: bool) -> Action {
    match random.below(28) {
        0..=9 => {
            let count = 1 + random.below(4);
            let bytes = |random: &mut Random| match random.below(40) {
                0 => 70_000,
                1..=8 => 0,
                9..=20 => random.below(300) as usize,
                _ => random.below(2500) as usize,
            };
            Action::Append { bodies: (0..count).map(|_| bytes(random)).collect() }
        }
        10 | 11 if !metadata && random.one_in(8) => Action::StaleRoll,
        10 | 11 if !metadata => Action::Roll { body: *random.pick(&[0, 10, 350, 3000]) },
        10 | 11 => Action::DeletePurged,
        12..=14 => Action::Truncate { count: random.below(8) },
        15 => Action::Purge { count: random.below(10) },
        16 if random.one_in(4) => Action::PurgePast { count: random.below(5) },
        17 | 18 => Action::Vote,
        19 => Action::Committed,
        20 if random.one_in(2) => Action::Reopen,
        21 | 22 => Action::Settle,
        23 => Action::DeleteOwner,
        24 if random.one_in(4) => Action::Remove,
        25 | 26 => Action::TimePasses { millis: random.below(150) },
        _ => Action::Pause { turns: random.below(12) },
    }
}
