//! The drills as tests, and all of them again and again.

use crate::proxy::Link;
use crate::{failover, partition, recovery, restart};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::sync::Mutex;

/// The report of a drill.
pub(crate) struct Report {
    pub(crate) drill: &'static str,
    /// The times from the death of a leader to the first write that its successor acknowledged.
    pub(crate) failovers: Vec<Duration>,
    pub(crate) acknowledged: u64,
}

/// One drill at a time: they are about time, and this machine may be small.
pub(crate) static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_cut_off_deposes_nobody_when_it_returns() {
    let _turn = TURN.lock().await;
    partition::symmetric(Link::Held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_hear_the_leader_does_not_depose_it() {
    let _turn = TURN.lock().await;
    partition::asymmetric().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_in_time_and_nothing_is_lost() {
    let _turn = TURN.lock().await;
    failover::kill_leader().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_write() {
    let _turn = TURN.lock().await;
    restart::rolling().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_goes_on_after_forced_recovery() {
    let _turn = TURN.lock().await;
    recovery::forced().await;
}

type Drill = (&'static str, fn() -> BoxFuture<'static, Report>);

/// The five drills of `./dev drill raft`, the first one with connections that break as well as with silence.
const DRILLS: &[Drill] = &[
    ("symmetric", || partition::symmetric(Link::Held).boxed()),
    ("symmetric-broken", || partition::symmetric(Link::Cut).boxed()),
    ("asymmetric", || partition::asymmetric().boxed()),
    ("kill", || failover::kill_leader().boxed()),
    ("rolling", || restart::rolling().boxed()),
    ("recovery", || recovery::forced().boxed()),
];

/// Runs each drill FLOTILLA_DRILL_REPEAT times for `./dev drill raft`, with a line of JSON for each and one
/// for all at the end. Without that variable it runs each once, and judges as among tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; run by ./dev drill raft"]
async fn campaign() {
    let repeat: usize =
        std::env::var("FLOTILLA_DRILL_REPEAT").map_or(1, |text| text.parse().expect("a number"));
    let (mut failures, mut acknowledged, mut failovers) = (0, 0, Vec::new());
    for run in 1..=repeat {
        for (name, drill) in DRILLS {
            let begun = tokio::time::Instant::now();
            // A drill that failed has said why; the others go on.
            match AssertUnwindSafe(drill()).catch_unwind().await {
                Ok(report) => {
                    println!(
                        "run {run}: {} ({name}): ok, {:.1} s, {} acknowledged writes",
                        report.drill,
                        begun.elapsed().as_secs_f64(),
                        report.acknowledged
                    );
                    acknowledged += report.acknowledged;
                    failovers.extend(report.failovers);
                }
                Err(_) => {
                    println!("run {run}: {name}: FAILED");
                    failures += 1;
                }
            }
        }
    }
    failovers.sort();
    let millis = |at: Option<&Duration>| at.map(Duration::as_millis);
    let figures = json!({
        "drill": "raft",
        "runs": repeat * DRILLS.len(),
        "failures": failures,
        "failover_ms": {
            "min": millis(failovers.first()),
            "p50": millis(failovers.get(failovers.len() / 2)),
            "max": millis(failovers.last()),
            "count": failovers.len(),
        },
        "acknowledged_writes": acknowledged,
    });
    println!("{figures}");
    assert_eq!(failures, 0);
}
