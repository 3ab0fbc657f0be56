//! Whether a byte could be written now. SCM's view says which pipelines there are; whether one takes bytes
//! only its leader knows: SCM may be away, which stops no writer until containers are full, or know of a dead
//! leader a few seconds late.

use crate::channels::Channels;
use crate::view::{PipelineView, View};
use futures::{StreamExt, stream};
use proto::Failure;
use proto::datanode::ListWritableRequest;
use proto::datanode::datanode_client::DatanodeClient;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;
use types::PipelineId;

/// The most nodes that are asked at the same time.
const ASKED_MAX: usize = 8;
/// The time for a node to answer: one that takes longer takes bytes no sooner.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Asks members of the view's open pipelines that have room, those first that lead by the view, until one
/// would take a chunk to one of them.
pub(crate) async fn any_is_writable(view: &View, channels: &Channels) -> bool {
    let open = || view.pipelines.iter().filter(|pipeline| pipeline.open && !pipeline.may_lack_room);
    let ids: BTreeSet<PipelineId> = open().map(|pipeline| pipeline.id).collect();
    let addresses: Vec<String> = addresses(open()).into_iter().map(str::to_owned).collect();
    let asked = stream::iter(addresses).map(|address: String| async move {
        timeout(ANSWER_WITHIN, list_writable(&address, &view.cluster, channels)).await
    });
    let mut asked = asked.buffer_unordered(ASKED_MAX);
    while let Some(listed) = asked.next().await {
        // A node that is silent or refuses takes nothing.
        let Ok(Ok(listed)) = listed else { continue };
        if listed.iter().any(|id| ids.contains(id)) {
            return true;
        }
    }
    false
}

/// The addresses of the pipelines' members, leaders first, each address once.
fn addresses<'a>(open: impl Iterator<Item = &'a PipelineView>) -> Vec<&'a str> {
    let by_member: Vec<Vec<&str>> = open.map(PipelineView::addresses).collect();
    let most = by_member.iter().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..most).flat_map(|at| by_member.iter().filter_map(move |addresses| addresses.get(at)));
    let mut seen = BTreeSet::new();
    in_turn.copied().filter(|address| seen.insert(*address)).collect()
}

async fn list_writable(
    address: &str,
    cluster: &str,
    channels: &Channels,
) -> Result<Vec<PipelineId>, Failure> {
    let mut datanode = DatanodeClient::new(channels.to(address)?);
    let request = proto::in_cluster(tonic::Request::new(ListWritableRequest {}), cluster);
    let listed = datanode.list_writable(request).await?.into_inner();
    Ok(listed.pipelines.into_iter().map(PipelineId).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::MemberView;
    use types::{ContainerId, NodeId};

    #[test]
    fn leaders_are_asked_first_and_nobody_twice() {
        let pipeline = |leader: u64, members: [u64; 3]| PipelineView {
            id: PipelineId(1),
            open: true,
            leader: Some(NodeId(leader)),
            members: members.map(|n| MemberView { node: NodeId(n), address: n.to_string() }).into(),
            container: ContainerId(1),
            may_lack_room: false,
        };
        let pipelines = [pipeline(2, [1, 2, 3]), pipeline(3, [1, 2, 3]), pipeline(4, [4, 2, 5])];
        assert_eq!(addresses(pipelines.iter()), ["2", "3", "4", "1", "5"]);
    }
}
