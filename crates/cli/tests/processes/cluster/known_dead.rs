use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_scm_leader::leader;
use proto::scm::NodeState;
use std::time::{Duration, Instant};

const DEAD_AFTER: Duration = Duration::from_secs(60);
/// The time for the next leader of SCM to be one, and to have heard nothing of the node: far less than a node
/// has that nobody found dead.
const KNOWN_WITHIN: Duration = Duration::from_secs(40);

/// A datanode is dead when SCM's leader is killed: the next one knows that, and need not wait as long again.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup { scms: 3, dead_after: DEAD_AFTER, ..Setup::default() }).await;
    let writers = drill.load().await;
    let lost = drill.node_at(1).await;
    drill.cluster.datanodes[1].kill9();
    let is_dead = async |drill: &Drill| match drill.state_of(lost).await {
        NodeState::NodeDead => Ok(()),
        state => Err(format!("it is {state:?}")),
    };
    drill.until("a dead node", DEAD_AFTER + REPAIRED_WITHIN, async || is_dead(&drill).await).await;
    drill.until("repair", REPAIRED_WITHIN, async || drill.repaired_without(lost).await).await;

    let first = leader(&drill);
    drill.cluster.scms[first].kill9();
    let killed = Instant::now();
    drill.until("the next leader", KNOWN_WITHIN, async || drill.scm_leads().await).await;
    drill.until("the dead node again", KNOWN_WITHIN, async || is_dead(&drill).await).await;
    let known = killed.elapsed();
    assert!(known < KNOWN_WITHIN, "it was known to be dead after {known:?}");
    assert_eq!(drill.replaced_without(lost, None).await, Ok(()));
    writers.progress(20).await;
    drill.cluster.scms[first].start_again();
    drill.cluster.datanodes[1].start_again();
    let written = drill.settle(writers).await;
    Shown { objects: written.acknowledged.len(), figures: vec![("known_s", known.as_secs_f64())] }
}
