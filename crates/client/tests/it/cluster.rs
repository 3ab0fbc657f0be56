//! One metadata server and three datanodes in this process.

use bytes::Bytes;
use datanode::{Datanode, DatanodeOptions};
use flotilla_client::{Client, ClientError, ClientOptions, Put, S3_VOLUME};
use futures::{Stream, TryStreamExt};
use om::{Om, OmOptions};
use proto::om::KeyAttributes;
use raft::{AddressBook, HostOptions, RaftHost};
use raftlog::{LogSpace, LogSpaceOptions};
use rpc::Local;
use scm::{Scm, ScmOptions};
use statedb::DbOptions;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::service::{Routes, RoutesBuilder};
use types::{ContainerId, NodeId, PipelineId, SystemClock};

/// The time within which whatever is waited for happens, or the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const BUCKET: &str = "bucket";

struct Metadata {
    scm: Scm,
    om: Om,
    host: RaftHost,
    server: JoinHandle<()>,
    routes: Routes,
}

pub(crate) struct Node {
    pub(crate) datanode: Datanode,
    pub(crate) host: RaftHost,
    server: JoinHandle<()>,
    routes: Routes,
    pub(crate) address: String,
}

pub(crate) struct Cluster {
    _dir: tempfile::TempDir,
    metadata: Metadata,
    pub(crate) nodes: Vec<Node>,
    pub(crate) client: Client,
    metadata_address: String,
}

fn log() -> LogSpaceOptions {
    LogSpaceOptions { segment_bytes_max: 16 << 20, reserve_bytes: 16 << 20, ..LogSpaceOptions::default() }
}

fn db() -> DbOptions {
    DbOptions { block_cache_bytes: 4 << 20, write_buffer_bytes: 4 << 20, ..DbOptions::default() }
}

fn serve(listener: TcpListener, routes: Routes) -> JoinHandle<()> {
    tokio::spawn(rpc::serve(listener, routes, std::future::pending()))
}

impl Metadata {
    async fn start(root: &Path) -> (Metadata, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let addresses = AddressBook::default();
        let host = RaftHost::new(HostOptions::default(), addresses.clone());
        let disk = Arc::new(disk::RealDisk::open(root, 0xd15c).unwrap());
        let space = LogSpace::new(disk.clone(), log());
        let options = ScmOptions { address: address.clone(), db: db(), ..ScmOptions::default() };
        let scm = Scm::start(
            options,
            disk.clone(),
            space.clone(),
            host.clone(),
            addresses.clone(),
            Arc::new(SystemClock),
        )
        .await
        .unwrap();
        let (scm_address, db) = (address.clone(), db());
        let options = OmOptions { address: address.clone(), scm: scm_address, db, ..OmOptions::default() };
        let clock = Arc::new(SystemClock);
        let om = Om::start(options, disk, space, host.clone(), addresses, clock).await.unwrap();
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        scm.add_to(&mut routes);
        om.add_to(&mut routes);
        let routes = routes.routes();
        (Metadata { scm, om, host, server: serve(listener, routes.clone()), routes }, address)
    }
}

impl Node {
    async fn start(root: &Path, scm: &str, options: DatanodeOptions) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let addresses = AddressBook::default();
        let host = RaftHost::new(HostOptions::default(), addresses.clone());
        let options = DatanodeOptions {
            disks: vec![root.join("disk1"), root.join("disk2")],
            scm: scm.to_owned(),
            address: address.clone(),
            log: log(),
            db: db(),
            ..options
        };
        let datanode = Datanode::start(options, host.clone(), addresses).await.unwrap();
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        datanode.add_to(&mut routes);
        let routes = routes.routes();
        Node { datanode, host, server: serve(listener, routes.clone()), routes, address }
    }

    /// Stops serving at once, then everything else: to the others it is gone.
    pub(crate) async fn stop(self) {
        self.server.abort();
        let _ = self.server.await;
        self.datanode.shutdown().await;
        self.host.shutdown().await;
    }
}

fn options_for(address: &str) -> ClientOptions {
    ClientOptions { scm: address.to_owned(), ..ClientOptions::default() }
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Cluster::start_with(DatanodeOptions::default()).await
    }

    pub(crate) async fn start_with(options: DatanodeOptions) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let (metadata, address) = Metadata::start(&dir.path().join("meta")).await;
        let mut nodes = Vec::new();
        for n in 1..=3 {
            nodes.push(Node::start(&dir.path().join(format!("dn{n}")), &address, options.clone()).await);
        }
        let client = Client::connect(options_for(&address));
        client.ready(DEADLINE).await.unwrap();
        client.create_bucket(S3_VOLUME, BUCKET).await.unwrap();
        Cluster { _dir: dir, metadata, nodes, client, metadata_address: address }
    }

    pub(crate) fn client_options(&self) -> ClientOptions {
        options_for(&self.metadata_address)
    }

    /// The services of all, for a client that is in the same process.
    pub(crate) fn local(&self) -> Local {
        let local = Local::default();
        local.open(&self.metadata_address, self.metadata.routes.clone());
        self.nodes.iter().for_each(|node| local.open(&node.address, node.routes.clone()));
        local
    }

    /// Waits until every pipeline has a leader that SCM has told of.
    pub(crate) async fn all_pipelines_led(&self) {
        let led = |view: &Arc<flotilla_client::View>| {
            view.pipelines.len() >= 4
                && view.pipelines.iter().all(|pipeline| pipeline.open && pipeline.leader.is_some())
        };
        let mut view = self.client.watch_view();
        tokio::time::timeout(DEADLINE, view.wait_for(led)).await.expect("pipelines get leaders").unwrap();
    }

    /// Waits until every replica has applied what any replica of its pipeline has: what is acknowledged is
    /// what a majority has.
    pub(crate) async fn all_caught_up(&self) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            // The last entry of any replica, and the one that all have applied.
            let mut pipelines = BTreeMap::<u64, (u64, u64)>::new();
            for report in self.nodes.iter().flat_map(|node| node.datanode.pipeline_reports()) {
                let (last, applied) = pipelines.entry(report.pipeline).or_insert((0, u64::MAX));
                (*last, *applied) = (report.last_index.max(*last), report.applied_index.min(*applied));
            }
            if pipelines.values().all(|(last, applied)| applied >= last) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "replicas do not catch up: {pipelines:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn put(&self, key: &str, body: Bytes) -> Result<Put, ClientError> {
        self.put_stream(key, frames(body)).await
    }

    pub(crate) async fn put_stream(
        &self,
        key: &str,
        body: impl Stream<Item = Result<Bytes, std::io::Error>>,
    ) -> Result<Put, ClientError> {
        self.client.put(S3_VOLUME, BUCKET, key.as_bytes(), KeyAttributes::default(), None, body).await
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Bytes, ClientError> {
        let key = self.client.lookup(S3_VOLUME, BUCKET, key.as_bytes()).await?;
        self.read(&key, 0..key.size).await
    }

    pub(crate) async fn read(
        &self,
        key: &proto::om::Key,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, ClientError> {
        let chunks: Vec<Bytes> = self.client.read(&key.pieces, range).try_collect().await?;
        Ok(Bytes::from(chunks.concat()))
    }

    /// Takes a node out; the one with this number in SCM's eyes.
    pub(crate) async fn stop_node(&mut self, node: NodeId) {
        let view = self.client.view();
        let members = view.pipelines.iter().flat_map(|pipeline| &pipeline.members);
        let address = members.into_iter().find(|member| member.node == node).unwrap().address.clone();
        let at = self.nodes.iter().position(|node| node.address == address).unwrap();
        self.nodes.remove(at).stop().await;
    }

    /// Ends a pipeline as SCM would, and waits until its members have.
    pub(crate) async fn end_pipeline(&self, pipeline: PipelineId) {
        const END: ContainerId = ContainerId(1 << 40);
        let has_ended = |node: &Node| {
            let reports = node.datanode.pipeline_reports();
            reports.iter().all(|report| report.pipeline != pipeline.0 || report.has_ended())
        };
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while !self.nodes.iter().all(has_ended) {
            assert!(tokio::time::Instant::now() < deadline, "pipeline {pipeline} does not end");
            for node in &self.nodes {
                node.datanode.end_pipeline(pipeline, END);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
        self.metadata.server.abort();
        self.metadata.om.shutdown().await;
        self.metadata.scm.shutdown().await;
        self.metadata.host.shutdown().await;
    }
}

/// Bytes that repeat at no power of two, different for each seed.
pub(crate) fn bytes_of(count: usize, seed: u64) -> Bytes {
    let step = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = (0..count as u64).map(|n| (n.wrapping_mul(step) >> 24) as u8 ^ (n % 251) as u8);
    bytes.collect::<Vec<u8>>().into()
}

/// A body as it comes from a socket.
pub(crate) fn frames(body: Bytes) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    const FRAME_BYTES: usize = 200_000;
    futures::stream::unfold(body, |mut rest| async move {
        if rest.is_empty() {
            return None;
        }
        let frame = rest.split_to(rest.len().min(FRAME_BYTES));
        Some((Ok(frame), rest))
    })
}
