use crate::{Channel, Channels, Connector};
use proto::{Code, Failure, Seeker};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Response, Status};

/// A way to the leader of a service with several members, as SCM's and OM's groups are. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    seeker: Arc<Seeker>,
    channels: Channels,
    /// The time that one member may take to answer.
    answer_max: Duration,
}

impl Link {
    /// `addresses`: "host:port", several separated by commas.
    pub fn new(
        addresses: &str,
        connector: Arc<dyn Connector>,
        answer_max: Duration,
    ) -> Result<Link, Failure> {
        Ok(Link::over(Arc::new(Seeker::parse(addresses)?), Channels::new(connector), answer_max))
    }

    /// A way over connections that others use too, with what they know of the leader.
    pub fn over(seeker: Arc<Seeker>, channels: Channels, answer_max: Duration) -> Link {
        Link { seeker, channels, answer_max }
    }

    /// Notes that the member at this address leads, as somebody says who may know.
    pub fn leads(&self, address: &str) {
        self.seeker.leads(address);
    }

    /// Asks the member that is taken for the leader, and nobody else: after a failure the next question goes
    /// elsewhere.
    pub async fn ask_once<A, F>(&self, call: impl FnOnce(Channel) -> F) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let address = self.seeker.address();
        let channel = self.channels.to(&address).map_err(Failure::invalid)?;
        let failure = match timeout(self.answer_max, call(channel)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => Failure::from(status),
            Err(_) => Failure::unanswered(format!("{address} does not answer")),
        };
        self.seeker.failed(&address, &failure);
        Err(failure)
    }

    /// Asks the members one after the other, until one answers for all. That a member is of another cluster
    /// is the answer only where nobody answers otherwise: one name of several may be stale. What the leader
    /// itself refuses nobody else is asked.
    pub async fn ask<A, F>(&self, call: impl Fn(Channel) -> F) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut failures: Vec<Failure> = Vec::new();
        for _ in 0..=self.seeker.configured().len() {
            let asked = self.seeker.address();
            let failure = match self.ask_once(&call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // The only member may have begun anew since it was asked last: its connection is made again.
            let is_over = self.seeker.address() == asked && failure.code != Code::Unavailable;
            failures.push(failure);
            if is_over {
                break;
            }
        }
        let last = failures.pop().unwrap_or_else(|| Failure::new(Code::Unavailable, "nobody was asked"));
        let of_ours = failures.into_iter().rev().find(|failure| failure.code != Code::WrongCluster);
        match (last.code, of_ours) {
            (Code::WrongCluster, Some(failure)) => Err(failure),
            _ => Err(last),
        }
    }
}
