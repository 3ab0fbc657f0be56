use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, GROUPS, TIMING, is_campaign};
use crate::load::{Load, Written, assert_kept};
use std::time::Duration;
use tokio::time::Instant;

/// The number of leaders that are killed in one drill.
const ROUNDS: usize = 3;

/// The longest time from the death of a leader to the first write that its successor acknowledges.
///
/// ```text
/// dead        the lease of the followers ends    the first of them stands       split once      elected, first write
///  |--------------- election_max ---------------|----- < election_max -----|- < election_max -|------ SLACK ------|
/// ```
/// Followers keep the promise they gave with the last heartbeat for `election_max`. Then each waits a random
/// time below `election_max`; the other grants its vote, since its own promise has ended too. A follower
/// whose log is shorter is refused, but then the other one stands within the same time. Two that stand within
/// the same few milliseconds split the votes, and draw again: once is allowed for. `SLACK` is for ticks of
/// the timers, two round trips, two syncs, the client's pauses, and a machine of two cores. Among tests,
/// which share the machine, it is no bound.
pub(crate) const BOUND: Duration =
    Duration::from_millis(3 * TIMING.election_max.as_millis() as u64 + SLACK_MS);
const SLACK_MS: u64 = 1500;

/// Kills leaders under load, with SIGKILL.
pub(crate) async fn kill_leader() -> Report {
    let mut cluster = Cluster::start().await;
    // The delay makes something be under way whenever a leader dies.
    cluster.slow_down(Duration::from_millis(2));
    let load = Load::start(&cluster, DEADLINE);
    let mut deaths = Vec::new();
    for round in 0..ROUNDS {
        let group = round as u32 % GROUPS + 1;
        let (leader, term) = cluster.leader(group).await;
        let died = Instant::now();
        cluster.kill_node(leader);
        cluster.leader_after(group, term).await;
        deaths.push((group, died));
        let load_goes_on = Instant::now();
        cluster.start_node(leader).await;
        cluster.wait_caught_up(leader).await;
        assert!(load_goes_on.elapsed() < DEADLINE, "node {} is back in time", leader + 1);
    }
    // This waits for the last successor's first write.
    let (last_group, _) = *deaths.last().expect("there were rounds");
    cluster.client.read(last_group, b"nothing").await.expect("the last group answers");
    let written = load.stop().await;
    let failovers: Vec<_> = deaths.iter().map(|(group, died)| failover(&written, *group, *died)).collect();
    let bound = if is_campaign() { BOUND } else { DEADLINE };
    for (failover, (group, _)) in failovers.iter().zip(&deaths) {
        println!("kill -9 of the leader: group {group} took {failover:?}");
        assert!(*failover <= bound, "group {group} took {failover:?}, the bound is {bound:?}");
    }
    let acknowledged = assert_kept(&cluster, &written).await;
    Report { drill: "kill -9 of the leader", failovers, acknowledged }
}

/// From a death to the first acknowledgement of a write that was under way then or came after it, and that no
/// dead leader can have given. What the leader had answered before it died has reached its writer, on this
/// machine, a heartbeat later; the first answer of a successor comes when the promises have ended, at least
/// `election_max` less a heartbeat after the death, so the filter hides none of those.
fn failover(written: &[Written], group: u32, died: Instant) -> Duration {
    let of_group = written.iter().filter(|writer| writer.group == group);
    let successes = of_group.flat_map(|writer| &writer.acknowledged_at);
    let first =
        successes.map(|(_, acknowledged)| *acknowledged).filter(|at| *at > died + TIMING.heartbeat).min();
    first.expect("writes went on after the death") - died
}

/// Nodes that acknowledge before they commit lose writes when they are killed, and the checks say so: soon,
/// since each death is another chance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_early_acknowledgements_are_found() {
    const DEATHS_MAX: usize = 5;
    const LOADED_MAX: Duration = Duration::from_secs(10);
    let _turn = crate::campaign::TURN.lock().await;
    let mut cluster = Cluster::start_with(TIMING, &["--planted-early-ack"]).await;
    for _ in 0..DEATHS_MAX {
        let load = Load::start(&cluster, DEADLINE);
        let (leader, term) = cluster.leader(1).await;
        // The load runs, on this leader, or is acknowledged by a node that does not lead and writes none of it.
        let begun = cluster.group_facts_of_running(leader, 1).await.last;
        let give_up = Instant::now() + LOADED_MAX;
        while cluster.group_facts_of_running(leader, 1).await.last < begun + 50 && Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.kill_node(leader);
        cluster.leader_after(1, term).await;
        let written = load.stop().await;
        for writer in &written {
            if writer.violations(&cluster.client).await.iter().any(|wrong| wrong.contains("there 0 times")) {
                return;
            }
        }
        cluster.start_node(leader).await;
        cluster.wait_caught_up(leader).await;
    }
    panic!("{DEATHS_MAX} leaders that acknowledge too early died, and nothing was found missing");
}
