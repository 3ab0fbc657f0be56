//! How a datanode speaks with SCM.

use crate::roll::ContainerAllocator;
use anyhow::Context;
use futures::future::BoxFuture;
use proto::Failure;
use proto::scm::scm_client::ScmClient;
use proto::scm::{
    AllocateContainerRequest, HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse,
};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use types::{ContainerId, PipelineId};

const CONNECT_MAX: Duration = Duration::from_secs(2);
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// A connection that is made when needed, and again when lost.
#[derive(Clone)]
pub(crate) struct ScmLink {
    client: ScmClient<Channel>,
}

impl ScmLink {
    pub(crate) fn new(address: &str) -> anyhow::Result<ScmLink> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.with_context(|| format!("read SCM's address `{address}`"))?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_MAX)
            .timeout(REQUEST_MAX)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_while_idle(true);
        let client =
            ScmClient::new(endpoint.connect_lazy()).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        Ok(ScmLink { client })
    }

    pub(crate) async fn register(&self, request: RegisterRequest) -> Result<RegisterResponse, Failure> {
        Ok(self.client.clone().register(request).await?.into_inner())
    }

    pub(crate) async fn heartbeat(&self, request: HeartbeatRequest) -> Result<HeartbeatResponse, Failure> {
        Ok(self.client.clone().heartbeat(request).await?.into_inner())
    }
}

impl ContainerAllocator for ScmLink {
    fn allocate(
        &self,
        pipeline: PipelineId,
        after: ContainerId,
    ) -> BoxFuture<'static, Result<ContainerId, Failure>> {
        let mut client = self.client.clone();
        Box::pin(async move {
            let request = AllocateContainerRequest { pipeline: pipeline.0, after: after.0 };
            Ok(ContainerId(client.allocate_container(request).await?.into_inner().container))
        })
    }
}
