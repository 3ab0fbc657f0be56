//! A datanode's connection to SCM, over which it registers, reports and hears its orders.

use crate::roll::ContainerAllocator;
use futures::future::BoxFuture;
use proto::Failure;
use proto::scm::scm_client::ScmClient;
use proto::scm::{
    AllocateContainerRequest, HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse,
};
use rpc::{Channel, Connector, Link};
use std::sync::Arc;
use std::time::Duration;
use types::{ContainerId, PipelineId};

const REQUEST_MAX: Duration = Duration::from_secs(5);

/// A connection to SCM's leader. A call that fails is not repeated here: the next one goes elsewhere.
#[derive(Clone)]
pub(crate) struct ScmLink(Link);

impl ScmLink {
    pub(crate) fn new(addresses: &str, connector: Arc<dyn Connector>) -> Result<ScmLink, Failure> {
        Ok(ScmLink(Link::new(addresses, connector, REQUEST_MAX)?))
    }

    pub(crate) async fn register(&self, request: RegisterRequest) -> Result<RegisterResponse, Failure> {
        let request = in_cluster(&request.cluster.clone(), request);
        self.0.ask_once(async |channel| client(channel).register(request).await).await
    }

    pub(crate) async fn heartbeat(&self, request: HeartbeatRequest) -> Result<HeartbeatResponse, Failure> {
        let request = in_cluster(&request.cluster.clone(), request);
        self.0.ask_once(async |channel| client(channel).heartbeat(request).await).await
    }
}

fn client(channel: Channel) -> ScmClient<Channel> {
    ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
}

fn in_cluster<T>(cluster: &str, request: T) -> tonic::Request<T> {
    proto::in_cluster(tonic::Request::new(request), cluster)
}

impl ContainerAllocator for ScmLink {
    fn allocate(
        &self,
        cluster: &str,
        pipeline: PipelineId,
        after: ContainerId,
    ) -> BoxFuture<'static, Result<ContainerId, Failure>> {
        let (link, cluster) = (self.clone(), cluster.to_owned());
        Box::pin(async move {
            let request = AllocateContainerRequest { pipeline: pipeline.0, after: after.0 };
            let request = in_cluster(&cluster, request);
            let answer = link.0.ask_once(async |channel| client(channel).allocate_container(request).await);
            Ok(ContainerId(answer.await?.container))
        })
    }
}
