//! Three datanodes and one pipeline.

use crate::scm::{CLUSTER, PlayedScm};
use bytes::Bytes;
use disk::OpenDiskError;
use flotilla_datanode::offline::OfflineDisk;
use flotilla_datanode::{ContainerAllocator, Datanode, DatanodeOptions, PipelineOrder};
use futures::future::BoxFuture;
use metrics::Exposition;
use proto::datanode::datanode_client::DatanodeClient;
use proto::datanode::{ReadRequest, WriteAck, WriteChunk};
use proto::{Code, Failure, Retry, uuid_bytes};
use raft::{AddressBook, HostOptions, Member, RaftHost, Role, Timing};
use raftlog::LogSpaceOptions;
use statedb::DbOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::service::RoutesBuilder;
use tonic::transport::Channel;
use types::{
    BlockName, CRC_CHUNK_BYTES, ContainerId, GroupId, NodeId, Nonce, Payload, PipelineId, ReplicaId,
};

pub(crate) const PIPELINE: PipelineId = PipelineId(3);
pub(crate) const FIRST_CONTAINER: ContainerId = ContainerId(100);

/// The time within which whatever is waited for happens, or the test fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The time between two looks at what is waited for.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// A machine that stands still for seconds must not cost a leader its lease: the tests hold on to the one
/// they found. None of them needs an election that only silence brings about, because the first member
/// campaigns at once, and [`Cluster::stop_nodes`] sees to it that it can win. Where that fails all the same
/// (nobody took over in time), silence decides: well below [`DEADLINE`].
const PATIENT: Timing = Timing {
    heartbeat: Duration::from_millis(500),
    election_min: Duration::from_secs(8),
    election_max: Duration::from_secs(12),
};

/// Numbers containers upwards, as SCM does: the same successor however often it is asked.
pub(crate) struct NextNumber;

impl ContainerAllocator for NextNumber {
    fn allocate(
        &self,
        _: &str,
        _: PipelineId,
        after: ContainerId,
    ) -> BoxFuture<'static, Result<ContainerId, Failure>> {
        Box::pin(async move { Ok(ContainerId(after.0 + 1)) })
    }
}

/// Gives none, as SCM does while a pipeline closes.
struct NoNumber;

impl ContainerAllocator for NoNumber {
    fn allocate(
        &self,
        _: &str,
        _: PipelineId,
        _: ContainerId,
    ) -> BoxFuture<'static, Result<ContainerId, Failure>> {
        Box::pin(async move { Err(Failure::new(Code::Closed, "the pipeline closes")) })
    }
}

pub(crate) struct Node {
    pub(crate) datanode: Datanode,
    pub(crate) host: RaftHost,
    pub(crate) address: String,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

pub(crate) struct Cluster {
    dirs: Vec<tempfile::TempDir>,
    pub(crate) options: DatanodeOptions,
    allocator: Arc<dyn ContainerAllocator>,
    addresses: AddressBook,
    pub(crate) nodes: Vec<Node>,
    /// The SCM that a test plays, where it plays one.
    scm: Option<PlayedScm>,
}

pub(crate) fn options() -> DatanodeOptions {
    DatanodeOptions {
        // Nobody answers there: what the disks hold must do.
        scm: "127.0.0.1:1".to_owned(),
        pipeline_timing: PATIENT,
        log: LogSpaceOptions {
            segment_bytes_max: 16 << 20,
            reserve_bytes: 16 << 20,
            ..LogSpaceOptions::default()
        },
        db: DbOptions { block_cache_bytes: 4 << 20, write_buffer_bytes: 4 << 20, ..DbOptions::default() },
        ..DatanodeOptions::default()
    }
}

/// Repeats what needs data directories that somebody has just closed, until they are free: what their logs
/// began last (asking for the free space of the disk) ends by itself, and holds them until then.
async fn once_free<T>(attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match attempt().await {
            Err(failure) if is_in_use(&failure) && Instant::now() < deadline => {
                tokio::time::sleep(LOOK).await;
            }
            done => return done,
        }
    }
}

fn is_in_use(failure: &anyhow::Error) -> bool {
    matches!(failure.downcast_ref::<OpenDiskError>(), Some(OpenDiskError::InUse { .. }))
}

/// The disk of a node that was stopped.
pub(crate) async fn open_offline(disk: &Path) -> OfflineDisk {
    once_free(async || OfflineDisk::open(disk)).await.unwrap()
}

impl Node {
    pub(crate) async fn start(
        options: DatanodeOptions,
        addresses: AddressBook,
        allocator: Arc<dyn ContainerAllocator>,
    ) -> anyhow::Result<Node> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let host = RaftHost::new(HostOptions::default(), addresses.clone());
        let options = DatanodeOptions { address: address.clone(), ..options };
        let datanode = Datanode::start_with_allocator(options, host.clone(), addresses, allocator).await?;
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        datanode.add_to(&mut routes);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(rpc::serve(listener, routes.routes(), async { drop(stopped.await) }));
        Ok(Node { datanode, host, address, stop, server })
    }

    pub(crate) async fn shut_down(self) {
        self.datanode.shutdown().await;
        self.host.shutdown().await;
        let _ = self.stop.send(());
        // Connections of clients that live on would hold up a graceful end.
        self.server.abort();
        let _ = self.server.await;
    }

    pub(crate) async fn client(&self) -> DatanodeClient<Channel> {
        let client = DatanodeClient::connect(format!("http://{}", self.address)).await.unwrap();
        client
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX)
    }

    /// The value of a metric that is shown under this name, with its labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut exposition = Exposition::default();
        self.datanode.expose(&mut exposition);
        let text = exposition.finish();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    }

    pub(crate) async fn write_stream(&self) -> WriteStream {
        let (chunks, receiver) = mpsc::channel(4);
        let response = self.client().await.write(in_cluster(ReceiverStream::new(receiver))).await.unwrap();
        WriteStream { chunks, acks: response.into_inner() }
    }

    /// Reads and verifies a range.
    pub(crate) async fn read(
        &self,
        block: BlockName,
        offset: u64,
        length: u64,
        commit_index: u64,
    ) -> Result<Vec<u8>, Failure> {
        let request =
            ReadRequest { block: Some(block.into()), offset, length, commit_index, message_bytes_max: 0 };
        let mut chunks = self.client().await.read(in_cluster(request)).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            assert_eq!(chunk.offset, offset + bytes.len() as u64);
            assert!(!chunk.data.is_empty() && chunk.data.len() <= 1 << 20);
            let (first, rest) = chunk.data.split_at(chunk.first_piece_bytes as usize);
            let sums = std::iter::once(first).chain(rest.chunks(CRC_CHUNK_BYTES)).map(crc_of);
            assert_eq!(sums.collect::<Vec<_>>(), chunk.data_crcs);
            bytes.extend_from_slice(&chunk.data);
        }
        Ok(bytes)
    }

    /// [`Node::read`] of what was acknowledged. That is what a majority has: a replica that is behind, on a
    /// busy machine by more than a read waits for, is asked again until it has caught up.
    pub(crate) async fn read_acknowledged(
        &self,
        block: BlockName,
        offset: u64,
        length: u64,
        commit_index: u64,
    ) -> Result<Vec<u8>, Failure> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let read = timeout(DEADLINE, self.read(block, offset, length, commit_index)).await;
            match read.expect("a read ends in time") {
                Err(failure) if commit_index > 0 && is_behind(&failure) && Instant::now() < deadline => {
                    tokio::time::sleep(LOOK).await;
                }
                read => return read,
            }
        }
    }
}

/// Whether a replica may know more when it is asked again.
fn is_behind(failure: &Failure) -> bool {
    match failure.code {
        Code::NotYet | Code::Busy => true,
        // The container is yet to come. Of a container that lacks the block, a replica says that asking again
        // is no use.
        Code::NotFound => failure.retry == Retry::Elsewhere,
        _ => false,
    }
}

/// A request to a node of the cluster that [`PlayedScm`] makes; one that no SCM registered takes it too.
pub(crate) fn in_cluster<T>(message: T) -> tonic::Request<T> {
    proto::in_cluster(tonic::Request::new(message), CLUSTER)
}

fn crc_of(piece: &[u8]) -> u32 {
    Payload::checksummed(Bytes::copy_from_slice(piece)).crcs()[0]
}

pub(crate) struct WriteStream {
    chunks: mpsc::Sender<WriteChunk>,
    acks: Streaming<WriteAck>,
}

/// The block of an answer.
pub(crate) fn named(ack: &WriteAck) -> BlockName {
    let nonce = proto::bytes16(&ack.nonce, "nonce").unwrap();
    let block = ack.block.expect("an ack names its block").into();
    BlockName::new(block, Nonce(u128::from_be_bytes(nonce)))
}

/// An acknowledgement, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    pub(crate) seq: u32,
    pub(crate) block: BlockName,
    pub(crate) length: u64,
    pub(crate) commit_index: u64,
}

impl WriteStream {
    pub(crate) async fn send(&self, chunk: WriteChunk) {
        timeout(DEADLINE, self.chunks.send(chunk))
            .await
            .expect("the stream takes the chunk in time")
            .unwrap();
    }

    pub(crate) fn sender(&self) -> mpsc::Sender<WriteChunk> {
        self.chunks.clone()
    }

    pub(crate) async fn ack(&mut self) -> WriteAck {
        let ack = timeout(DEADLINE, self.acks.message()).await.expect("an ack comes in time");
        ack.unwrap().expect("the stream goes on")
    }

    pub(crate) async fn acked(&mut self) -> Result<Acked, Failure> {
        let ack = self.ack().await;
        match ack.error.clone() {
            Some(error) => Err(error.into()),
            None => {
                let (seq, length, commit_index) = (ack.seq, ack.length, ack.commit_index);
                Ok(Acked { seq, block: named(&ack), length, commit_index })
            }
        }
    }

    /// Writes a chunk and waits for its answer, whatever that is.
    pub(crate) async fn write_once(&mut self, chunk: WriteChunk) -> Result<Acked, Failure> {
        self.send(chunk).await;
        self.acked().await
    }

    /// Writes a chunk and waits for its answer. A leader that has not heard of its followers for a while (a
    /// busy machine) takes nothing until it has: that answer is not of interest here.
    pub(crate) async fn write(&mut self, chunk: WriteChunk) -> Result<Acked, Failure> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.write_once(chunk.clone()).await {
                Err(failure)
                    if failure.code == Code::NotLeader
                        && failure.leader_address.is_none()
                        && Instant::now() < deadline =>
                {
                    tokio::task::yield_now().await;
                }
                answer => return answer,
            }
        }
    }

    /// Says that no more chunks come and checks that the stream then ends.
    pub(crate) async fn finish(mut self) {
        drop(self.chunks);
        let end = timeout(DEADLINE, self.acks.message()).await.expect("the stream ends in time");
        assert_eq!(end.unwrap(), None);
    }
}

pub(crate) fn chunk(nonce: u128, seq: u32, offset: usize, data: &[u8], seal: bool) -> WriteChunk {
    let (data, crcs) = Payload::checksummed(Bytes::copy_from_slice(data)).into_parts();
    WriteChunk {
        pipeline: PIPELINE.0,
        nonce: uuid_bytes(nonce),
        seq,
        offset: offset as u64,
        data,
        data_crcs: crcs.to_vec(),
        seal,
        ..WriteChunk::default()
    }
}

/// Bytes that differ from block to block and place to place.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

impl Cluster {
    /// Three nodes with two disks each, carrying one pipeline with a leader.
    pub(crate) async fn start(options: DatanodeOptions) -> Cluster {
        Cluster::start_with(options, Arc::new(NextNumber)).await
    }

    pub(crate) async fn start_refusing_containers(options: DatanodeOptions) -> Cluster {
        Cluster::start_with(options, Arc::new(NoNumber)).await
    }

    async fn start_with(options: DatanodeOptions, allocator: Arc<dyn ContainerAllocator>) -> Cluster {
        let dirs = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let addresses = AddressBook::default();
        let mut cluster = Cluster { dirs, options, allocator, addresses, nodes: Vec::new(), scm: None };
        cluster.start_nodes().await;
        cluster.create_pipeline().await;
        cluster.wait_for_leader().await;
        cluster
    }

    /// Starts as [`Cluster::start`] does, with more nodes perhaps, which all have registered at an SCM that
    /// the test plays; the pipeline is on the first three. Their numbers are 1, 2, 3, ...
    pub(crate) async fn start_with_scm(options: DatanodeOptions, count: usize) -> (Cluster, PlayedScm) {
        let scm = PlayedScm::start().await;
        let options =
            DatanodeOptions { scm: scm.address.clone(), heartbeat: Duration::from_millis(100), ..options };
        let dirs = (0..count).map(|_| tempfile::tempdir().unwrap()).collect();
        let allocator = Arc::new(NextNumber);
        let (addresses, nodes) = Default::default();
        let mut cluster = Cluster { dirs, options, allocator, addresses, nodes, scm: Some(scm.clone()) };
        cluster.start_nodes().await;
        cluster.create_pipeline().await;
        cluster.wait_for_leader().await;
        (cluster, scm)
    }

    pub(crate) fn disk_paths(&self, node: usize) -> Vec<PathBuf> {
        (0..2).map(|disk| self.dirs[node].path().join(format!("disk{disk}"))).collect()
    }

    pub(crate) async fn start_nodes(&mut self) {
        self.addresses = AddressBook::default();
        for node in 0..self.dirs.len() {
            self.start_node(node).await;
        }
    }

    /// Starts a node that is not running, on a port of its own; it is the caller's to stop.
    pub(crate) async fn start_apart(&self, node: usize) -> Node {
        let options = DatanodeOptions { disks: self.disk_paths(node), ..self.options.clone() };
        let start =
            async || Node::start(options.clone(), self.addresses.clone(), self.allocator.clone()).await;
        let started = once_free(start).await.unwrap();
        self.addresses.set(NodeId(node as u64 + 1), started.address.clone());
        started
    }

    /// Starts a node that is not running.
    pub(crate) async fn start_node(&mut self, node: usize) {
        let started = self.start_apart(node).await;
        self.nodes.insert(node, started);
        if let Some(scm) = &self.scm {
            // So that they get their numbers in order, and know their cluster before they carry anything.
            let datanode = self.nodes[node].datanode.clone();
            scm.wait(node as u64 + 1, "anything", |said| said.beats > 0 && datanode.cluster().is_some())
                .await;
        }
    }

    /// The nodes after it move up.
    pub(crate) async fn stop_node(&mut self, node: usize) {
        self.nodes.remove(node).shut_down().await;
    }

    /// The order that SCM would give a node.
    pub(crate) fn order(&self, node: usize) -> PipelineOrder {
        let member = |(n, node): (usize, &Node)| Member {
            replica: ReplicaId(n as u64 + 11),
            node: NodeId(n as u64 + 1),
            address: node.address.clone(),
        };
        PipelineOrder {
            pipeline: PIPELINE,
            first_container: FIRST_CONTAINER,
            replica: ReplicaId(node as u64 + 11),
            // Not the same disk everywhere.
            disk: self.nodes[node].datanode.disk_ids()[node % 2],
            members: self.nodes.iter().take(3).enumerate().map(member).collect(),
            member_disks: vec![bytes::Bytes::new(); 3],
        }
    }

    async fn create_pipeline(&self) {
        for (n, node) in self.nodes.iter().enumerate().take(3) {
            assert!(node.datanode.create_pipeline(&self.order(n)).await.unwrap());
        }
    }

    /// Waits until all replicas know the same leader and it takes commands (it does not before a quorum has
    /// answered it), and returns its position. On a busy machine leadership may move while we look.
    pub(crate) async fn wait_for_leader(&self) -> usize {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let groups: Vec<_> = self.nodes.iter().take(3).map(|node| self.group_of(node)).collect();
            let statuses: Vec<_> = groups.iter().map(|group| group.status()).collect();
            let stopped = statuses.iter().find(|status| status.role == Role::Stopped);
            assert!(stopped.is_none(), "a replica stopped: {:?}", stopped.map(|status| &status.failure));
            let leaders: Vec<_> =
                statuses.iter().map(|status| status.leader.as_ref().map(|leader| leader.node)).collect();
            if let Some(leader) = leaders[0]
                && leaders.iter().all(|known| *known == Some(leader))
            {
                let leader = usize::try_from(leader.0).unwrap() - 1;
                if groups[leader].read_index().await.is_ok() {
                    return leader;
                }
            }
            assert!(Instant::now() < deadline, "no leader that all know: {leaders:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    fn group_of(&self, node: &Node) -> raft::Group {
        node.host.group(GroupId::pipeline(PIPELINE)).expect("the pipeline is open")
    }

    pub(crate) async fn leader(&self) -> &Node {
        &self.nodes[self.wait_for_leader().await]
    }

    /// Writes a chunk to whoever leads, as often as it takes.
    pub(crate) async fn write(&self, chunk: WriteChunk) -> Acked {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let leader = self.leader().await;
            match leader.write_stream().await.write(chunk.clone()).await {
                Ok(acked) => return acked,
                Err(failure) => {
                    assert!(failure.retry != Retry::No && Instant::now() < deadline, "{failure}");
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }

    /// Checks that every replica gives the same bytes.
    pub(crate) async fn check_block(&self, block: BlockName, commit_index: u64, expect: &[u8]) {
        for (n, node) in self.nodes.iter().enumerate().take(3) {
            let read = node.read_acknowledged(block, 0, expect.len() as u64, commit_index).await;
            assert!(read.unwrap() == expect, "block {block} on node {n} differs");
        }
    }

    /// Stops all nodes and starts them again, on other ports.
    pub(crate) async fn restart(&mut self) {
        self.stop_nodes().await;
        self.start_nodes().await;
    }

    /// The first member last, so that leadership ends with it: it has the longest log then, and when all come
    /// back, its campaign is won at once. In another order it would lack the entries with which its
    /// successors began.
    pub(crate) async fn stop_nodes(&mut self) {
        let members = self.nodes.len().min(3);
        self.nodes[..members].reverse();
        for node in self.nodes.drain(..) {
            node.shut_down().await;
        }
    }

    pub(crate) async fn shut_down(self) {
        for node in self.nodes {
            node.shut_down().await;
        }
    }
}
