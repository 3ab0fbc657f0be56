//! A cluster of real processes under load loses nodes, disks, bytes, power and its SCM, and puts itself
//! right.
//!
//! The first five are tests too, two at a time: most of a drill is waiting for deadlines, but they are many
//! processes; the last two are tests of lights. `./dev drill cluster [--repeat N] [--only NAME]` runs all of
//! them again and again: a test for each, and there would be nothing left for others in ten minutes.

mod bad_disk;
mod bad_everywhere;
mod broken_path;
mod corruption;
mod cut_leader;
mod cut_off;
mod detour;
mod failed_sync;
mod flaky_disk;
mod full_follower;
mod full_store;
mod hanging_disk;
mod harness;
mod known_dead;
mod lost_good;
mod lost_log;
mod lost_majority;
mod lost_node;
mod lost_scm;
mod lost_scm_leader;
mod lost_scm_tail;
mod old_copy;
mod power_cut;
mod pulled_disk;
mod stuck_pipelines;
mod two_left;
mod wiped_node;

use crate::lights;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use harness::{DEAD_AFTER, FAULT_GRACE, Shown};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use tokio::sync::Semaphore;

static TWO_AT_A_TIME: Semaphore = Semaphore::const_new(2);

/// A drill; `None` when this machine cannot run it.
type Run = fn() -> LocalBoxFuture<'static, Option<Shown>>;

const DRILLS: [(&str, Run); 31] = [
    ("lost-node", || Box::pin(async { Some(lost_node::run().await) })),
    ("corruption", || Box::pin(async { Some(corruption::run().await) })),
    ("full-disk", || Box::pin(bad_disk::full())),
    ("power-cut", || Box::pin(async { Some(power_cut::run().await) })),
    ("lost-scm", || Box::pin(async { Some(lost_scm::run().await) })),
    ("lost-majority", || Box::pin(async { Some(lost_majority::run().await) })),
    ("pulled-disk", || Box::pin(async { Some(pulled_disk::run().await) })),
    ("full-store", || Box::pin(full_store::run())),
    ("read-only-disk", || Box::pin(bad_disk::read_only())),
    ("lost-scm-leader", || Box::pin(async { Some(lost_scm_leader::run().await) })),
    ("lost-scm-tail", || Box::pin(async { Some(lost_scm_tail::run().await) })),
    ("lost-good", || Box::pin(async { Some(lost_good::run().await) })),
    ("bad-everywhere", || Box::pin(async { Some(bad_everywhere::run().await) })),
    ("lost-log", || Box::pin(async { Some(lost_log::run().await) })),
    ("cut-leader", || Box::pin(async { Some(cut_leader::run().await) })),
    ("old-copy", || Box::pin(async { Some(old_copy::in_one_container().await) })),
    ("old-copies", || Box::pin(async { Some(old_copy::in_many_containers().await) })),
    ("old-copy-led", || Box::pin(async { Some(old_copy::that_ended_with_a_leader().await) })),
    ("full-follower", || Box::pin(full_follower::run())),
    ("full-and-lost", || Box::pin(full_follower::and_lost())),
    ("two-left", || Box::pin(async { Some(two_left::run().await) })),
    ("two-left-and-full", || Box::pin(two_left::and_full())),
    ("wiped-node", || Box::pin(async { Some(wiped_node::run().await) })),
    ("failed-sync", || Box::pin(failed_sync::run())),
    ("cut-off", || Box::pin(async { Some(cut_off::run().await) })),
    ("known-dead", || Box::pin(async { Some(known_dead::run().await) })),
    ("hanging-disk", || Box::pin(hanging_disk::run())),
    ("broken-path", || Box::pin(async { Some(broken_path::run().await) })),
    ("stuck-pipelines", || Box::pin(async { Some(stuck_pipelines::run().await) })),
    ("ready-or-not", || Box::pin(async { Some(Shown::of(lights::ready_or_not().await)) })),
    ("two-clusters", || Box::pin(async { Some(Shown::of(lights::between_two_clusters().await)) })),
];

/// Runs one of them in its turn. A panic of it says how to do that again.
async fn in_turn(name: &str) -> Option<Shown> {
    let _turn = TWO_AT_A_TIME.acquire().await.expect("it is never closed");
    println!("again: ./dev drill cluster --only {name}");
    let (_, run) = DRILLS.iter().find(|(known, _)| *known == name).expect("a drill of that name");
    let shown = run().await?;
    println!("{name}: {} objects, {:?}", shown.objects, shown.figures);
    Some(shown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_made_up_for_and_another_one_is_emptied() {
    in_turn("lost-node").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_is_found_never_served_and_replaced() {
    in_turn("corruption").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_gone_round_until_there_is_room() {
    in_turn("full-disk").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_loses_its_power_has_all_it_acknowledged() {
    in_turn("power-cut").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_scm_that_comes_back_puts_right_what_broke_meanwhile() {
    in_turn("lost-scm").await;
}

/// `./dev drill cluster`: as often as `FLOTILLA_DRILL_REPEAT` says, those that `FLOTILLA_DRILL_ONLY` names or
/// all, with one line of JSON at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "many minutes: ./dev drill cluster"]
async fn drill() {
    let setting = |name: &str| std::env::var(name).unwrap_or_default();
    let repeat: usize = setting("FLOTILLA_DRILL_REPEAT").parse().unwrap_or(1);
    let only = setting("FLOTILLA_DRILL_ONLY");
    let chosen: Vec<&str> =
        DRILLS.iter().map(|(name, _)| *name).filter(|name| only.is_empty() || *name == only).collect();
    assert!(!chosen.is_empty(), "there is no drill `{only}`, only {:?}", DRILLS.map(|(name, _)| name));
    let (mut objects, mut runs, mut failed, mut skipped) = (0, 0, Vec::new(), 0);
    let mut longest: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for round in 1..=repeat {
        for &name in &chosen {
            println!("---- round {round} of {repeat}: {name}");
            // A panic ends this drill alone; nothing of it is used again.
            match AssertUnwindSafe(in_turn(name)).catch_unwind().await {
                Ok(Some(shown)) => {
                    (objects, runs) = (objects + shown.objects, runs + 1);
                    for (figure, value) in shown.figures {
                        let so_far = longest.entry(name).or_default().entry(figure).or_default();
                        *so_far = so_far.max(value);
                    }
                }
                Ok(None) => skipped += 1,
                Err(_) => {
                    println!("FAILED {name}; again: ./dev drill cluster --only {name}");
                    failed.push(name);
                }
            }
        }
    }
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let longest: Map<String, Value> = longest
        .into_iter()
        .map(|(name, figures)| {
            let figures =
                figures.into_iter().map(|(figure, value)| (figure.to_owned(), rounded(value).into()));
            (name.to_owned(), Value::Object(figures.collect()))
        })
        .collect();
    println!(
        "{}",
        json!({
            "acknowledged_objects": objects,
            "drill": "cluster",
            "runs": runs,
            "failed": failed,
            "skipped": skipped,
            "dead_after_s": DEAD_AFTER.as_secs(),
            "fault_grace_s": FAULT_GRACE.as_secs(),
            "longest": longest,
        })
    );
    assert!(failed.is_empty(), "these drills failed: {failed:?}");
}
