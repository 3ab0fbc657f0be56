//! Somebody who files blocks as a group of names does, and asks SCM for them to go until it says that they
//! are gone; and what is held against that: no replica has a block that was called gone.

use super::ledger::{Ledger, Written};
use super::reader::{Way, read_checked};
use super::view::{View, Views};
use crate::services::ScmCalls;
use disk::sim::Random;
use proto::scm::{
    ContainerInfo, ContainerState, DiscardBlocksRequest, DiscardProgress, NodeState, ReplicaState,
    UnusedBlocks,
};
use rpc::Connector;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use types::{BlockName, ContainerId};

const GROUP: u64 = 7;
/// The most containers that one call names.
const CONTAINERS_MAX: usize = 64;
const PAUSE_MS_MAX: u64 = 500;
/// One turn in so many condemns all of a container.
const WHOLE_ONE_IN: u64 = 8;
/// A view that is older says nothing of who has what when a block is called gone.
const VIEW_AGE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Deleter {
    pub(super) ledger: Ledger,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) scm: ScmCalls,
    pub(super) cluster: String,
    pub(super) dead_after: Duration,
    pub(super) views: Views,
    pub(super) now: Box<dyn Fn() -> Duration + Send>,
    pub(super) random: Random,
}

impl Deleter {
    pub(super) async fn run(mut self) {
        loop {
            sleep(Duration::from_millis(1 + self.random.below(PAUSE_MS_MAX))).await;
            if self.ledger.is_writing() {
                let is_whole = self.random.one_in(WHOLE_ONE_IN);
                self.ledger.condemn(is_whole, |count| self.random.below(count as u64) as usize);
            }
            self.ask().await;
        }
    }

    async fn ask(&mut self) {
        let mut by_container: BTreeMap<ContainerId, Vec<Written>> = BTreeMap::new();
        for written in self.ledger.filed() {
            by_container.entry(written.block.container).or_default().push(written);
        }
        let skip = self.random.below(1 + by_container.len() as u64) as usize;
        let asked: Vec<_> = by_container.into_iter().skip(skip).take(CONTAINERS_MAX).collect();
        if asked.is_empty() {
            return;
        }
        let unused = |(container, written): &(ContainerId, Vec<Written>)| UnusedBlocks {
            container: container.0,
            blocks: written.iter().map(|written| written.block.into()).collect(),
            bytes: written.iter().map(|written| written.length).sum(),
        };
        let containers = asked.iter().map(unused).collect();
        // A later one may show a node that came back since.
        let view = self.views.newest();
        let request = DiscardBlocksRequest { group: GROUP, containers, ..DiscardBlocksRequest::default() };
        let answer = self.scm.call(|mut scm| async move { scm.discard_blocks(request).await }).await;
        let Ok(answer) = answer else { return };
        let view = view.filter(|view| (self.now)() < view.asked_at + VIEW_AGE_MAX);
        for ((container, written), progress) in asked.into_iter().zip(answer.containers) {
            self.take(container, written, &progress, view.as_deref()).await;
        }
    }

    async fn take(
        &mut self,
        container: ContainerId,
        written: Vec<Written>,
        progress: &DiscardProgress,
        view: Option<&View>,
    ) {
        if progress.container != container.0 {
            return self.ledger.fail(format!("SCM was asked of container {container} and says {progress:?}"));
        }
        let gone = written.into_iter().enumerate().filter(|(at, _)| progress.is_gone(*at));
        let written: Vec<Written> = gone.map(|(_, written)| written).collect();
        if written.is_empty() {
            return;
        }
        let names: Vec<BlockName> = written.iter().map(|written| written.block).collect();
        self.ledger.event(format_args!("gone: {names:?}"));
        self.ledger.gone(&names);
        let Some(view) = view else { return };
        let holders = holders_heard(view, container, self.dead_after.saturating_sub(VIEW_AGE_MAX));
        for written in written.iter().take(2) {
            for address in &holders {
                let way = Way { connector: &*self.connector, cluster: &self.cluster, address };
                self.ledger.count(|counts| counts.gone_checked += 1);
                if read_checked(&way, &self.ledger, written, 0, written.length).await.is_ok() {
                    let block = written.block;
                    self.ledger.fail(format!("block {block} was called gone, and {address} still has it"));
                }
            }
        }
    }
}

/// Those of [`holders`] that SCM had heard within this time: the others may have been dead a moment later,
/// and be back by now.
fn holders_heard(view: &View, container: ContainerId, within: Duration) -> Vec<String> {
    let is_heard = |address: &String| {
        let mut datanodes = view.datanodes.iter().filter(|datanode| datanode.address == *address);
        datanodes.any(|datanode| Duration::from_millis(datanode.last_heartbeat_age_ms) < within)
    };
    let info = view.containers.iter().find(|info| info.container == container.0);
    info.map(holders).unwrap_or_default().into_iter().filter(is_heard).collect()
}

/// The nodes that are not dead and have a replica of a container that was closed.
pub(super) fn holders(info: &ContainerInfo) -> Vec<String> {
    if info.state() != ContainerState::ContainerClosed {
        return Vec::new();
    }
    let has_it = info.replicas.iter().filter(|info| {
        let is_closed = info.replica.as_ref().is_some_and(|it| it.state() == ReplicaState::ReplicaClosed);
        is_closed && info.node_state() != NodeState::NodeDead && !info.disk_lost
    });
    has_it.filter_map(|info| info.node.as_ref()).map(|node| node.address.clone()).collect()
}

/// Good replicas of a closed container that have not discarded the same.
pub(super) fn unequal(info: &ContainerInfo) -> Option<String> {
    let there = info.replicas.iter().filter(|info| info.node_state() == NodeState::NodeHealthy);
    let mut discarded: Vec<(u64, u64)> = there
        .filter_map(|info| info.replica.as_ref())
        .map(|replica| (replica.discarded_blocks, replica.discards_digest))
        .collect();
    discarded.dedup();
    let is_closed = info.state() == ContainerState::ContainerClosed;
    (is_closed && discarded.len() > 1).then(|| {
        format!("replicas of container {} have discarded different blocks: {discarded:?}", info.container)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::scm::{
        ClusterStatus, ContainerReplica, DatanodeInfo, ListOmsResponse, NodeAddress, ReplicaInfo,
    };

    #[test]
    fn who_may_have_been_dead_is_not_asked_for_what_is_gone() {
        let nodes =
            [(NodeState::NodeHealthy, 100), (NodeState::NodeStale, 3900), (NodeState::NodeStale, 4000)];
        let address = |number: usize| format!("dn{number}:1");
        let state = ReplicaState::ReplicaClosed as i32;
        let replica = |(number, (node, _)): (usize, &(NodeState, u64))| ReplicaInfo {
            node: Some(NodeAddress { address: address(number), ..Default::default() }),
            node_state: *node as i32,
            replica: Some(ContainerReplica { state, ..Default::default() }),
            ..Default::default()
        };
        let datanode = |(number, (_, age)): (usize, &(NodeState, u64))| DatanodeInfo {
            address: address(number),
            last_heartbeat_age_ms: *age,
            ..Default::default()
        };
        let container = ContainerInfo {
            container: 7,
            state: ContainerState::ContainerClosed as i32,
            replicas: nodes.iter().enumerate().map(replica).collect(),
            ..Default::default()
        };
        let view = View {
            asked_at: Duration::ZERO,
            status: ClusterStatus::default(),
            datanodes: nodes.iter().enumerate().map(datanode).collect(),
            pipelines: Vec::new(),
            containers: vec![container],
            oms: ListOmsResponse::default(),
        };
        let heard = |container| holders_heard(&view, ContainerId(container), Duration::from_secs(4));
        assert_eq!(heard(7), ["dn0:1", "dn1:1"]);
        assert_eq!(heard(8), Vec::<String>::new());
    }
}
