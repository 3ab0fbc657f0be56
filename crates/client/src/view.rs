use crate::channels::Channels;
use proto::scm::scm_client::ScmClient;
use proto::{Code, Failure, Seeker, scm};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{debug, info, warn};
use types::{Backoff, ContainerId, NodeId, PipelineId};

/// The cluster's pipelines and groups of names as SCM last told them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Empty until SCM has answered for the first time.
    pub cluster: String,
    pub pipelines: Vec<PipelineView>,
    pub om_groups: Vec<OmGroupView>,
}

/// A group of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OmGroupView {
    pub number: u64,
    pub members: Vec<MemberView>,
    pub leader: Option<NodeId>,
    /// Whether too many of the members' disks are full: no name can be changed, whoever leads.
    pub lacks_room: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineView {
    pub id: PipelineId,
    /// Whether the pipeline is open; false while SCM has decided on it and not seen it with a leader.
    pub open: bool,
    pub leader: Option<NodeId>,
    pub members: Vec<MemberView>,
    /// The open container, as last reported.
    pub container: ContainerId,
    /// Whether members whose disks are full, and silent ones beside them, leave no majority: the leader takes
    /// what it may never commit.
    pub may_lack_room: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    pub node: NodeId,
    pub address: String,
}

impl View {
    pub fn pipeline(&self, id: PipelineId) -> Option<&PipelineView> {
        self.pipelines.iter().find(|pipeline| pipeline.id == id)
    }

    pub fn om_group(&self, number: u64) -> Option<&OmGroupView> {
        self.om_groups.iter().find(|group| group.number == number)
    }
}

impl OmGroupView {
    /// The leader's address, if SCM knows it.
    pub(crate) fn leader_address(&self) -> Option<&str> {
        let leader = self.members.iter().find(|member| Some(member.node) == self.leader)?;
        Some(leader.address.as_str()).filter(|address| !address.is_empty())
    }

    /// The members' addresses, in order.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let addresses = self.members.iter().map(|member| member.address.clone());
        let mut addresses: Vec<String> = addresses.filter(|address| !address.is_empty()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

impl From<scm::OmGroupView> for OmGroupView {
    fn from(group: scm::OmGroupView) -> Self {
        let member = |member: scm::OmMember| MemberView { node: NodeId(member.om), address: member.address };
        OmGroupView {
            number: group.group,
            members: group.members.into_iter().map(member).collect(),
            leader: (group.leader_om != 0).then_some(NodeId(group.leader_om)),
            lacks_room: group.lacks_room,
        }
    }
}

impl PipelineView {
    /// The addresses to try, the leader first.
    pub(crate) fn addresses(&self) -> Vec<&str> {
        let mut members: Vec<&MemberView> = self.members.iter().collect();
        members.sort_by_key(|member| Some(member.node) != self.leader);
        members.iter().map(|member| member.address.as_str()).filter(|address| !address.is_empty()).collect()
    }
}

impl From<scm::ClusterView> for View {
    fn from(view: scm::ClusterView) -> Self {
        let mut pipelines: Vec<PipelineView> = view.pipelines.into_iter().map(PipelineView::from).collect();
        pipelines.sort_by_key(|pipeline| pipeline.id);
        let om_groups = view.om_groups.into_iter().map(OmGroupView::from).collect();
        View { cluster: view.cluster, pipelines, om_groups }
    }
}

impl From<scm::Pipeline> for PipelineView {
    fn from(pipeline: scm::Pipeline) -> Self {
        PipelineView {
            id: PipelineId(pipeline.pipeline),
            open: pipeline.state() == scm::PipelineState::PipelineOpen,
            leader: (pipeline.leader_node != 0).then_some(NodeId(pipeline.leader_node)),
            container: ContainerId(pipeline.container),
            may_lack_room: pipeline.may_lack_room,
            members: pipeline
                .members
                .into_iter()
                .map(|member| MemberView { node: NodeId(member.node), address: member.address })
                .collect(),
        }
    }
}

/// Keeps `view` at what SCM says, for as long as anybody looks at it. While SCM is away the last view stays.
pub(crate) async fn follow(scm: Arc<Seeker>, channels: Channels, view: watch::Sender<Arc<View>>) {
    let mut retry = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    loop {
        let address = scm.address();
        let Ended { had_views, failure } = follow_once(&address, &channels, &view).await;
        match failure.code {
            Code::WrongCluster => {
                warn!(scm = address, %failure, "SCM is not of the cluster that this process follows")
            }
            _ => debug!(scm = address, %failure, "watch of the cluster broke"),
        }
        scm.failed(&address, &failure);
        if had_views {
            retry.reset();
        }
        tokio::time::sleep(retry.pause()).await;
    }
}

/// The end of a watch, and the reason.
struct Ended {
    had_views: bool,
    failure: Failure,
}

/// Follows one watch stream to its end.
async fn follow_once(address: &str, channels: &Channels, view: &watch::Sender<Arc<View>>) -> Ended {
    let mut had_views = false;
    let failure = follow_until_failed(address, channels, view, &mut had_views).await.err();
    let failure = failure.unwrap_or_else(|| Failure::new(Code::Unavailable, "the watch ended"));
    Ended { had_views, failure }
}

async fn follow_until_failed(
    address: &str,
    channels: &Channels,
    view: &watch::Sender<Arc<View>>,
    had_views: &mut bool,
) -> Result<(), Failure> {
    let channel = channels.to(address)?;
    let mut scm = ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
    let ours = view.borrow().cluster.clone();
    let watch = proto::in_cluster(tonic::Request::new(scm::WatchRequest {}), &ours);
    let mut views = scm.watch(watch).await?.into_inner();
    while let Some(next) = views.message().await? {
        let next = View::from(next);
        // What this process has open belongs to the cluster that it found first.
        let ours = view.borrow().cluster.clone();
        if !ours.is_empty() && next.cluster != ours {
            let why = format!("{address} is an SCM of cluster {}, not of {ours}", next.cluster);
            return Err(Failure::new(Code::WrongCluster, why));
        }
        if !*had_views {
            info!(cluster = %next.cluster, pipelines = next.pipelines.len(), "follow the cluster");
        }
        *had_views = true;
        view.send_replace(Arc::new(next));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_tried_first() {
        let member = |node, address: &str| scm::PipelineMember {
            node,
            address: address.to_owned(),
            ..Default::default()
        };
        let pipeline = PipelineView::from(scm::Pipeline {
            leader_node: 2,
            members: vec![member(1, "a:1"), member(2, "b:1"), member(3, "")],
            ..Default::default()
        });
        assert_eq!(pipeline.addresses(), ["b:1", "a:1"]);
    }
}
