//! SCM, wherever its leader is.

use anyhow::Context;
use proto::scm::scm_client::ScmClient;
use proto::{Code, Failure, Retry, Seeker};
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

const CONNECT_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Pauses while nobody leads: together longer than an election.
const ELECTION_TRIES: usize = 8;
const PAUSE: Duration = Duration::from_millis(500);

/// Calls go to the leader: to one of the addresses given, or to where that one says the leader is.
pub(super) struct Scm {
    seeker: Seeker,
    connected: Option<(String, ScmClient<Channel>)>,
}

impl Scm {
    /// `addresses`: host:port, several separated by commas.
    pub(super) fn new(addresses: &str) -> anyhow::Result<Scm> {
        let seeker = Seeker::parse(addresses).context("address of SCM (--scm, FLOTILLA_SCM)")?;
        Ok(Scm { seeker, connected: None })
    }

    pub(super) async fn call<T>(
        &mut self,
        call: impl AsyncFn(&mut ScmClient<Channel>) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        // Each may be asked, and say who leads; and there may be an election.
        let mut tries = 2 * self.seeker.configured().len() + ELECTION_TRIES;
        let mut silent = BTreeSet::new();
        loop {
            let address = self.seeker.address();
            let mut client = match self.client(&address).await {
                Ok(client) => client,
                Err(error) => {
                    tries -= 1;
                    // Others may name for a while a leader that is gone.
                    let is_known = !silent.insert(address.clone());
                    if tries == 0 || self.seeker.configured().iter().all(|address| silent.contains(address)) {
                        return Err(error);
                    }
                    self.seeker.failed(&address, &Failure::unanswered(""));
                    if is_known {
                        tokio::time::sleep(PAUSE).await;
                    }
                    continue;
                }
            };
            let failure = match call(&mut client).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => Failure::from(status),
            };
            tries -= 1;
            let moved = matches!(failure.code, Code::NotLeader | Code::Unavailable)
                && failure.retry != Retry::Unknown;
            if !moved || tries == 0 {
                return Err(anyhow::Error::new(failure).context("SCM refused"));
            }
            self.seeker.failed(&address, &failure);
            // Unless it goes on where the leader is said to be: nobody leads, or only one that does not answer.
            if failure.leader_address != Some(self.seeker.address()) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    pub(super) fn addresses(&self) -> &[String] {
        self.seeker.configured()
    }

    async fn client(&mut self, address: &str) -> anyhow::Result<ScmClient<Channel>> {
        if let Some((_, client)) = self.connected.as_ref().filter(|(to, _)| to == address) {
            return Ok(client.clone());
        }
        let client = connect(address).await?;
        self.connected = Some((address.to_owned(), client.clone()));
        Ok(client)
    }
}

pub(super) async fn connect(address: &str) -> anyhow::Result<ScmClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.with_context(|| format!("`{address}` is not host:port (--scm)"))?;
    let channel = endpoint.connect_timeout(CONNECT_MAX).timeout(ANSWER_MAX).connect().await;
    let channel = channel.with_context(|| format!("no SCM answers at {address} (--scm, FLOTILLA_SCM)"))?;
    Ok(ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX))
}
