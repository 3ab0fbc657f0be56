//! Closed containers that lack a replica while SCM says nothing of it: for a while it may not know.

use super::view::View;
use proto::scm::{ContainerInfo, ContainerState, NodeState, ReplicaInfo, ReplicaState};
use std::collections::BTreeMap;
use std::time::Duration;

const REPLICAS: usize = 3;
/// The time for which SCM may say nothing of a container that lacks a replica: twice what it waits for a node
/// that stands still (30 s).
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// The containers of which nothing is said, each with the moment since which that is so.
#[derive(Default)]
pub(super) struct Untold {
    since: BTreeMap<u64, Duration>,
}

impl Untold {
    /// Refuses a view in which nothing has been said for too long of a container that lacks a replica.
    /// `is_excused` says of a replica that is not closed why it is none that lacks.
    pub(super) fn judge(
        &mut self,
        now: Duration,
        view: &View,
        is_excused: impl Fn(&ReplicaInfo) -> bool,
    ) -> Result<(), String> {
        let lacks_some = |info: &&ContainerInfo| {
            let closed = info.replicas.iter().filter(|info| {
                let is_closed =
                    info.replica.as_ref().is_some_and(|it| it.state() == ReplicaState::ReplicaClosed);
                (is_closed || is_excused(info)) && info.node_state() == NodeState::NodeHealthy
            });
            info.state() == ContainerState::ContainerClosed && closed.count() < REPLICAS
        };
        let silent = view.containers.iter().filter(lacks_some).filter(|info| info.troubles.is_empty());
        let silent: Vec<&ContainerInfo> = if view.status.safe_mode { Vec::new() } else { silent.collect() };
        self.since.retain(|container, _| silent.iter().any(|info| info.container == *container));
        for info in silent {
            let since = *self.since.entry(info.container).or_insert(now);
            if now - since > TOLD_WITHIN {
                let seconds = (now - since).as_secs();
                return Err(format!(
                    "nothing is said for {seconds} s of what is lacking: {}",
                    describe(info)
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn describe(info: &ContainerInfo) -> String {
    let replicas = info.replicas.iter().map(|info| {
        let (node, replica) =
            (info.node.clone().unwrap_or_default(), info.replica.clone().unwrap_or_default());
        let (state, bad) = (replica.state().as_str_name(), replica.unhealthy.clone());
        format!(
            "{} {:?} {:?} {state} ({}, {}) {bad}",
            node.address,
            info.node_state(),
            info.duty(),
            replica.last_term,
            replica.last_index
        )
    });
    let replicas: Vec<_> = replicas.collect();
    format!("container {} {:?} {:?} [{}]", info.container, info.state(), info.troubles, replicas.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::scm::{ClusterStatus, ContainerReplica, ContainerTrouble, ListOmsResponse};

    /// A view of a closed container with replicas on nodes of these states.
    fn view(nodes: [NodeState; 3], trouble: Option<ContainerTrouble>, safe_mode: bool) -> View {
        let state = ReplicaState::ReplicaClosed as i32;
        let replica = |node: NodeState| ReplicaInfo {
            node_state: node as i32,
            replica: Some(ContainerReplica { state, ..Default::default() }),
            ..Default::default()
        };
        let container = ContainerInfo {
            container: 7,
            state: ContainerState::ContainerClosed as i32,
            replicas: nodes.into_iter().map(replica).collect(),
            troubles: trouble.into_iter().map(i32::from).collect(),
            ..Default::default()
        };
        View {
            asked_at: Duration::ZERO,
            status: ClusterStatus { safe_mode, ..Default::default() },
            datanodes: Vec::new(),
            pipelines: Vec::new(),
            containers: vec![container],
            oms: ListOmsResponse::default(),
        }
    }

    #[test]
    fn what_lacks_a_replica_may_go_unsaid_for_a_minute() {
        use NodeState::{NodeDead, NodeHealthy};
        let lacking = [NodeHealthy, NodeHealthy, NodeDead];
        // The seconds in which the container lacks one and nothing is said of it; in all others it is `well`.
        let check = |silent: std::ops::Range<u64>, well: &View| {
            let mut untold = Untold::default();
            let mut judge = |second| {
                let view = if silent.contains(&second) { &view(lacking, None, false) } else { well };
                untold.judge(Duration::from_secs(second), view, |_| false)
            };
            (0..200).find_map(|second| judge(second).err())
        };
        let whole = view([NodeHealthy; 3], None, false);
        assert!(check(10..72, &whole).unwrap().contains("nothing is said for 61 s"));
        assert_eq!(check(10..71, &whole), None);
        let under = Some(ContainerTrouble::ContainerUnderReplicated);
        assert_eq!(check(10..50, &view(lacking, under, false)), None, "it is said");
        assert_eq!(check(10..50, &view(lacking, None, true)), None, "in safe mode SCM waits for nodes");
        let mut unclosed = view([NodeHealthy; 3], None, false);
        unclosed.containers[0].replicas[2].replica = None;
        let judged = |is_excused: bool| {
            let mut untold = Untold::default();
            let mut judge = |second| untold.judge(Duration::from_secs(second), &unclosed, |_| is_excused);
            (0..200).find_map(|second| judge(second).err())
        };
        assert_eq!((judged(true), judged(false).is_some()), (None, true));
    }
}
