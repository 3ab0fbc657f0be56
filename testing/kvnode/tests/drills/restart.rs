use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, GROUPS, NODES, is_campaign, steady_timing};
use crate::load::{Load, Written, acknowledged_between, assert_kept, longest_stall, unknown_between};
use std::time::Duration;
use tokio::time::Instant;

/// The number of entries that every group commits after each restart, before the next.
const PROGRESS: u64 = 50;

/// The longest a group may acknowledge nothing while its leader is stopped in order.
///
/// ```text
/// SIGTERM    what is under way is answered    handed over               SLACK
///  |------------ < DRAIN_MAX ---------------|-- < HAND_OVER_MAX --|---------------|
/// ```
/// A leader that could not hand over in that time is gone all the same, and its successor comes as after a
/// death: below [`crate::failover::BOUND`]. Both together are the bound.
const BOUND: Duration = Duration::from_millis(1000 + 500 + crate::failover::BOUND.as_millis() as u64);

/// All nodes are restarted one after the other, under load: no write fails, and no group stands still.
///
/// A stopped leader gives what is under way a second, and its successor half of one, so a disk that takes
/// longer to sync costs answers, and the hand-over: the campaign judges all restarts. Among tests one that
/// nobody noticed is enough, and a node that does not drain or hand over never has one, because each restart
/// stops a leader under load.
pub(crate) async fn rolling() -> Report {
    // Without a hand-over nobody is elected before the promises to the leader have ended.
    let handed_over_within = steady_timing().election_max;
    let mut cluster = Cluster::start_with(steady_timing(), &[]).await;
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
    assert_none_refused(&written);
    let (mut slow, mut unnoticed) = (0, 0);
    for window in restarts.windows(2) {
        let unknown_here = unknown_between(&written, window[0], window[1]);
        let mut slow_here = 0;
        for group in 1..=GROUPS {
            let acknowledged = acknowledged_between(&written, group, window[0], window[1]);
            assert!(acknowledged > 0, "group {group} acknowledged nothing during a restart");
            let (stall, _) = longest_stall(&written, group, window[0], window[1]);
            println!("rolling restart: group {group}: {acknowledged} writes, at most {stall:?} without one");
            let in_time = stall <= BOUND || !is_campaign();
            assert!(in_time, "group {group} stood still for {stall:?}, the bound is {BOUND:?}");
            slow_here += usize::from(stall >= handed_over_within);
        }
        println!("rolling restart: {unknown_here} writes of unknown outcome, {slow_here} groups were slow");
        slow += slow_here;
        unnoticed += usize::from(slow_here == 0 && unknown_here == 0);
    }
    // Every restart stops at least one leader: each node leads a group at first, and takes over those of the
    // nodes before it.
    assert!(unnoticed > 0, "leaders do not drain, or do not hand over: each restart was noticed");
    if is_campaign() {
        // A write of unknown outcome has failed too: its writer cannot ask again.
        let unknown: usize = written.iter().map(|writer| writer.history.unknown.len()).sum();
        assert_eq!(unknown, 0, "the outcome of writes is unknown");
        // Without hand-overs three windows at least were slow; a machine that is busy may be late with some.
        assert!(slow < NODES, "leaders do not hand over: a group stood still in {slow} windows");
    }
    let acknowledged = assert_kept(&cluster, &written).await;
    Report { drill: "rolling restart", failovers: Vec::new(), acknowledged }
}

fn assert_none_refused(written: &[Written]) {
    for writer in written {
        let refused = &writer.history.refused;
        assert!(refused.is_empty(), "writes of group {} were refused: {refused:?}", writer.group);
    }
}
