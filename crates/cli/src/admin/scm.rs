//! SCM, wherever its leader is.

use anyhow::{Context, bail};
use proto::scm::scm_client::ScmClient;
use proto::{Code, Failure};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

const CONNECT_MAX: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How often a call follows a leader that moved before it says so.
const MOVES_MAX: usize = 5;
/// Before the addresses are asked once more when nobody leads.
const PAUSE: Duration = Duration::from_millis(500);

/// Calls go to the leader: to one of the addresses given, or to where that one says the leader is.
pub(super) struct Scm {
    addresses: Vec<String>,
    leader: Option<ScmClient<Channel>>,
}

impl Scm {
    /// `addresses`: host:port, several separated by commas.
    pub(super) fn new(addresses: &str) -> Scm {
        let addresses = addresses.split(',').map(|address| address.trim().to_owned());
        Scm { addresses: addresses.filter(|address| !address.is_empty()).collect(), leader: None }
    }

    pub(super) async fn call<T>(
        &mut self,
        call: impl AsyncFn(&mut ScmClient<Channel>) -> Result<Response<T>, Status>,
    ) -> anyhow::Result<T> {
        let mut moves = 0;
        loop {
            let mut client = match self.leader.take() {
                Some(client) => client,
                None => self.connect_any().await?,
            };
            let failure = match call(&mut client).await {
                Ok(answer) => {
                    self.leader = Some(client);
                    return Ok(answer.into_inner());
                }
                Err(status) => Failure::from(status),
            };
            moves += 1;
            if failure.code != Code::NotLeader || moves > MOVES_MAX {
                return Err(anyhow::Error::new(failure).context("SCM refused"));
            }
            match &failure.leader_address {
                Some(address) => self.leader = Some(connect(address).await?),
                None => {
                    // There may be a leader soon, and another address may know it.
                    self.addresses.rotate_left(1);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// The first that answers.
    async fn connect_any(&self) -> anyhow::Result<ScmClient<Channel>> {
        let mut failures = Vec::new();
        for address in &self.addresses {
            match connect(address).await {
                Ok(client) => return Ok(client),
                Err(failure) => failures.push(failure),
            }
        }
        match failures.len() {
            0 => bail!("no address of SCM is given (--scm, FLOTILLA_SCM)"),
            1 => Err(failures.remove(0)),
            _ => {
                let failures: Vec<String> = failures.iter().map(|failure| format!("{failure:#}")).collect();
                bail!("{}", failures.join("; "))
            }
        }
    }
}

async fn connect(address: &str) -> anyhow::Result<ScmClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.with_context(|| format!("`{address}` is not host:port (--scm)"))?;
    let channel = endpoint.connect_timeout(CONNECT_MAX).timeout(ANSWER_MAX).connect().await;
    let channel = channel.with_context(|| format!("no SCM answers at {address} (--scm, FLOTILLA_SCM)"))?;
    Ok(ScmClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX))
}
