//! Few names and many clients, on three OMs that are killed and paused while buckets are made, moved and
//! deleted: each bucket's history must be one that could have happened.
//!
//! A short form is a test. `./dev drill om [--minutes N] [--seed S]` goes on for longer.

mod histories;

use crate::commands::flotilla;
use crate::om_members::Names;
use client::{Client, ClientOptions};
use futures::future::join_all;
use histories::{Caller, Checked, Histories};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const OMS: usize = 3;
const CALLERS: u64 = 8;
const GROUPS: u64 = 4;
/// A stall may last as long as clients repeat what they ask, and they may ask twice for a route.
const STALL_MAX: Duration = Duration::from_secs(60);
/// The time in which each kind of harm comes, and a bucket moves.
const A_WHILE: Duration = Duration::from_secs(60);

struct Plan {
    harmed_for: Duration,
    seed: u64,
}

struct Found {
    checked: Checked,
    harm: BTreeMap<&'static str, u64>,
    moves: u64,
    longest: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_answered_while_oms_die_and_buckets_move_could_have_happened() {
    run(Plan { harmed_for: Duration::from_secs(15), seed: 1 }).await;
}

/// `./dev drill om`: for as long as `FLOTILLA_DRILL_MINUTES` says, with one line of JSON at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "many minutes: ./dev drill om"]
async fn drill() {
    let setting = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (minutes, seed) = (setting("FLOTILLA_DRILL_MINUTES", 5), setting("FLOTILLA_DRILL_SEED", 1));
    let found = run(Plan { harmed_for: Duration::from_secs(60 * minutes), seed }).await;
    println!(
        "{}",
        json!({
            "calls": found.checked.calls, "drill": "om", "histories": found.checked.histories, "unknown": found.checked.unknown,
            "harm": found.harm, "moves": found.moves, "longest_s": found.longest.as_secs_f64(), "minutes": minutes, "seed": seed, "violations": 0,
        })
    );
}

async fn run(plan: Plan) -> Found {
    println!(
        "again: ./dev drill om --minutes {} --seed {}",
        plan.harmed_for.as_secs().div_ceil(60),
        plan.seed
    );
    let names = tokio::task::spawn_blocking(|| {
        let names = Names::start(OMS);
        names.until_whole(OMS);
        names
    });
    let names = names.await.unwrap();
    let (scm, histories, harmed_for) = (names.scm.clone(), Histories::new(), plan.harmed_for);
    let callers = (0..CALLERS).map(|number| {
        let client = Client::connect(ClientOptions { scm: scm.clone(), ..ClientOptions::default() });
        tokio::spawn(Caller::new(client, histories.clone(), number, plan.seed).run())
    });
    let callers: Vec<_> = callers.collect();
    let mover = {
        let histories = histories.clone();
        std::thread::spawn(move || move_about(&scm, &histories, plan.seed))
    };
    let (names, harm) = tokio::task::spawn_blocking(move || harm_for(names, &plan)).await.unwrap();
    histories.over.store(true, Ordering::Relaxed);
    let longest = join_all(callers).await.into_iter().map(|ended| ended.unwrap().unwrap());
    let longest = longest.max().unwrap_or_default();
    let moves = tokio::task::spawn_blocking(|| mover.join().unwrap()).await.unwrap();
    let checked = histories.check().unwrap_or_else(|wrong| panic!("{wrong}\n{}", names.logs()));
    println!("{checked:?}, {harm:?}, {moves} moves, the longest call took {longest:?}");
    assert!(checked.calls > 0 && longest < STALL_MAX, "a call took {longest:?}");
    if harmed_for >= A_WHILE {
        assert!(moves > 0 && harm.contains_key("killed") && harm.contains_key("paused"), "nothing happened");
    }
    Found { checked, harm, moves, longest }
}

/// Kills and pauses one OM after the other.
fn harm_for(mut names: Names, plan: &Plan) -> (Names, BTreeMap<&'static str, u64>) {
    let until = Instant::now() + plan.harmed_for;
    let (mut random, mut harm) = (SmallRng::seed_from_u64(plan.seed), BTreeMap::<_, u64>::new());
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(random.random_range(500..3_000)));
        let om = &mut names.oms[random.random_range(0..OMS)];
        let away = Duration::from_millis(random.random_range(0..3_000));
        match random.random_range(0..3) {
            0 => {
                om.pause();
                std::thread::sleep(away);
                om.go_on();
                *harm.entry("paused").or_default() += 1;
            }
            _ => {
                om.kill9();
                std::thread::sleep(away);
                om.start_again();
                *harm.entry("killed").or_default() += 1;
            }
        }
    }
    (names, harm)
}

/// Moves buckets from group to group until it is over, those that are there: how often one has moved.
fn move_about(scm: &str, histories: &Arc<Histories>, seed: u64) -> u64 {
    let mut random = SmallRng::seed_from_u64(!seed);
    let mut moves = 0;
    while !histories.over.load(Ordering::Relaxed) {
        let (bucket, to) = (histories.pick(&mut random).bucket.clone(), random.random_range(0..GROUPS));
        let to = to.to_string();
        let moved = flotilla(&["admin", "--scm", scm, "bucket", "move", &bucket, "--to", &to], None);
        moves += u64::from(moved.status.success());
        std::thread::sleep(Duration::from_millis(200));
    }
    moves
}
