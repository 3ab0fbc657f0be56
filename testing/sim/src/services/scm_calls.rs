use proto::scm::GetClusterStatusRequest;
use proto::scm::scm_client::ScmClient;
use proto::{Failure, Naming};
use rpc::{Channel, Connector};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::service::interceptor::InterceptedService;
use tonic::{Response, Status};

pub(crate) type Scm = ScmClient<InterceptedService<Channel, Naming>>;

const ANSWER_MAX: Duration = Duration::from_secs(3);
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// A client's way to SCM: to one member after the other until one of them answers as the leader.
#[derive(Clone)]
pub(crate) struct ScmCalls {
    connector: Arc<dyn Connector>,
    addresses: Arc<Vec<String>>,
    naming: Naming,
    at: Arc<AtomicUsize>,
}

impl ScmCalls {
    pub(crate) fn new(connector: Arc<dyn Connector>, addresses: Vec<String>) -> ScmCalls {
        ScmCalls { connector, addresses: Arc::new(addresses), naming: Naming::default(), at: Arc::default() }
    }

    /// Calls SCM once; after a failed call the next one goes to the next member.
    pub(crate) async fn call<T, F>(&self, call: impl FnOnce(Scm) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let at = self.at.load(Ordering::Relaxed);
        let channel = self.connector.connect(&self.addresses[at % self.addresses.len()]);
        let channel = channel.map_err(Failure::internal)?;
        let answer = timeout(ANSWER_MAX, self.ask(channel, call)).await;
        let answer = match answer {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => Failure::from(status),
            Err(_) => Failure::new(proto::Code::OutcomeUnknown, "no answer in time"),
        };
        self.at.store(at + 1, Ordering::Relaxed);
        Err(answer)
    }

    async fn ask<T, F>(&self, channel: Channel, call: impl FnOnce(Scm) -> F) -> Result<Response<T>, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut scm = ScmClient::with_interceptor(channel, self.naming.clone());
        if !self.naming.is_known() {
            let status = scm.get_cluster_status(GetClusterStatusRequest {}).await?;
            self.naming.know(&status.get_ref().cluster);
        }
        call(scm).await
    }
}

/// The cluster's name, however long SCM takes to say it.
pub(crate) async fn cluster_named(scm: &ScmCalls) -> String {
    loop {
        let status =
            scm.call(|mut scm| async move { scm.get_cluster_status(GetClusterStatusRequest {}).await });
        match status.await {
            Ok(status) => return status.cluster,
            Err(_) => sleep(ASK_AGAIN).await,
        }
    }
}
