use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, GROUPS, NODES, TIMING};
use crate::load::{Load, Written, acknowledged_between, assert_kept, longest_stall};
use std::time::Duration;
use tokio::time::Instant;

/// Entries every group commits after each restart, before the next.
const PROGRESS: u64 = 50;

/// The longest a group may acknowledge nothing while its leader is stopped in order.
///
/// ```text
/// SIGTERM    what is under way is answered    handed over               SLACK
///  |------------ < DRAIN_MAX ---------------|-- < HAND_OVER_MAX --|---------------|
/// ```
/// A leader that could not hand over in that time is gone all the same, and its successor comes as after a death: below
/// [`crate::failover::BOUND`]. Both together are the bound.
const BOUND: Duration = Duration::from_millis(1000 + 500 + crate::failover::BOUND.as_millis() as u64);

/// Without a hand-over nobody is elected before the promises to the leader have ended.
const HANDED_OVER_WITHIN: Duration = TIMING.election_max;

/// All nodes are restarted one after the other, under load: no write fails, and no group stands still.
pub(crate) async fn rolling() -> Report {
    let mut cluster = Cluster::start().await;
    let load = Load::start(&cluster, DEADLINE);
    cluster.wait_progress(PROGRESS).await;
    let mut restarts = vec![Instant::now()];
    for n in 0..NODES {
        cluster.stop_node(n).await;
        cluster.start_node(n).await;
        cluster.wait_caught_up(n).await;
        cluster.wait_progress(PROGRESS).await;
        restarts.push(Instant::now());
    }
    let written = load.stop().await;
    assert_none_failed(&written);
    let mut handed_over = 0;
    for window in restarts.windows(2) {
        for group in 1..=GROUPS {
            let acknowledged = acknowledged_between(&written, group, window[0], window[1]);
            assert!(acknowledged > 0, "group {group} acknowledged nothing during a restart");
            let (stall, _) = longest_stall(&written, group, window[0], window[1]);
            assert!(stall <= BOUND, "group {group} stood still for {stall:?}, the bound is {BOUND:?}");
            handed_over += usize::from(stall < HANDED_OVER_WITHIN);
            println!("rolling restart: group {group}: {acknowledged} writes, at most {stall:?} without one");
        }
    }
    // Every restart stops at least one leader: each node leads a group at first, and takes over those of the nodes before it.
    // Without hand-overs three windows at least were slow; a machine that is busy may be late with some.
    let slow = NODES * GROUPS as usize - handed_over;
    assert!(slow < NODES, "leaders do not hand over: a group stood still in {slow} windows");
    let acknowledged = assert_kept(&cluster, &written).await;
    Report { drill: "rolling restart", failovers: Vec::new(), acknowledged }
}

/// A write of unknown outcome has failed too: its writer cannot ask again.
fn assert_none_failed(written: &[Written]) {
    for writer in written {
        let history = &writer.history;
        let failed = (&history.refused, &history.unknown);
        assert!(
            failed.0.is_empty() && failed.1.is_empty(),
            "writes of group {} were refused, or their outcome is unknown: {failed:?}",
            writer.group
        );
    }
}
