//! Small scripts, crashed before and after every step, and again on the way of the recovery: at every
//! seventh step of it, others after each kind of death, and at all of them where `FLOTILLA_EXHAUSTIVE` is set.

use crate::driver::Action;
use crate::liar::Lie;
use crate::world::{Death, METADATA_LOG, World, block_on, sim};
use disk::sim::{CrashPoint, Loss};
use raftlog::LogSpaceOptions;
use std::collections::BTreeSet;

const DEATHS: [Death; 6] = [
    Death::Process,
    Death::Power(Loss::AllUnsynced),
    Death::Power(Loss::Nothing),
    Death::Power(Loss::Random(1)),
    Death::Power(Loss::Random(2)),
    Death::Power(Loss::Random(3)),
];

/// Enough where two logs make for many steps.
const FEWER_DEATHS: [Death; 4] = [
    Death::Process,
    Death::Power(Loss::AllUnsynced),
    Death::Power(Loss::Random(1)),
    Death::Power(Loss::Random(2)),
];

/// The steps of a recovery between two second crashes. Odd, as every other step is crashed after and not
/// before.
const SECOND_CRASHES_APART: usize = 7;

/// Records of 400 bytes and less stand several to a segment, larger ones alone.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1000;

const ROLL: Action = Action::Roll { body: 10 };

/// Actions by log.
pub(crate) type Script = Vec<(u64, Action)>;

pub(crate) fn append(bodies: &[usize]) -> Action {
    Action::Append { bodies: bodies.to_vec() }
}

#[test]
fn appends_to_one_segment() {
    exhaust(vec![(0, append(&[100])), (0, Action::Settle), (0, append(&[30, 0])), (0, append(&[200]))]);
}

#[test]
fn appends_over_segments() {
    exhaust(vec![
        (0, append(&[600, 600])),
        (0, append(&[2500])),
        (0, Action::Settle),
        (0, append(&[100, 900])),
    ]);
}

#[test]
fn rolls() {
    exhaust(vec![
        (0, append(&[100])),
        (0, ROLL),
        (0, append(&[800])),
        (0, ROLL),
        (0, ROLL),
        (0, append(&[10])),
    ]);
}

#[test]
fn truncations_over_segments_and_rolls() {
    exhaust(vec![
        (0, append(&[100, 600, 600])),
        (0, ROLL),
        (0, append(&[700, 700])),
        (0, Action::Settle),
        (0, Action::Truncate { count: 4 }),
        (0, append(&[50])),
        (0, Action::Truncate { count: 10 }),
        (0, append(&[50])),
    ]);
}

#[test]
fn a_roll_that_is_undone_and_made_again() {
    exhaust(vec![
        (0, append(&[100])),
        (0, ROLL),
        (0, append(&[800, 800])),
        (0, Action::Truncate { count: 3 }),
        (0, append(&[300])),
        (0, ROLL),
        (0, append(&[800])),
        (0, Action::StaleRoll),
    ]);
}

#[test]
fn purges() {
    exhaust(vec![
        (0, append(&[100, 600, 600])),
        (0, Action::Purge { count: 2 }),
        (0, append(&[700])),
        (0, Action::PurgePast { count: 3 }),
        (0, append(&[300])),
        (0, Action::Truncate { count: 1 }),
    ]);
}

#[test]
fn votes_between_appends() {
    exhaust(vec![
        (0, Action::Vote),
        (0, append(&[100])),
        (0, Action::Committed),
        (0, Action::Vote),
        (0, append(&[100])),
        (0, Action::Settle),
        (0, Action::Vote),
    ]);
}

#[test]
fn clean_stops_between_changes() {
    exhaust(vec![
        (0, append(&[100, 800])),
        (0, Action::Reopen),
        (0, append(&[100])),
        (0, Action::Truncate { count: 2 }),
        (0, Action::Reopen),
        (0, append(&[850, 850])),
    ]);
}

#[test]
fn two_logs_on_one_disk() {
    exhaust(vec![
        (0, append(&[100])),
        (1, append(&[500])),
        (0, ROLL),
        (1, append(&[600])),
        (0, append(&[100])),
        (1, Action::Truncate { count: 1 }),
        (0, Action::Vote),
    ]);
}

#[test]
fn purged_segments_are_deleted_and_recycled() {
    exhaust_recycling(vec![
        (METADATA_LOG, append(&[600, 600, 600])),
        (METADATA_LOG, Action::Purge { count: 2 }),
        (METADATA_LOG, Action::DeletePurged),
        (METADATA_LOG, append(&[100, 600])),
        (METADATA_LOG, Action::Settle),
        (METADATA_LOG, append(&[700])),
        (METADATA_LOG, Action::Truncate { count: 2 }),
        (METADATA_LOG, append(&[650])),
    ]);
}

#[test]
fn a_deleted_owner_is_gone_and_recycled_by_another_log() {
    exhaust_recycling(vec![
        (0, append(&[600, 600])),
        (0, ROLL),
        (1, append(&[100])),
        (0, Action::Purge { count: 3 }),
        (0, Action::Settle),
        (0, Action::DeleteOwner),
        (1, append(&[900])),
        (0, append(&[50])),
    ]);
}

#[test]
fn a_removed_log_comes_back_as_it_was_or_new() {
    exhaust_recycling(vec![
        // Spares are taken newest first: segment 1 of the new log would get what was segment 1 of the old.
        (0, append(&[600, 600, 600])),
        (0, ROLL),
        (0, append(&[600])),
        (0, Action::Vote),
        (0, Action::Remove),
        (0, append(&[600, 600])),
    ]);
}

/// A spare's old contents must not show when its next segment is cut, finished, or goes on where it ended.
#[test]
fn recycled_segments_are_truncated_finished_and_closed() {
    exhaust_recycling(vec![
        (0, append(&[600, 600, 600])),
        (0, ROLL),
        (0, Action::Purge { count: 4 }),
        (0, Action::Settle),
        (0, Action::DeleteOwner),
        (0, append(&[10])),
        (0, append(&[950])),
        (0, append(&[20, 30])),
        (0, Action::Truncate { count: 1 }),
        (0, append(&[10])),
        (0, Action::Reopen),
        (0, append(&[800])),
    ]);
}

fn exhaust_recycling(script: Script) {
    let world = block_on(run_script(&script, None)).unwrap();
    assert!(world.disk.trace().iter().any(|step| step.contains(": rename spares/")), "nothing is recycled");
    exhaust(script);
}

fn exhaust(script: Script) {
    let logs: BTreeSet<u64> = script.iter().map(|(log, _)| *log).collect();
    exhaust_deaths(script, if logs.len() > 1 { &FEWER_DEATHS } else { &DEATHS });
}

pub(crate) fn exhaust_deaths(script: Script, deaths: &[Death]) {
    let points = std::cell::Cell::new(0);
    let run = |point, death, again| {
        points.set(points.get() + 1);
        block_on(run(&script, point, death, again))
    };
    let then_lives_on = |point, death| {
        points.set(points.get() + 1);
        block_on(recover_and_live_on(&script, point, death))
    };
    let steps = run(None, Death::Process, None).unwrap().steps;
    assert!(steps > 5, "the script does too little");
    let apart = if std::env::var_os("FLOTILLA_EXHAUSTIVE").is_some() { 1 } else { SECOND_CRASHES_APART };
    for step in 0..steps {
        for point in [CrashPoint::Before(step), CrashPoint::After(step)] {
            for (nth, &death) in deaths.iter().enumerate() {
                let context = |why: String, again: Option<(CrashPoint, Death)>| {
                    format!("crash {point:?}, {death:?}, then {again:?}: {why}\nscript: {script:?}")
                };
                let recovery =
                    run(Some(point), death, None).unwrap_or_else(|why| panic!("{}", context(why, None)));
                then_lives_on(point, death).unwrap_or_else(|why| panic!("{}", context(why, None)));
                for step in ((nth + step as usize) % apart..recovery.recovery_steps as usize).step_by(apart) {
                    let step = step as u64;
                    let again = match step % 2 {
                        0 => (CrashPoint::Before(step), Death::Power(Loss::Random(step))),
                        _ => (CrashPoint::After(step), Death::Power(Loss::AllUnsynced)),
                    };
                    run(Some(point), death, Some(again))
                        .unwrap_or_else(|why| panic!("{}", context(why, Some(again))));
                }
            }
        }
    }
    println!("{steps} steps, {} runs", points.get());
}

struct Ran {
    steps: u64,
    recovery_steps: u64,
}

/// Carries out the script up to the crash and recovers, with another crash on the way; and then once more,
/// when only what recovery itself made durable is left: that must give the same.
async fn run(
    script: &Script,
    crash: Option<CrashPoint>,
    death: Death,
    again: Option<(CrashPoint, Death)>,
) -> Result<Ran, String> {
    let mut world = run_script(script, crash).await?;
    let steps = world.disk.steps();
    world.die(death, sim(2, 1)).await;
    if let Some((point, death)) = again {
        world.disk.crash_at(point);
        if !world.start().await? {
            world.die(death, sim(3, 1)).await;
        }
    }
    if world.space.is_none() && !world.start().await? {
        return Err("the disk is down without a crash".to_owned());
    }
    let recovery_steps = world.disk.steps();
    world.die(Death::Power(Loss::AllUnsynced), sim(4, 1)).await;
    world.start().await?;
    live_on(&mut world).await?;
    Ok(Ran { steps, recovery_steps })
}

/// The first recovery may leave what a second one would repair.
async fn recover_and_live_on(script: &Script, crash: CrashPoint, death: Death) -> Result<(), String> {
    let mut world = run_script(script, Some(crash)).await?;
    world.die(death, sim(2, 1)).await;
    world.start().await?;
    live_on(&mut world).await
}

async fn run_script(script: &Script, crash: Option<CrashPoint>) -> Result<World, String> {
    let logs: BTreeSet<u64> = script.iter().map(|(log, _)| *log).collect();
    let options = LogSpaceOptions {
        segment_bytes_max: SEGMENT_BYTES_MAX,
        cache_bytes_per_log_max: 0,
        cache_bytes_max: 0,
        reserve_bytes: 0,
        ..LogSpaceOptions::default()
    };
    let mut world = World::new(logs, options, sim(1, 1), Lie::Honest);
    if let Some(crash) = crash {
        world.disk.crash_at(crash);
    }
    if world.start().await? {
        act(&mut world, script).await?;
    }
    Ok(world)
}

/// Goes on with what recovery left, which must be a log like any other.
async fn live_on(world: &mut World) -> Result<(), String> {
    let after = [append(&[20]), Action::Settle, append(&[900, 20]), Action::Settle, Action::Reopen];
    let logs = world.drivers.iter().map(|driver| driver.spec.log - 1);
    let after: Script = logs.flat_map(|log| after.iter().map(move |action| (log, action.clone()))).collect();
    act(world, &after).await?;
    world.die(Death::Power(Loss::AllUnsynced), sim(5, 1)).await;
    world.start().await.map(drop)
}

async fn act(world: &mut World, script: &Script) -> Result<(), String> {
    for (log, action) in script {
        if world.is_over() {
            break;
        }
        let nth = world.drivers.iter().position(|driver| driver.spec.log == log + 1).unwrap();
        world.act(nth, action).await?;
        if let Some(why) = world.unexpected() {
            return Err(format!("{action:?} of log {log} failed: {why}"));
        }
    }
    // What is under way goes on until it is done or the machine is down.
    world.settle().await
}
