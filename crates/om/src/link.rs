//! Ways to services of several members, of which one leads: to SCM, and to other groups of names.

use proto::{Code, Failure, Seeker};
use rpc::{Channel, Channels, Connector};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Response, Status};

/// A way to the leader of a few members.
pub(crate) struct Link {
    seeker: Seeker,
    channels: Channels,
    /// The time that one member may take to answer.
    answer_max: Duration,
}

impl Link {
    /// `addresses`: "host:port", several separated by commas.
    pub(crate) fn new(
        addresses: &str,
        connector: Arc<dyn Connector>,
        answer_max: Duration,
    ) -> Result<Link, Failure> {
        Ok(Link { seeker: Seeker::parse(addresses)?, channels: Channels::new(connector), answer_max })
    }

    /// The member that leads, as somebody says who may know.
    pub(crate) fn leads(&self, address: &str) {
        self.seeker.leads(address);
    }

    /// Asks the members one after the other, until one answers for all. That a member is of another cluster
    /// is the answer only where nobody answers otherwise: one name of several may be stale. What the leader
    /// itself refuses nobody else is asked.
    pub(crate) async fn ask<A, F>(&self, call: impl Fn(Channel) -> F) -> Result<A, Failure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut failures: Vec<Failure> = Vec::new();
        for _ in 0..=self.seeker.configured().len() {
            let address = self.seeker.address();
            let channel = self.channels.to(&address).map_err(Failure::invalid)?;
            let failed = match timeout(self.answer_max, call(channel)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => Failure::from(status),
                Err(_) => Failure::unanswered(format!("{address} does not answer")),
            };
            self.seeker.failed(&address, &failed);
            failures.push(failed);
            if self.seeker.address() == address {
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
