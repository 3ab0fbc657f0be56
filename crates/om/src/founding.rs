//! The owner of a cluster's names is noted in SCM's registry before an OM founds its group. An OM on an empty
//! directory, in the place of one that has them, is refused; it would show an empty namespace, and everything
//! in the containers would seem to belong to nobody.

use bytes::Bytes;
use proto::registry::registry_client::RegistryClient;
use proto::registry::{PutKeyRequest, ReadKeysRequest};
use proto::{Code, Failure, Retry, Seeker, in_cluster};
use raft::RaftHost;
use rand::RngExt;
use rpc::Channel;
use std::time::Duration;
use tokio::time::timeout;
use tonic::{Request, Response, Status};
use types::random::random;

/// The key of the first group of names, the only one for now.
const KEY: &str = "flotilla/om/0";
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// One start of an OM that has no names yet.
pub(crate) struct Founding {
    /// Like no other's.
    note: Bytes,
}

impl Founding {
    pub(crate) fn new(address: &str) -> Founding {
        Founding { note: format!("{address} {:032x}", random().random::<u128>()).into() }
    }

    /// Notes that the names are founded here. `PreconditionFailed`: they are elsewhere, and asking again
    /// changes nothing.
    pub(crate) async fn note(&self, scm: &str, host: &RaftHost, cluster: &str) -> Result<(), Failure> {
        let put = PutKeyRequest {
            key: KEY.to_owned(),
            value: self.note.clone(),
            if_mod_revision: Some(0),
            ttl_ms: 0,
        };
        let noted = ask(scm, host, |channel| {
            let put = in_cluster(Request::new(put.clone()), cluster);
            async move { RegistryClient::new(channel).put_key(put).await }
        });
        match noted.await {
            Err(failure) if failure.code == Code::PreconditionFailed => self.find(scm, host, cluster).await,
            noted => noted.map(drop),
        }
    }

    /// Whether the note that is there is this one: its answer may have been lost.
    async fn find(&self, scm: &str, host: &RaftHost, cluster: &str) -> Result<(), Failure> {
        let read = ReadKeysRequest { key: KEY.to_owned(), ..ReadKeysRequest::default() };
        let found = ask(scm, host, |channel| {
            let read = in_cluster(Request::new(read.clone()), cluster);
            async move { RegistryClient::new(channel).read_keys(read).await }
        });
        let found = found.await?.entries.pop();
        match found.map(|entry| entry.value) {
            Some(value) if value == self.note => Ok(()),
            Some(value) => {
                let other = String::from_utf8_lossy(&value).into_owned();
                let why = format!(
                    "the names of cluster {cluster} were founded by the OM at {other}, and this directory has none: give back its directory, \
                     or, when it is lost for good with all names, `flotilla admin registry kv delete {KEY}` and start again"
                );
                Err(Failure { retry: Retry::No, ..Failure::new(Code::PreconditionFailed, why) })
            }
            None => {
                Err(Failure::new(Code::Unavailable, "the note of who has the names was deleted just now"))
            }
        }
    }
}

/// Asks SCM's members one after the other, until one answers for all. Another cluster's is the answer only
/// where nobody answers otherwise: one name of several may be stale.
pub(crate) async fn ask<A, F>(scm: &str, host: &RaftHost, call: impl Fn(Channel) -> F) -> Result<A, Failure>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let seeker = Seeker::parse(scm)?;
    let mut failures: Vec<Failure> = Vec::new();
    for _ in 0..=seeker.configured().len() {
        let address = seeker.address();
        let channel = host.connector().connect(&address).map_err(Failure::invalid)?;
        let failed = match timeout(ANSWER_MAX, call(channel)).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => Failure::from(status),
            Err(_) => Failure::unanswered(format!("{address} does not answer")),
        };
        if failed.code == Code::PreconditionFailed {
            return Err(failed);
        }
        seeker.failed(&address, &failed);
        failures.push(failed);
    }
    let last = failures.pop().unwrap_or_else(|| Failure::new(Code::Unavailable, "nobody was asked"));
    let of_ours = failures.into_iter().rev().find(|failure| failure.code != Code::WrongCluster);
    match (last.code, of_ours) {
        (Code::WrongCluster, Some(failure)) => Err(failure),
        _ => Err(last),
    }
}
