use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use crate::drills::assert_all_there;
use proto::scm::{
    ContainerInfo, ContainerReplica, ContainerState, NodeDuty, ReplicaState, SetNodeDutyRequest,
};
use std::time::Instant;

/// kill -9 of a datanode for good, in the middle of writes; then an operator takes another one out.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup::default()).await;
    let writers = drill.load().await;

    let lost = drill.node_at(1).await;
    drill.cluster.datanodes[1].kill9();
    let killed = Instant::now();
    let without = async || drill.replaced_without(lost, None).await;
    drill.until("replaced pipelines", REPAIRED_WITHIN, without).await;
    let replaced = killed.elapsed();
    writers.progress(30).await;
    let still = stood_still(&writers, killed);
    let slowest = writers.slowest_since(killed);
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
    drill.until("repair", REPAIRED_WITHIN, async || drill.repaired_without(lost).await).await;
    let repaired = killed.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;

    let leaving = drill.node_at(3).await;
    let duty = NodeDuty::NodeDecommissioning as i32;
    let request = SetNodeDutyRequest { node: leaving, duty, ..SetNodeDutyRequest::default() };
    drill.scm(async |mut scm| scm.set_node_duty(request).await).await;
    let emptied = async || {
        let datanodes = drill.datanodes().await;
        let info = datanodes.iter().find(|info| info.node == leaving).expect("it stays listed");
        match info.duty() {
            NodeDuty::NodeDecommissioned => Ok(()),
            _ => Err(format!(
                "{} pipelines and {} containers wait",
                info.pipelines_waiting, info.containers_waiting
            )),
        }
    };
    let decommissioned = drill.until("decommissioned node", REPAIRED_WITHIN, emptied).await;
    let closed = drill.containers(ContainerState::ContainerClosed).await;
    let lacking: Vec<&ContainerInfo> =
        closed.iter().filter(|info| known_besides(info, &[lost, leaving]) < 3).collect();
    assert!(lacking.is_empty(), "a node that is decommissioned holds nothing that others lack: {lacking:?}");
    drill.until("repair without it", REPAIRED_WITHIN, async || drill.repaired_without(leaving).await).await;
    drill.cluster.datanodes[3].terminate();
    assert_all_there(&drill.s3, &written.acknowledged).await;
    let nothing_lacks = async || {
        let status = drill.status().await;
        let lacks = status.missing + status.under_replicated > 0;
        if lacks { Err(format!("{status:?}")) } else { Ok(()) }
    };
    drill.until("three replicas of everything", REPAIRED_WITHIN, nothing_lacks).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![
            ("stood_still_s", still),
            ("slowest_put_s", slowest.as_secs_f64()),
            ("replaced_s", replaced.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
            ("decommissioned_s", decommissioned.as_secs_f64()),
        ],
    }
}

/// Good replicas on other nodes than these. That SCM has not heard from one of the others for a moment is no
/// news of its replicas.
fn known_besides(info: &ContainerInfo, nodes: &[u64]) -> usize {
    let elsewhere = info.replicas.iter().filter(|info| {
        let on = info.node.as_ref().map_or(0, |on| on.node);
        !nodes.contains(&on)
    });
    let replicas = elsewhere.filter_map(|info| info.replica.as_ref());
    let is_good = |replica: &&ContainerReplica| {
        replica.state() == ReplicaState::ReplicaClosed && replica.unhealthy.is_empty()
    };
    replicas.filter(is_good).count()
}
