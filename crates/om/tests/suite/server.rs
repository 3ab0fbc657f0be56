use crate::scripted_scm::ScriptedScm;
use bytes::Bytes;
use disk::RealDisk;
use flotilla_om::{Om, OmOptions};
use metrics::Exposition;
use proto::datanode::BlockName;
use proto::om::om_client::OmClient;
use proto::om::*;
use proto::{ChangesBucket, Failure, RequestId};
use raft::{AddressBook, HostOptions, RaftHost, SnapshotPolicy};
use raftlog::{LogSpace, LogSpaceOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::service::RoutesBuilder;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use types::{Clock, ManualClock};

pub(crate) const CLUSTER: &str = "of-the-suite";
/// Longer than anything takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const NOW_MS: u64 = 1_700_000_000_000;

pub(crate) type NameCluster = fn(tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status>;

pub(crate) type Client = OmClient<InterceptedService<Channel, NameCluster>>;

fn name_cluster(call: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
    Ok(proto::in_cluster(call, CLUSTER))
}

/// An OM, alone with an SCM of its own on a free port, or as one of several.
pub(crate) struct Server {
    pub(crate) client: Client,
    pub(crate) om: Om,
    pub(crate) address: String,
    host: RaftHost,
    /// The SCM of an OM that is alone.
    _scm: Option<ScriptedScm>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(dir: &Path) -> Server {
        let server = Server::open(dir).await;
        let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
        // The request is the same at each start.
        server.client.clone().create_bucket(request(0, bucket)).await.unwrap();
        server
    }

    /// [`Server::start`] without a bucket.
    pub(crate) async fn open(dir: &Path) -> Server {
        let scm = ScriptedScm::start(CLUSTER).await;
        let server = Server::open_at(dir, "127.0.0.1:0", &scm.address).await;
        server.until_ready().await;
        Server { _scm: Some(scm), ..server }
    }

    /// An OM that has begun to run, and may not serve yet. Nothing that is deleted goes.
    pub(crate) async fn open_at(dir: &Path, at: &str, scm: &str) -> Server {
        Server::open_with(dir, at, scm, OmOptions::default().reclaim_after).await
    }

    /// [`Server::open_at`], with what is deleted given up after some time.
    pub(crate) async fn open_with(dir: &Path, at: &str, scm: &str, reclaim_after: Duration) -> Server {
        let disk = Arc::new(open_disk(dir).await);
        let space = LogSpace::new(disk.clone(), log_options());
        let addresses = AddressBook::default();
        let host = RaftHost::new(HostOptions::default(), addresses.clone());
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // Snapshots are written, and the log is purged, while a suite runs.
        let snapshots = SnapshotPolicy::every(64 << 10);
        let options = OmOptions {
            address: address.clone(),
            scm: scm.to_owned(),
            heartbeat: Duration::from_millis(100),
            snapshots,
            reclaim_after,
            ..OmOptions::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at_ms(NOW_MS));
        let om = Om::start(options, disk, space, host.clone(), addresses, clock).await.unwrap();

        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        om.add_to(&mut routes);
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(rpc::serve(listener, routes.routes(), async { drop(stopped.await) }));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let client = OmClient::with_interceptor(channel, name_cluster as NameCluster);
        Server { client, om, address, host, _scm: None, stop, served }
    }

    pub(crate) async fn until_ready(&self) {
        let give_up = Instant::now() + DEADLINE;
        while let Err(why) = self.om.readiness() {
            assert!(Instant::now() < give_up, "it does not get ready: {why}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until it is not ready for a reason with these words.
    pub(crate) async fn until_unready(&self, words: &str) {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let readiness = self.om.readiness();
            if readiness.as_ref().is_err_and(|why| why.contains(words)) {
                return;
            }
            assert!(Instant::now() < give_up, "it does not say {words:?} but {readiness:?}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// A metric, with its labels, as Prometheus would see it now.
    fn metric(&self, name: &str) -> u64 {
        let mut exposition = Exposition::default();
        self.om.expose(&mut exposition);
        let text = exposition.finish();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Entries of the log that were applied, and the commands in them.
    pub(crate) fn entries(&self) -> (u64, u64) {
        let value = |name: &str| self.metric(&format!("flotilla_om_entry_commands_{name}"));
        (value("count"), value("sum"))
    }

    /// Keys and bytes of bucket `photos`.
    pub(crate) fn photos(&self) -> (u64, u64) {
        let value = |name: &str| self.metric(&format!("flotilla_om_bucket_{name}{{bucket=\"photos\"}}"));
        (value("keys"), value("bytes"))
    }

    /// Calls that it answered though it did not lead.
    pub(crate) fn reads_as_follower(&self) -> u64 {
        self.metric("flotilla_om_reads_by_followers_total")
    }

    pub(crate) async fn stop(self) {
        self.om.shutdown().await;
        self.host.shutdown().await;
        drop(self.client);
        let _ = self.stop.send(());
        tokio::time::timeout(DEADLINE, self.served).await.expect("the server ends").unwrap();
    }

    /// Whether the log of its replica does not reach back to its beginning any more.
    pub(crate) fn has_purged(&self) -> bool {
        self.host.groups().iter().any(|group| group.log().state().purged.is_some())
    }

    /// Ends as if it were killed, as far as others see that: from one moment to the next it answers nobody,
    /// and no other is asked to lead in its place.
    pub(crate) async fn vanish(self) {
        self.served.abort();
        let _ = self.served.await;
        for group in self.host.groups() {
            self.host.close(group.id()).await;
        }
        self.om.shutdown().await;
        self.host.shutdown().await;
    }

    /// A new request.
    pub(crate) async fn change<C: ChangesBucket>(&self, request: C) -> Result<C::Answer, Failure> {
        change(&self.client, rand::random(), Duration::ZERO, request).await
    }

    pub(crate) async fn commit(&self, commit: CommitKeyRequest) -> Result<CommitKeyResponse, Failure> {
        self.change(commit).await
    }

    pub(crate) async fn commit_as(
        &self,
        id: u128,
        commit: CommitKeyRequest,
    ) -> Result<CommitKeyResponse, Failure> {
        change(&self.client, id, Duration::ZERO, commit).await
    }

    pub(crate) async fn lookup(&self, key: &str) -> Result<Key, Failure> {
        look_up(&self.client, lookup(key)).await
    }

    /// Looks a key up at this member, whether it leads or not.
    pub(crate) async fn lookup_at_any(&self, key: &str) -> Result<Key, Failure> {
        look_up_at(&self.client, lookup(key), true).await
    }

    /// The first keys of `photos`, from a member that leads or not.
    pub(crate) async fn list_at_any(&self) -> Result<Vec<Key>, Failure> {
        let (volume, bucket) = ("s3v".into(), "photos".into());
        let request = ListKeysRequest { volume, bucket, any_member: true, ..ListKeysRequest::default() };
        let page = self.client.clone().list_keys(request).await?.into_inner();
        Ok(page.entries.into_iter().map(key_of).collect())
    }

    /// All keys of `photos`, by pages of `limit`.
    pub(crate) async fn list(&self, limit: u32) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut after = Bytes::new();
        loop {
            let (volume, bucket) = ("s3v".into(), "photos".into());
            let request = ListKeysRequest { volume, bucket, after, limit, ..ListKeysRequest::default() };
            let page = self.client.clone().list_keys(request).await.unwrap().into_inner();
            keys.extend(page.entries.into_iter().map(key_of));
            if !page.truncated {
                return keys;
            }
            after = page.next_after;
        }
    }
}

fn key_of(listed: ListedKey) -> Key {
    match listed.entry {
        Some(listed_key::Entry::Key(key)) => key,
        other => panic!("expected a key, got {other:?}"),
    }
}

pub(crate) async fn open_disk(dir: &Path) -> RealDisk {
    RealDisk::open_once_free(dir, 1, DEADLINE).await.unwrap()
}

pub(crate) fn log_options() -> LogSpaceOptions {
    LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 1 << 20, ..LogSpaceOptions::default() }
}

/// One try of a change of the inside of a bucket, alone in its call.
pub(crate) async fn change<C: ChangesBucket>(
    client: &Client,
    id: u128,
    age: Duration,
    request: C,
) -> Result<C::Answer, Failure> {
    let replies = send(client, vec![Change::of(request, RequestId(id), age, None)]).await?;
    replies.into_iter().next().expect("a change has an answer").answer::<C>()
}

pub(crate) fn lookup(key: &str) -> Lookup {
    let key = Bytes::copy_from_slice(key.as_bytes());
    Lookup { place: None, volume: "s3v".into(), bucket: "photos".into(), key }
}

pub(crate) async fn look_up(client: &Client, lookup: Lookup) -> Result<Key, Failure> {
    look_up_at(client, lookup, false).await
}

async fn look_up_at(client: &Client, lookup: Lookup, any_member: bool) -> Result<Key, Failure> {
    let request = LookupKeysRequest { lookups: vec![lookup], any_member };
    let replies = client.clone().lookup_keys(request).await?.into_inner().replies;
    replies.into_iter().next().and_then(|reply| reply.result).expect("a lookup has an answer").into()
}

/// Sends all changes in one call.
pub(crate) async fn send(client: &Client, changes: Vec<Change>) -> Result<Vec<OmReply>, Failure> {
    Ok(client.clone().change(ChangeRequest { changes }).await?.into_inner().replies)
}

/// A request like no other.
pub(crate) fn anew<T>(message: T) -> tonic::Request<T> {
    request(rand::random(), message)
}

/// A request that is sent for the first time.
pub(crate) fn request<T>(id: u128, message: T) -> tonic::Request<T> {
    proto::as_request(tonic::Request::new(message), RequestId(id), Duration::ZERO)
}

/// A key of ten bytes in container `number`.
pub(crate) fn commit(key: &str, number: u64) -> CommitKeyRequest {
    let block = Some(BlockName { container: number, local: 1, nonce: proto::uuid_bytes(number.into()) });
    let key = Key {
        key: Bytes::copy_from_slice(key.as_bytes()),
        size: 10,
        etag: format!("etag-{number}"),
        pieces: vec![BlockPiece { block, offset: 0, length: 10, commit_index: 3, crc: 0 }],
        ..Key::default()
    };
    CommitKeyRequest {
        volume: "s3v".into(),
        bucket: "photos".into(),
        key: Some(key),
        ..CommitKeyRequest::default()
    }
}
