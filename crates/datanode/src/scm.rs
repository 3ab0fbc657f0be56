//! A datanode's connection to SCM, over which it registers, reports and hears its orders.

use crate::roll::ContainerAllocator;
use futures::future::BoxFuture;
use proto::scm::scm_client::ScmClient;
use proto::scm::{
    AllocateContainerRequest, HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse,
};
use proto::{Code, Failure, Seeker};
use rpc::{Channel, Connector};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;
use types::{ContainerId, PipelineId};

const REQUEST_MAX: Duration = Duration::from_secs(5);

/// A connection to SCM's leader, made when needed, and again when it is lost or leads no more. A call that
/// fails is not repeated here: the next one goes elsewhere.
#[derive(Clone)]
pub(crate) struct ScmLink {
    seeker: Arc<Seeker>,
    connector: Arc<dyn Connector>,
    connected: Arc<Mutex<Option<Connected>>>,
}

struct Connected {
    to: String,
    client: ScmClient<Channel>,
}

impl ScmLink {
    pub(crate) fn new(addresses: &str, connector: Arc<dyn Connector>) -> Result<ScmLink, Failure> {
        let seeker = Arc::new(Seeker::parse(addresses)?);
        Ok(ScmLink { seeker, connector, connected: Arc::default() })
    }

    pub(crate) async fn register(&self, request: RegisterRequest) -> Result<RegisterResponse, Failure> {
        let request = in_cluster(&request.cluster.clone(), request);
        self.call(async |client| client.register(request).await).await
    }

    pub(crate) async fn heartbeat(&self, request: HeartbeatRequest) -> Result<HeartbeatResponse, Failure> {
        let request = in_cluster(&request.cluster.clone(), request);
        self.call(async |client| client.heartbeat(request).await).await
    }

    async fn call<T>(
        &self,
        call: impl AsyncFnOnce(&mut ScmClient<Channel>) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> Result<T, Failure> {
        let address = self.seeker.address();
        let answer = match self.client(&address) {
            Ok(mut client) => match timeout(REQUEST_MAX, call(&mut client)).await {
                Ok(answer) => answer.map_err(Failure::from),
                Err(_) => Err(Failure::new(Code::OutcomeUnknown, "SCM does not answer in time")),
            },
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &answer {
            self.seeker.failed(&address, failure);
        }
        answer.map(tonic::Response::into_inner)
    }

    fn client(&self, address: &str) -> Result<ScmClient<Channel>, Failure> {
        let mut connected = self.connected.lock().expect("no holder panics");
        if let Some(connected) = connected.as_ref().filter(|connected| connected.to == address) {
            return Ok(connected.client.clone());
        }
        let channel = self.connector.connect(address);
        let channel = channel.map_err(|why| Failure::invalid(format!("SCM's address: {why}")))?;
        let client = ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        *connected = Some(Connected { to: address.to_owned(), client: client.clone() });
        Ok(client)
    }
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
            let answer = link.call(async |client| client.allocate_container(request).await).await?;
            Ok(ContainerId(answer.container))
        })
    }
}
