use super::harness::{Drill, FAULT_GRACE, REPAIRED_WITHIN, Setup, Shown, stood_still};
use crate::commands::admin_json;
use proto::scm::NodeState;
use std::time::{Duration, Instant};

/// Silence alone changes nothing in this drill.
const DEAD_AFTER: Duration = Duration::from_secs(600);
/// The ghost must be stale before it counts as replaced, and the replacement must have spoken: a few
/// heartbeats, on a machine that does other things too.
const SAID_WITHIN: Duration = Duration::from_secs(30);

/// A datanode loses all its disks and starts again at its old address: it is a new node, the old one is said
/// to be gone, and the new one gets copies. Then one more node may go.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup { datanodes: 3, dead_after: DEAD_AFTER, ..Setup::default() }).await;
    let writers = drill.load().await;
    let ghost = drill.node_at(1).await;
    drill.cluster.datanodes[1].kill9();
    std::fs::remove_dir_all(drill.cluster.disk(1, 0)).unwrap();
    drill.cluster.datanodes[1].start_again();
    let wiped = Instant::now();
    let said = async || {
        let listed = admin_json(&drill.cluster.scm_address, &["datanode", "list"]);
        let of_ghost = listed.as_array().unwrap().iter().find(|info| info["node"] == ghost).unwrap().clone();
        let says = of_ghost["problem"].as_str().unwrap_or_default().to_owned();
        says.contains("speaks at its address").then_some(()).ok_or_else(|| format!("{of_ghost}"))
    };
    let said = drill.until("word of the wiped node", SAID_WITHIN, said).await;
    let dead = async || match drill.state_of(ghost).await {
        NodeState::NodeDead => Ok(()),
        state => Err(format!("it is {state:?}")),
    };
    drill.until("end of the ghost", FAULT_GRACE + SAID_WITHIN, dead).await;
    let dead = wiped.elapsed();
    let without = async || drill.replaced_without(ghost, None).await;
    drill.until("replaced pipelines", REPAIRED_WITHIN, without).await;
    let replaced = wiped.elapsed();
    drill.until("repair", REPAIRED_WITHIN, async || drill.repaired_without(ghost).await).await;
    let repaired = wiped.elapsed();
    writers.progress(20).await;

    drill.cluster.datanodes[0].kill9();
    let killed = Instant::now();
    writers.progress(20).await;
    let still = stood_still(&writers, killed);
    drill.cluster.datanodes[0].start_again();
    let written = drill.settle(writers).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![
            ("said_s", said.as_secs_f64()),
            ("ghost_dead_s", dead.as_secs_f64()),
            ("replaced_s", replaced.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
            ("stood_still_s", still),
        ],
    }
}
