//! SCM, wherever its leader is.

use anyhow::Context;
use proto::scm::scm_client::ScmClient;
use proto::{Code, Failure, Naming, Retry, Seeker};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

const CONNECT_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The time for which a command looks for a leader: longer than elections take where disks and processors are
/// busy with other things.
const PATIENCE: Duration = Duration::from_secs(15);
/// The time for one address to say whether it leads: one that hangs must not keep the question from the
/// others.
const LOOK_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

/// A way to SCM's leader: calls go to one of the addresses given, or to where that one says the leader is.
pub(super) struct Scm {
    seeker: Seeker,
    naming: Naming,
    connected: Option<(String, Client)>,
}

/// A client of one SCM. Each call names the cluster, once one call was told which it is.
type Client = ScmClient<InterceptedService<Channel, Naming>>;

/// The failures after which a call may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Any failure: the call changes nothing.
    Always,
    /// Failures after which the call was certainly not carried out.
    IfRefused,
}

impl Scm {
    /// SCM at `addresses`: host:port, several separated by commas.
    pub(super) fn new(addresses: &str) -> anyhow::Result<Scm> {
        let seeker = Seeker::parse(addresses).context("address of SCM (--scm, FLOTILLA_SCM)")?;
        Ok(Scm { seeker, naming: Naming::default(), connected: None })
    }

    /// Makes a call that changes nothing.
    pub(super) async fn look<T>(
        &mut self,
        call: impl AsyncFn(&mut Client) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        self.call(Repeat::Always, PATIENCE, call).await
    }

    /// Makes a call that changes nothing, for a caller who has something to say also where nobody leads.
    pub(super) async fn look_within<T>(
        &mut self,
        patience: Duration,
        call: impl AsyncFn(&mut Client) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        self.call(Repeat::Always, patience, call).await
    }

    /// Makes a call that changes something.
    pub(super) async fn change<T>(
        &mut self,
        call: impl AsyncFn(&mut Client) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        self.call(Repeat::IfRefused, PATIENCE, call).await
    }

    /// Calls the leader. Goes on while somebody answers, though nobody leads; where nobody answers, a person
    /// wants to know that at once.
    async fn call<T>(
        &mut self,
        repeat: Repeat,
        patience: Duration,
        call: impl AsyncFn(&mut Client) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        let give_up = Instant::now() + patience;
        let mut silent = BTreeSet::new();
        loop {
            let address = self.seeker.address();
            let mut client = match self.client(&address).await {
                Ok(client) => client,
                Err(error) => {
                    // The other members may name for a while a leader that is gone.
                    let is_known = !silent.insert(address.clone());
                    let are_all = self.seeker.configured().iter().all(|address| silent.contains(address));
                    if are_all || Instant::now() >= give_up {
                        return Err(error);
                    }
                    self.seeker.failed(&address, &Failure::unanswered(""));
                    if is_known {
                        tokio::time::sleep(PAUSE).await;
                    }
                    continue;
                }
            };
            let within = match repeat {
                Repeat::Always => LOOK_MAX,
                Repeat::IfRefused => ANSWER_MAX,
            };
            let is_named = self.naming.is_known();
            let failure = match tokio::time::timeout(within, call(&mut client)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if !is_named && self.naming.learn(&status) => continue,
                Ok(Err(status)) => Failure::from(status),
                Err(_) => {
                    Failure::new(Code::OutcomeUnknown, format!("no answer from {address} in {within:?}"))
                }
            };
            let may_repeat = match failure.retry {
                Retry::Unknown => repeat == Repeat::Always,
                _ => matches!(failure.code, Code::NotLeader | Code::Unavailable),
            };
            if !may_repeat || Instant::now() >= give_up {
                return Err(anyhow::Error::new(failure).context("SCM refused"));
            }
            if failure.retry == Retry::Unknown {
                // Connecting again tells at once whether anybody is there.
                self.connected = None;
            } else {
                silent.remove(&address);
            }
            self.seeker.failed(&address, &failure);
            // A pause, unless the call goes on where the leader is said to be: nobody leads, or only one that
            // does not answer.
            if failure.leader_address != Some(self.seeker.address()) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    pub(super) fn addresses(&self) -> &[String] {
        self.seeker.configured()
    }

    async fn client(&mut self, address: &str) -> anyhow::Result<Client> {
        if let Some((_, client)) = self.connected.as_ref().filter(|(to, _)| to == address) {
            return Ok(client.clone());
        }
        let client = connect(address, self.naming.clone()).await?;
        self.connected = Some((address.to_owned(), client.clone()));
        Ok(client)
    }
}

pub(super) async fn connect(address: &str, naming: Naming) -> anyhow::Result<Client> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.with_context(|| format!("`{address}` is not host:port (--scm)"))?;
    let channel = endpoint.connect_timeout(CONNECT_MAX).timeout(ANSWER_MAX).connect().await;
    let channel = channel.with_context(|| format!("no SCM answers at {address} (--scm, FLOTILLA_SCM)"))?;
    Ok(ScmClient::with_interceptor(channel, naming).max_decoding_message_size(proto::MESSAGE_BYTES_MAX))
}
