//! The other groups of names, as they are asked.

use crate::groups::Groups;
use disk::DataDirectory;
use proto::om::om_client::OmClient;
use proto::{Failure, RequestId, as_request, in_cluster};
use rand::RngExt;
use rpc::Channel;
use std::sync::Arc;
use std::time::Duration;
use tonic::Request;
use types::random::random;

#[derive(Clone)]
pub(crate) struct Others {
    pub(crate) groups: Arc<Groups>,
    pub(crate) disk: Arc<dyn DataDirectory>,
}

impl Others {
    /// Asks the leader of a group. Each question is a request of its own: it must do no harm a second time.
    pub(crate) async fn ask<Q: Clone, A, F>(
        &self,
        group: u64,
        question: Q,
        call: impl Fn(OmClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let cluster = self.disk.stamp().cluster;
        let id = RequestId(random().random());
        let link = self.groups.link(group)?;
        let answer = link.ask(|channel| {
            let request = as_request(Request::new(question.clone()), id, Duration::ZERO);
            call(OmClient::new(channel), in_cluster(request, &cluster))
        });
        answer
            .await
            .map_err(|failure| Failure { message: format!("group {group} of names: {failure}"), ..failure })
    }
}
