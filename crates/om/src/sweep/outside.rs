//! The sweep's questions to SCM and datanodes.

use super::Sweep;
use super::compare::Listed;
use crate::blocks::{BlockKey, IN_CONTAINER_BYTES};
use proto::datanode::datanode_client::DatanodeClient;
use proto::datanode::{HeadRequest, ListBlocksRequest, ListBlocksResponse};
use proto::scm::scm_client::ScmClient;
use proto::scm::{
    ContainerInfo, ContainerState, DiskState, GetClusterStatusRequest, ListContainersRequest,
    ListDatanodesRequest, ListOmsRequest, NodeDuty, NodeState, NoteFencesRequest, OmInfo, ReplicaState,
};
use proto::{Code, Failure, in_cluster};
use rpc::Channel;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

/// The time for a node to answer: one that takes longer hangs, and another one is asked.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The most containers of one answer of SCM's.
const CONTAINERS_AT_ONCE: u32 = 10_000;

/// The word of a node on a block, or a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Has,
    HasNot,
    /// The node has not said.
    Unsure,
}

impl Word {
    fn of<T>(answer: &Result<T, Failure>) -> Word {
        match answer {
            Ok(_) => Word::Has,
            Err(failure) if failure.code == Code::NotFound => Word::HasNot,
            Err(_) => Word::Unsure,
        }
    }

    /// The word of a node on a container: one that is not closed there is there.
    fn of_container<T>(answer: &Result<T, Failure>) -> Word {
        match answer {
            Err(failure) if failure.code == Code::NotYet => Word::Has,
            answer => Word::of(answer),
        }
    }
}

impl Sweep {
    async fn scm<A, F>(&self, call: impl Fn(ScmClient<Channel>, &str) -> F) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let cluster = self.disk.stamp().cluster;
        let client = |channel| ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        let answer = self.scm.ask(|channel| call(client(channel), &cluster)).await;
        answer.map_err(|failure| Failure { message: format!("SCM: {failure}"), ..failure })
    }

    /// The reason, as SCM says, why nothing is to be swept at the moment.
    pub(super) async fn paused(&self) -> Result<Option<&'static str>, Failure> {
        let status = self.scm(|mut scm, cluster| {
            let request = in_cluster(Request::new(GetClusterStatusRequest {}), cluster);
            async move { scm.get_cluster_status(request).await }
        });
        let status = status.await?;
        Ok(match status.switches.unwrap_or_default().reclaim_stopped {
            _ if status.safe_mode => Some("SCM is in safe mode"),
            true => Some("an operator has stopped it: flotilla admin reclaim start"),
            false => None,
        })
    }

    /// The number of the root's last fences that SCM was told of.
    pub(super) async fn fences_known(&self) -> Result<u64, Failure> {
        let noted = self.scm(|mut scm, cluster| {
            let request = in_cluster(Request::new(NoteFencesRequest::default()), cluster);
            async move { scm.note_fences(request).await }
        });
        Ok(noted.await?.known)
    }

    /// Tells SCM of the root's last fences, and answers the number of those that it knew before. It is told
    /// once: SCM may have taken the number though its answer is lost, and a root that hears of its own number
    /// as known before would take it for another root's. The next fences have this number before them.
    pub(super) async fn tell_fences(&self, before: u64, number: u64) -> Result<u64, Failure> {
        let cluster = self.disk.stamp().cluster;
        let noted = self.scm.ask_once(async |channel| {
            let request = in_cluster(Request::new(NoteFencesRequest { number, before }), &cluster);
            ScmClient::new(channel).note_fences(request).await
        });
        Ok(noted.await?.known)
    }

    /// The words for an OM that runs another release, if there is one: an earlier release stops at the first
    /// fence that it hears of.
    pub(super) async fn another_release(&self) -> Result<Option<String>, Failure> {
        let listed = self.scm(|mut scm, cluster| {
            let request = in_cluster(Request::new(ListOmsRequest {}), cluster);
            async move { scm.list_oms(request).await }
        });
        let oms = listed.await?.oms;
        let may_be_of_another =
            |om: &&OmInfo| om.state() != NodeState::NodeDead && om.version != self.version;
        Ok(oms.iter().find(may_be_of_another).map(|om| {
            let OmInfo { om, version, .. } = om;
            format!(
                "OM {om} runs release {version:?}, and the root's leader {:?}: upgrade all OMs",
                self.version
            )
        }))
    }

    /// The containers that SCM has above this one, with their states, as many as go into an answer, and
    /// whether there are more.
    pub(super) async fn containers(
        &self,
        after: u64,
        state: Option<ContainerState>,
    ) -> Result<(Vec<ContainerInfo>, bool), Failure> {
        let request = ListContainersRequest {
            after,
            limit: CONTAINERS_AT_ONCE,
            state: state.map_or(0, |state| state as i32),
            numbers_only: true,
            ..ListContainersRequest::default()
        };
        let page = self.list(request).await?;
        Ok((page.containers, page.more))
    }

    /// A container as SCM knows it; `None`: SCM does not know it.
    pub(super) async fn container(&self, container: u64) -> Result<Option<ContainerInfo>, Failure> {
        let page = self.list(ListContainersRequest { container, ..ListContainersRequest::default() }).await?;
        Ok(page.containers.into_iter().find(|info| info.container == container))
    }

    async fn list(
        &self,
        request: ListContainersRequest,
    ) -> Result<proto::scm::ListContainersResponse, Failure> {
        let page = self.scm(|mut scm, cluster| {
            let request = in_cluster(Request::new(request), cluster);
            async move { scm.list_containers(request).await }
        });
        page.await
    }

    /// The addresses of all nodes that may have replicas; `None`: one of them cannot be asked for all that it
    /// has.
    pub(super) async fn all_nodes(&self) -> Result<Option<Vec<String>>, Failure> {
        let listed = self.scm(|mut scm, cluster| {
            let request = in_cluster(Request::new(ListDatanodesRequest {}), cluster);
            async move { scm.list_datanodes(request).await }
        });
        let nodes = listed.await?.datanodes;
        let stays = || nodes.iter().filter(|node| node.duty() != NodeDuty::NodeDecommissioned);
        let is_silent = |node: &proto::scm::DatanodeInfo| {
            let has_failed = |disk: &proto::scm::DiskReport| disk.state() == DiskState::Failed;
            node.state() != NodeState::NodeHealthy || node.disks.iter().any(has_failed)
        };
        let addresses = stays().map(|node| node.address.clone()).collect();
        Ok((!stays().any(is_silent)).then_some(addresses))
    }

    fn node(&self, address: &str) -> Result<DatanodeClient<Channel>, Failure> {
        let channel = self.nodes.to(address).map_err(Failure::invalid)?;
        Ok(DatanodeClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX))
    }

    async fn list_blocks(
        &self,
        address: &str,
        request: ListBlocksRequest,
    ) -> Result<ListBlocksResponse, Failure> {
        let asked = in_cluster(Request::new(request), &self.disk.stamp().cluster);
        let mut node = self.node(address)?;
        match timeout(ANSWERS_WITHIN, node.list_blocks(asked)).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Failure::unanswered(format!("{address} does not answer"))),
        }
    }

    /// A part of a replica's blocks.
    pub(super) async fn blocks_of(
        &self,
        address: &str,
        container: u64,
        from_local: u64,
    ) -> Result<Listed, Failure> {
        let part = self.list_blocks(address, ListBlocksRequest { container, from_local, limit: 0 }).await?;
        let (blocks, rest) = part.blocks.as_chunks::<IN_CONTAINER_BYTES>();
        let is_sorted = blocks.is_sorted()
            && blocks.first().is_none_or(|first| first[..8] >= from_local.to_be_bytes()[..]);
        if !rest.is_empty() || blocks.len() != part.lengths.len() || !is_sorted {
            let why = format!("{address} tells of the blocks of container {container} what cannot be");
            return Err(Failure::internal(why));
        }
        if blocks.is_empty() && !part.is_last {
            return Err(Failure::internal(format!("{address} tells of no blocks, and of more")));
        }
        let blocks = blocks.iter().copied().zip(part.lengths).collect();
        Ok(Listed { blocks, is_last: part.is_last })
    }

    /// Whether a node has a replica, in whatever state.
    pub(super) async fn has_container(&self, address: &str, container: u64) -> Word {
        let request = ListBlocksRequest { container, from_local: 0, limit: 1 };
        Word::of_container(&self.list_blocks(address, request).await)
    }

    pub(super) async fn has_block(&self, address: &str, block: BlockKey) -> Word {
        let request = HeadRequest { block: Some(block.to_proto()) };
        let asked = in_cluster(Request::new(request), &self.disk.stamp().cluster);
        let Ok(mut node) = self.node(address) else { return Word::Unsure };
        match timeout(ANSWERS_WITHIN, node.head(asked)).await {
            Ok(answer) => Word::of(&answer.map_err(Failure::from)),
            Err(_) => Word::Unsure,
        }
    }
}

/// The addresses of the replicas of which one is to be listed, the best first.
pub(super) fn sources(info: &ContainerInfo) -> Vec<String> {
    let is_good = |replica: &&proto::scm::ReplicaInfo| {
        let of = replica.replica.as_ref();
        let is_closed =
            of.is_some_and(|of| of.state() == ReplicaState::ReplicaClosed && of.unhealthy.is_empty());
        is_closed && !replica.disk_lost && replica.node_state() == NodeState::NodeHealthy
    };
    let addresses = info.replicas.iter().filter(is_good).filter_map(|replica| replica.node.as_ref());
    addresses.map(|node| node.address.clone()).filter(|address| !address.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_not_closed_is_one() {
        let words = |code| {
            let answer: Result<(), Failure> = Err(Failure::new(code, "so it says"));
            (Word::of_container(&answer), Word::of(&answer))
        };
        assert_eq!(words(Code::NotYet), (Word::Has, Word::Unsure));
        assert_eq!(words(Code::NotFound), (Word::HasNot, Word::HasNot));
        assert_eq!(words(Code::Unavailable), (Word::Unsure, Word::Unsure));
        assert_eq!(Word::of_container(&Ok(())), Word::Has);
    }
}
