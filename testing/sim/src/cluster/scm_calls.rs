use proto::Failure;
use proto::scm::scm_client::ScmClient;
use rpc::{Channel, Connector};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;

const ANSWER_MAX: Duration = Duration::from_secs(3);

/// A client's way to SCM: to one member after the other until one of them answers as the leader.
#[derive(Clone)]
pub(super) struct ScmCalls {
    connector: Arc<dyn Connector>,
    addresses: Arc<Vec<String>>,
    at: Arc<AtomicUsize>,
}

impl ScmCalls {
    pub(super) fn new(connector: Arc<dyn Connector>, addresses: Vec<String>) -> ScmCalls {
        ScmCalls { connector, addresses: Arc::new(addresses), at: Arc::default() }
    }

    /// One try; a failed one is followed by a try at the next member.
    pub(super) async fn call<T, F>(&self, call: impl FnOnce(ScmClient<Channel>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let at = self.at.load(Ordering::Relaxed);
        let channel = self.connector.connect(&self.addresses[at % self.addresses.len()]);
        let channel = channel.map_err(Failure::internal)?;
        let answer = timeout(ANSWER_MAX, call(ScmClient::new(channel))).await;
        let answer = match answer {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => Failure::from(status),
            Err(_) => Failure::new(proto::Code::OutcomeUnknown, "no answer in time"),
        };
        self.at.store(at + 1, Ordering::Relaxed);
        Err(answer)
    }
}
